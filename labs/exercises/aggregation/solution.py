"""Five ways to turn a table of token losses into a number."""

import torch
from torch import Tensor


def aggregate(losses: Tensor, response_mask: Tensor, loss_mask: Tensor) -> Tensor:
    """The five reductions of verl, with the denominators from before rejection.

    Args:
        losses: float64 [B, T].
        response_mask: int64 [B, T]; 1 on tokens that still count: the numerators.
        loss_mask: int64 [B, T]; 1 on all tokens the policy chose, rejected ones included: the denominators.

    Returns:
        float64 [5]: token-mean, token-sum, seq-mean-token-sum, seq-mean-token-sum-norm, seq-mean-token-mean.
    """
    kept = torch.where(response_mask.bool(), losses, 0.0)
    rows, width = losses.shape
    token_sum = kept.sum()
    token_mean = token_sum / loss_mask.sum()
    row_sums = kept.sum(1)
    seq_sum = row_sums.sum() / rows
    seq_norm = seq_sum / width
    seq_mean = (row_sums / response_mask.sum(1).clamp(min=1)).sum() / rows
    return torch.stack([token_mean, token_sum, seq_sum, seq_norm, seq_mean])
