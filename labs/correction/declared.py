"""What every `rollout_corr/*` number declares."""

from __future__ import annotations

import math

from labs.metrics import Metric

_LOW_UPPER = "the lower bound is 1/upper unless the threshold is a window"


def _metric(name: str, formula: str, *, low: float = -math.inf, high: float = math.inf, unit: str = "1",
            healthy: str = "", scope: str = "batch", text: str = "") -> Metric:  # fmt: skip
    return Metric(name=f"rollout_corr/{name}", unit=unit, formula=formula, low=low, high=high, healthy=healthy,
                  scope=scope, text=text)  # fmt: skip


_WEIGHTS = (
    _metric("rollout_is_mean", "masked mean of the applied weights", low=0, healthy="0.9 to 1.1",
            text="How much of the gradient is left after truncation."),
    _metric("rollout_is_max", "largest weight; at sequence level the raw one, capped at e^20", low=0),
    _metric("rollout_is_min", "smallest weight; at sequence level the raw one", low=0),
    _metric("rollout_is_std", "population standard deviation of the applied weights over tokens", low=0),
    _metric("rollout_is_eff_sample_size", "1 / masked mean of (w / (mean w + 1e-8))^2, 0 if all weights are 0", low=0,
            healthy="above 0.5", text="The fraction of tokens that still speak; above 1 only when the mean weight is "
            "near 1e-8."),
    _metric("rollout_is_ratio_fraction_high", "share of raw weights above the upper bound", low=0, high=1,
            text="Rows at sequence level, tokens otherwise."),
    _metric("rollout_is_ratio_fraction_low", "share of raw weights below the lower bound", low=0, high=1,
            text=_LOW_UPPER),
    _metric("rollout_is_seq_mean", "mean over all rows of the row's mean weight; an empty row is 0", low=0),
    _metric("rollout_is_seq_std", "Bessel standard deviation over rows of the same", low=0),
    _metric("rollout_is_seq_max", "largest row mean", low=0),
    _metric("rollout_is_seq_min", "smallest row mean", low=0),
    _metric("rollout_is_seq_max_deviation", "largest |row mean - 1|", low=0),
    _metric("rollout_is_seq_fraction_high", "share of rows whose raw mean weight is above the bound", low=0, high=1),
    _metric("rollout_is_seq_fraction_low", "share of rows whose raw mean weight is below the bound", low=0, high=1,
            text=_LOW_UPPER),
    _metric("rollout_is_oob_ratio", "share of tokens that IcePop zeroed", low=0, high=1),
    _metric("rollout_is_batch_norm_factor", "mean truncated weight the weights were divided by, 1 if skipped", low=0),
)  # fmt: skip

_DISTANCE = (
    _metric("training_ppl", "mean over rows of exp(-mean old log-probability)", low=1,
            text="An empty row counts as 1."),
    _metric("training_log_ppl", "mean over rows of -(mean old log-probability)", low=0, unit="nat/token"),
    _metric("rollout_ppl", "the same of the rollout policy", low=1),
    _metric("rollout_log_ppl", "the same of the rollout policy", low=0, unit="nat/token"),
    _metric("kl", "masked mean of rollout minus old log-probability", unit="nat/token",
            text="One sample a token of KL(rollout, old); noise can make it negative."),
    _metric("k3_kl", "masked mean of exp(lr) - lr - 1", low=0, unit="nat/token", healthy="below 0.01",
            text="The same divergence, never negative beyond rounding; inf when a ratio overflows."),
    _metric("log_ppl_diff", "mean over rows of the difference of mean log-probabilities", unit="nat/token"),
    _metric("log_ppl_abs_diff", "mean over rows of its absolute value", low=0, unit="nat/token"),
    _metric("log_ppl_diff_max", "its largest row", unit="nat/token"),
    _metric("log_ppl_diff_min", "its smallest row", unit="nat/token"),
    _metric("ppl_ratio", "mean over rows of exp(log_ppl_diff)", low=0, healthy="near 1"),
    _metric("chi2_token", "masked mean of the squared token ratio, minus 1", low=-1,
            text="Variance of the token weight; below 0 only through sampling noise."),
    _metric("chi2_seq", "mean over rows of the squared sequence ratio, minus 1", low=-1,
            text="Variance of the sequence weight; an empty row counts as ratio 1."),
)  # fmt: skip

_REJECTION = (
    _metric("rollout_rs_masked_fraction", "share of valid tokens rejected by any option", low=0, high=1,
            healthy="a few percent"),
    _metric("rollout_rs_seq_masked_fraction", "share of all B rows that lost a token", low=0, high=1),
)  # fmt: skip

METRICS: tuple[Metric, ...] = _WEIGHTS + _REJECTION + _DISTANCE


def option_metrics(option: str) -> tuple[Metric, ...]:
    """Declarations of the metrics of one rejection option, for example `seq_mean_k3`."""
    low = -math.inf if option.endswith("k1") else 0.0
    prefix = f"rollout_rs_{option}"
    values = [
        ("mean", "masked mean of the statistic"),
        ("max", "largest statistic"),
        ("min", "smallest statistic"),
        ("seq_mean", "mean over rows with a token"),
        ("seq_max", "largest row"),
        ("seq_min", "smallest row"),
    ]
    positive = [
        ("std", "population standard deviation of the statistic clamped to its window"),
        ("seq_std", "Bessel standard deviation over rows with a token"),
        ("seq_max_deviation", "largest absolute row statistic"),
    ]
    shares = [
        ("fraction_high", "share above the upper bound"),
        ("fraction_low", "share below the lower bound (k1 only, else 0)"),
        ("seq_fraction_high", "share of rows above the upper bound"),
        ("seq_fraction_low", "share of rows below the lower bound (k1 only)"),
        ("masked_fraction", "share of valid tokens this option rejects"),
        ("seq_masked_fraction", "share of rows with a token that lose one to this option"),
    ]
    return (
        *(_metric(f"{prefix}_{name}", formula, low=low, unit="nat") for name, formula in values),
        *(_metric(f"{prefix}_{name}", formula, low=0, unit="nat") for name, formula in positive),
        *(_metric(f"{prefix}_{name}", formula, low=0, high=1) for name, formula in shares),
    )
