"""What a run of the pipeline looks like: versions over time, queue, time of every pool, throughput and staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labs.experiment import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """The first seed's versions, queue and times; the frontier over all seeds, where other bounds were run."""
    first = results[0]
    some = f"{first.config['system']}, seed {first.seed}"
    drawn = {"versions": _versions(first, some), "queue": _queue(first, some), "budget": _budget(first, some)}
    if first.data["frontier"]["rows"]:
        drawn["frontier"] = _frontier(results)
    return drawn


def _versions(result: Result, some: str) -> Figure:
    from labs import plots, timelines

    rows, workers = result.data["gantt"], min(result.config["workers"], timelines.VERSION_LANES)
    # Until the last of the drawn rollouts begins: what began before fills the page, and a long tail does not empty it.
    until = max((r["start"] for r in rows), default=0.0) or max((r["end"] for r in rows), default=0.0) or 1.0
    until = max(until, max((r["end"] for r in rows), default=1.0)) if len(rows) < timelines.MOST_SPANS else until
    resumes = result.data["rules"]["in_flight"]["value"] == "abort_resume"
    again = result.config["resume_seconds"] if resumes else 0.0
    fig, axes = plots.figure(height=2.4 + 0.55 * min(workers, 8))
    timelines.gantt_versions(axes, rows, result.metrics, result.data["publications"], workers, until, again)
    whole = result.data["measures"]["seconds"]
    part = "" if until >= whole else f", the first {until:,.0f} of {whole:,.0f} s"
    plots.label(axes, "", "time (simulated s)")
    left_out = f", {workers} of {result.config['workers']:,} workers" if workers < result.config["workers"] else ""
    fig.suptitle(f"Which version made what\n({some}{part}{left_out})")
    fig.legend(handles=timelines.versions_legend(rows), loc="outside lower center", ncols=7, handlelength=1.4)
    return fig


def _queue(result: Result, some: str) -> Figure:
    from labs import plots

    series, steps = result.data["series"], result.metrics
    fig, (top, bottom) = plots.figure(2, 1, height=5.2, sharex=True)
    top.step(series["time"], series["waiting"], where="post", color=plots.ORANGE, label="finished, waiting")
    top.step(series["time"], series["running"], where="post", color=plots.BLUE, lw=1.2, label="being generated")
    batch = result.config["batch_size"] * result.config["group_size"]
    top.axhline(batch, color=plots.BLACK, ls="--", lw=1.4, label="one batch")
    top.set_ylim(bottom=0)
    plots.label(top, "", "", "trajectories")
    times = [row["start"] for row in steps]
    bottom.step(
        times, [row["largest_lag"] for row in steps], where="post", color=plots.PURPLE, lw=1.4, label="largest lag"
    )
    bottom.step(times, [row["mean_lag"] for row in steps], where="post", color=plots.GREEN, label="mean lag")
    bottom.set_ylim(bottom=0)
    bottom.margins(y=0.15)
    unit = {"sync": "versions", "step": "steps", "sample": "samples"}[result.data["rules"]["version_unit"]["value"]]
    plots.label(bottom, "", "time (simulated s)", f"lag in the batch\n({unit})")
    bottom.set_xlim(0, series["time"][-1] or 1)
    fig.suptitle(f"Queue and lag over time ({some})")
    _legend(fig, (top, bottom))
    return fig


def _budget(result: Result, some: str) -> Figure:
    from labs import plots, timelines
    from labs.pipeline.told import WAITS

    budgets: Mapping[str, Any] = result.data["time_budget"]
    fig, axes = plots.figure(height=1.9 + 0.6 * len(budgets))
    timelines.budget(axes, budgets, {"busy": "busy", **{what: f"waits: {text}" for what, text in WAITS.items()}})
    plots.label(axes, "", "share of the pool's time (1)")
    fig.suptitle(f"Where the time goes ({some})")
    fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig


def _legend(fig: Figure, panels: Sequence[Any]) -> None:
    """One legend for all panels, below them."""
    pairs = [pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    fig.legend(*zip(*pairs, strict=True), loc="outside lower center", ncols=4)


def _frontier(results: Sequence[Result]) -> Figure:
    from labs import plots, timelines

    first = results[0]
    rule = first.data["frontier"]["rule"]
    rows = [result.data["frontier"]["rows"] for result in results]
    fig, panels = plots.figure(2, 1, height=5.6, sharex=True)
    bands = timelines.frontier(panels, rows, first.data["frontier"]["own"])
    free = [row["bound"] for row in rows[0]]
    config, measured = first.config, first.data["measures"]
    sync = first.data.get("synchronous", {}).get("trained_per_second")
    if sync is not None:
        plots.exact(panels[0], (min(free), max(free)), (sync, sync), "synchronous")
    if config["training_seconds"] and measured["trained"]:
        most = config["batch_size"] * config["group_size"] / config["training_seconds"]
        if most < 2 * max(row.get("trained_per_second", 0) for row in rows[0]):
            panels[0].axhline(most, color=plots.GREEN, lw=1.4, ls="-.", label="trainer never waits")
    panels[0].set_ylim(bottom=0)
    plots.label(panels[0], "", "", "trained per second\n(1/s)")
    units = {"submission_batches": "batches", "queue_batches": "batches"}
    unit = {"sync": "versions", "step": "steps", "sample": "samples"}[first.data["rules"]["version_unit"]["value"]]
    units["max_policy_lag"] = unit
    plots.label(panels[1], "", f"staleness bound: {rule} ({units[rule]})", f"lag of what trained\n({unit})")
    _legend(fig, panels)
    seeds = f"seed {first.seed}" if len(results) == 1 else "; ".join(bands) or f"{len(results)} seeds"
    fig.suptitle(f"Throughput against staleness ({first.config['system']}, {seeds})")
    return fig
