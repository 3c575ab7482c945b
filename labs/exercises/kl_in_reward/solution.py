"""The KL penalty inside the reward, and the controller of its coefficient."""


def kl_in_reward(
    scores: list[list[float]],
    old_log_prob: list[list[float]],
    ref_log_prob: list[list[float]],
    mask: list[list[int]],
    beta: float,
    target: float,
    horizon: float,
) -> tuple[list[list[float]], float]:
    """Token rewards with the penalty, and the coefficient of the next step.

    Args:
        scores, old_log_prob, ref_log_prob: [B][T].
        mask: [B][T]; 1 on tokens the policy chose.
        beta: coefficient of this step.
        target, horizon: of the controller.

    Returns:
        (rewards [B][T], next beta).
    """
    rewards, means = [], []
    for row, old, ref, own in zip(scores, old_log_prob, ref_log_prob, mask, strict=True):
        kl = [(o - r) * m for o, r, m in zip(old, ref, own, strict=True)]
        rewards.append([s - beta * k for s, k in zip(row, kl, strict=True)])
        means.append(sum(kl) / max(sum(own), 1))
    current = sum(means) / len(means)
    error = min(max(current / target - 1, -0.2), 0.2)
    return rewards, beta * (1 + error * len(scores) / horizon)
