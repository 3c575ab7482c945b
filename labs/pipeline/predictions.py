"""Theory beside simulation: for every closed form that speaks of a run, what it says, what happened, whether it may.

Formulas of the stationary state are compared with the second and third fifth of the trajectories: no warm-up, and long
ones end before the run. The formulas of reward servers and of decoding have no counterpart in such a run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from labs.pipeline import closed_forms as forms
from labs.pipeline.accounting import Run
from labs.pipeline.records import ACCEPTED, REJECTED, Trajectory

#: A duration law of more values is averaged in that many blocks, which keeps its mean.
MOST_VALUES = 4000

_STEADY = "unthrottled, one version per step, instant publication, groups of one, at least 40 batches"


def theory(run: Run, synchronous: Run | None = None) -> list[dict[str, Any]]:
    """Rows with `name`, `predicted`, `simulated`, whether the conditions `holds`, and the `condition` in words.

    Args:
        run: what happened.
        synchronous: the same work under the synchronous schedule, for the bound on the gain.
    """
    rows: list[dict[str, Any]] = []

    def row(name: str, predicted: float, simulated: float, holds: bool, condition: str) -> None:
        # JSON knows no infinity; a formula that diverges has left its conditions.
        value = predicted if math.isfinite(predicted) else None
        holds = holds and value is not None
        rows.append({"name": name, "predicted": value, "simulated": simulated, "holds": holds, "condition": condition})

    _pathwise(run, row)
    law = thinned([t.seconds for t in run.trajectories])
    if not law or not sum(law):
        return rows
    _stationary(run, law, row)
    if synchronous is not None and synchronous.steps and run.steps:
        _gain(run, synchronous, row)
    return rows


def thinned(law: Sequence[float]) -> list[float]:
    """The law as at most `MOST_VALUES` equally likely values with the same mean."""
    ordered, n = sorted(law), len(law)
    if n <= MOST_VALUES:
        return ordered
    cuts = [i * n // MOST_VALUES for i in range(MOST_VALUES + 1)]
    means = [math.fsum(ordered[a:b]) / (b - a) for a, b in pairwise(cuts)]
    scale = math.fsum(ordered) / n * MOST_VALUES / math.fsum(means)
    return [scale * value for value in means]


def _pathwise(run: Run, row: Any) -> None:
    """What holds on every path."""
    rules, n = run.rules, len(run.trajectories)
    total = sum(lag * k for lag, k in run.lags().items())
    row("total lag", run.lag_at_bumps + run.lag_at_starts, total, True, "always: pathwise")
    every, span = run.trajectories, run.seconds
    if span:
        rate = n / span
        flight = math.fsum((t.end or 0.0) - t.start for t in every) / n
        queue = math.fsum((t.exit.time if t.exit else 0.0) - (t.end or 0.0) for t in every) / n
        row("mean number in flight", forms.little(rate, flight), run.running_area / span, True, "always: Little")
        row("mean number waiting", forms.little(rate, queue), run.waiting_area / span, True, "always: Little")
    plain = rules.in_flight == "finish" and not rules.pools
    least = forms.graham([t.seconds for t in every], rules.workers)[0]
    row("seconds, at least", least, span, plain, "Graham's lower bound: nothing stops a rollout, equal workers")
    if rules.submission == "budget":
        closed = any(pool.get("submission", 0.0) for pool in run.worker_seconds)
        binds = forms.budget_binds(
            rules.workers, rules.batch_size, rules.submission_batches, rules.training_seconds + rules.sync_seconds
        )
        single = rules.group_size == 1 and rules.in_flight == "finish" and run.work.tasks > rules.workers
        row("the budget closes the gate (1 yes)", binds.value, float(closed), binds.holds and single, binds.condition)


def _stationary(run: Run, law: list[float], row: Any) -> None:
    """What holds in the stationary state of the asynchronous schedule, and the step of the synchronous one."""
    rules, n = run.rules, len(run.trajectories)
    workers, batch, training = rules.workers, rules.batch_size * rules.group_size, rules.training_seconds
    mean = math.fsum(law) / len(law)
    middle = run.trajectories[n // 5 : 3 * n // 5]
    simple = (
        not rules.pools and not rules.sync_seconds and rules.steps_per_sync == 1 and not rules.sweep
        and rules.version_unit == "sync" and rules.group_size == 1 and rules.mean_time_to_failure is None
        and rules.filter == "none" and not rules.evaluation_every and rules.order == "fifo" and n >= 40 * batch
    )  # fmt: skip
    free = simple and rules.submission == "open" and rules.concurrency is None and rules.capacity is None
    unthrottled = free and rules.in_flight == "finish" and rules.ingestion != "wait"
    kept = unthrottled and not run.lags(REJECTED)
    gap = _seconds_per_step(run)

    cycle = forms.cycle(workers, batch, training, mean)
    lag = forms.mean_lag(workers, batch, training, law)
    steady = kept and (lag.holds or training > 2 * batch * mean / workers)
    row("seconds per step", cycle, gap, steady, f"max(T, B E[X] / W); {lag.condition}, or T twice as long; {_STEADY}")
    rate = _ratio(sum(t.status == ACCEPTED for t in middle), len(middle)) * _arrivals(middle)
    row("trained per second", forms.throughput(batch, cycle), rate, steady, "as seconds per step")
    row("mean lag", lag.value, _mean_lag(middle), lag.holds and kept, f"{lag.condition}; {_STEADY}")
    if run.steps:
        from_bumps = forms.mean_lag_from_bumps((run.lag_at_bumps + run.lag_at_starts) / len(run.steps), batch)
        full = len(run.trajectories) == len(run.steps) * batch
        row("mean lag from bumps", from_bumps, _mean_lag(run.trajectories), full, "every batch full, all trained")
    tail = forms.lag_tail(2, workers, batch, training, law)
    old = _ratio(sum((t.lag or 0) >= 2 for t in middle), len(middle))
    row("share with lag 2 or more", tail.value, old, tail.holds and kept, f"{tail.condition}; {_STEADY}")
    if rules.ingestion == "reject":
        bound = rules.max_policy_lag
        fixed = forms.rejection(workers, batch, training, law, bound)
        simulated = _ratio(sum(t.status == REJECTED for t in middle), len(middle))
        row("share rejected", fixed.share, simulated, fixed.holds and unthrottled, f"{fixed.condition}; {_STEADY}")
        trained = [t.seconds for t in middle if t.status == ACCEPTED]
        shorter = forms.accepted_mean(law, fixed.step, training, bound)
        row(
            "mean seconds of what trains",
            shorter,
            _ratio(math.fsum(trained), len(trained)),
            fixed.holds and unthrottled,
            f"{fixed.condition}; {_STEADY}",
        )
    if rules.in_flight == "mixed":
        holds = free and rules.ingestion == "train"
        per_sample, per_token = forms.token_lag(workers, batch, training, law)
        lags = [(t.token_lag or 0.0, t.seconds) for t in middle]
        simulated = _ratio(math.fsum(lag for lag, _ in lags), len(lags))
        row("token lag, mean over samples", per_sample.value, simulated, per_sample.holds and holds, _STEADY)
        weighted = _ratio(math.fsum(lag * s for lag, s in lags), math.fsum(s for _, s in lags))
        row("token lag, mean over tokens", per_token.value, weighted, per_token.holds and holds, _STEADY)
    if rules.capacity is not None and rules.on_full == "block":
        behind = forms.saturated_lag(workers, batch, rules.capacity * rules.group_size, training, law)
        holds = simple and rules.submission == "open" and rules.concurrency is None and rules.ingestion == "train"
        holds = holds and rules.in_flight == "finish"
        row("mean lag behind a full queue", behind.value, _mean_lag(middle), behind.holds and holds, behind.condition)
    one_batch = rules.submission == "budget" and rules.submission_batches == 1 and rules.submission_clock == "version"
    if one_batch and rules.steps_per_sync == 1 and mean:
        longest = forms.expected_max(batch, lambda x: bisect_right(law, x) / len(law), mean)
        step = forms.synchronous_step(longest, training, rules.sync_seconds)
        wide = rules.in_flight == "finish" and not rules.pools and workers >= batch and n >= 40 * batch
        wide = wide and rules.filter == "none" and rules.mean_time_to_failure is None
        row("seconds per synchronous step", step, gap, wide, f"W = {workers} >= B = {batch}, at least 40 batches")


def _gain(run: Run, synchronous: Run, row: Any) -> None:
    """Trained per second against the synchronous schedule on the same machines, and the most that it can be."""
    rules, batch = run.rules, run.rules.batch_size * run.rules.group_size
    step = synchronous.seconds / len(synchronous.steps)
    makespan = step - rules.training_seconds - rules.sync_seconds
    mean = math.fsum(t.seconds for t in run.trajectories) / len(run.trajectories)
    most = forms.speedup_bound(makespan, rules.workers, batch, rules.training_seconds, mean, rules.sync_seconds)
    rates = [_ratio(sum(one.lags(ACCEPTED).values()), one.seconds) for one in (synchronous, run)]
    whole = len(run.trajectories) == sum(run.lags(ACCEPTED).values()) and not rules.pools
    row("gain over synchronous, at most", most, _ratio(rates[1], rates[0]), whole, "equal workers, everything trains")


def _seconds_per_step(run: Run) -> float:
    """Mean seconds from one step to the next, over the second and third fifth of them."""
    some = run.steps[len(run.steps) // 5 : 3 * len(run.steps) // 5 + 1]
    return (some[-1].time - some[0].time) / (len(some) - 1) if len(some) > 1 else 0.0


def _arrivals(some: Sequence[Trajectory]) -> float:
    """Starts per second."""
    span = some[-1].start - some[0].start if some else 0.0
    return (len(some) - 1) / span if span else 0.0


def _mean_lag(some: Sequence[Trajectory]) -> float:
    return _ratio(sum(t.lag or 0 for t in some), len(some))


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
