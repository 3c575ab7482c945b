"""The figures of the experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labs import plots
from labs.classes import expected_line
from labs.experiment import Result
from labs.registry import environments
from labs.stats import t_interval, wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning(results: Sequence[Result]) -> Figure:
    def column(key: str) -> list[list[float]]:
        return [[row[key] for row in result.metrics] for result in results]

    fig, axes = plots.figure(3, 1, height=9.6, sharex=True, height_ratios=[2.0, 1.2, 1.2])
    x = column("update")[0]
    config = results[0].config
    draws = config["groups_per_update"] * config["group_size"]
    rates, groups, entropies = axes
    for key, color, text in (
        ("train_success_rate", plots.BLUE, "success, sampled"),
        ("train_invalid_rate", plots.RED, "invalid action, sampled"),
    ):
        if len(results) == 1:
            name = plots.rate(rates, x, column(key)[0], draws, color, text)
        else:
            name = plots.band(rates, x, column(key), color, text)
    truth = [sum(values) / len(values) for values in zip(*column("exact_train_success_rate"), strict=True)]
    rates.plot(x, truth, color=plots.BLACK, lw=1.2, label="success, exact")
    line, missing = expected_line(environments[config["environment"]], config)
    if missing:
        rates.plot([], [], " ", label=f"no expected update: {missing}")
    else:
        plots.exact(rates, x, line, "success, expected update")
    rates.set_ylim(-0.02, 1.02)
    plots.label(rates, "Success and invalid actions in training", y="share of trajectories (1)")
    rates.legend(loc="upper left", bbox_to_anchor=(0, -0.03), ncols=2, title=name, title_fontsize=10, alignment="left")

    counts = {
        key: [sum(values) / len(values) for values in zip(*column(key), strict=True)]
        for key in ("all_wrong_groups", "all_right_groups", "groups")
    }
    wrong, right = ([v / n for v, n in zip(counts[k], counts["groups"], strict=True)] for k in list(counts)[:2])
    mixed = [1 - a - b for a, b in zip(wrong, right, strict=True)]
    colors, names = [plots.RED, "#DDDDDD", plots.BLUE], ["all wrong", "mixed", "all right"]
    groups.stackplot(x, wrong, mixed, right, colors=colors, labels=names, lw=0, step="mid")
    groups.set_ylim(0, 1)
    plots.label(groups, "Only mixed groups teach", y="share of groups (1)")
    groups.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=3)

    plots.band(entropies, x, column("mean_state_entropy"), plots.GREEN, "policy")
    uniform = math.log(len(results[0].data["policy"][0]["action_probabilities"]))
    plots.exact(entropies, x, [uniform] * len(x), "uniform policy")
    entropies.set_ylim(0, 1.1 * uniform)
    entropies.legend(loc="upper right", bbox_to_anchor=(1.0, 0.95))
    plots.label(entropies, "Entropy of the policy, mean over its rows", x="update (1)", y="entropy (nat)")
    entropies.set_xlim(min(x), max(max(x), min(x) + 1))
    return fig


def heat(results: Sequence[Result]) -> Figure:
    def table(key: str) -> list[list[float]]:
        every = [[list(row["action_probabilities"].values()) for row in result.data[key]] for result in results]
        return [[sum(cell) / len(cell) for cell in zip(*rows, strict=True)] for rows in zip(*every, strict=True)]

    policy = results[0].data["policy"]
    names = [f"{row['operation']}, {row['stage']}" for row in policy]
    actions = list(policy[0]["action_probabilities"])
    fig, axes = plots.figure(1, 2, height=2.3 + 0.45 * len(names), sharey=True)
    seeds = f", mean of {len(results)} seeds" if len(results) > 1 else ""
    for ax, key, when in zip(axes, ("policy_before", "policy"), ("before", "after"), strict=True):
        image = plots.heatmap(ax, table(key), names, actions, slant=len(actions) > 4)
        plots.label(ax, f"{when.capitalize()} training\n\n\n", x="action")
        told = ax.text(0, 1.02, _success([result.data[when] for result in results]), transform=ax.transAxes, size=11)
        told.set_in_layout(False)
    axes[0].set_ylabel("operation, stage")
    fig.colorbar(image, ax=axes, label=f"probability of the action (1){seeds}")
    return fig


def _success(judged: Sequence[Mapping[str, Any]]) -> str:
    """Exact and sampled success, the sampled one with its interval."""
    exact, sampled = ([float(j[key]) for j in judged] for key in ("exact_success_rate", "success_rate"))
    interval = wilson(round(sampled[0] * judged[0]["episodes"]), judged[0]["episodes"])
    if len(judged) > 1:
        interval = t_interval(sampled)
    return (
        f"exact success {sum(exact) / len(exact):.4f}\nsampled {interval.value:.4f}\n"
        f"{interval.name.removesuffix(' interval')} {interval.low:.3f} to {interval.high:.3f}"
    )
