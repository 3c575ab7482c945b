"""Data, debug, variance and validation metrics, and the two aggregators."""

from labs import verl_metrics
from labs.batch import TokenBatch


def _data(config, inputs):
    return {"metrics": verl_metrics.compute_data_metrics(TokenBatch(inputs), config["use_critic"])}


def _variance(config, inputs):
    return {"metrics": verl_metrics.compute_variance_proxy_metrics(TokenBatch(inputs), config["gradient_norm"])}


def _debug(_config, inputs):
    return {"metrics": verl_metrics.calculate_debug_metrics(TokenBatch(inputs))}


def _validation(_config, inputs):
    columns = {n: v.tolist() for n, v in inputs.items()}
    sources, uids = columns.pop("data_source"), columns.pop("uid")
    nested = verl_metrics.process_validation_metrics(sources, uids, columns)
    return {
        "metrics": {
            f"{source}/{variable}/{name}": value
            for source, variables in nested.items()
            for variable, metrics in variables.items()
            for name, value in metrics.items()
        }
    }


def _aggregate(aggregator, config, *arguments):
    for metrics, count in zip(config["steps"], config["sample_counts"], strict=True):
        aggregator.add_step_metrics(metrics, count)
    return {"metrics": aggregator.get_aggregated_metrics(*arguments)}


def _v1(config, _inputs):
    return _aggregate(verl_metrics.MetricsAggregator(), config)


def _fully_async(config, _inputs):
    # The recording used 8 hybrid and 8 standalone GPUs.
    return _aggregate(verl_metrics.FullyAsyncMetricsAggregator(16, 8, 8), config, config["rollout_util"])


ADAPTERS = {
    "verl.trainer.ppo.metric_utils.compute_data_metrics": _data,
    "verl.trainer.ppo.metric_utils.compute_variance_proxy_metrics": _variance,
    "verl.trainer.ppo.metric_utils.process_validation_metrics": _validation,
    "verl.utils.debug.metrics.calculate_debug_metrics": _debug,
    "verl.trainer.ppo.v1.utils.MetricsAggregator": _v1,
    "verl.experimental.fully_async_policy.detach_utils.MetricsAggregator": _fully_async,
}
