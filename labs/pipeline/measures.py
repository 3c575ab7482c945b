"""The numbers by which systems are compared: where the throughput comes from, where time goes, how old work is.

Two identities hold on every path and split the throughput into factors, so that a change of it is a change of one:

    trained per second = workers * share busy * share of their seconds that trained / mean seconds of what trained
    trained per second = samples in a step * share of the time that the trainer trains / seconds of a step
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from itertools import accumulate

from labs.metrics import Metric
from labs.pipeline.accounting import Run
from labs.pipeline.records import ABORTED, ACCEPTED, Trajectory

#: A step function with more corners is read off at that many moments.
MOST_POINTS = 1000


def _metric(name: str, unit: str, formula: str, high: float = math.inf) -> Metric:
    return Metric(name=name, unit=unit, formula=formula, low=0.0, high=high, scope="run")


#: What `measures` returns.
METRICS = (
    _metric("seconds", "s", "simulated time until the last task has left"),
    _metric("trained", "trajectory", "trajectories that trained"),
    _metric("kept", "1", "trained / all that started, attempts cut short by an update left out", 1.0),
    _metric("trained_per_second", "1/s", "trained / seconds"),
    _metric(
        "steady_per_second", "1/s", "the same up to the last start: without the end, when workers have no task left"
    ),
    _metric("workers_busy", "1", "worker seconds generating / all", 1.0),
    _metric("useful", "1", "seconds of generation that trained / worker seconds generating", 1.0),
    _metric("mean_trained_seconds", "s", "mean seconds of generation of what trained"),
    _metric("trainer_busy", "1", "trainer seconds training / all", 1.0),
    _metric("step_size", "trajectory", "mean trajectories in a step"),
    _metric("generate_seconds", "s", "worker seconds generating / workers / steps, with what is thrown away"),
    _metric("steps", "1", "training steps"),
    _metric("overlap", "1", "worker seconds generating while the trainer trains / all worker seconds meanwhile", 1.0),
    _metric("lag_mean", "1", "mean lag of what trained, in versions"),
    _metric("lag_max", "1", "largest lag of what trained, in versions"),
    _metric("step_lag_mean", "step", "mean of optimiser steps between the weights of the start and those trained"),
    _metric("step_lag_max", "step", "the largest of them"),
    _metric("token_lag_mean", "1", "mean lag of the tokens that trained, in versions"),
    _metric("mixed_share", "1", "share of what trained that several versions made", 1.0),
    _metric("rollout_seconds", "s", "mean seconds from start to end of what trained, pauses included"),
    _metric("sibling_seconds", "s", "mean seconds that what trained waited for the rest of its group"),
    _metric("queue_seconds", "s", "mean seconds from the end of its group to its step, of what trained"),
    _metric("sync_wait_seconds", "s", "trainer seconds in drain and sync / publications"),
    _metric("trainer_blocked", "1", "trainer seconds not training / all", 1.0),
    _metric("generator_blocked", "1", "worker seconds at a gate, for room, for an update, or dead / all", 1.0),
    _metric("lost_tasks", "1", "tasks of which nothing trained"),
    _metric("doubled_tasks", "1", "tasks of which more than group_size trajectories started"),
)


def measures(run: Run) -> dict[str, float]:
    """The run in the numbers of `METRICS`; ratios of nothing are 0."""
    trained = [t for t in run.trajectories if t.status == ACCEPTED]
    n, span, rules = len(trained), run.seconds, run.rules
    made = math.fsum(t.seconds for t in trained)
    busy = math.fsum(pool.get("busy", 0.0) for pool in run.worker_seconds)
    lags, steps = [t.lag or 0 for t in trained], step_lags(run)
    tokens = [((t.token_lag or 0.0) * t.seconds, t.seconds) for t in trained] if _spans(run) else []
    where, waits = journey(run), run.waits()
    whole = rules.workers * span
    tasks = {t.task for t in run.trajectories}
    attempts = Counter(t.task for t in run.trajectories)
    finished = len(run.trajectories) - sum(run.lags(ABORTED).values())
    return {
        "seconds": span,
        "trained": n,
        "kept": _ratio(n, finished),
        "trained_per_second": _ratio(n, span),
        "steady_per_second": _steady(run),
        "workers_busy": _share(busy, whole),
        "useful": _share(made, busy),
        "mean_trained_seconds": _ratio(made, n),
        "trainer_busy": _share(run.trainer_seconds.get("busy", 0.0), span),
        "step_size": _ratio(n, len(run.steps)),
        "generate_seconds": _ratio(busy, rules.workers * len(run.steps)),
        "steps": len(run.steps),
        "overlap": overlap(run),
        "lag_mean": _ratio(sum(lags), n),
        "lag_max": max(lags, default=0),
        "step_lag_mean": _ratio(sum(steps), len(steps)),
        "step_lag_max": max(steps, default=0),
        "token_lag_mean": _ratio(math.fsum(a for a, _ in tokens), made) if tokens else _weighted(trained, made),
        "mixed_share": _ratio(sum(len({v for v, _ in t.spans or ()}) > 1 for t in trained), n),
        **{f"{name}_seconds": where[name] for name in ("rollout", "sibling", "queue")},
        "sync_wait_seconds": _ratio(
            sum(run.trainer_seconds.get(what, 0.0) for what in ("drain", "sync")), len(run.publications)
        ),
        "trainer_blocked": _share(waits["trainer_blocked"], span),
        "generator_blocked": _share(waits["generator_blocked"], whole),
        "lost_tasks": len(tasks) - len({t.task for t in trained}),
        "doubled_tasks": sum(count > rules.group_size for count in attempts.values()),
    }


def journey(run: Run) -> dict[str, float]:
    """Where the time of what trained went, mean seconds: `rollout`, then `sibling`, then `queue`, then `training`.

    The rollout takes from start to end, pauses for updates included; then a sample waits for the rest of its group,
    then the group for room in the queue and for its step. Everything adds up from the start to the end of the step.
    """
    trained = [t for t in run.trajectories if t.status == ACCEPTED]
    last: dict[int, float] = {}
    if run.rules.group_size > 1:
        for t in trained:
            group = id(t.group)  # type: ignore[attr-defined]
            last[group] = max(last.get(group, 0.0), t.end or 0.0)
    sums = dict.fromkeys(("rollout", "sibling", "queue", "training"), 0.0)
    for t in trained:
        leave, end = t.exit, t.end
        assert leave is not None
        assert end is not None
        ready = last[id(t.group)] if last else end  # type: ignore[attr-defined]
        sums["rollout"] += end - t.start
        sums["sibling"] += ready - end
        sums["queue"] += leave.time - ready
        sums["training"] += (leave.trained or leave.time) - leave.time
    return {name: _ratio(total, len(trained)) for name, total in sums.items()}


def step_lags(run: Run) -> list[int]:
    """Optimiser steps between the weights that a trajectory started with and those that its step starts from."""
    published = {0: 0}
    for i, (_, version) in enumerate(run.publications):
        published[version] = (i + 1) * run.rules.steps_per_sync
    return [
        t.exit.update - published[t.start_version]
        for t in run.trajectories
        if t.status == ACCEPTED and t.exit is not None and t.exit.update is not None
    ]


def overlap(run: Run) -> float:
    """Share of the workers that generate while the trainer trains: 1 is full overlap, 0 takes turns."""
    steps = [(step.time, step.trained) for step in run.steps if step.trained is not None]
    training = math.fsum(end - start for start, end in steps)
    if not training:
        return 0.0
    starts = sorted(t.start for t in run.trajectories)
    ends = sorted(t.end for t in run.trajectories if t.end is not None)
    # Seconds of generation before x: the sum over those that started of x - start, less what lies behind their end.
    sums = [[0.0, *accumulate(times)] for times in (starts, ends)]

    def before(x: float) -> float:
        began, ended = bisect_right(starts, x), bisect_right(ends, x)
        return began * x - sums[0][began] - (ended * x - sums[1][ended])

    generating = math.fsum(before(end) - before(start) for start, end in steps)
    return _share(max(0.0, generating), run.rules.workers * training)


def series(run: Run) -> dict[str, list[float]]:
    """How many trajectories wait and run, as step functions of `time` with at most `MOST_POINTS` corners."""
    ends = sorted(t.end for t in run.trajectories if t.end is not None)
    starts = sorted(t.start for t in run.trajectories)
    left = sorted(t.exit.time for t in run.trajectories if t.exit is not None)
    corners = sorted({0.0, *starts, *ends, *left})
    if len(corners) > MOST_POINTS:
        corners = [run.seconds * i / (MOST_POINTS - 1) for i in range(MOST_POINTS)]
    done = [bisect_right(ends, x) for x in corners]
    return {
        "time": corners,
        "waiting": [float(d - bisect_right(left, x)) for x, d in zip(corners, done, strict=True)],
        "running": [float(bisect_right(starts, x) - d) for x, d in zip(corners, done, strict=True)],
    }


def _steady(run: Run) -> float:
    """Trained per second up to the last start; of a run that starts everything at once, over all of it."""
    last = max(t.start for t in run.trajectories)
    sizes = [step.size for step in run.steps if step.time <= last]
    return _ratio(sum(sizes), last) if last and sizes else _ratio(sum(s.size for s in run.steps), run.seconds)


def _spans(run: Run) -> bool:
    return run.rules.in_flight in ("abort_resume", "mixed")


def _weighted(trained: list[Trajectory], made: float) -> float:
    return _ratio(math.fsum((t.lag or 0) * t.seconds for t in trained), made)


def _share(a: float, b: float) -> float:
    """A part of a whole; sums in another order may exceed it by a rounding."""
    return min(1.0, _ratio(a, b))


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
