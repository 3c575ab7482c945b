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

#: Gates that hold a free worker back.
_GATES = ("submission", "concurrency", "queue full")

#: Conditions in words, and whether they hold.
Conditions = dict[str, bool]


def theory(run: Run, synchronous: Run | None = None) -> list[dict[str, Any]]:
    """Rows with `name`, `predicted`, `simulated`, whether the conditions hold (`holds`), all conditions in words
    (`condition`) and those that fail (`broken`).

    Args:
        run: what happened.
        synchronous: the same work under the synchronous schedule, for the bound on the gain.
    """
    rows: list[dict[str, Any]] = []

    def row(name: str, predicted: float, simulated: float, conditions: Conditions) -> None:
        # JSON knows no infinity; a formula that diverges has left its conditions.
        value = predicted if math.isfinite(predicted) else None
        broken = [text for text, holds in conditions.items() if not holds] + (["diverges"] if value is None else [])
        found = {"name": name, "predicted": value, "simulated": simulated, "holds": not broken}
        rows.append({**found, "condition": "; ".join(conditions), "broken": broken})

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
    row("total lag", run.lag_at_bumps + run.lag_at_starts, total, {"always, on every path": True})
    every, span = run.trajectories, run.seconds
    if span:
        rate = n / span
        flight = math.fsum((t.end or 0.0) - t.start for t in every) / n
        queue = math.fsum((t.exit.time if t.exit else 0.0) - (t.end or 0.0) for t in every) / n
        little = {"always: Little's law": True}
        row("mean number in flight", forms.little(rate, flight), run.running_area / span, little)
        row("mean number waiting", forms.little(rate, queue), run.waiting_area / span, little)
    least = forms.graham([t.seconds for t in every], rules.workers)[0]
    plain = {"equal workers": not rules.pools, "nothing stops a rollout": rules.in_flight == "finish"}
    row("seconds, at least (Graham)", least, span, plain)
    if rules.submission == "budget":
        closed = any(pool.get("submission", 0.0) for pool in run.worker_seconds)
        step = rules.training_seconds + rules.sync_seconds
        binds = forms.budget_binds(rules.workers, rules.batch_size, rules.submission_batches, step)
        conditions = {
            binds.condition: binds.holds,
            "groups of one": rules.group_size == 1,
            "nothing stops a rollout": rules.in_flight == "finish",
            "more tasks than workers": run.work.tasks > rules.workers,
        }
        row("the budget closes the gate (1: yes)", binds.value, float(closed), conditions)


def _stationary(run: Run, law: list[float], row: Any) -> None:
    """What holds in the stationary state of the asynchronous schedule, and the step of the synchronous one."""
    rules, n = run.rules, len(run.trajectories)
    workers, batch, training = rules.workers, rules.batch_size * rules.group_size, rules.training_seconds
    mean = math.fsum(law) / len(law)
    middle = run.trajectories[n // 5 : 3 * n // 5]
    gap = _seconds_per_step(run)
    long: Conditions = {
        "equal workers that live": not rules.pools and rules.mean_time_to_failure is None,
        "groups of one, no filter": rules.group_size == 1 and rules.filter == "none",
        "a version per step": rules.steps_per_sync == 1 and rules.version_unit == "sync",
        "at least 40 batches": n >= 40 * batch,
    }
    open_: Conditions = {
        **long,
        "instant publication, no evaluation": not rules.sync_seconds and not rules.evaluation_every,
        "no gate closes": not any(pool.get(gate) for pool in run.worker_seconds for gate in _GATES),
        "first in first out": rules.order == "fifo",
    }
    alone: Conditions = {
        **open_,
        "nothing stops a rollout": rules.in_flight == "finish" and not rules.sweep,
        "no step is held back": not run.trainer_seconds.get("hold"),
    }
    kept: Conditions = {**alone, "nothing is rejected": not run.lags(REJECTED)}

    lag = forms.mean_lag(workers, batch, training, law)
    limited, tau = {lag.condition: lag.holds}, batch * mean / workers
    cycle = forms.cycle(workers, batch, training, mean)
    either = {f"{lag.condition}, or trainer-limited, T = {training:.3g} s > 2 tau": lag.holds or training > 2 * tau}
    row("seconds per step", cycle, gap, {**either, **kept})
    rate = _ratio(sum(t.status == ACCEPTED for t in middle), len(middle)) * _arrivals(middle)
    row("trained per second", forms.throughput(batch, cycle), rate, {**either, **kept})
    row("mean lag", lag.value, _mean_lag(middle), {**limited, **kept})
    if run.steps:
        from_bumps = forms.mean_lag_from_bumps((run.lag_at_bumps + run.lag_at_starts) / len(run.steps), batch)
        full = {"every batch full, everything trains": n == len(run.steps) * batch}
        row("mean lag from bumps", from_bumps, _mean_lag(run.trajectories), full)
    tail = forms.lag_tail(2, workers, batch, training, law)
    old = _ratio(sum((t.lag or 0) >= 2 for t in middle), len(middle))
    row("share with lag 2 or more", tail.value, old, {tail.condition: tail.holds, **kept})
    if rules.ingestion == "reject":
        fixed = forms.rejection(workers, batch, training, law, rules.max_policy_lag)
        conditions = {fixed.condition: fixed.holds, **alone}
        simulated = _ratio(sum(t.status == REJECTED for t in middle), len(middle))
        row("share rejected", fixed.share, simulated, conditions)
        trained = [t.seconds for t in middle if t.status == ACCEPTED]
        shorter = forms.accepted_mean(law, fixed.step, training, rules.max_policy_lag)
        row("mean seconds of what trains", shorter, _ratio(math.fsum(trained), len(trained)), conditions)
    if rules.in_flight == "mixed":
        all_train = {**open_, "everything trains": rules.ingestion == "train" and not rules.sweep}
        per_sample, per_token = forms.token_lag(workers, batch, training, law)
        lags = [(t.token_lag or 0.0, t.seconds) for t in middle]
        simulated = _ratio(math.fsum(lag for lag, _ in lags), len(lags))
        row("token lag, mean over samples", per_sample.value, simulated, {**limited, **all_train})
        weighted = _ratio(math.fsum(lag * s for lag, s in lags), math.fsum(s for _, s in lags))
        row("token lag, mean over tokens", per_token.value, weighted, {**limited, **all_train})
    if rules.capacity is not None and rules.on_full == "block":
        behind = forms.saturated_lag(workers, batch, rules.capacity * rules.group_size, training, law)
        conditions = {
            behind.condition: behind.holds,
            **long,
            "no other gate": rules.submission == "open" and rules.concurrency is None,
            "everything trains, on the weights it began with": rules.ingestion == "train"
            and rules.in_flight == "finish",
        }
        row("mean lag behind a full queue", behind.value, _mean_lag(middle), conditions)
    one_batch = rules.submission == "budget" and rules.submission_batches == 1 and rules.submission_clock == "version"
    if one_batch and rules.steps_per_sync == 1:
        longest = forms.expected_max(batch, lambda x: bisect_right(law, x) / len(law), mean, 4000)
        step = forms.synchronous_step(longest, training, rules.sync_seconds)
        wide = {f"W = {workers} >= B = {batch}": workers >= batch, **long}
        row("seconds per synchronous step", step, gap, {**wide, "nothing stops a rollout": rules.in_flight == "finish"})


def _gain(run: Run, synchronous: Run, row: Any) -> None:
    """Trained per second against the synchronous schedule on the same machines, and the most that it can be."""
    rules, batch = run.rules, run.rules.batch_size * run.rules.group_size
    step = synchronous.seconds / len(synchronous.steps)
    makespan = step - rules.training_seconds - rules.sync_seconds
    mean = math.fsum(t.seconds for t in run.trajectories) / len(run.trajectories)
    most = forms.speedup_bound(makespan, rules.workers, batch, rules.training_seconds, mean, rules.sync_seconds)
    rates = [_ratio(sum(one.lags(ACCEPTED).values()), one.seconds) for one in (synchronous, run)]
    conditions = {
        "equal workers": not rules.pools,
        "everything trains": len(run.trajectories) == sum(run.lags(ACCEPTED).values()),
    }
    row("gain over synchronous, at most", most, _ratio(rates[1], rates[0]), conditions)


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
