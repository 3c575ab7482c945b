"""Whitening of advantages over the tokens of a batch."""

import torch
from torch import Tensor


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the tokens that count.

    Args:
        advantages: float64 [B, T].
        mask: int64 [B, T]; 1 on tokens that count.

    Returns:
        float64 [B, T]: (A - mean) / sqrt(var + 1e-8) with the population variance, 0 under mask 0; all 0 when
        nothing counts.
    """
    kept = torch.where(mask.bool(), advantages, 0.0)
    count = mask.sum().clamp(min=1)
    mean = kept.sum() / count
    centred = torch.where(mask.bool(), advantages - mean, 0.0)
    variance = centred.square().sum() / count
    return centred / torch.sqrt(variance + 1e-8)
