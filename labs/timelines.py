"""Drawings of simulated pipelines from the rows of their trajectories: who did what when, and what waited.

Rows are those of `labs.pipeline.records.Trajectory.row`, as they are stored with a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labs import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

#: Lags share four steps of one dark-to-light scale; what is rejected is hatched, so that grey print still tells.
LAG_COLORS = ("#08306b", "#2b7bba", "#82bbdb", "#cfe1f2")
LAG_NAMES = ("lag 0", "lag 1", "lag 2", "lag 3 or more")
#: More rollouts or lanes than this cannot be told apart on a page.
MOST_ROLLOUTS, MOST_LANES = 400, 32


def window(rows: Sequence[Row]) -> float:
    """The time up to which a Gantt chart stays readable: all of it, or the end of the first `MOST_ROLLOUTS`."""
    shown = [r["end"] for r in rows if r["worker"] < MOST_LANES]
    every = [x for r in rows for x in (r["end"], r["trained"]) if x is not None]
    return float(max(every) if len(shown) <= MOST_ROLLOUTS else sorted(shown)[MOST_ROLLOUTS])


def gantt(axes: Axes, rows: Sequence[Row], steps: Sequence[Row], workers: int, until: float) -> None:
    """Workers and trainer as lanes over time; a rollout has the colour of its lag, a reject is hatched.

    Args:
        axes: where.
        rows: the trajectories.
        steps: rows with `start` and `end` of every training step.
        workers: how many there are; at most `MOST_LANES` are drawn.
        until: simulated seconds to draw.
    """
    lanes = min(workers, MOST_LANES)
    few = lanes <= 8
    thin = 0.8 if few else 1.0
    # Among many lanes the trainer's is as tall as its label and stands apart from the workers.
    trainer, tall = (0.0, thin) if few else (-lanes / 16, lanes / 16)
    for rejected in (False, True):
        for lag, color in enumerate(LAG_COLORS):
            mine = [
                r
                for r in rows
                if r["worker"] < lanes
                and r["start"] < until
                and min(r["lag"], len(LAG_COLORS) - 1) == lag
                and (r["status"] != "accepted") is rejected
            ]
            if mine:
                axes.barh(
                    [lanes - r["worker"] for r in mine],
                    [r["end"] - r["start"] for r in mine],
                    left=[r["start"] for r in mine],
                    height=thin,
                    color=color,
                    edgecolor=plots.RED if rejected else "white",
                    hatch="////" if rejected else None,
                    linewidth=1.0 if rejected else 0.6,
                )
    axes.barh(
        [trainer] * len(steps),
        [s["end"] - s["start"] for s in steps],
        left=[s["start"] for s in steps],
        height=tall,
        color=plots.ORANGE,
        edgecolor="white",
        linewidth=0.6,
    )
    axes.set_xlim(0, until)
    axes.set_ylim(trainer - tall / 2 - 0.2, lanes + 0.6)
    numbered = range(lanes, 0, -1) if few else (lanes, 0.5 + lanes / 16)
    axes.set_yticks(
        [trainer, *numbered], ["trainer", *(f"worker {i}" for i in (range(1, lanes + 1) if few else (1, lanes)))]
    )
    axes.grid(False, axis="y")


def gantt_legend(rows: Sequence[Row]) -> list[Any]:
    """Legend handles for what `gantt` draws of these rows."""
    from matplotlib.patches import Patch

    seen = sorted({min(r["lag"], len(LAG_COLORS) - 1) for r in rows})
    handles = [Patch(color=LAG_COLORS[lag], label=LAG_NAMES[lag]) for lag in seen]
    if any(r["status"] != "accepted" for r in rows):
        handles.append(Patch(facecolor="white", edgecolor=plots.RED, hatch="////", label="thrown away"))
    return [*handles, Patch(color=plots.ORANGE, label="training step")]


def queue(rows: Sequence[Row]) -> tuple[list[float], list[int]]:
    """How many trajectories wait between worker and trainer, as the corners of a step function of time."""
    changes: dict[float, int] = {0.0: 0}
    for row in rows:
        changes[row["end"]] = changes.get(row["end"], 0) + 1
        changes[row["ingested"]] = changes.get(row["ingested"], 0) - 1
    times = sorted(changes)
    waiting, lengths = 0, []
    for time in times:
        waiting += changes[time]
        lengths.append(waiting)
    return times, lengths


def accepted(rows: Sequence[Row]) -> tuple[list[float], list[int]]:
    """Trained trajectories so far, at the end of every training step."""
    times = sorted(r["trained"] for r in rows if r["trained"] is not None)
    return [0.0, *times], list(range(len(times) + 1))
