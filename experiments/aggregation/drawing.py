"""The figures of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.aggregation import measures
from labs import plots
from labs.experiment import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = dict(zip(measures.WAYS, zip(plots.CYCLE, "oxsD^v", strict=False), strict=False))
#: Most rollouts that the ledger has room for.
MOST = 16


def ledger(result: Result) -> Figure:
    every = sorted(result.data["ledger"], key=lambda row: (row["action_tokens"], row["tool_tokens"]))
    at = [round(i * (len(every) - 1) / (min(MOST, len(every)) - 1)) for i in range(min(MOST, len(every)))]
    rows = [every[i] for i in at]
    fig, (left, right) = plots.figure(1, 2, height=7.0, sharey=True, width_ratios=(2, 5))
    chosen = [row["action_tokens"] for row in rows]
    left.barh(range(len(rows)), chosen, color=plots.BLUE, label="chosen")
    left.barh(range(len(rows)), [row["tool_tokens"] for row in rows], left=chosen, color="#CCCCCC", label="of tools")
    for i, row in enumerate(rows):
        left.annotate(f"{row['action_tokens']} + {row['tool_tokens']}", (row["action_tokens"] + row["tool_tokens"], i),
                      (3, 0), textcoords="offset points", va="center", size=9)  # fmt: skip
    left.margins(x=0.35)
    left.set_yticks(range(len(rows)), [f"{row['rollout']}, score {row['score']:g}" for row in rows], size=10)
    plots.label(left, "Tokens", "chosen + of tools (token)", "rollout")
    total = {way: sum(row["weight"][way] for row in every) for way in measures.WAYS}
    table = [[100 * row["weight"][way] / total[way] for way in measures.WAYS] for row in rows]
    names = list(measures.WAYS)
    plots.heatmap(right, table, [], names, high=1.3 * max(map(max, table)), form="{:.2f}", slant=True)
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_yticks(range(len(rows)), [f"{row['rollout']}, score {row['score']:g}" for row in rows], size=10)
    right.tick_params(labelleft=False)
    plots.label(right, "Share of the batch's weight (%)", "denominator")
    fig.suptitle(
        f"Ledger of a sampled batch, |advantage| = 1 (seed {result.seed}, {len(rows)} of {len(every)} rollouts)"
    )
    return fig


def exact(result: Result) -> Figure:
    rows = result.data["ways"]
    fig, axes = plots.figure(1, 3, height=3.8, sharey=True)
    panels = (
        ("exact_cosine", "Direction", "cosine (1)"),
        ("exact_scale", "Length", "expected / true (1)"),
        ("exact_signal_to_noise", "Signal", "signal-to-noise (1)"),
    )
    for ax, (key, title, unit) in zip(axes, panels, strict=True):
        values = [row[key] for row in rows]
        for i, (row, value) in enumerate(zip(rows, values, strict=True)):
            color, mark = LOOKS[row["way"]]
            ax.plot(value, i, mark, color=color, ms=9, mew=2)
            ax.annotate(f"{value:.4g}", (value, i), (-8, 6), textcoords="offset points", ha="right", size=9)
        ax.margins(x=0.35, y=0.15)
        plots.label(ax, title, unit)
    axes[0].axvline(1, color=plots.BLACK, ls="--", lw=1.6)
    axes[1].axvline(1, color=plots.BLACK, ls="--", lw=1.6)
    axes[1].set_xscale("log")
    axes[0].set_yticks(range(len(rows)), [row["way"] for row in rows])
    axes[0].invert_yaxis()
    axes[0].set_ylabel("denominator")
    config = result.config
    fig.suptitle(f"Expected gradient, exact ({config['estimator']}, 2 groups of {config['exact_group_size']}; "
                 "dashed: the true gradient)")  # fmt: skip
    return fig


def splits(results: Sequence[Result]) -> Figure:
    fig, both = plots.figure(1, 2, height=4.6)
    parts = sorted(results[0].config["splits"])
    what = ""
    for way, (color, mark) in LOOKS.items():
        for ax, key, floor in zip(both, ("local", "global"), (0.0, 1e-18), strict=True):
            lines = [
                [next(r[key] for r in one.data["splits"] if r["way"] == way and r["parts"] == k) + floor for k in parts]
                for one in results
            ]
            what = plots.band(ax, parts, lines, color, way, marker=mark)
    both[1].set_yscale("log")
    both[1].set_ylim(1e-18, 1)
    config = results[0].config
    for ax, title in zip(both, ("Own counts, parts averaged", "Counts of the whole, parts added"), strict=True):
        ax.set_xticks(parts)
        plots.label(ax, title, "micro-batches (1)", "relative error of the gradient (1)")
    plots.exact(both[0], parts, [1 - 1 / k for k in parts], "1 - 1/parts, exact for token-sum")
    n = f"mean of {config['batches']:,} batches of {config['groups'] * config['group_size']:,} rollouts"
    fig.suptitle(f"A batch in parts ({n}, {what or 'one seed'})", size=12)
    plots.legend_below(fig, both[0], 4)
    return fig
