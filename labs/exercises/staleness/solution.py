"""Asynchronous rollouts: free workers go on while the trainer works."""

import heapq
from collections import deque


def asynchronous(
    durations: list[float], workers: int, batch_size: int, training_seconds: float, max_policy_lag: int
) -> tuple[int, int, float, dict[int, int]]:
    """Simulate until every rollout was trained or rejected.

    Args:
        durations: seconds of the rollouts, in the order in which they are handed out.
        workers: rollouts that run at a time.
        batch_size: trajectories per training step.
        training_seconds: of one step.
        max_policy_lag: largest lag that is trained.

    Returns:
        (accepted, rejected, seconds when the last thing happened, lag -> number of trajectories).
    """
    tasks = deque(durations)
    running: list[tuple[float, int]] = []  # (end, version at the start), earliest end first
    waiting: list[int] = []  # versions at the start, oldest arrival first
    version = accepted = rejected = 0
    lags: dict[int, int] = {}
    now = 0.0
    done: float | None = None  # when the trainer will be free; None while it is
    while True:
        while tasks and len(running) < workers:
            heapq.heappush(running, (now + tasks.popleft(), version))
        if done is None:
            stale = [born for born in waiting if version - born > max_policy_lag]
            waiting = [born for born in waiting if version - born <= max_policy_lag]
            rejected += len(stale)
            batch = waiting[:batch_size] if len(waiting) >= batch_size or not running else []
            waiting = waiting[len(batch) :]
            accepted += len(batch)
            for born in stale + batch:
                lags[version - born] = lags.get(version - born, 0) + 1
            if batch:
                done = now + training_seconds
        if done is not None and (not running or done <= running[0][0]):
            now, done = done, None
            version += 1
        elif running:
            now, born = heapq.heappop(running)
            waiting.append(born)
        else:
            return accepted, rejected, now, lags
