r"""Rejection: tokens or whole rows leave the loss when the two policies disagree too much on them.

With `lr = old_log_prob - rollout_log_prob` clipped to [-20, 20]: `k1 = -lr`, `k2 = lr^2 / 2`,
`k3 = exp(lr) - 1 - lr`. Because k1 is *minus* the log-ratio, a k1 window bounds pi_rollout / pi_old, the inverse
of the importance weight: `"0.8_1.5"` keeps pi_old / pi_rollout in [0.667, 1.25].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from labs.correction.diagnostics import SAFETY_BOUND, compute_rs_metrics, need_tokens
from labs.correction.thresholds import Window, parse_rs_thresholds
from labs.errors import InputError, one_of
from labs.masked import masked_mean, masked_sum

OPTIONS = (
    "token_k1", "token_k2", "token_k3",
    "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3",
    "seq_max_k2", "seq_max_k3",
)  # fmt: skip


def _options(rollout_rs: object) -> list[str]:
    if not isinstance(rollout_rs, str):
        raise InputError(f"rollout_rs is {rollout_rs!r}; it takes a comma-separated string of {', '.join(OPTIONS)}")
    names = list(dict.fromkeys(n.strip() for n in rollout_rs.split(",") if n.strip()))
    if not names:
        raise InputError(f"rollout_rs is {rollout_rs!r}, which names no option; allowed: {', '.join(OPTIONS)}")
    for name in names:
        if name not in OPTIONS:
            raise one_of("rollout_rs", name, OPTIONS)
    return names


def _masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Largest valid value of each row, 0 for a row without any."""
    top = values.masked_fill(~mask.bool(), float("-inf")).max(dim=-1).values
    return torch.where(top == float("-inf"), torch.zeros_like(top), top)


def _row_statistic(reduction: str, tokens: Tensor, mask: Tensor) -> Tensor:
    if reduction == "sum":
        return masked_sum(tokens, mask, axis=-1)
    if reduction == "mean":
        return masked_mean(tokens, mask, axis=-1)
    return _masked_max(tokens, mask)


def _bounds(window: Window) -> tuple[float, float, bool]:
    """(lower, upper, whether the lower one applies) in the unit of the statistic."""
    if window.lower is None:
        return 0.0, window.upper, False
    return math.log(window.lower), math.log(window.upper), True


def compute_rollout_rejection_mask(
    log_ratio: Tensor,
    response_mask: Tensor,
    rollout_rs: str = "token_k1",
    rollout_rs_threshold: str | float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The mask after rejection (dtype of `response_mask`) and metrics without prefix.

    Args:
        log_ratio: [B, T] old minus rollout log-probability.
        response_mask: [B, T]; every option is computed on it, not on what the option before left.
        rollout_rs: options separated by commas, duplicates dropped; a position stays if *all* keep it.
            `token_*` rejects tokens, `seq_{sum,mean,max}_*` whole rows.
        rollout_rs_threshold: see `labs.correction.thresholds.parse_rs_thresholds`; bounds are inclusive.

    A NaN statistic is rejected. Rejecting everything is allowed here and fails later, where a loss divides.
    `rollout_rs_seq_masked_fraction` divides by B, the one of each option by the rows with a token.

    Raises:
        ValueError: unknown option, missing or bad threshold, a mask without any valid token.
    """
    options = _options(rollout_rs)
    windows = parse_rs_thresholds(options, rollout_rs_threshold)
    need_tokens(response_mask)
    lr = torch.clamp(log_ratio, min=-SAFETY_BOUND, max=SAFETY_BOUND)
    divergences = {"k1": -lr, "k2": 0.5 * lr**2, "k3": torch.exp(lr) - 1.0 - lr}
    valid = response_mask.bool()
    row_valid = response_mask.sum(dim=-1) > 0
    kept_by_all = torch.ones_like(valid)
    metrics: dict[str, float] = {}
    for option in options:
        kind = option[-2:]
        reduction = option.split("_")[1] if option.startswith("seq_") else ""
        lower, upper, both = _bounds(windows[option])
        rows = _row_statistic(reduction, divergences[kind], response_mask) if reduction else None
        statistic = divergences[kind] if rows is None else rows.unsqueeze(-1).expand_as(response_mask)
        kept = statistic <= upper
        if both:
            kept = kept & (statistic >= lower)
        kept_by_all = kept_by_all & kept
        metrics |= compute_rs_metrics(
            option, statistic, response_mask, row_valid,
            level="sequence" if reduction else "token", per_sequence_values=rows,
            rollout_rs_threshold=upper, rollout_rs_threshold_lower=lower, apply_lower_threshold=both,
        )  # fmt: skip
        touched = (~kept & valid).any(dim=-1)
        rejected = masked_mean((~kept).to(log_ratio.dtype), response_mask)
        metrics[f"rollout_rs_{option}_masked_fraction"] = rejected.item()
        metrics[f"rollout_rs_{option}_seq_masked_fraction"] = touched[row_valid].to(log_ratio.dtype).mean().item()
    metrics["rollout_rs_masked_fraction"] = masked_mean((~kept_by_all).to(log_ratio.dtype), response_mask).item()
    metrics["rollout_rs_seq_masked_fraction"] = (~kept_by_all & valid).any(dim=-1).float().mean().item()
    return (response_mask * kept_by_all).to(dtype=response_mask.dtype), metrics
