"""CISPO: the clipped importance ratio as a constant weight."""

import torch
from torch import Tensor


def cispo_loss(
    old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float
) -> Tensor:
    """Token mean of minus (clipped ratio, held constant) times advantage times log-probability.

    Args:
        old_log_prob, log_prob, advantages: float64 [B, T].
        mask: int64 [B, T]; at least one 1.
        low, high: the ratio is clipped to [1 - low, 1 + high].

    Returns:
        A float64 scalar.
    """
    ratio = torch.exp(log_prob - old_log_prob)
    weight = torch.clamp(ratio, 1 - low, 1 + high)
    loss = -weight.detach() * advantages * log_prob
    return torch.where(mask.bool(), loss, 0.0).sum() / mask.sum()
