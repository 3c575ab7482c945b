r"""Importance weights of the rollout policy: `w = pi_old / pi_rollout`, by token or by sequence.

With `lr = old_log_prob - rollout_log_prob`: truncated importance sampling (Espeholt et al., 1802.01561;
Yao et al., 2025) takes `min(w, C)`, which bounds the variance and biases towards the rollout policy; IcePop
(Ling team, 2025) sets weights outside `[lo, hi]` to 0 and leaves the mask alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labs.correction.diagnostics import SAFETY_BOUND, compute_is_metrics
from labs.correction.thresholds import parse_is_threshold
from labs.errors import one_of
from labs.masked import masked_mean, masked_sum

LEVELS = ("token", "sequence")


def compute_rollout_correction_weights(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    """Weights [B, T] (0 outside the mask, detached) and their metrics without prefix.

    | rollout_is | raw weight |
    |---|---|
    | token | exp(clip(lr, -20, 20)) |
    | sequence | exp(clip(sum over the row of lr * mask, -20, 20)), the same at every token of the row |

    A number truncates from above only; `"lo_hi"` keeps weights inside the inclusive window and zeroes the others.
    Batch normalisation divides by the mean of the *truncated* weights (token: over tokens; sequence: over rows
    with a token), so that a weight may end above the threshold; it is skipped when the mean is 1e-8 or less.
    The metrics describe the weights before normalisation. A NaN ratio passes through truncation.

    Raises:
        ValueError: unknown level, bad threshold, a mask without any valid token.
        TypeError: a threshold of another type.
    """
    if rollout_is not in LEVELS:
        raise one_of("rollout_is", rollout_is, LEVELS)
    window = parse_is_threshold(rollout_is_threshold)
    by_row = rollout_is == "sequence"
    log_weight = masked_sum(log_ratio, response_mask, axis=-1).unsqueeze(-1) if by_row else log_ratio
    raw = torch.exp(torch.clamp(log_weight, min=-SAFETY_BOUND, max=SAFETY_BOUND)).expand_as(log_ratio) * response_mask
    outside = raw > window.upper
    if window.lower is None:
        weights = raw.clamp(max=window.upper)
    else:
        outside = (raw < window.lower) | outside
        weights = torch.where((raw >= window.lower) & (raw <= window.upper), raw, torch.zeros_like(raw))
    metrics = compute_is_metrics(
        rollout_is_weights=weights,
        raw_rollout_is_weights=raw,
        log_ratio_for_metrics=log_weight,
        response_mask=response_mask,
        rollout_is=rollout_is,
        rollout_is_threshold=window.upper,
        rollout_is_threshold_lower=window.lower,
    )
    if window.lower is not None:
        metrics["rollout_is_oob_ratio"] = masked_mean(outside.float(), response_mask).item()
    weights = weights.detach()
    if rollout_is_batch_normalize:
        mean = _mean_weight(weights, response_mask, by_row)
        scale = mean > 1e-8
        metrics["rollout_is_batch_norm_factor"] = mean.item() if scale else 1.0
        if scale:
            weights = weights / mean
    return weights, metrics


def _mean_weight(weights: Tensor, mask: Tensor, by_row: bool) -> Tensor:
    if not by_row:
        return masked_mean(weights, mask)
    rows = masked_mean(weights, mask, axis=-1)
    present = (mask.sum(dim=-1) > 0).to(dtype=weights.dtype)
    return (rows * present).sum() / present.sum().clamp_min(1e-8)
