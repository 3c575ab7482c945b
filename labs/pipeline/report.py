"""What a run is told as: metrics under the names of the frameworks, and the bias of what trained."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from labs.metrics import Metric
from labs.pipeline.accounting import Run, quantiles
from labs.pipeline.records import ACCEPTED, CANCELLED, DROPPED, FILTERED, REJECTED


def _metric(name: str, unit: str, formula: str, high: float = math.inf) -> Metric:
    return Metric(name=name, unit=unit, formula=formula, low=0.0, high=high, scope="run")


#: Every metric of `framework_metrics`. The prefix is the framework's: `fully_async/` verl, `async/` SkyRL,
#: `off_policy/` prime-rl, `stats/` PipelineRL, the rest TRL.
METRICS = (
    _metric("fully_async/trainer/idle_ratio", "1", "trainer seconds not training / all", 1.0),
    _metric("fully_async/rollouter/idle_ratio", "1", "worker seconds not generating / all", 1.0),
    _metric("fully_async/count/stale_samples_processed", "group", "trained groups whose oldest token has lag > 0"),
    _metric("fully_async/count/stale_trajectory_processed", "trajectory", "trained trajectories with lag > 0"),
    _metric("fully_async/count/dropped_stale_samples", "group", "groups pushed out of the full queue"),
    _metric("fully_async/count/current_param_version", "1", "version published last"),
    _metric("fully_async/partial/total_partial_num", "trajectory", "trained trajectories made by several versions"),
    _metric("fully_async/partial/partial_ratio", "1", "the same / trained trajectories", 1.0),
    _metric("fully_async/partial/max_partial_span", "1", "largest last version - first version in a trajectory"),
    _metric("timing_s/param_sync", "s", "trainer seconds in drain and sync / publications"),
    _metric("async/staleness_mean", "1", "mean lag of trained trajectories"),
    _metric("async/staleness_max", "1", "largest lag of a trained trajectory"),
    _metric("async/staleness_min", "1", "smallest lag of a trained trajectory"),
    _metric("async/staleness_ratio", "1", "share of trained trajectories with lag > 0", 1.0),
    _metric("async/staleness_violation_count", "trajectory", "trained trajectories with lag > max_policy_lag"),
    _metric("async/gen_buffer_qsize_at_wait_start", "trajectory", "mean number waiting when a step ends"),
    _metric("async/keep_rate", "1", "trained / finished trajectories", 1.0),
    _metric("off_policy/mean", "1", "mean lag of trained trajectories"),
    _metric("off_policy/max", "1", "largest lag of a trained trajectory"),
    _metric("off_policy/dropped", "trajectory", "rejected in the queue or cancelled in flight for their age"),
    _metric("off_policy/in_flight/mean", "1", "mean of versions that passed between start and end"),
    _metric("off_policy/in_flight/max", "1", "most versions that passed between start and end"),
    _metric("off_policy/in_queue/mean", "1", "mean of versions that passed between end and leaving"),
    _metric("off_policy/in_queue/max", "1", "most versions that passed between end and leaving"),
    _metric("stats/lag", "1", "mean lag of the trajectories of the last step, in the unit of the version clock"),
    _metric("stats/min_actor_version", "1", "smallest start version in the last step"),
    _metric("stats/max_actor_version", "1", "largest start version in the last step"),
    _metric("queue_wait_time_s", "s", "trainer seconds waiting for data / steps"),
    _metric("weight_sync_time_s", "s", "trainer seconds in sync / publications"),
    _metric("sample/time_in_queue_s", "s", "mean seconds of trained trajectories between end and step"),
    _metric("perf/rollout_wait_s", "s", "trainer seconds waiting for data or held back / steps"),
    _metric("rollout/backpressure_s", "s", "worker seconds waiting at a gate, for room or for an update"),
)


def framework_metrics(run: Run) -> dict[str, float]:
    """The run's numbers under the names that verl, SkyRL, prime-rl, PipelineRL and TRL log; formulas in `METRICS`."""
    trained = [t for t in run.trajectories if t.status == ACCEPTED]
    lags = [t.lag or 0 for t in trained]
    stale = sum(lag > 0 for lag in lags)
    spans = [t.spans[-1][0] - t.spans[0][0] for t in trained if t.spans]
    partial = sum(span > 0 for span in spans)
    trainer, waits = run.trainer_seconds, run.waits()
    idle = 1 - trainer.get("busy", 0.0) / run.seconds if run.seconds else 0.0
    bumps, versions = _version_clock(run)
    in_flight, in_queue = _ages(run, bumps, versions)
    last = [t for t in trained if t.exit is run.steps[-1]] if run.steps else []
    finished = [t for t in run.trajectories if t.status in (ACCEPTED, REJECTED, DROPPED, FILTERED)]
    count = run.lags
    steps, syncs = max(len(run.steps), 1), max(len(run.publications), 1)
    return {
        "fully_async/trainer/idle_ratio": max(0.0, idle),
        "fully_async/rollouter/idle_ratio": max(0.0, 1 - run.workers_busy()) if run.seconds else 0.0,
        "fully_async/count/stale_samples_processed": _stale_groups(run),
        "fully_async/count/stale_trajectory_processed": stale,
        "fully_async/count/dropped_stale_samples": sum(count(DROPPED).values()) // run.rules.group_size,
        "fully_async/count/current_param_version": run.publications[-1][1] if run.publications else 0,
        "fully_async/partial/total_partial_num": partial,
        "fully_async/partial/partial_ratio": _ratio(partial, len(trained)),
        "fully_async/partial/max_partial_span": max(spans, default=0),
        "timing_s/param_sync": (trainer.get("drain", 0.0) + trainer.get("sync", 0.0)) / syncs,
        "async/staleness_mean": _ratio(sum(lags), len(lags)),
        "async/staleness_max": max(lags, default=0),
        "async/staleness_min": min(lags, default=0),
        "async/staleness_ratio": _ratio(stale, len(lags)),
        "async/staleness_violation_count": sum(lag > run.rules.max_policy_lag for lag in lags),
        "async/gen_buffer_qsize_at_wait_start": _waiting_at_step_ends(run),
        "async/keep_rate": _ratio(len(trained), len(finished)),
        "off_policy/mean": _ratio(sum(lags), len(lags)),
        "off_policy/max": max(lags, default=0),
        "off_policy/dropped": sum(count(REJECTED, CANCELLED).values()),
        "off_policy/in_flight/mean": _ratio(sum(in_flight), len(in_flight)),
        "off_policy/in_flight/max": max(in_flight, default=0),
        "off_policy/in_queue/mean": _ratio(sum(in_queue), len(in_queue)),
        "off_policy/in_queue/max": max(in_queue, default=0),
        "stats/lag": _ratio(sum(t.lag or 0 for t in last), len(last)),
        "stats/min_actor_version": min((t.start_version for t in last), default=0),
        "stats/max_actor_version": max((t.start_version for t in last), default=0),
        "queue_wait_time_s": trainer.get("data", 0.0) / steps,
        "weight_sync_time_s": trainer.get("sync", 0.0) / syncs,
        "sample/time_in_queue_s": waits["sample_in_queue"],
        "perf/rollout_wait_s": (trainer.get("data", 0.0) + trainer.get("hold", 0.0)) / steps,
        "rollout/backpressure_s": waits["generator_blocked"],
    }


def bias(run: Run) -> dict[str, Any]:
    """Trained against offered: what the rules did to the law that the learner sees, JSON types.

    `duration` compares the seconds that the workload gives to every sample of the tasks that were started with those
    of the samples that trained; `difficulty` the tasks' success rates; `reward` the rewards of all finished rollouts;
    `trained_by_duration` is the share that trained among the offered by quarter of the duration, the shortest first.
    """
    trained = [t for t in run.trajectories if t.status == ACCEPTED]
    offered = {(t.task, t.sample): run.work.duration(t.task, t.sample) for t in run.trajectories}
    kept = {(t.task, t.sample) for t in trained}
    order = sorted(offered, key=lambda key: offered[key])
    quarters = [order[i * len(order) // 4 : (i + 1) * len(order) // 4] for i in range(4)]
    report: dict[str, Any] = {
        "duration": _compare(list(offered.values()), [offered[t.task, t.sample] for t in trained]),
        "trained_by_duration": [_ratio(sum(key in kept for key in part), len(part)) for part in quarters],
    }
    success = run.work.success
    if success is not None:
        rates = [[success[run.work.prompt(task)] for task, _ in keys] for keys in (offered, kept)]
        report["difficulty"] = _compare(*rates)
    rewards = [[t.reward for t in some if t.reward is not None] for some in (run.trajectories, trained)]
    if rewards[0]:
        report["reward"] = _compare(*rewards)
    return report


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def _compare(offered: Sequence[float], trained: Sequence[float]) -> dict[str, Any]:
    return {
        name: {
            "n": len(values),
            "mean": _ratio(math.fsum(values), len(values)),
            "quantiles": dict(zip(("0.5", "0.9", "0.99"), quantiles(values), strict=True)),
        }
        for name, values in (("offered", offered), ("trained", trained))
    }


def _version_clock(run: Run) -> tuple[list[float], list[int]]:
    """Times and values of the trainer's version clock."""
    if run.rules.version_unit == "sync":
        return [time for time, _ in run.publications], [version for _, version in run.publications]
    grows = [1 if run.rules.version_unit == "step" else step.size for step in run.steps]
    return [step.trained or 0.0 for step in run.steps], list(accumulate(grows))


def _ages(run: Run, times: list[float], versions: list[int]) -> tuple[list[int], list[int]]:
    """Versions that passed in flight and in the queue, of everything that finished and left."""
    in_flight, in_queue = [], []
    for t in run.trajectories:
        if t.exit is not None and t.end is not None and t.status in (ACCEPTED, REJECTED, DROPPED, FILTERED):
            passed = bisect_right(times, t.end)
            # A bump at the moment of the end came before it; what left at that moment has the version it left with.
            at_end = min(versions[passed - 1] if passed else 0, t.exit.version)
            in_flight.append(at_end - t.start_version)
            in_queue.append(t.exit.version - at_end)
    return in_flight, in_queue


def _stale_groups(run: Run) -> int:
    stale = {(t.task, t.exit) for t in run.trajectories if t.status == ACCEPTED and t.lag}
    return len(stale)


def _waiting_at_step_ends(run: Run) -> float:
    """Mean number of finished trajectories that wait when a step ends."""
    finished = [t for t in run.trajectories if t.end is not None and t.exit is not None and t.exit.time > t.end]
    arrived = sorted(t.end for t in finished if t.end is not None)
    gone = sorted(t.exit.time for t in finished if t.exit is not None)
    ends = [step.trained for step in run.steps if step.trained is not None]
    return _ratio(sum(bisect_right(arrived, end) - bisect_right(gone, end) for end in ends), len(ends))
