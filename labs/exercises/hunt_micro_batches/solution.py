"""The loss of a batch, accumulated over micro-batches."""

import torch
from torch import Tensor


def accumulated_loss(losses: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    """The mean over all tokens of the batch, computed one micro-batch after the other.

    Args:
        losses: float64 [B, T].
        mask: int64 [B, T]; 1 on tokens that count.
        sizes: rows of each micro-batch; they sum to B.

    Returns:
        A float64 scalar.
    """
    total = losses.new_zeros(())
    start = 0
    for size in sizes:
        rows = slice(start, start + size)
        part = torch.where(mask[rows].bool(), losses[rows], 0.0).sum()
        total = total + part / mask.sum()
        start += size
    return total
