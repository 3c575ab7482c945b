"""Keep the tokens where the policy was least certain: the top quantile of entropy over the batch.

Most of the gain of RL on reasoning comes from a minority of high-entropy "forking" tokens (Wang et al. 2025,
arXiv:2506.01939, who keep 20 %).
"""

from __future__ import annotations

import torch
from torch import Tensor

from labs.errors import InputError
from labs.registry import masks


@masks.entry(needs=("entropy",), level="token", paper="arXiv:2506.01939; TRL 1.16 top_entropy_quantile")
def high_entropy(*, response_mask: Tensor, entropy: Tensor, top: float = 0.2) -> Tensor:
    """`response_mask` with the tokens removed whose entropy is under the batch's (1 - `top`) quantile.

    Args:
        response_mask, entropy: `[B, T]`; entropy in nats.
        top: share to keep, in [0, 1]. 1 keeps all, 0 keeps only the tokens that attain the maximum.

    Returns:
        `[B, T]` in the dtype of `response_mask`.
    """
    if not 0.0 <= top <= 1.0:
        raise InputError(f"high_entropy: top is {top}; it is the share of tokens to keep, from 0 to 1")
    return response_mask * keep_high_entropy(entropy, response_mask, 1.0 - top).to(response_mask.dtype)


def keep_high_entropy(entropy: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """`[B, T]` bool: valid tokens whose entropy is at least the `threshold` quantile over valid tokens.

    The quantile is interpolated linearly and computed in float32, as TRL's `get_high_entropy_mask` does, and compared
    in float32 too, so that the maximum is always kept. Nothing is kept in a batch without a valid token.
    """
    if entropy.shape != mask.shape:
        raise InputError(f"high_entropy: entropy has shape {tuple(entropy.shape)}, the mask has {tuple(mask.shape)}")
    valid = mask.bool()
    single = entropy.detach().float()
    inside = single[valid]
    if inside.numel() == 0:
        return torch.zeros_like(valid)
    return (single >= torch.quantile(inside, threshold)) & valid
