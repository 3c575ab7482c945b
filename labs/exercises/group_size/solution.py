"""What the group size does to the number of informative groups, exactly."""

import math


def group_size_effect(success: float, group_size: int, rollouts: int) -> tuple[float, float, float]:
    """Dead share, expected live groups and expected signal for tasks of one success probability.

    Args:
        success: probability that one rollout gets reward 1 (else 0).
        group_size: rollouts per group.
        rollouts: all rollouts, a multiple of group_size.

    Returns:
        (probability that a group is dead, expected number of live groups, expected sum over all rollouts of |A|),
        A by the course's rule: (r - mean) / population standard deviation, 0 in a dead group.
    """
    p, n = success, group_size
    groups = rollouts / n
    dead = p**n + (1 - p) ** n if n > 1 else 1.0
    signal = sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) * 2 * math.sqrt(k * (n - k)) for k in range(1, n))
    return dead, groups * (1 - dead), groups * signal
