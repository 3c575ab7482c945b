"""The clipped policy loss with asymmetric bounds and the dual clip."""

import torch
from torch import Tensor


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    clip_dual: float,
) -> Tensor:
    """Mean over the tokens that count of the clipped surrogate loss.

    Args:
        old_log_prob, log_prob, advantages: float64 [B, T].
        mask: int64 [B, T]; at least one 1.
        clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
        clip_dual: bound on the loss of a negative advantage, in units of -advantage; above 1.

    Returns:
        A float64 scalar.
    """
    ratio = torch.exp(log_prob - old_log_prob)
    plain = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    bounded = torch.minimum(loss, -advantages * clip_dual)
    loss = torch.where(advantages < 0, bounded, loss)
    return torch.where(mask.bool(), loss, 0.0).sum() / mask.sum()
