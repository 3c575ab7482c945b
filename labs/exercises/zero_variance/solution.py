"""Share of groups without contrast, and what they do to the step."""


def zero_variance(
    rewards: list[float], groups: list[str], kinds: list[str], tokens: list[int]
) -> dict[str, dict[str, float] | float]:
    """Dead groups per kind of task, and the tokens that still teach something.

    Args:
        rewards: one per row.
        groups: the group of each row (one task, several rollouts).
        kinds: the kind of task of each row; rows of a group are of one kind.
        tokens: how many tokens of each row the policy chose.

    Returns:
        share: kind -> share of its groups whose rewards are all equal.
        live_tokens: tokens of the rows of all other groups.
        all_tokens: tokens of all rows, the denominator of the token mean.
        scale: live_tokens / all_tokens.
    """
    kind = dict(zip(groups, kinds, strict=True))
    shares: dict[str, list[bool]] = {}
    live = 0
    for group in kind:
        own = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        equal = min(own) == max(own)
        shares.setdefault(kind[group], []).append(equal)
        if not equal:
            live += sum(t for t, g in zip(tokens, groups, strict=True) if g == group)
    return {
        "share": {name: sum(flags) / len(flags) for name, flags in shares.items()},
        "live_tokens": live,
        "all_tokens": sum(tokens),
        "scale": live / sum(tokens),
    }
