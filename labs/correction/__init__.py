"""Correction for tokens that another policy sampled: importance weights, rejection, and their metrics.

The rollout policy (the engine that sampled, or an older version) and the old policy (the weights this step starts
from) differ. Weights change what a token counts in the loss, rejection removes it from `response_mask`;
rewards and `loss_mask` are never touched. verl 0.9.1's names and numbers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.batch import TokenBatch
from labs.correction.declared import METRICS, option_metrics
from labs.correction.diagnostics import (
    compute_is_metrics,
    compute_offpolicy_metrics,
    compute_rs_metrics,
    need_tokens,
)
from labs.correction.presets import PRESETS, RolloutCorrectionConfig
from labs.correction.rejection import OPTIONS, compute_rollout_rejection_mask
from labs.correction.weights import LEVELS, compute_rollout_correction_weights
from labs.errors import InputError
from labs.registry import opt

__all__ = [
    "LEVELS",
    "METRICS",
    "OPTIONS",
    "PRESETS",
    "RolloutCorrectionConfig",
    "apply_bypass_mode",
    "compute_is_metrics",
    "compute_offpolicy_metrics",
    "compute_rollout_corr_metrics_from_logprobs",
    "compute_rollout_correction_and_add_to_batch",
    "compute_rollout_correction_and_rejection_mask",
    "compute_rollout_correction_weights",
    "compute_rollout_rejection_mask",
    "compute_rs_metrics",
    "option_metrics",
]


def compute_rollout_correction_and_rejection_mask(
    old_log_prob: Tensor,
    rollout_log_prob: Tensor,
    response_mask: Tensor,
    rollout_is: str | None = None,
    rollout_is_threshold: str | float | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Tensor | None, Tensor, dict[str, float]]:
    """Weights, the mask after rejection, and every metric under `rollout_corr/`.

    Args:
        old_log_prob, rollout_log_prob, response_mask: [B, T].
        rollout_is, rollout_is_threshold, rollout_is_batch_normalize: see `compute_rollout_correction_weights`;
            a level or threshold of None means no weights.
        rollout_rs, rollout_rs_threshold: see `compute_rollout_rejection_mask`; None means no rejection.

    Returns:
        weights: [B, T] or None (verl wraps them in a DataProto); computed on the mask before rejection.
        mask: [B, T], a copy of `response_mask` in its dtype, smaller where rejected.
        metrics: floats. The off-policy ones are always there.

    Raises:
        ValueError: no valid token, shapes that differ, unknown names, bad or missing thresholds.
        TypeError: a threshold of another type.
    """
    shapes = {
        "old_log_prob": tuple(old_log_prob.shape),
        "rollout_log_prob": tuple(rollout_log_prob.shape),
        "response_mask": tuple(response_mask.shape),
    }
    if len(set(shapes.values())) > 1:
        raise InputError(f"rollout correction: shapes differ, {', '.join(f'{n} {s}' for n, s in shapes.items())}")
    need_tokens(response_mask)
    log_ratio = old_log_prob - rollout_log_prob
    metrics: dict[str, float] = {}
    weights = None
    if rollout_is is not None and rollout_is_threshold is not None:
        weights, found = compute_rollout_correction_weights(
            log_ratio, response_mask, rollout_is, rollout_is_threshold, rollout_is_batch_normalize
        )
        metrics |= found
    mask = response_mask.clone()
    if rollout_rs is not None:
        mask, found = compute_rollout_rejection_mask(log_ratio, response_mask, rollout_rs, rollout_rs_threshold)
        metrics |= found
    metrics |= compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask)
    return weights, mask, _prefixed(metrics)


def compute_rollout_correction_and_add_to_batch(
    batch: TokenBatch, rollout_corr_config: Any
) -> tuple[TokenBatch, dict[str, float]]:
    """Run the correction on a batch: `response_mask` is always replaced, `rollout_is_weights` set if wanted.

    Args:
        batch: columns old_log_probs, rollout_log_probs, response_mask.
        rollout_corr_config: a `RolloutCorrectionConfig` or a mapping; a missing `rollout_is` means None.
    """
    if "rollout_log_probs" not in batch:
        raise InputError("rollout correction needs the column rollout_log_probs, which the batch does not have")
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        batch["old_log_probs"],
        batch["rollout_log_probs"],
        batch["response_mask"],
        opt(rollout_corr_config, "rollout_is"),
        opt(rollout_corr_config, "rollout_is_threshold", 2.0),
        opt(rollout_corr_config, "rollout_is_batch_normalize", False),
        opt(rollout_corr_config, "rollout_rs"),
        opt(rollout_corr_config, "rollout_rs_threshold"),
    )
    batch = batch.replace(response_mask=mask)
    return (batch if weights is None else batch.replace(rollout_is_weights=weights)), metrics


def compute_rollout_corr_metrics_from_logprobs(
    log_prob: Tensor, rollout_log_prob: Tensor, response_mask: Tensor
) -> dict[str, float]:
    """The off-policy metrics of the *current* policy against the rollout policy, under `rollout_corr/`."""
    return _prefixed(compute_offpolicy_metrics(log_prob, rollout_log_prob, response_mask))


def apply_bypass_mode(batch: TokenBatch) -> TokenBatch:
    """Two policies instead of three: `old_log_probs` becomes `rollout_log_probs`.

    The caller must also select the loss `bypass_mode`, which verl does by writing into its configuration.

    Raises:
        ValueError: the batch has no rollout_log_probs.
    """
    if "rollout_log_probs" not in batch:
        raise InputError("bypass_mode needs the column rollout_log_probs, which the batch does not have")
    return batch.replace(old_log_probs=batch["rollout_log_probs"])


def _prefixed(metrics: dict[str, float]) -> dict[str, float]:
    return {f"rollout_corr/{name}": value for name, value in metrics.items()}
