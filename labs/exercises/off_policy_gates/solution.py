"""Which tokens and rows are too far off policy to be trained."""

import torch
from torch import Tensor


def off_policy_gates(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four masks that rejection rules leave.

    Args:
        log_ratio: float64 [B, T], log pi_old - log pi_rollout.
        advantages: float64 [B].
        mask: int64 [B, T]; every row has a 1.
        low, high: a ratio is acceptable in the closed range [low, high].

    Returns:
        int64 [B, T] each: token (each token by its own ratio), sequence (the row by the product of its ratios),
        geometric (the row by the geometric mean of its ratios), negative (as geometric, but only rows with a
        negative advantage can be rejected).
    """
    kept = torch.where(mask.bool(), log_ratio, 0.0)
    token = torch.exp(kept)
    product = torch.exp(kept.sum(1))
    mean = torch.exp(kept.sum(1) / mask.sum(1))
    by_token = (token >= low) & (token <= high)
    by_sequence = (product >= low) & (product <= high)
    by_mean = (mean >= low) & (mean <= high)
    by_sign = by_mean | (advantages >= 0)
    rows = [gate[:, None].expand_as(by_token) for gate in (by_sequence, by_mean, by_sign)]
    masks = [mask * gate.long() for gate in (by_token, *rows)]
    return masks[0], masks[1], masks[2], masks[3]
