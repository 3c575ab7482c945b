"""The figures of a run, or of one configuration over several seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labs.experiment import Result
from labs.registry import environments

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`learning` (success, groups, entropy and divergence over updates) and `policy` (before and after)."""
    return {"learning": _learning(results), "policy": _heat(results)}


def _learning(results: Sequence[Result]) -> Figure:
    from labs import plots

    def column(key: str) -> list[list[float]]:
        return [[row[key] for row in result.metrics] for result in results]

    def mean(key: str) -> list[float]:
        return [sum(values) / len(values) for values in zip(*column(key), strict=True)]

    ratios = [2.0, 1.1, 1.1, 0.9]
    fig, (rates, groups, entropies, moves) = plots.figure(4, 1, height=11.0, sharex=True, height_ratios=ratios)
    x, config = column("update")[0], results[0].config
    named = ""
    for key, color, text in (
        ("train_success_rate", plots.BLUE, "success, sampled"),
        ("train_invalid_rate", plots.RED, "invalid action, sampled"),
        ("train_timeout_rate", plots.ORANGE, "step limit, sampled"),
    ):
        if any(mean(key)):
            named = plots.band(rates, x, column(key), color, text) or named
    rates.plot(x, mean("exact_success_rate"), color=plots.BLACK, lw=1.2, label="success, exact")
    line, missing = _expected(config)
    if missing:
        rates.plot([], [], " ", label=f"no expected update: {missing}")
    else:
        plots.exact(rates, x, line, "success, expected update")
    rates.set_ylim(-0.02, 1.02)
    where = {"loc": "upper left", "bbox_to_anchor": (0, -0.03), "ncols": 2, "alignment": "left"}
    rates.legend(**where, title=named or None, title_fontsize=10)
    name = f"{config['estimator']}, {config['loss']} on {config['environment']}"
    plots.label(rates, f"How training episodes end: {name}", y="share of trajectories (1)")

    counts = {key: mean(key) for key in ("all_wrong_groups", "all_right_groups", "groups")}
    wrong, right = (
        [v / max(n, 1) for v, n in zip(counts[k], counts["groups"], strict=True)]
        for k in ("all_wrong_groups", "all_right_groups")
    )
    mixed = [(n > 0) - a - b for a, b, n in zip(wrong, right, counts["groups"], strict=True)]
    colors, names = [plots.RED, "#DDDDDD", plots.BLUE], ["all wrong", "mixed", "all right"]
    groups.stackplot(x, wrong, mixed, right, colors=colors, labels=names, lw=0, step="mid")
    groups.set_ylim(0, 1)
    groups.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=3)
    plots.label(groups, "Groups trained on", y="share of groups (1)")

    plots.band(entropies, x, column("mean_state_entropy"), plots.GREEN, "policy")
    uniform = math.log(len(results[0].data["policy"][0]["action_probabilities"]))
    plots.exact(entropies, x, [uniform] * len(x), "uniform policy")
    entropies.set_ylim(0, 1.1 * uniform)
    entropies.legend(loc="upper right", bbox_to_anchor=(1.0, 0.95))
    plots.label(entropies, "Entropy of the policy, mean over its rows", y="entropy (nat)")

    plots.band(moves, x, column("exact_kl"), plots.PURPLE, "")
    moves.set_ylim(bottom=0)
    plots.label(moves, "How far each update moved it, mean over its rows", x="update (1)", y="exact KL (nat)")
    moves.set_xlim(min(x), max(max(x), min(x) + 1))
    return fig


def _expected(settings: Mapping[str, Any]) -> tuple[list[float], str]:
    """Exact success along the expected update, before each one; or why that is not known."""
    from experiments.train import Config
    from experiments.train.running import trainer_config
    from labs.settings import build
    from labs.theory import expected_success, refusal

    config: Config = build(Config, settings)
    environment, how = environments[config.environment], trainer_config(config)
    if reason := refusal(environment, how):
        return [], reason
    return expected_success(environment, how, config.updates)[:-1].tolist(), ""


def _heat(results: Sequence[Result]) -> Figure:
    from labs import plots

    def table(key: str) -> list[list[float]]:
        every = [[list(row["action_probabilities"].values()) for row in result.data[key]] for result in results]
        return [[sum(cell) / len(cell) for cell in zip(*rows, strict=True)] for rows in zip(*every, strict=True)]

    policy = results[0].data["policy"]
    names = [f"{row['operation']}, {row['stage']}" for row in policy]
    actions = list(policy[0]["action_probabilities"])
    fig, axes = plots.figure(1, 2, height=2.3 + 0.45 * len(names), sharey=True)
    for ax, key, when in zip(axes, ("policy_before", "policy"), ("before", "after"), strict=True):
        image = plots.heatmap(ax, table(key), names, actions, slant=len(actions) > 4)
        exact = [result.data[when]["exact_success_rate"] for result in results]
        plots.label(ax, f"{when.capitalize()} training\nexact success {sum(exact) / len(exact):.4f}", x="action")
    axes[0].set_ylabel("operation, stage")
    seeds = f", mean of {len(results)} seeds" if len(results) > 1 else ""
    fig.colorbar(image, ax=axes, label=f"probability of the action (1){seeds}")
    return fig
