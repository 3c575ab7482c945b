"""Importance weights of the rollout policy, and how many samples they leave."""

import torch
from torch import Tensor


def importance_weights(
    old_log_prob: Tensor, rollout_log_prob: Tensor, mask: Tensor, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Truncated weights by token and by sequence, and the effective sample size.

    Args:
        old_log_prob, rollout_log_prob: float64 [B, T], of the trainer's policy and of the policy that sampled.
        mask: int64 [B, T]; every row has a 1.
        cap: largest weight.

    Returns:
        tokens [B, T]: min(ratio, cap), 0 under mask 0.
        rows [B]: min(product of the ratios of the row's tokens, cap).
        effective: scalar, (sum w)^2 / sum of w^2 over B, w the row weights *before* the cap; in (0, 1].
    """
    log_ratio = torch.where(mask.bool(), old_log_prob - rollout_log_prob, 0.0)
    tokens = torch.exp(log_ratio).clamp(max=cap) * mask
    raw = torch.exp(log_ratio.sum(1))
    rows = raw.clamp(max=cap)
    effective = raw.sum().square() / raw.square().sum() / len(raw)
    return tokens, rows, effective
