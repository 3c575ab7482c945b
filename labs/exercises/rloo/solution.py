"""Leave-one-out advantages."""


def rloo(rewards: list[float], groups: list[str]) -> list[float]:
    """Reward minus the mean reward of the *other* trajectories of the same group.

    Args:
        rewards: one per trajectory.
        groups: the group (task) of each trajectory; members of a group need not stand next to each other.

    Returns:
        One advantage per trajectory, in their order. A trajectory alone in its group keeps its reward.
    """
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        own = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        total, size = sum(own), len(own)
        if size == 1:
            advantages.append(reward)
        else:
            advantages.append(reward - (total - reward) / (size - 1))
    return advantages
