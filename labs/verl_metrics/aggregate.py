"""Merging the metrics of several updates into one row, in verl's two ways.

Both decide by the *name*, by substrings, and disagree:

| | `MetricsAggregator` (V1 trainer) | `FullyAsyncMetricsAggregator` |
|---|---|---|
| default | mean weighted by samples | plain mean |
| first keyword tested | max, then min, sum/total, mean | mean/avg, then max, min, sum/total |
| `lr` | last | plain mean |
| bool | skipped | counted as 0 or 1 |
| evicted_samples | sum; staleness mean weighted by it | plain mean of everything |
| recomputed | minmax_diff | minmax_diff, throughput, idle and utilisation ratios |

So `evicted_samples_staleness/max` is a maximum, and a name that happens to contain "min" (`admin/...`) a minimum.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

Values = Sequence[float]

_EVICTIONS = ("off_policy/evicted_samples", "filter_groups/evicted_samples",
              "filter_groups/discarded_surplus_samples", "rollout_failure/evicted_samples")  # fmt: skip
#: Key of the one dictionary-valued metric: value of the filter's metric -> number of filtered groups.
FILTERED_COUNTS = "_dapo_filtered_reward_counts"


def _number(value: Any) -> float | None:
    """A Python float, or None for what is not one number."""
    if isinstance(value, Tensor):
        return float(value.item()) if value.numel() == 1 else None
    if isinstance(value, int | float) or (hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0):
        return float(value)
    return None


def _mean(values: Values, weights: Values) -> float:
    return sum(values) / len(values)


def _weighted(values: Values, weights: Values) -> float:
    if len(values) != len(weights) or sum(weights) == 0:
        return _mean(values, weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def _last(values: Values, weights: Values) -> float:
    return values[-1]


def _sum(values: Values, weights: Values) -> float:
    return sum(values)


def _max(values: Values, weights: Values) -> float:
    return max(values)


def _min(values: Values, weights: Values) -> float:
    return min(values)


Rule = Callable[[Values, Values], float]


class MetricsAggregator:
    """The aggregator of verl's V1 trainer, for the updates of one `parameter_sync_step` cycle."""

    _exact: ClassVar[Mapping[str, Rule]] = {
        **{f"{side}/{name}": _sum for side in ("training", "validation") for name in _EVICTIONS},
        "training/global_step": _last,
        "training/rollout_probs_diff_valid": _last,
    }
    _keywords: ClassVar[Sequence[tuple[tuple[str, ...], Rule]]] = (
        (("timing_s/", "timing_per_token_ms/"), _sum),
        (("max",), _max),
        (("min",), _min),
        (("sum", "total"), _sum),
    )
    _default: Rule = staticmethod(_weighted)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every update."""
        self._values: dict[str, list[float]] = defaultdict(list)
        self._weights: dict[str, list[float]] = defaultdict(list)
        self._counts: Counter[Any] = Counter()
        self.step_count = 0

    def add_step_metrics(self, metrics: Mapping[str, Any], sample_count: int = 0) -> None:
        """Record one update; what is not a number (or a one-element tensor) is skipped."""
        self.step_count += 1
        for name, value in metrics.items():
            if name == FILTERED_COUNTS and isinstance(value, dict):
                self._counts.update(value)
            elif (number := self._read(value)) is not None:
                self._values[name].append(number)
                self._weights[name].append(self._weight(name, metrics, sample_count))

    def _read(self, value: Any) -> float | None:
        return None if isinstance(value, bool) else _number(value)

    def _weight(self, name: str, metrics: Mapping[str, Any], sample_count: int) -> float:
        if name.endswith("/off_policy/evicted_samples_staleness/mean"):
            evicted = _number(metrics.get(name.removesuffix("_staleness/mean"), sample_count))
            return sample_count if evicted is None else int(evicted)
        return sample_count

    def rule(self, name: str) -> Rule:
        """How a metric of this name is merged."""
        if name in self._exact:
            return self._exact[name]
        lowered = name.lower()
        if lowered == "lr" or lowered.endswith(("/lr", "_lr")):
            return _last
        return self._by_keyword(lowered)

    def _by_keyword(self, lowered: str) -> Rule:
        for keywords, rule in self._keywords:
            if any(keyword in lowered for keyword in keywords):
                return rule
        return self._default

    def get_aggregated_metrics(self) -> dict[str, Any]:
        """One number a name; empty before the first update."""
        merged: dict[str, Any] = {n: self.rule(n)(values, self._weights[n]) for n, values in self._values.items()}
        if self._counts:
            merged[FILTERED_COUNTS] = dict(self._counts)
        if {"global_seqlen/minmax_diff", "global_seqlen/max", "global_seqlen/min"} <= set(merged):
            merged["global_seqlen/minmax_diff"] = merged["global_seqlen/max"] - merged["global_seqlen/min"]
        return merged


class FullyAsyncMetricsAggregator(MetricsAggregator):
    """The aggregator of verl's fully asynchronous trainer.

    Args:
        total_gpus: divides the throughput.
        hybrid_gpus: GPUs that switch between training and rollout.
        standalone_gpus: GPUs that only roll out.
    """

    _exact: ClassVar[Mapping[str, Rule]] = {
        "perf/time_per_step": _sum,
        "timing_s/agent_loop/tool_calls/min": _min,
        "timing_s/agent_loop/tool_calls/mean": _mean,
        "timing_s/agent_loop/tool_calls/max": _max,
        "fully_async/count/total_generated_samples": _last,
        "fully_async/count/stale_samples_processed": _last,
        "fully_async/count/stale_trajectory_processed": _last,
        "fully_async/count/current_param_version": _last,
        "fully_async/count/dropped_stale_samples": _last,
        "training/global_step": _last,
        "dynamic_resource/mq_size": _last,
        "dynamic_resource/train_compute_time_s": _sum,
        "dynamic_resource/train_allocated_time_s": _sum,
    }
    _keywords = (
        (("timing_s/",), _sum),
        (("mean", "avg", "average"), _mean),
        (("max",), _max),
        (("min",), _min),
        (("sum", "total"), _sum),
    )
    _default = staticmethod(_mean)

    def __init__(self, total_gpus: int, hybrid_gpus: int = 0, standalone_gpus: int = 0) -> None:
        super().__init__()
        self.total_gpus = total_gpus
        self.hybrid_gpus = hybrid_gpus
        self.standalone_gpus = standalone_gpus

    def _read(self, value: Any) -> float | None:
        return _number(value)

    def rule(self, name: str) -> Rule:
        """How a metric of this name is merged."""
        return self._exact[name] if name in self._exact else self._by_keyword(name.lower())

    def get_aggregated_metrics(self, rollout_resource_utilization: float | None = None) -> dict[str, Any]:
        """One number a name, with ratios recomputed from the merged sums.

        - `perf/throughput` = tokens / (seconds * total_gpus);
        - `fully_async/trainer/idle_ratio` = gen / step seconds (waiting for samples is logged as gen);
        - `train_resource_utilization` = compute / allocated seconds;
        - `resource_utilization` = ((1-x) a train + (x a + b) rollout) / (a + b), with a hybrid and b standalone GPUs
          and x the share of the cycle that the hybrid ones waited for samples.
        """
        merged = super().get_aggregated_metrics()
        step = merged.get("timing_s/step", 0.0)
        if {"perf/throughput", "perf/total_num_tokens", "perf/time_per_step"} <= set(merged):
            merged["perf/throughput"] = merged["perf/total_num_tokens"] / (
                merged["perf/time_per_step"] * self.total_gpus
            )
        if step > 0 and "timing_s/gen" in merged:
            merged["fully_async/trainer/idle_ratio"] = merged["timing_s/gen"] / step
        allocated = merged.get("dynamic_resource/train_allocated_time_s", 0.0)
        if allocated > 0 and "dynamic_resource/train_compute_time_s" in merged:
            train = merged["dynamic_resource/train_compute_time_s"] / allocated
            merged["dynamic_resource/train_resource_utilization"] = train
            a, b = self.hybrid_gpus, self.standalone_gpus
            if rollout_resource_utilization is not None and step > 0 and a + b > 0:
                rollout = rollout_resource_utilization
                x = min(1.0, max(0.0, merged.get("timing_s/wait_for_enough_samples", 0.0) / step))
                merged["dynamic_resource/rollout_resource_utilization"] = rollout
                merged["dynamic_resource/resource_utilization"] = ((1 - x) * a * train + (x * a + b) * rollout) / (
                    a + b
                )
        return merged
