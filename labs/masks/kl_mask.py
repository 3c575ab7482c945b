"""Drop tokens that drifted: half the squared log-ratio to the rollout policy over a threshold.

torchrl's KL-Mask. Its documentation speaks of the *reference* policy; its code, and this, read the rollout's.
"""

from __future__ import annotations

from torch import Tensor

from labs.errors import InputError
from labs.registry import masks


@masks.entry(needs=("log_prob", "rollout_log_probs"), level="token", paper="torchrl 0.14 kl_mask_threshold")
def kl_mask(*, response_mask: Tensor, log_prob: Tensor, rollout_log_probs: Tensor, threshold: float = 0.05) -> Tensor:
    """`response_mask` without the tokens where 0.5 (log_prob - rollout_log_probs)^2 > `threshold` (nats).

    Symmetric in the direction of the drift and blind to the advantage. A NaN drift is removed. Shapes `[B, T]`.
    """
    if not log_prob.shape == rollout_log_probs.shape == response_mask.shape:
        raise InputError(
            f"kl_mask: log_prob {tuple(log_prob.shape)}, rollout_log_probs {tuple(rollout_log_probs.shape)} and "
            f"response_mask {tuple(response_mask.shape)} must agree on [B, T]"
        )
    drift = 0.5 * (log_prob.detach() - rollout_log_probs) ** 2
    return response_mask * (drift <= threshold).to(response_mask.dtype)
