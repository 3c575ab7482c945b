"""Rewards centred within their group."""


def centred(rewards: list[float], groups: list[str], group_size: int) -> list[float]:
    """Reward minus the mean reward of the rows of the same group.

    Args:
        rewards: one per row.
        groups: the task of each row.
        group_size: how many rows of each task were asked for.

    Returns:
        One advantage per row, in their order.
    """
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    blocks = list(members.values())
    advantages = [0.0] * len(rewards)
    for block in blocks:
        baseline = sum(rewards[i] for i in block) / len(block)
        for i in block:
            advantages[i] = rewards[i] - baseline
    return advantages
