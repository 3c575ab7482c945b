"""Graded redistribution of the advantages of one group."""


def redistribute(rewards: list[float], quality: list[float], cap: float | None) -> list[float]:
    """Move advantage among the passing rollouts of a group towards the better ones.

    Args:
        rewards: 1 for a pass, 0 for a failure.
        quality: a grade in (0, 1] for each rollout; read on passes only.
        cap: largest lambda, None for no cap.

    Returns:
        One advantage per rollout; they sum to 0.
    """
    mean = sum(rewards) / len(rewards)
    advantages = [r - mean for r in rewards]
    passes = [i for i, r in enumerate(rewards) if r == 1]
    weighted = sum(quality[i] * advantages[i] for i in passes)
    if weighted == 0:
        return advantages
    scale = sum(advantages[i] for i in passes) / weighted
    if cap is not None:
        scale = min(scale, cap)
    for i in passes:
        advantages[i] = scale * quality[i] * advantages[i]
    centre = sum(advantages) / len(advantages)
    return [a - centre for a in advantages]
