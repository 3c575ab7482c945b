"""The figures of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.groups import measures
from labs import plots
from labs.experiment import Result
from labs.stats import wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def kinds(result: Result) -> Figure:
    rows, columns = result.data["kinds"], list(measures.PLACES)
    fig, axes = plots.figure(height=6.2)
    table = [[float("nan") if row[c] is None else round(row[c], 9) + 0.0 for c in columns] for row in rows]
    top = max(abs(v) for line in table for v in line if v == v)
    image = plots.heatmap(axes, table, [row["estimator"] for row in rows], columns, low=-top, high=top,
                          colors=plots.DIFFERENCE, form="{:+.3f}")  # fmt: skip
    for text in axes.texts:
        if "nan" in text.get_text():
            text.set_color(plots.GREY)
        text.set_text(text.get_text().replace("+nan", "raises").replace("+0.000", "0"))
    fig.colorbar(image, ax=axes, label="advantage (1)")
    plots.label(axes, "What each kind of group is worth (groups of 4 and of 1, exact)", "group, rollout", "estimator")
    return fig


def equal(results: Sequence[Result]) -> Figure:
    fig, both = plots.figure(1, 2, height=4.8, sharey=True)
    drawn = results[0].config["groups"] * len(results)
    for axes, task in zip(both, ("sum", "difference"), strict=True):
        rows = [[r for r in result.data["shares"] if r["task"] == task] for result in results]
        for n, color in zip(sorted({r["n"] for r in rows[0]}), plots.CYCLE * 10, strict=False):
            grid = [i / 200 for i in range(201)]
            axes.plot(grid, [p**n + (1 - p) ** n for p in grid], color=color, ls="--", lw=1.4)
            at = [i for i, r in enumerate(rows[0]) if r["n"] == n]
            found = [wilson(round(sum(one[i]["sampled"] for one in rows) / len(rows) * drawn), drawn) for i in at]
            low, high = ([getattr(i, end) for i in found] for end in ("low", "high"))
            middle = [i.value for i in found]
            bars = [
                [m - v for m, v in zip(middle, low, strict=True)],
                [v - m for m, v in zip(middle, high, strict=True)],
            ]
            axes.errorbar([rows[0][i]["p"] for i in at], middle, bars, fmt="o", color=color, ms=6, capsize=3,
                          label=f"n = {n}")  # fmt: skip
        plots.label(axes, f"Task: {task}", "success probability of the task (1)")
        axes.set_ylim(-0.02, 1.04)
    both[0].set_ylabel("groups of equal scores (1)")
    fig.suptitle(f"Groups without contrast (dashed: exact p^n + (1-p)^n; bars: 95 % Wilson, {drawn:,} groups)")
    plots.legend_below(fig, both[0], 5)
    return fig


def size(results: Sequence[Result]) -> Figure:
    config = results[0].config
    fig, (left, right) = plots.figure(1, 2, height=4.8)
    looks = (("small", plots.RED, "o"), ("large", plots.BLUE, "s"))
    skills = [row["skill"] for row in results[0].data["signal"]]
    lines: dict[str, list[float]] = {}
    for name, color, mark in looks:
        text = f"groups of {config[name]}"
        left.plot(
            skills, [row[name] for row in results[0].data["signal"]], color=color, marker=mark, ls="--", label=text
        )
        curves = [curve for result in results for curve in result.data["curves"][name]]
        what = plots.band(right, range(1, config["updates"] + 1), curves, color, text)
        line, missing = measures.expected(config, config[name])
        lines[text] = [round(v, 9) for v in line]
    same = len(set(map(tuple, lines.values()))) == 1
    for (text, line), color in zip(lines.items(), (plots.BLACK, plots.GREY), strict=True):
        if line and not (same and color == plots.GREY):
            whose = "of either size" if same else text
            plots.exact(right, range(1, config["updates"] + 1), line, f"expected update, {whose}", color)
    left.set_ylim(bottom=0)
    plots.label(left, "Signal of one update, exact", "logit of the right actions (1)", "signal-to-noise (1)")
    what = what.replace("seeds", "trainings") or "one training"
    plots.label(
        right, f"Training, {config['budget']} rollouts an update", "update (1)", "exact success of the policy (1)"
    )
    what += f"\nno expected update: {missing}" if missing else ""
    right.text(0.02, 1.0, what, transform=right.transAxes, va="top", size=10)
    right.set_ylim(0, 1.1)
    fig.suptitle(f"Group size at an equal budget ({config['estimator']})")
    plots.legend_below(fig, right)
    return fig


def ids(result: Result) -> Figure:
    fig, (left, right) = plots.figure(1, 2, height=5.2)
    rows = result.data["ids"]
    for shift, key, color, text in (
        (-0.26, "scale_easy", plots.SKY, "easy task, expected / true gradient"),
        (0.0, "scale_hard", plots.BLUE, "hard task, expected / true gradient"),
        (0.26, "noise", plots.ORANGE, "noise / noise of right ids"),
    ):
        bars = left.barh(
            [i + shift for i in range(len(rows))], [row[key] for row in rows], 0.24, color=color, label=text
        )
        left.bar_label(bars, fmt="%.2f", padding=2, size=9)
    left.set_yticks(range(len(rows)), [row["ids"] for row in rows])
    left.invert_yaxis()
    left.margins(x=0.14)
    plots.label(left, f"Wrong ids, {result.config['estimator']}", "ratio (1); exact, 256 outcomes of 4 + 4 rows")
    sessions = result.data["sessions"]
    table = [[float(row in one["rows"]) for row in range(9)] for one in sessions]
    names = [f"{s + 1}.{t + 1}" for s, turns in enumerate(measures.SESSIONS) for t in range(len(turns))]
    plots.heatmap(right, table, [one["estimator"] for one in sessions], names, form="{:.0f}")
    right.tick_params(axis="y", labelsize=10)
    plots.label(right, "1: moves another", "row: session.turn (exact)")
    left.legend(loc="upper center", bbox_to_anchor=(0.3, -0.13))
    return fig
