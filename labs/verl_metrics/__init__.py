"""The numbers verl logs, under verl's names and with verl's arithmetic (0.9.1).

`data` reads a batch, `validation` the scores of an evaluation, `aggregate` merges the metrics of several updates in
the two ways that verl's trainers do it, `declared` says what each number means and where it can lie.
"""

from labs.verl_metrics.aggregate import FullyAsyncMetricsAggregator, MetricsAggregator
from labs.verl_metrics.data import (
    calculate_debug_metrics,
    compute_data_metrics,
    compute_off_policy_metrics,
    compute_throughput_metrics,
    compute_timing_metrics,
    compute_variance_proxy_metrics,
)
from labs.verl_metrics.declared import METRICS
from labs.verl_metrics.validation import bootstrap_metric, calc_maj_val, process_validation_metrics

__all__ = [
    "METRICS",
    "FullyAsyncMetricsAggregator",
    "MetricsAggregator",
    "bootstrap_metric",
    "calc_maj_val",
    "calculate_debug_metrics",
    "compute_data_metrics",
    "compute_off_policy_metrics",
    "compute_throughput_metrics",
    "compute_timing_metrics",
    "compute_variance_proxy_metrics",
    "process_validation_metrics",
]
