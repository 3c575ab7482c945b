"""Return of every token of one row, under two rules for tool replies."""


def returns_to_go(rewards: list[float], mask: list[int], gamma: float) -> tuple[list[float], list[float]]:
    """Discounted sum of the rewards from each policy token on.

    Args:
        rewards: one per token; those under mask 0 are lost.
        mask: 1 on tokens the policy chose, 0 on tool text and padding.
        gamma: discount per policy token.

    Returns:
        (carried, reset): the return crosses a run of zeros unchanged; or it begins anew before every run of zeros.
        Both are 0 under mask 0.
    """
    carried, reset = [0.0] * len(rewards), [0.0] * len(rewards)
    crossing = local = 0.0
    for t in reversed(range(len(rewards))):
        if mask[t]:
            crossing = rewards[t] + gamma * crossing
            local = rewards[t] + gamma * local
            carried[t], reset[t] = crossing, local
        else:
            local = 0.0
    return carried, reset
