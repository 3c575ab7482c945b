"""Where a trajectory's time and lag come from: rollout or queue."""


def split_times(
    started: list[float], finished: list[float], ingested: list[float], published: list[float]
) -> tuple[list[float], list[float], list[int], list[int], float]:
    """Split the life of every trajectory at the end of its rollout.

    Args:
        started, finished, ingested: moments of each trajectory: its rollout began, ended, its training began.
        published: moments at which a new version of the policy came out.

    Returns:
        (rollout seconds, queue seconds, versions published during the rollout, versions published in the queue,
        share of queue seconds in all seconds). An interval contains its end and not its beginning.
    """
    rollout = [f - s for s, f in zip(started, finished, strict=True)]
    queue = [i - f for f, i in zip(finished, ingested, strict=True)]
    during = [sum(s < t <= f for t in published) for s, f in zip(started, finished, strict=True)]
    after = [sum(f < t <= i for t in published) for f, i in zip(finished, ingested, strict=True)]
    return rollout, queue, during, after, sum(queue) / (sum(rollout) + sum(queue))
