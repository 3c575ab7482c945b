"""The figures of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.walkthrough import SHOWN
from labs import plots
from labs.experiment import Result
from labs.stats import t_interval, wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _flat(table: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    return [[round(v, 12) + 0.0 for v in row] for family in table for row in family]


def tensors(result: Result) -> Figure:
    columns = {name: column for stage in result.data["stages"] for name, column in stage["columns"].items()}
    columns["ratio after the update"] = result.data["ratio_after_update"]
    tokens = result.data["tokens"]
    rows = [f"{'AB'[i // 3]}{i % 3 + 1}, score {s:g}" for i, s in enumerate(result.config["scores"])]
    fig, axes = plots.figure(len(SHOWN), 1, height=12.0, sharex=True)
    for ax, (name, unit) in zip(axes, SHOWN.items(), strict=True):
        table = columns[name]
        centre = 1.0 if "ratio" in name else 0.0
        blank = [[(v - centre) if word else float("nan") for v, word in zip(*pair, strict=True)]
                 for pair in zip(table, tokens, strict=True)]  # fmt: skip
        real = [abs(v) for row, words in zip(blank, tokens, strict=True) for v, w in zip(row, words, strict=True)
                if w and (w != "tool" or "ratio" not in name)]  # fmt: skip
        top = max(real, default=0.0) or 1.0
        ax.imshow(blank, cmap=plots.DIFFERENCE, vmin=-1.6 * top, vmax=1.6 * top, aspect="auto")
        ax.grid(False)
        ax.set_yticks(range(len(rows)), rows)
        ax.tick_params(length=0)
        for i, words in enumerate(tokens):
            for t, word in enumerate(words):
                if word == "tool":
                    ax.fill_between((t - 0.5, t + 0.5), i - 0.5, i + 0.5, color="#E4E4E4", lw=0, zorder=2)
                    ax.text(t, i, "tool", ha="center", va="center", color=plots.GREY, size=10, zorder=3)
                elif word:
                    ax.text(t, i, f"{word}\n{table[i][t]:.4g}", ha="center", va="center", size=9.5, zorder=3)
        plots.label(ax, f"{name} ({unit})")
    axes[-1].set_xticks(range(len(tokens[0])))
    axes[-1].set_xlabel("position in the response (token)")
    fig.suptitle(f"One step, token by token: {result.config['estimator']}, {result.config['loss']}, "
                 f"{result.config['loss_agg_mode']} (given batch, n = 6 rollouts)")  # fmt: skip
    return fig


def gradients(result: Result) -> Figure:
    fig, axes = plots.figure(1, 2, height=4.6, sharey=True)
    pairs = (("gradient", "Of this batch (n = 6)"), ("exact_gradient", "Of the success probability, exact"))
    for ax, (key, title) in zip(axes, pairs, strict=True):
        table = _flat(result.data[key])
        top = max(abs(v) for row in table for v in row) or 1.0
        plots.heatmap(ax, table, result.data["rows"], result.data["actions"], low=-top, high=top,
                      colors=plots.DIFFERENCE, form="{:+.4f}")  # fmt: skip
        plots.label(ax, title, x="action")
    axes[0].set_ylabel("prompt's family, stage")
    fig.suptitle("Gradient of the table's logits (1 per unit of logit); each panel has its own colours")
    return fig


def names(result: Result) -> Figure:
    fig, axes = plots.figure(1, 2, height=9.2)
    for ax, kind in zip(axes, ("estimator", "loss"), strict=True):
        rows = [row for row in result.data["names"] if row["kind"] == kind]
        if kind == "estimator":
            ax.plot([row["loss_of_shared_advantages"] for row in rows], range(len(rows)), "s", ms=9, mfc="none",
                    color=plots.BLUE, label="advantages held")  # fmt: skip
        ax.plot([row["loss"] for row in rows], range(len(rows)), "o", ms=6, color=plots.RED,
                label="own advantages" if kind == "estimator" else "advantages held")  # fmt: skip
        ax.set_yticks(range(len(rows)), [row["name"] for row in rows], size=10)
        ax.invert_yaxis()
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
        plots.label(ax, f"Other {kind} names", "loss after one update (1)", "")
    fig.suptitle(f"One batch under other names (n = 6 rollouts, {result.config['loss_agg_mode']}, nothing sampled)")
    return fig


def share(results: Sequence[Result]) -> Figure:
    fig, axes = plots.figure(height=3.0)
    shares, n = [result.data["teaching"]["share"] for result in results], results[0].data["teaching"]["batches"]
    interval = wilson(round(shares[0] * n), n) if len(results) == 1 else t_interval(shares)
    low, high = (interval.value if v is None else v for v in (interval.low, interval.high))
    axes.errorbar([interval.value], [0], xerr=[[interval.value - low], [high - interval.value]], fmt="o", ms=9,
                  capsize=7, color=plots.BLUE, label="sampled")  # fmt: skip
    axes.axvline(results[0].data["teaching"]["exact"], color=plots.BLACK, ls="--", lw=1.6, label="exact")
    axes.set_yticks([])
    axes.set_ylim(-1, 1)
    axes.set_xlim(left=0)
    what = f"{n:,} batches, one seed" if len(results) == 1 else f"the mean over {len(results)} seeds of {n:,} batches"
    plots.label(axes, "How often a batch of two groups of three teaches anything, uniform policy",
                f"share of batches with a mixed group (1); bar: {interval.name} of {what}", "")  # fmt: skip
    axes.legend(loc="upper right", ncols=2)
    return fig
