"""The numbers `rollout_corr/*`: importance weights, rejection, and how far the two policies are apart.

All functions return plain floats without the prefix; `labs.correction` adds it. Averages *over rows* include
rows without any valid token, as in verl: such a row counts as perplexity 1, ratio 1 and weight 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labs.errors import InputError
from labs.masked import masked_mean, masked_sum

#: Log-ratios are clipped to [-20, 20] before an exponential, as in verl (e^20 is 4.9e8).
SAFETY_BOUND = 20.0


def need_tokens(response_mask: Tensor) -> None:
    """Raise `InputError` when no position of the mask is valid."""
    if not bool(response_mask.any()):
        raise InputError(f"response_mask {tuple(response_mask.shape)} has no valid token; at least one is needed")


def _spread(values: Tensor, mask: Tensor) -> float:
    """Population standard deviation over the mask, 0 for at most one token."""
    if not mask.sum() > 1:
        return 0.0
    mean = masked_mean(values, mask)
    return torch.sqrt(torch.clamp(masked_mean(values.square(), mask) - mean.square(), min=0.0)).item()


def _bessel(rows: Tensor) -> float:
    return rows.std().item() if rows.numel() > 1 else 0.0


def _share(condition: Tensor) -> float:
    return condition.float().mean().item()


def compute_is_metrics(
    rollout_is_weights: Tensor,
    raw_rollout_is_weights: Tensor,
    log_ratio_for_metrics: Tensor,
    response_mask: Tensor,
    rollout_is: str,
    rollout_is_threshold: float,
    rollout_is_threshold_lower: float | None = None,
) -> dict[str, float]:
    """Metrics of importance weights [B, T] before batch normalisation.

    Mean, standard deviation, effective sample size and the row statistics come from the applied weights; the
    fractions outside the window from the raw ones. At sequence level max, min and the fractions come from the
    raw log-ratio [B, 1] over *all* rows (max capped at e^20, min not). The lower bound is 1/upper unless given.
    The effective sample size is the fraction `1 / mean((w / (mean(w) + 1e-8))^2)`; when every weight is 0 verl
    divides by zero, here it is 0.

    Raises:
        ValueError: a mask without any valid token.
    """
    need_tokens(response_mask)
    weights, mask, upper = rollout_is_weights, response_mask, rollout_is_threshold
    lower = 1.0 / upper if rollout_is_threshold_lower is None else rollout_is_threshold_lower
    metrics = {"rollout_is_mean": masked_mean(weights, mask).item()}
    if rollout_is == "sequence":
        # float32 on purpose: verl compares with float32 logarithms of the bounds.
        log_upper, log_lower = torch.log(torch.tensor(upper)), torch.log(torch.tensor(lower))
        metrics["rollout_is_ratio_fraction_high"] = _share(log_ratio_for_metrics > log_upper)
        metrics["rollout_is_ratio_fraction_low"] = _share(log_ratio_for_metrics < log_lower)
        metrics["rollout_is_max"] = torch.exp(torch.clamp(log_ratio_for_metrics.max(), max=SAFETY_BOUND)).item()
        metrics["rollout_is_min"] = torch.exp(log_ratio_for_metrics.min()).item()
    else:
        high, low = raw_rollout_is_weights > upper, raw_rollout_is_weights < lower
        metrics["rollout_is_ratio_fraction_high"] = masked_mean(high.float(), mask).item()
        metrics["rollout_is_ratio_fraction_low"] = masked_mean(low.float(), mask).item()
        metrics["rollout_is_max"] = weights.masked_fill(~mask.bool(), float("-inf")).max().item()
        metrics["rollout_is_min"] = weights.masked_fill(~mask.bool(), float("inf")).min().item()
    bounded = weights.clamp(min=0.0, max=upper)
    metrics["rollout_is_std"] = _spread(bounded, mask)
    second = masked_mean((bounded / (masked_mean(bounded, mask) + 1e-8)).square(), mask).item()
    metrics["rollout_is_eff_sample_size"] = 1.0 / second if second else 0.0
    rows = masked_mean(weights, mask, axis=-1)
    raw_rows = masked_mean(raw_rollout_is_weights, mask, axis=-1)
    metrics["rollout_is_seq_mean"] = rows.mean().item()
    metrics["rollout_is_seq_std"] = _bessel(rows)
    metrics["rollout_is_seq_max"] = rows.max().item()
    metrics["rollout_is_seq_min"] = rows.min().item()
    metrics["rollout_is_seq_max_deviation"] = (rows - 1.0).abs().max().item()
    metrics["rollout_is_seq_fraction_high"] = _share(raw_rows > upper)
    metrics["rollout_is_seq_fraction_low"] = _share(raw_rows < lower)
    return metrics


def compute_rs_metrics(
    option_name: str,
    rs_statistic: Tensor,
    response_mask: Tensor,
    seq_valid_mask: Tensor,
    *,
    level: str,
    per_sequence_values: Tensor | None,
    rollout_rs_threshold: float,
    rollout_rs_threshold_lower: float,
    apply_lower_threshold: bool,
) -> dict[str, float]:
    """Metrics of one rejection option, under `rollout_rs_<option>_*`.

    Args:
        option_name: as given by the user, part of the names.
        rs_statistic: [B, T] what was compared (a row's statistic repeated, at sequence level).
        response_mask, seq_valid_mask: [B, T] the mask before rejection; [B] rows with a token.
        level: token or sequence.
        per_sequence_values: [B] the row's statistic; None takes the row's masked mean.
        rollout_rs_threshold, rollout_rs_threshold_lower: bounds in the statistic's unit.
        apply_lower_threshold: k1 only.

    The standard deviation clamps the statistic to the window first. Row statistics are over rows with a token.

    Raises:
        ValueError: a mask without any valid token.
    """
    need_tokens(response_mask)
    statistic, mask, upper, lower = rs_statistic, response_mask, rollout_rs_threshold, rollout_rs_threshold_lower
    rows = masked_mean(statistic, mask, axis=-1) if per_sequence_values is None else per_sequence_values
    rows = rows[seq_valid_mask]
    row_high = _share(rows > upper)
    row_low = _share(rows < lower) if apply_lower_threshold else 0.0
    if level == "sequence":
        top, bottom, high, low = rows.max().item(), rows.min().item(), row_high, row_low
    else:
        top = statistic.masked_fill(~mask.bool(), float("-inf")).max().item()
        bottom = statistic.masked_fill(~mask.bool(), float("inf")).min().item()
        high = masked_mean((statistic > upper).float(), mask).item()
        low = masked_mean((statistic < lower).float(), mask).item() if apply_lower_threshold else 0.0
    metrics = {
        "mean": masked_mean(statistic, mask).item(),
        "max": top,
        "min": bottom,
        "fraction_high": high,
        "fraction_low": low,
        "std": _spread(statistic.clamp(min=lower if apply_lower_threshold else 0.0, max=upper), mask),
        "seq_mean": rows.mean().item(),
        "seq_std": _bessel(rows),
        "seq_max": rows.max().item(),
        "seq_min": rows.min().item(),
        "seq_max_deviation": rows.abs().max().item(),
        "seq_fraction_high": row_high,
    }
    if apply_lower_threshold:
        metrics["seq_fraction_low"] = row_low
    return {f"rollout_rs_{option_name}_{key}": value for key, value in metrics.items()}


def compute_offpolicy_metrics(
    old_log_prob: Tensor, rollout_log_prob: Tensor | None, response_mask: Tensor
) -> dict[str, float]:
    """Perplexities of both policies and their distance; with `lr = old - rollout` at tokens of the rollout policy.

    | metric | formula |
    |---|---|
    | training_ppl, rollout_ppl | mean over rows of exp(-masked mean log-probability) |
    | training_log_ppl, rollout_log_ppl | mean over rows of the exponent |
    | kl | masked_mean(-lr), the mean of KL(rollout, training) |
    | k3_kl | masked_mean(exp(lr) - lr - 1), never negative, not clipped: it can be inf |
    | log_ppl_diff, _abs_diff, _max, _min | row mean of rollout minus row mean of training log-probability |
    | ppl_ratio | mean over rows of exp(log_ppl_diff) |
    | chi2_token | masked_mean(exp(clip(lr, -20, 20))^2) - 1 |
    | chi2_seq | mean over rows of exp(2 clip(sum of lr, -20, 20)) - 1 |

    Raises:
        ValueError: a mask without any valid token.
    """
    need_tokens(response_mask)
    mask = response_mask
    training = masked_mean(old_log_prob, mask, axis=-1)
    metrics = {
        "training_ppl": torch.exp(-training).mean().item(),
        "training_log_ppl": (-training).mean().item(),
    }
    if rollout_log_prob is None:
        return metrics
    lr = old_log_prob - rollout_log_prob
    rollout = masked_mean(rollout_log_prob, mask, axis=-1)
    gap = rollout - training
    token_ratio = torch.exp(torch.clamp(lr, min=-SAFETY_BOUND, max=SAFETY_BOUND))
    row_ratio = torch.exp(2.0 * torch.clamp(masked_sum(lr, mask, axis=-1), min=-SAFETY_BOUND, max=SAFETY_BOUND))
    metrics |= {
        "kl": masked_mean(-lr, mask).item(),
        "k3_kl": masked_mean(torch.exp(lr) - lr - 1, mask).item(),
        "rollout_ppl": torch.exp(-rollout).mean().item(),
        "rollout_log_ppl": (-rollout).mean().item(),
        "log_ppl_diff": gap.mean().item(),
        "log_ppl_abs_diff": gap.abs().mean().item(),
        "log_ppl_diff_max": gap.max().item(),
        "log_ppl_diff_min": gap.min().item(),
        "ppl_ratio": torch.exp(gap).mean().item(),
        "chi2_token": masked_mean(token_ratio.square(), mask).item() - 1.0,
        "chi2_seq": row_ratio.mean().item() - 1.0,
    }
    return metrics
