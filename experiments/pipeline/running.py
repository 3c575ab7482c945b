"""Run the system, the bounds beside it and the varied settings; gather what is told and drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labs.config import spelled
from labs.errors import InputError
from labs.experiment import Progress, Result

if TYPE_CHECKING:
    from labs.pipeline.accounting import Run
    from labs.pipeline.rules import Rules

#: Trajectories whose rows are kept; sums are over all of them.
MOST_ROWS = 20_000
HEADLINE = (
    "trained_per_second", "kept", "lag_mean", "lag_max", "step_lag_mean", "workers_busy", "useful", "trainer_busy",
    "overlap", "queue_seconds", "trainer_blocked", "generator_blocked",
)  # fmt: skip


def run(config: Any, seed: int, progress: Progress | None = None) -> Result:
    """Run the system and what stands beside it."""
    from experiments.pipeline import setup
    from labs import timelines
    from labs.pipeline import chrome, report, told
    from labs.pipeline.measures import measures, series
    from labs.pipeline.model import simulate
    from labs.pipeline.predictions import theory

    system, rules = setup.rules(config)
    others = setup.prepare(config)
    bound, values = setup.bounds(rules) if config.frontier else ("", [])
    total = 1 + len(others) + len(values) + bool(values)
    counter = _Counter(progress, total)
    workload = setup.work(config, seed)
    one = simulate(rules, workload, progress=counter.report)
    synchronous, rows = None, []
    if values:
        synchronous = _try(lambda: simulate(_synchronous(rules), workload, progress=counter.next()))
        for value in values:
            other = rules.but(**{bound: int(value) if bound == "max_policy_lag" else value})
            measured = _try(lambda other=other: simulate(other, workload, progress=counter.next()))
            rows.append({"setting": f"{bound}={value:g}", "bound": value, **_row(measured, measures)})
    table = []
    for name, other in others:
        measured = _try(
            lambda other=other: simulate(setup.rules(other)[1], setup.work(other, seed), None, counter.next())
        )
        table.append({"setting": name, **_row(measured, measures)})
    numbers = measures(one)
    changed = setup.changes(config)
    more = {
        "work": setup.words(config),
        "changed": changed,
        "bias": report.bias(one),
        "theory": theory(one, synchronous if not isinstance(synchronous, str) else None),
        "table": table or rows,
    }
    spoken = told.sections(one, numbers, more, system)
    kept = one.trajectories[:MOST_ROWS]
    until = kept[-1].start
    trajectories = [t.row() for t in kept]
    steps = _steps(one)
    drawn = timelines.shown(trajectories)
    drawn_until = max((row["end"] for row in drawn), default=0.0)
    data: dict[str, Any] = {
        "system": {"name": system.name, "title": system.title, "source": system.source, "apart": system.apart},
        "rules": {
            name: {"value": _json(getattr(rules, name)), **_evidence(system, changed, name)} for name in system.values
        },
        "measures": numbers,
        "time_budget": one.time_budget(),
        "waits": one.waits(),
        "frameworks": report.framework_metrics(one),
        "lags": {"trained": _lags(one, "accepted"), "all": _lags(one)},
        "bias": more["bias"],
        "theory": more["theory"],
        "hazards": list(one.hazards),
        "frontier": {"rule": bound, "own": _json(getattr(rules, bound)) if bound else None, "rows": rows},
        "varied": table,
        "series": series(one),
        "publications": [list(p) for p in one.publications if p[0] <= drawn_until],
        "gantt": drawn,
        "report": spoken,
    }
    if synchronous is not None:
        data["synchronous"] = _row(synchronous, measures)
    return Result(
        data=data,
        metrics=steps,
        trajectories=trajectories,
        headline={name: numbers[name] for name in HEADLINE},
        summary=[spoken["outcome"][0], *spoken["outcome"][2:4], spoken["limits"][0], spoken["lag"][1]],
        conclusion=_conclusion(system.name, one, numbers),
        next=_next(config),
        files={"trace.json": chrome.dumps(one, until)},
    )


class _Counter:
    """Progress over several simulations."""

    def __init__(self, progress: Progress | None, runs: int) -> None:
        self.progress, self.runs, self.before = progress, runs, 0

    def report(self, done: int, total: int) -> None:
        """A simulation is `done` of `total` through."""
        if self.progress is not None:
            self.progress(int(1000 * (self.before + min(1.0, done / max(total, 1)))), 1000 * self.runs)

    def next(self) -> Callable[[int, int], None]:
        """The next simulation begins."""
        self.before += 1
        return self.report


def _try(call: Callable[[], Run]) -> Run | str:
    """The run, or the sentence that says why it came to a stop."""
    try:
        return call()
    except InputError as error:
        return str(error)


def _row(measured: Run | str, measures: Callable[[Run], dict[str, float]]) -> dict[str, Any]:
    return {"refused": measured} if isinstance(measured, str) else measures(measured)


def _synchronous(rules: Rules) -> Rules:
    """The same machines and work, one batch at a time."""
    return rules.but(
        submission="budget", submission_batches=1.0, submission_clock="version", concurrency_batches=None,
        queue_batches=None, ingestion="train", sweep=False, in_flight="finish", steps_per_sync=1, version_unit="sync",
        requeue="none", order="fifo",
    )  # fmt: skip


def _steps(one: Run) -> list[dict[str, Any]]:
    """One row per training step."""
    lag: Counter[int] = Counter()
    largest: dict[int, int] = {}
    waited: dict[int, float] = {}
    for t in one.trajectories:
        left, end = t.exit, t.end
        if left is not None and left.update is not None and end is not None:
            u, age = left.update, left.version - t.start_version
            lag[u] += age
            largest[u] = max(largest.get(u, 0), age)
            waited[u] = waited.get(u, 0.0) + left.time - end
    return [
        {
            "update": i,
            "start": step.time,
            "end": step.trained,
            "size": step.size,
            "version": step.version,
            "mean_lag": lag[i] / step.size,
            "largest_lag": largest[i],
            "mean_queue_seconds": waited[i] / step.size,
        }
        for i, step in enumerate(one.steps)
    ]


def _lags(one: Run, *statuses: str) -> dict[str, int]:
    return {str(lag): n for lag, n in sorted(one.lags(*statuses).items())}


def _json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _evidence(system: Any, changed: dict[str, Any], name: str) -> dict[str, str]:
    if name in changed:
        return {"changed": "set by hand"}
    return {"read": system.read[name]} if name in system.read else {"assumed": system.assumed[name]}


def _conclusion(name: str, one: Run, m: dict[str, float]) -> str:
    from labs.pipeline.told import held_up

    train = one.rules.training_seconds + one.rules.sync_seconds / one.rules.steps_per_sync
    slower = "generation" if m["generate_seconds"] > train else "training"
    return (
        f"{name} trains {m['trained_per_second']:.3g} trajectories per second at a mean lag of {m['lag_mean']:.2f} "
        f"(largest {m['lag_max']:.0f}) and keeps {m['kept']:.1%} of them; {slower} is the slower side"
        f"{held_up(m, slower)} (busy: workers {m['workers_busy']:.0%}, trainer {m['trainer_busy']:.0%})."
    )


def _next(config: Any) -> tuple[str, ...]:
    """A slower trainer, a heavier tail; where that is out of range, a faster one and a lighter one."""
    settings = spelled(config).removeprefix(" --set ").split(" ")
    rest = [pair for pair in settings if pair and pair.split("=")[0] not in ("system", "vary")]
    base = f"python -m labs simulate {config.system}" + (f" --set {' '.join(rest)}" if rest else "")
    slow = 4 * config.training_seconds or 1.0
    slow, tail = slow if slow <= 1e9 else slow / 16, config.sigma + (0.4 if config.sigma <= 9.6 else -0.4)
    return (
        f"{base} --vary training_seconds={config.training_seconds:g},{slow:g}",
        f"{base} --vary sigma={config.sigma:g},{tail:g}",
    )
