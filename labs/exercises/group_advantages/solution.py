"""Group advantages by two rules."""

import math

EPSILON = 1e-6


def group_advantages(rewards: list[float], groups: list[str]) -> tuple[list[float], list[float]]:
    """Advantages within each group, by the course's rule and by verl's GRPO.

    Args:
        rewards: one per trajectory.
        groups: the group (task) of each trajectory.

    Returns:
        (course, verl): two lists in the order of the trajectories.
        course: (r - mean) / population standard deviation; 0 in a group of equal rewards.
        verl: (r - mean) / (sample standard deviation + EPSILON); in a group of one r / (1 + EPSILON).
    """
    course, verl = [0.0] * len(rewards), [0.0] * len(rewards)
    for i, (r, group) in enumerate(zip(rewards, groups, strict=True)):
        own = [x for x, g in zip(rewards, groups, strict=True) if g == group]
        n = len(own)
        mean = sum(own) / n
        squares = sum((x - mean) ** 2 for x in own)
        spread = math.sqrt(squares / n)
        course[i] = (r - mean) / spread if spread else 0.0
        if n == 1:
            verl[i] = r / (1 + EPSILON)
        else:
            verl[i] = (r - mean) / (math.sqrt(squares / (n - 1)) + EPSILON)
    return course, verl
