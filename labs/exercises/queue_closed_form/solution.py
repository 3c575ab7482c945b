"""Closed form of the smallest asynchronous system: the machine-repair queue M/M/1//W."""


def closed_form(workers: int, rollout_seconds: float, training_seconds: float) -> tuple[float, float, float, float]:
    """Long-run averages when each worker waits until its own trajectory was trained.

    Args:
        workers: W rollouts at most run at a time.
        rollout_seconds: mean of an exponential rollout time.
        training_seconds: mean of an exponential training time, one trajectory per step.

    Returns:
        (utilisation of the trainer, trajectories per second, mean number waiting or in training, mean seconds from
        the end of a rollout to the end of its training).
    """
    r = training_seconds / rollout_seconds
    weights = [1.0]
    for k in range(1, workers + 1):
        weights.append(weights[-1] * (workers - k + 1) * r)
    total = sum(weights)
    busy = 1 - weights[0] / total
    throughput = busy / training_seconds
    number = sum(k * w for k, w in enumerate(weights)) / total
    return busy, throughput, number, number / throughput
