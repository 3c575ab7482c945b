"""What does it buy, and what does it cost, to let rollout workers run ahead of the trainer?

The same tasks run through two schedules of one model. Synchronous: collect a batch, wait for the slowest rollout,
train, go on. Asynchronous: a free worker takes the next task at once and the trainer takes what waits, so a trajectory
may be trained by a policy several versions newer than the one that made it; those older than `max_policy_lag`
versions are thrown away. Weights are published at once and for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from labs.config import field, spelled
from labs.experiment import Progress, Result
from labs.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labs.pipeline.accounting import Run

SCHEDULES = ("synchronous", "asynchronous")
COLORS = ("#E69F00", "#0072B2")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the rollout experiment."""

    tasks: int = field(96, help="rollouts to run", low=1, high=1_000_000, unit="trajectory")
    workers: int = field(4, help="rollouts that run at once", unit="worker", low=1, high=100_000)
    batch_size: int = field(8, help="trajectories per training step", low=1, unit="trajectory")
    training_seconds: float = field(2.0, help="time of one training step", low=0, unit="s")
    duration_mean: float = field(3.0, help="mean time of a rollout before stragglers", above=0, unit="s")
    max_policy_lag: int = field(1, help="versions a trajectory may be behind when it is trained", unit="version", low=0)


TINY = {"tasks": 16, "workers": 2, "batch_size": 4}
CHANGES = {
    "tasks": 90,
    "workers": 5,
    "batch_size": 6,
    "training_seconds": 10.0,
    "duration_mean": 2.0,
    "max_policy_lag": 0,
}

METRICS = (
    Metric(
        name="accepted_throughput_ratio",
        unit="1",
        better="higher",
        formula="asynchronous / synchronous accepted_per_simulated_second",
        low=0.0,
        scope="run",
        text="Above 1 the asynchronous schedule feeds the trainer faster, after paying for what it threw away.",
    ),
    *(
        Metric(name=f"{schedule}_{name}", unit=unit, formula=formula, low=0.0, scope="run")
        for schedule in SCHEDULES
        for name, unit, formula in (
            ("seconds", "s", "simulated time until the last trajectory was trained or rejected"),
            ("accepted_per_second", "1/s", "accepted trajectories / simulated seconds"),
        )
    ),
    Metric(
        name="accepted", unit="trajectory", formula="asynchronous trajectories that were trained", low=0.0, scope="run"
    ),
    Metric(
        name="rejected",
        unit="trajectory",
        formula="asynchronous trajectories with lag > max_policy_lag when the trainer was free",
        low=0.0,
        scope="run",
    ),
    Metric(name="update", unit="1", formula="index of the training step", low=0.0, scope="update"),
    Metric(name="start", unit="s", formula="simulated time at which the step started", low=0.0, scope="update"),
    Metric(name="end", unit="s", formula="simulated time at which the step ended", low=0.0, scope="update"),
    Metric(name="size", unit="trajectory", formula="trajectories in the step", low=1.0, scope="update"),
    Metric(name="version", unit="1", formula="policy version the step started from", low=0.0, scope="update"),
    Metric(name="mean_lag", unit="1", formula="mean of version - start_version in the batch", low=0.0, scope="update"),
    Metric(name="mean_queue_seconds", unit="s", formula="mean time in the queue in the batch", low=0.0, scope="update"),
)


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Run both schedules on the same durations."""
    from labs.pipeline.measures import journey
    from labs.pipeline.model import simulate
    from labs.pipeline.rules import Rules
    from labs.pipeline.workload import course_durations

    durations = course_durations(config.tasks, config.duration_mean, seed)
    asynchronous = Rules(
        workers=config.workers,
        batch_size=config.batch_size,
        training_seconds=config.training_seconds,
        max_policy_lag=config.max_policy_lag,
    )
    schedules = {"synchronous": asynchronous.but(submission="budget"), "asynchronous": asynchronous}
    runs: dict[str, Run] = {}
    for i, (name, rules) in enumerate(schedules.items()):

        def report(done: int, total: int, before: int = i) -> None:
            if progress is not None:
                progress(before * total + done, len(schedules) * total)

        runs[name] = simulate(rules, durations, progress=report)
    data: dict[str, Any] = {
        name: {
            **one.summary(),
            "seconds_of_a_trained_trajectory": {part: s for part, s in journey(one).items() if part != "sibling"},
            "trajectories": [t.row() for t in one.trajectories],
        }
        for name, one in runs.items()
    }
    sync, away = data["synchronous"], data["asynchronous"]
    # A schedule that takes no time at all, or accepts nothing, has no throughput to compare with.
    base = sync["accepted_per_simulated_second"]
    ratio = away["accepted_per_simulated_second"] / base if base else 0.0
    data["accepted_throughput_ratio"] = ratio
    lags = ", ".join(f"{n} with lag {lag}" for lag, n in away["all_ingest_lag_histogram"].items())
    return Result(
        data=data,
        metrics=[row for name, one in runs.items() for row in _steps(name, one)],
        trajectories=away["trajectories"],
        headline={
            "accepted_throughput_ratio": ratio,
            **{f"{name}_seconds": data[name]["simulated_seconds"] for name in SCHEDULES},
            **{f"{name}_accepted_per_second": data[name]["accepted_per_simulated_second"] for name in SCHEDULES},
            "accepted": away["accepted_trajectories"],
            "rejected": away["rejected_stale_trajectories"],
        },
        summary=[
            _line("synchronous", sync),
            _line("asynchronous", away),
            f"ratio of accepted throughput: {ratio:.3f} asynchronous to synchronous",
            "a trained trajectory, " + "; ".join(f"{name}: {_journey(data[name])}" for name in SCHEDULES),
            f"at ingestion, asynchronous: {lags}" if len(lags) < 100 else f"at ingestion, asynchronous: {lags[:97]}...",
        ],
        conclusion=(
            f"With at most {config.max_policy_lag} version{'' if config.max_policy_lag == 1 else 's'} of lag the "
            f"asynchronous schedule trains {ratio:.2f} times as many trajectories per second and throws away "
            f"{away['rejected_stale_trajectories']} of {config.tasks}."
        ),
        next=_next(config, seed),
    )


def _next(config: Config, seed: int) -> tuple[str, ...]:
    """What the same settings give with no lag allowed, with slow training, over many seeds: two that are new."""
    others = (replace(config, max_policy_lag=0), replace(config, training_seconds=10.0))
    command = "python -m labs.run --experiment rollout"
    commands = [f"{command} --seed {seed}{spelled(other)}" for other in others if other != config]
    return (*commands, f"{command}{spelled(config)} --seeds 0-31")[:2]


def _line(name: str, data: Mapping[str, Any]) -> str:
    return (
        f"{name}: {data['simulated_seconds']:.3f} s, {data['accepted_trajectories']} accepted, "
        f"{data['rejected_stale_trajectories']} rejected, {data['accepted_per_simulated_second']:.4f} accepted/s; "
        f"workers busy {data['environment_worker_busy_fraction']:.0%}, trainer {data['trainer_busy_fraction']:.0%}"
    )


def _journey(data: Mapping[str, Any]) -> str:
    parts = data["seconds_of_a_trained_trajectory"]
    return " + ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items())


def _steps(schedule: str, run: Run) -> list[dict[str, Any]]:
    """One row per training step."""
    lag: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    for t in run.trajectories:
        left, end = t.exit, t.end
        if left is not None and left.update is not None and end is not None:
            lag[left.update] += left.version - t.start_version
            waited[left.update] += left.time - end  # type: ignore[assignment]
    return [
        {
            "schedule": schedule,
            "update": i,
            "start": step.time,
            "end": step.trained,
            "size": step.size,
            "version": step.version,
            "mean_lag": lag[i] / step.size,
            "mean_queue_seconds": waited[i] / step.size,
        }
        for i, step in enumerate(run.steps)
    ]


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Both schedules as Gantt charts, the queue, the lags, the throughput; several seeds are pooled where rates are."""
    first = results[0]
    some = f"seed {first.seed}, n = {first.config['tasks']:,} rollouts"
    return {
        "schedules": _schedules(first, some),
        "queue": _queue(first, some),
        "lags": _lags(results),
        "throughput": _throughput(results),
    }


def _schedules(result: Result, some: str) -> Figure:
    from labs import plots, timelines

    workers = min(result.config["workers"], timelines.MOST_LANES)
    windows = [timelines.window(result.data[name]["trajectories"]) for name in SCHEDULES]
    until = max(windows) if result.config["tasks"] <= timelines.MOST_ROLLOUTS else min(windows)
    fig, both = plots.figure(2, 1, height=2.6 + 0.55 * min(workers, 8), sharex=True)
    for axes, name in zip(both, SCHEDULES, strict=True):
        data = result.data[name]
        steps = [row for row in result.metrics if row["schedule"] == name]
        timelines.gantt(axes, data["trajectories"], steps, result.config["workers"], until)
        plots.label(axes, f"{name}: {data['accepted_trajectories']:,} trained in {data['simulated_seconds']:,.1f} s")
    both[1].set_xlabel("time (simulated s)")
    shown = "" if until >= max(result.data[name]["simulated_seconds"] for name in SCHEDULES) else ", the beginning"
    fig.suptitle(f"The same rollouts in two schedules ({some}{shown})")
    rows = [row for name in SCHEDULES for row in result.data[name]["trajectories"]]
    fig.legend(handles=timelines.gantt_legend(rows), loc="outside lower center", ncols=6, handlelength=1.4)
    return fig


def _queue(result: Result, some: str) -> Figure:
    from labs import plots, timelines

    fig, both = plots.figure(2, 1, height=4.6, sharex=True, sharey=True)
    for axes, name, color in zip(both, SCHEDULES, COLORS, strict=True):
        times, lengths = timelines.queue(result.data[name]["trajectories"])
        axes.step(times, lengths, where="post", color=color, lw=1.6)
        axes.fill_between(times, lengths, step="post", color=color, alpha=0.25, lw=0)
        axes.axhline(
            result.config["batch_size"], color=plots.BLACK, ls="--", lw=1.6, label="one batch: a free trainer starts"
        )
        plots.label(axes, name, "", "waiting\n(trajectories)")
    both[0].set_xlim(0, max(result.data[name]["simulated_seconds"] for name in SCHEDULES) or 1)
    both[0].set_ylim(bottom=0)
    both[0].yaxis.get_major_locator().set_params(integer=True)
    both[1].set_xlabel("time (simulated s)")
    fig.suptitle(f"Finished rollouts that wait for the trainer ({some})")
    plots.legend_below(fig, both[0])
    return fig


def _lags(results: Sequence[Result]) -> Figure:
    from labs import plots

    bound = results[0].config["max_policy_lag"]
    last = bound + 8  # what is older than that shares the last bar
    count: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
    for result in results:
        for row in result.data["asynchronous"]["trajectories"]:
            count[row["status"] == "accepted"][min(row["lag"], last)] += 1
    total = sum(map(sum, (c.values() for c in count.values())))
    most = max(bound + 1, *(max(c, default=0) for c in count.values()))
    fig, axes = plots.figure(height=3.6)
    for accepted, color, text, hatch in (
        (True, plots.BLUE, "trained", None),
        (False, plots.RED, "thrown away", "////"),
    ):
        lags = sorted(count[accepted])
        bars = axes.bar(
            lags,
            [count[accepted][lag] / total for lag in lags],
            color=color if accepted else "white",
            edgecolor=color,
            hatch=hatch,
            label=text,
        )
        if most <= 20:
            axes.bar_label(bars, [f"{count[accepted][lag]:,}" for lag in lags], padding=2)
    axes.axvline(bound + 0.5, color=plots.BLACK, ls="--", lw=1.6, label=f"bound: lag {bound}")
    axes.set_xlim(-0.6, most + 0.6)
    if most <= 20:
        axes.set_xticks(range(most + 1), [*map(str, range(most)), f"{last} or more" if most == last else str(most)])
    axes.margins(y=0.12)
    seeds = f"seed {results[0].seed}" if len(results) == 1 else f"{len(results)} seeds"
    plots.label(
        axes,
        f"How old trajectories are, asynchronous (n = {total:,}, {seeds})",
        "lag when the trainer is free (versions)",
        "share of all trajectories (1)",
    )
    plots.legend_below(fig, axes)
    return fig


def _throughput(results: Sequence[Result]) -> Figure:
    from labs import plots, timelines
    from labs.stats import t_interval

    first = results[0]
    fig, (left, right) = plots.figure(1, 2, height=4.2, width_ratios=(3, 2))
    for name, color in zip(SCHEDULES, COLORS, strict=True):
        times, counts = timelines.accepted(first.data[name]["trajectories"])
        # To the end of the run, which is what throughput divides by: the last rollout may be thrown away.
        times, counts = [*times, first.data[name]["simulated_seconds"]], [*counts, counts[-1]]
        left.step(times, counts, where="post", color=color, label=name)
    left.set_xlim(left=0)
    left.set_ylim(bottom=0)
    n = first.config["tasks"]
    plots.label(left, f"Trained so far (seed {first.seed}, n = {n:,})", "time (simulated s)", "trained trajectories")
    for x, (name, color) in enumerate(zip(SCHEDULES, COLORS, strict=True)):
        rates = [result.data[name]["accepted_per_simulated_second"] for result in results]
        mean = t_interval(rates)
        top, text = mean.value, f"{mean.value:.3f}"
        right.bar(x, mean.value, color=color, width=0.6)
        if mean.low is not None and mean.high is not None:
            half = mean.high - mean.value
            right.errorbar(x, mean.value, half, color=plots.BLACK, capsize=6)
            right.plot([x + 0.36] * len(rates), rates, ".", color=plots.GREY, ms=5)
            top, text = mean.high, f"{text}\n± {half:.3f}"
        right.annotate(text, (x, top), (0, 3), textcoords="offset points", ha="center")
    bounds = [_bound(result) for result in results]
    plots.exact(right, (-0.45, 1.45), [sum(bounds) / len(bounds)] * 2, "bound: workers or trainer never wait")
    right.set_xticks((0, 1), SCHEDULES)
    right.margins(y=0.2)
    seeds = f"seed {first.seed}" if len(results) == 1 else f"mean, 95 % t interval, n = {len(results)} seeds"
    plots.label(right, "Throughput", seeds, "trained per second (1/s)")
    handles = [*left.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    fig.legend(handles=handles, loc="outside lower center", ncols=3)
    return fig


def _bound(result: Result) -> float:
    """Accepted per second if neither workers nor trainer ever waited and nothing were thrown away: the ceiling."""
    config, rows = result.config, result.data["asynchronous"]["trajectories"]
    rollout = sum(row["end"] - row["start"] for row in rows) / (config["workers"] * len(rows))
    slowest = max(rollout, config["training_seconds"] / config["batch_size"])
    return 1 / slowest if slowest else 0.0
