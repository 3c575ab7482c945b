"""M2PO: drop the tokens with the largest squared log-ratio until the mean square of the rest is small.

The budget is on the batch, not on a token: a few stale tokens go, many slightly stale ones stay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labs.errors import InputError
from labs.registry import masks


@masks.entry(needs=("old_log_probs", "rollout_log_probs"), level="token", paper="M2PO 2025, arXiv:2510.01161; AReaL")
def second_moment(
    *, response_mask: Tensor, old_log_probs: Tensor, rollout_log_probs: Tensor, threshold: float = 0.04
) -> Tensor:
    """`response_mask` after dropping the fewest tokens that leave mean (old - rollout log-probability)^2 < threshold.

    Tokens go in order of their squared log-ratio, the largest first; the smallest always survives, also when it alone
    breaks the threshold. Shapes `[B, T]`; threshold in nats squared, over 0.
    """
    if not old_log_probs.shape == rollout_log_probs.shape == response_mask.shape:
        raise InputError(
            f"second_moment: old_log_probs {tuple(old_log_probs.shape)}, rollout_log_probs "
            f"{tuple(rollout_log_probs.shape)} and response_mask {tuple(response_mask.shape)} must agree on [B, T]"
        )
    if not threshold > 0:
        raise InputError(f"second_moment: threshold is {threshold}; it must be over 0")
    valid = response_mask.bool()
    squares = (old_log_probs.detach() - rollout_log_probs)[valid] ** 2
    if squares.numel() == 0:
        return response_mask.clone()
    ordered, order = squares.sort()
    # Means of growing prefixes of an ascending sequence ascend too, so the kept tokens are a prefix.
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    kept = max(1, int((means < threshold).sum()))
    keep = torch.zeros_like(valid)
    rows, tokens = valid.nonzero(as_tuple=True)
    keep[rows[order[:kept]], tokens[order[:kept]]] = True
    return response_mask * keep.to(response_mask.dtype)
