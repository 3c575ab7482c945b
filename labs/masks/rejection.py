"""verl's rejection sampling: drop tokens or rows whose mismatch with the rollout policy leaves a window."""

from __future__ import annotations

from torch import Tensor

from labs.correction import compute_rollout_rejection_mask
from labs.registry import masks


@masks.entry(needs=("old_log_probs", "rollout_log_probs"), level="token or row", paper="verl 0.9.1 rollout_rs")
def rejection(
    *,
    response_mask: Tensor,
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    rollout_rs: str = "seq_mean_k3",
    rollout_rs_threshold: str | float = 0.01,
) -> Tensor:
    """`response_mask` `[B, T]` after `labs.correction.compute_rollout_rejection_mask` with these options.

    Windows on k1 bound the ratio rollout/old, the inverse of the importance weight. The metrics of the rejection are
    that function's; this entry returns the mask alone.
    """
    mask, _ = compute_rollout_rejection_mask(
        old_log_probs - rollout_log_probs, response_mask, rollout_rs, rollout_rs_threshold
    )
    return mask
