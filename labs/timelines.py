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


#: Versions go round these colours, light beside dark, so that neighbours differ in grey print too.
VERSION_COLORS = ("#08306b", "#82bbdb", "#7a3b00", "#f0b060", "#00543c", "#8fd3b8")

#: Fewer lanes and rollouts than where one colour a rollout will do.
VERSION_LANES, MOST_SPANS = 16, 160

#: Times by what they are, in one colour everywhere; what is not named here is grey.
STATE_COLORS = {
    "busy": plots.BLUE, "data": plots.YELLOW, "task": "#CCCCCC", "submission": plots.ORANGE, "queue full": plots.RED,
    "concurrency": plots.PURPLE, "drain": "#7a3b00", "sync": plots.GREEN, "down": plots.BLACK, "hold": plots.SKY,
    "evaluation": plots.PURPLE,
}  # fmt: skip


def shown(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows that a Gantt chart of the beginning needs."""
    first = [r for r in rows if r["worker"] < VERSION_LANES and r["end"] is not None]
    return [dict(r) for r in first[:MOST_SPANS]]


def segments(row: Row, published: Mapping[int, float], again: float = 0.0) -> list[tuple[int, float, float]]:
    """`(version, start, end)` of every part of a rollout that one version made.

    A part after the first begins when its version was published, or later where the prefix is computed again; what
    lies between two parts is the pause of an update.

    Args:
        row: the trajectory.
        published: version to the moment of its publication.
        again: seconds to compute the prefix again after a publication.
    """
    spans = row.get("spans") or [[row["start_version"], row["end"] - row["start"]]]
    parts: list[tuple[int, float, float]] = []
    for i, (version, seconds) in enumerate(spans):
        begin = row["start"] if i == 0 else published[version] + again
        parts.append((version, begin, begin + seconds))
    return parts


def gantt_versions(
    axes: Axes, rows: Sequence[Row], steps: Sequence[Row], publications: Sequence[Sequence[float]], workers: int,
    until: float, again: float = 0.0,
) -> None:  # fmt: skip
    """Workers and trainer as lanes over time, every part of a rollout in the colour of the version that made it.

    Args:
        axes: where.
        rows: the trajectories; what did not train is hatched.
        steps: rows with `start`, `end` and `version` of every training step, coloured likewise.
        publications: `(time, version)`, drawn as vertical lines.
        workers: how many there are; at most `VERSION_LANES` are drawn.
        until: simulated seconds to draw.
        again: seconds to compute a resumed rollout's prefix again.
    """
    from matplotlib.collections import PolyCollection

    lanes = min(workers, VERSION_LANES)
    published = {int(version): time for time, version in publications}
    number = {version: i for i, version in enumerate([0, *sorted(published)])}

    def color(version: int) -> str:
        return VERSION_COLORS[number.get(version, version) % len(VERSION_COLORS)]

    tall = max(1.0, lanes / 12)
    # One collection a colour: hundreds of single bars would take a second to draw.
    boxes: dict[tuple[str, bool], list[list[tuple[float, float]]]] = {}

    def box(face: str, kept: bool, begin: float, end: float, low: float, high: float) -> None:
        corners = [(begin, low), (end, low), (end, high), (begin, high)]
        boxes.setdefault((face, kept), []).append(corners)

    for row in rows:
        if row["worker"] < lanes and row["start"] < until:
            middle = lanes - row["worker"]
            for version, begin, end in segments(row, published, again):
                box(color(version), row["status"] == "accepted", begin, end, middle - 0.43, middle + 0.43)
    for step in steps:
        if step["start"] < until:
            box(color(step["version"]), True, step["start"], step["end"], -tall, 0.0)
    for (face, kept), corners in boxes.items():
        edge, hatch = ("white", None) if kept else (plots.RED, "////")
        axes.add_collection(PolyCollection(corners, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.7))
    shown_versions = [(time, version) for time, version in publications if time <= until]
    every = max(1, len(shown_versions) // 12)
    for i, (time, number_of) in enumerate(shown_versions):
        axes.axvline(time, color=plots.BLACK, lw=0.8, ls=":", zorder=3)
        if i % every == 0:
            axes.annotate(f"v{number_of:g}", (time, lanes + 0.7), fontsize=9, ha="center", annotation_clip=False)
    axes.set_xlim(0, until)
    axes.set_ylim(-tall - 0.3, lanes + 0.6)
    few = lanes <= 8
    numbered = range(lanes, 0, -1) if few else (lanes, 1)
    names = range(1, lanes + 1) if few else (1, lanes)
    axes.set_yticks([-tall / 2, *numbered], ["trainer", *(f"worker {i}" for i in names)])
    axes.grid(False, axis="y")


def versions_legend(rows: Sequence[Row]) -> list[Any]:
    """Legend handles for `gantt_versions`."""
    from matplotlib.patches import Patch

    handles = [Patch(color=c, label=f"v{i}") for i, c in enumerate(VERSION_COLORS)]
    handles[-1].set_label(f"v{len(VERSION_COLORS) - 1}, then again")
    if any(r["status"] != "accepted" for r in rows):
        handles.append(Patch(facecolor="white", edgecolor=plots.RED, hatch="////", label="not trained"))
    return handles


def budget(axes: Axes, budgets: Mapping[str, Mapping[str, float]], words: Mapping[str, str]) -> None:
    """Every pool's time as one stacked bar of shares that sums to 1.

    Args:
        axes: where.
        budgets: pool to state to share.
        words: state to words.
    """
    seen: list[str] = []
    for shares in budgets.values():
        seen += [state for state, share in shares.items() if share > 0 and state not in seen]
    seen.sort(key=lambda state: (state != "busy", list(STATE_COLORS).index(state) if state in STATE_COLORS else 99))
    names = list(budgets)
    left: list[float] = [0.0] * len(names)
    for state in seen:
        widths = [budgets[name].get(state, 0.0) for name in names]
        face = STATE_COLORS.get(state, plots.GREY)
        bars = axes.barh(
            range(len(names)),
            widths,
            left=left,
            color=face,
            edgecolor="white",
            label=words.get(state, state),
            height=0.6,
        )
        dark = face in (plots.BLUE, plots.RED, plots.BLACK, "#7a3b00", plots.GREEN)
        axes.bar_label(
            bars, [f"{w:.0%}" if w >= 0.05 else "" for w in widths], label_type="center", fontsize=11,
            color="white" if dark else plots.BLACK,
        )  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(False, axis="y")


def frontier(
    axes: Sequence[Axes], rows: Sequence[Sequence[Row]], own: float | None, learning: str = "success"
) -> list[str]:
    """Throughput, lag and, where a learner was inside, learning against the bound on staleness.

    Args:
        axes: one a panel: trained per second, lag of what trained, and `learning` if there are three.
        rows: `[seeds][bounds]`, rows with `bound`, `trained_per_second`, `lag_mean`, `lag_max`, if known
            `steady_per_second` and, for the third panel, the key `learning`; a bound at which some seed came to a stop
            is left out.
        own: the system's own bound, marked.
        learning: the key of the third panel.

    Returns:
        What the bands are.
    """
    good = [i for i in range(len(rows[0])) if all("trained_per_second" in seed[i] for seed in rows)]
    x = [rows[0][i]["bound"] for i in good]

    def column(key: str) -> list[list[float]]:
        return [[seed[i][key] for i in good] for seed in rows]

    panels: list[list[tuple[str, str, str, str]]] = [
        [
            ("steady_per_second", plots.BLUE, "up to the last start", "o-"),
            ("trained_per_second", plots.SKY, "whole run", "v--"),
        ],
        [("lag_mean", plots.ORANGE, "mean lag", "s-"), ("lag_max", plots.RED, "largest lag", "^--")],
        [(learning, plots.GREEN, learning, "D-")],
    ]
    bands = []
    for ax, lines in zip(axes, panels, strict=False):
        for key, color, text, form in lines:
            if any(key not in seed[i] for seed in rows for i in good):
                continue
            bands.append(plots.band(ax, x, column(key), color, text, marker=form[0], ls=form[1:]))
        if own is not None:
            ax.axvline(own, color=plots.GREY, lw=1.2, ls=":", label="as it runs" if ax is axes[0] else None)
        ax.set_ylim(bottom=0)
    return sorted({band for band in bands if band})
