"""Mean over the positions that a mask selects."""

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values` over the positions where `mask` is 1.

    Args:
        values: float64 [B, T].
        mask: int64 [B, T] of 0 and 1.

    Returns:
        A float64 scalar (a tensor without dimensions); 0 when the mask selects nothing. A position with mask 0
        counts for nothing, even when it holds NaN; a NaN on a position that counts makes the mean NaN.
    """
    kept = torch.where(mask.bool(), values, 0.0)
    count = mask.sum()
    return kept.sum() / count.clamp(min=1)
