"""The figures of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.masks import measures
from labs import plots
from labs.experiment import Result
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mistake(results: Sequence[Result]) -> Figure:
    fig, (left, right) = plots.figure(1, 2, height=4.2, width_ratios=(3, 2))
    for k, (mask, color) in enumerate((("right", plots.BLUE), ("wrong", plots.RED))):
        for x, key in enumerate(("choice_gradient", "text_gradient")):
            _bar(
                left, x + 0.36 * k - 0.18, [r.data["mistake"][mask][key] for r in results], color, mask if not x else ""
            )
    left.set_xticks((0, 1), ("policy's choices", "tool's text"))
    left.margins(y=0.15)
    mode = results[0].config["loss_agg_mode"]
    plots.label(left, f"Gradient by table ({mode})", "table of logits", "norm of the gradient (1)")
    _bar(right, 0, [r.headline["tool_share"] for r in results], plots.ORANGE, "")
    plots.exact(right, (-0.5, 0.5), [results[0].headline["exact_tool_share"]] * 2, "exact")
    right.set_xticks((0,), ("sampled",))
    right.margins(y=0.25)
    right.legend(loc="upper right")
    n = results[0].config["groups"] * results[0].config["group_size"]
    plots.label(right, "Tokens that are the tool's", f"n = {n:,} rollouts a seed", "share of the response (1)")
    seeds = "one seed" if len(results) == 1 else f"mean and 95 % t interval over {len(results)} seeds"
    fig.suptitle(f"Counting tool text as if it had been chosen ({seeds})")
    fig.legend(*left.get_legend_handles_labels(), title="response_mask", loc="outside lower center", ncols=2)
    return fig


def _bar(axes: Any, x: float, values: Sequence[float], color: str, text: str) -> None:
    mean = t_interval(values)
    axes.bar(x, mean.value, 0.34, color=color, label=text or None)
    top = mean.value
    if mean.low is not None and mean.high is not None:
        axes.errorbar(x, mean.value, mean.high - mean.value, color=plots.BLACK, capsize=5)
        top = mean.high
    axes.annotate(f"{mean.value:.4f}", (x, top), (0, 3), textcoords="offset points", ha="center", size=10)


def rejection(result: Result) -> Figure:
    rows = result.data["rejection"]["masks"]
    fig, axes = plots.figure(height=3.8)
    looks = (("attention_mask", plots.GREY, "s"), ("loss_mask", plots.ORANGE, "o"), ("response_mask", plots.BLUE, "^"))
    for name, color, mark in looks:
        axes.plot(range(len(rows)), [row[name] for row in rows], color=color, marker=mark, label=name, ms=8)
    axes.set_xticks(range(len(rows)), [row["stage"] for row in rows])
    axes.set_ylim(bottom=0)
    n = result.config["groups"] * result.config["group_size"]
    plots.label(axes, f"Three masks through rejection (seed {result.seed}, n = {n:,} rollouts)", "after the stage",
                "positions that are 1 (token)")  # fmt: skip
    plots.legend_below(fig, axes, 3)
    return fig


def holes(result: Result) -> Figure:
    fig, axes = plots.figure(3, 1, height=8.6, sharex=True)
    mask, lines, config = result.data["holes"]["mask"], result.data["holes"]["lines"], result.config
    at = [t for t, m in enumerate(mask) if m]
    panels = (
        ("REINFORCE++: return", measures.RETURNS, ""),
        ("GAE before whitening, critic 0 everywhere", measures.TRACES, ", critic 0"),
        ("GAE before whitening, critic gamma^(decisions left) / 2", measures.TRACES, ", critic"),
    )
    for ax, (title, names, end) in zip(axes, panels, strict=True):
        for k, (name, color) in enumerate(zip(names, plots.CYCLE, strict=False)):
            heights = [lines[name + end][t] for t in at]
            places = [x + 0.21 * (k - (len(names) - 1) / 2) for x in range(len(at))]
            ax.bar_label(ax.bar(places, heights, 0.2, color=color, label=name), fmt="%.3f", size=9, padding=1)
        ax.axhline(0, color=plots.BLACK, lw=0.8)
        ax.margins(y=0.18)
        plots.label(ax, title, "", "reward (1)")
    axes[-1].set_xticks(range(len(at)), ["read, then 4 tool tokens", "add, then 2 tool tokens", "submit, reward 1"])
    axes[-1].set_xlabel("token that the policy chose")
    axes[0].legend(loc="upper left", ncols=2)
    fig.suptitle(f"Across a tool's reply (gamma {config['gamma']:g}, lambda {config['lam']:g}; exact, one episode)")
    plots.legend_below(fig, axes[1], 4)
    return fig


def landing(result: Result) -> Figure:
    fig, axes = plots.figure(height=8.0)
    rows = result.data["landing"]
    looks = (
        ("action", "on its action", "o", plots.BLUE, 11),
        ("tool", "on the tool's token", "D", plots.ORANGE, 7),
        ("nowhere", "no score", "x", plots.BLACK, 7),
    )
    for place, text, mark, color, size in looks:
        values = [row[place] for row in rows]
        axes.plot(values, range(len(rows)), mark, color=color, ms=size, mfc="none", mew=1.8, label=text)
    axes.set_yticks(range(len(rows)), [row["estimator"] + (" (lost)" if row["lost"] else "") for row in rows], size=10)
    axes.invert_yaxis()
    plots.label(axes, "Score 1 on a tool's token (lost: as if none; group of 4)",
                "advantage of the rollout's first token (1)", "estimator")  # fmt: skip
    plots.legend_below(fig, axes, 3)
    return fig
