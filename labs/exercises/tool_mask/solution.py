"""What the loss becomes when tool text is taken for the policy's own."""

import torch
from torch import Tensor


def tool_mask_effect(log_prob: Tensor, advantages: Tensor, response_mask: Tensor, attention_mask: Tensor) -> Tensor:
    """The loss with the right mask and with the tool mask set to 1 by mistake.

    Args:
        log_prob: float64 [B, T], log-probability of every token.
        advantages: float64 [B], one per row.
        response_mask: int64 [B, T], 1 on tokens the policy chose.
        attention_mask: int64 [B, T], 1 on real tokens, tool text included; 0 on padding.

    Returns:
        float64 [4]: right loss, wrong loss, the part of their difference that comes from the denominator, the part
        that comes from the numerator (so that right + both parts = wrong).
    """
    push = -advantages[:, None] * log_prob
    own = torch.where(response_mask.bool(), push, 0.0).sum()
    real = torch.where(attention_mask.bool(), push, 0.0).sum()
    right = own / response_mask.sum()
    wrong = real / attention_mask.sum()
    denominator = own / attention_mask.sum() - right
    numerator = (real - own) / attention_mask.sum()
    return torch.stack([right, wrong, denominator, numerator])
