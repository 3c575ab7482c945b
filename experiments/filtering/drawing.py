"""The figures of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.filtering import measures
from labs import plots
from labs.experiment import Result
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED, plots.PURPLE, plots.SKY)
GRID = [i / 400 for i in range(1, 400)]


def _sizes(n: int) -> list[int]:
    return sorted({2, n, 4 * n})


def tasks(results: Sequence[Result]) -> Figure:
    first = results[0]
    rows, n = first.data["families"], first.config["group_size"]
    fig, (left, right) = plots.figure(1, 2, height=5.4, width_ratios=(4, 5))
    for size, line in zip(_sizes(n), (":", "--", "-."), strict=False):
        left.plot(
            GRID, [measures.contrast(p, size) for p in GRID], color=plots.BLACK, ls=line, lw=1.4, label=f"n = {size}"
        )
    for row, color in zip(rows, COLORS * 9, strict=False):
        left.plot(row["family_success"], row["family_keep"], "o", ms=9, color=color, label=f"{row['family']}, n = {n}")
    plots.label(left, "Contrast, exact", "success of the task p (1)", "P(scores not all equal) (1)")
    looks = (("offered", plots.GREY, "offered"), ("stream", plots.BLUE, "refill from a stream"),
             ("in_turn", plots.SKY, "refill, families in turn"), ("left", plots.ORANGE, "no refill"))  # fmt: skip
    for i, row in enumerate(rows):
        for k, (key, color, text) in enumerate(looks):
            right.bar(i + 0.2 * (k - 1.5), row[key], 0.19, color=color, label=text if i == 0 else None)
        shares = [b[i] / sum(b) for result in results for b in result.data["sampled"]["trained"] if sum(b)]
        if shares:
            found = t_interval(shares)
            half = 0.0 if found.high is None else found.high - found.value
            right.errorbar(i + 0.1, found.value, half, fmt="x", color=plots.BLACK, capsize=5,
                           label=f"sampled, {len(shares):,} batches" if i == 0 else None)  # fmt: skip
    right.set_xticks(range(len(rows)), [f"{row['family']}\np = {row['family_success']:.3f}" for row in rows])
    plots.label(right, "Trained tasks, exact", "family", "share of the trained groups (1)")
    fig.suptitle(f"Groups of {n}; bars at the crosses: 95 % t interval over batches")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=10)
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2, fontsize=10)
    return fig


def gradient(result: Result) -> Figure:
    names = [row["family"] for row in result.data["families"]]
    rules = [row for row in result.metrics if "rule" in row]
    fig, (left, right) = plots.figure(1, 2, height=2.4 + 0.7 * len(rules), sharey=True, width_ratios=(3, 2))
    width = 0.8 / len(names)
    for k, name in enumerate(names):
        values = [row[name] for row in result.data["weights"]]
        places = [i + width * (k - (len(names) - 1) / 2) for i in range(len(values))]
        bars = left.barh(places, values, 0.95 * width, color=COLORS[k % 6], label=name)
        left.bar_label(bars, [f"{v:.2f}" for v in values], padding=3, size=9)
    left.axvline(1.0, color=plots.BLACK, ls="--", lw=1.4, label="no filter")
    width = 0.4
    for k, (key, color, text) in enumerate(
        (("cosine", plots.GREY, "to the unfiltered one"), ("true_cosine", plots.GREEN, "to grad J"))
    ):
        bars = right.barh([i + width * (k - 0.5) for i in range(len(rules))], [row[key] for row in rules], 0.38,
                          color=color, label=text)  # fmt: skip
        right.bar_label(bars, [f"{row[key]:.4f}" for row in rules], padding=3, size=9)
    left.set_yticks(range(len(rules)), [row["rule"] for row in rules])
    left.invert_yaxis()
    for ax, columns in ((left, 2), (right, 1)):
        ax.margins(x=0.22)
        ax.grid(axis="y", visible=False)
        ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=columns)
    plots.label(left, "A family's part of the gradient", "length / length without a filter (1)")
    plots.label(right, "Direction", "cosine (1)")
    fig.suptitle(f"Expected gradient of a batch ({result.config['estimator']}); exact, no band")
    return fig


def cost(results: Sequence[Result]) -> Figure:
    first = results[0]
    rows, n = first.data["families"], first.config["group_size"]
    fig, (left, right) = plots.figure(1, 2, height=5.4)
    for size, line in zip(_sizes(n), (":", "--", "-."), strict=False):
        left.plot(GRID, [1 / measures.contrast(p, size) for p in GRID], color=plots.BLACK, ls=line, lw=1.4,
                  label=f"exact, n = {size}")  # fmt: skip
    for row, color in zip(rows, COLORS * 9, strict=False):
        left.plot(row["family_success"], row["family_cost"], "o", ms=9, color=color, label=row["family"])
    rule = {row["rule"]: row["cost"] for row in first.metrics if "rule" in row}
    plots.exact(left, [0, 1], [rule[measures.TURN]] * 2, "families in turn, exact", plots.RED)
    found = t_interval(
        [played / sum(trained) for result in results
         for trained, played in zip(result.data["sampled"]["trained"], result.data["sampled"]["played"], strict=True)
         if sum(trained)] or [float(rule[measures.TURN])]
    )  # fmt: skip
    half = 0.0 if found.high is None else found.high - found.value
    left.errorbar(0.5, found.value, half, fmt="x", color=plots.RED, capsize=5, label="trainer (95 % t interval)")
    left.set_yscale("log")
    left.set_ylim(0.9, 120)
    plots.label(left, "Generation", "success of the task p (1)", "groups played / trained (1)")
    path = [row for row in first.metrics if "path_keep" in row]
    x = [row["update"] for row in path]
    right.plot(x, [row["path_keep"] for row in path], color=plots.BLUE, label="P(contrast) = 1 / cost = 1 / length")
    right.plot(x, [row["success"] for row in path], color=plots.GREEN, label="success")
    right.set_ylim(-0.03, 1.03)
    plots.label(right, "Along the expected run, exact", "update (1)", "probability (1)")
    fig.suptitle(f"What a trained group of {n} costs")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9)
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=10)
    return fig
