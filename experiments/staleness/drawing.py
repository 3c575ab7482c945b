"""The figures of the experiment; bands and bars are 95 % t intervals of the mean over the runs of all seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.staleness import measures
from labs import plots, timelines
from labs.experiment import Result
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = {
    "none": (plots.BLACK, "-"),
    "token": (plots.BLUE, "--"),
    "sequence": (plots.BLUE, "-"),
    "behaviour": (plots.RED, "-"),
    "log_linear": (plots.ORANGE, ":"),
}
#: What the systems train with, in words; the uncorrected one first.
DENOMINATOR_WORDS = [measures.WORDS[rule] for rule in measures.DENOMINATORS.values()]
#: Marks of the systems, by their place.
MARKS = "os^Dv<>Pp*hX8d"


def lag(results: Sequence[Result]) -> Figure:
    config = results[0].config
    lags, n = config["lags"], config["runs"] * len(results)
    fig, both = plots.figure(1, 2, height=5.0, sharey=True)
    for ax, key, title in (
        (both[0], "final", f"After update {config['updates']}"),
        (both[1], "mean", "Mean over training"),
    ):
        for rule, (color, line) in LOOKS.items():
            columns = [_cell(results, at, rule, key) for at in lags]
            plots.band(ax, range(len(lags)), list(zip(*columns, strict=True)), color, measures.WORDS[rule], ls=line)
        known = t_interval(_cell(results, 0, "none", key)).value
        plots.exact(ax, (0, len(lags) - 1), (known, known), "lag 0", plots.GREY)
        ax.set_xticks(range(len(lags)), [str(at) for at in lags])
        plots.label(ax, title, "lag (update)", "exact success (1)" if ax is both[0] else "")
    both[0].set_ylim(-0.02, 1.04)
    fig.suptitle(f"{config['environment']}, step size {config['learning_rate']:g}; {_bars(n)}")
    plots.legend_below(fig, both[0], 3)
    return fig


def bias(results: Sequence[Result]) -> Figure:
    config = results[0].config
    rows = [{**row, "run": (i, row["run"])} for i, result in enumerate(results) for row in result.data["bias"]]
    lags = sorted({row["lag"] for row in rows})
    fig, (left, middle, right) = plots.figure(1, 3, height=4.8)

    def curves(key: str) -> list[list[float]]:
        return [[row[key] for row in rows if row["run"] == run] for run in dict.fromkeys(row["run"] for row in rows)]

    places = range(len(lags))
    for rule, (color, line) in LOOKS.items():
        plots.band(left, places, curves(f"bias_{rule}"), color, measures.WORDS[rule], ls=line)
        plots.band(middle, places, curves(f"scale_{rule}"), color, measures.WORDS[rule], ls=line)
    middle.axhline(1.0, color=plots.GREY, lw=1.2, ls="--")
    looks = (
        ("sequence_largest", plots.RED, "-", "largest, episode"),
        ("sequence_99", plots.RED, "", "99 %, episode"),
        ("token_largest", plots.PURPLE, "-", "largest, decision"),
        ("token_99", plots.PURPLE, "", "99 %, decision"),
        ("effective", plots.GREEN, "-", "effective / all episodes"),
    )
    for key, color, line, text in looks:
        plots.band(right, places, curves(key), color, text, ls=line, marker="" if line else "o")
    right.set_yscale("log")
    right.legend(fontsize=9)
    for ax in (left, middle, right):
        ax.set_xticks(places, [str(at) for at in lags])
    plots.label(left, "Bias", "lag (update)", "|E[g] - true| / |true| (1)")
    plots.label(middle, "Gain", "lag (update)", "<E[g], true> / |true|^2 (1)")
    plots.label(right, "Ratios pi / mu", "lag (update)", "ratio, share (1)")
    count = config["bias_runs"] * len(results)
    fig.suptitle(f"One step at update {config['bias_update']}, exact; {_bars(count)}")
    plots.legend_below(fig, left, 3)
    return fig


def systems(results: Sequence[Result]) -> Figure:
    config = results[0].config
    names = list(dict.fromkeys(row["system"] for row in results[0].data["systems"]))
    fig, grid = plots.figure(3, 3, height=9.0, sharey=True, sharex="col")
    axes = {"hours": "time (simulated h)", "samples": "samples (trajectory)", "update": "update (1)"}
    for place, (denominator, rule) in enumerate(measures.DENOMINATORS.items()):
        line, last = grid[place], place == len(grid) - 1
        for ax, (key, unit) in zip(line, axes.items(), strict=True):
            for i, (name, color) in enumerate(zip(names, plots.CYCLE * 10, strict=False)):
                own = [row["curve"] for row in _systems(results, name, denominator)]
                # Runs end at different times; each is shown as far as all of them go.
                x = np.linspace(0.0, min(curve[key][-1] for curve in own), 60)
                lines = [np.interp(x, curve[key], curve["success"]).tolist() for curve in own]
                plots.band(ax, x.tolist(), lines, color, name, ls=("-", "--", ":")[i // len(plots.CYCLE) % 3])
            ax.set_xlim(left=0)
            plots.label(ax, measures.WORDS[rule] if ax is line[0] else "", unit if last else "")
        line[0].set_ylabel("exact success (1)")
    grid[0][0].set_ylim(-0.02, 1.04)
    fig.suptitle(
        f"Learning in the pipeline; {_bars(config['system_runs'] * len(results))}\n"
        "no line of theory: what a batch holds depends on when its rollouts end"
    )
    plots.legend_below(fig, grid[0][0], 5)
    return fig


def frontier(results: Sequence[Result]) -> Figure:
    config = results[0].config
    names = list(dict.fromkeys(row["system"] for row in results[0].data["systems"]))
    fig, (left, right) = plots.figure(1, 2, height=4.8)
    for name, mark in zip(names, MARKS * 10, strict=False):
        for denominator, rule in measures.DENOMINATORS.items():
            rows, color = _systems(results, name, denominator), LOOKS[rule][0]
            rates = [row["curve"]["samples"][-1] / row["hours"] for row in rows]
            finals = [row["curve"]["success"][-1] for row in rows]
            for ax, x in ((left, rates), (right, [row["token_lag"] for row in rows])):
                label = name if ax is left and denominator == "recomputed" else None
                across, up = (t_interval(values) for values in (x, finals))
                ax.errorbar(
                    across.value, up.value, _half(up), _half(across), fmt=mark, color=color, ms=8, capsize=2,
                    lw=1.0, mfc="none" if denominator == "behaviour" else color, label=label,
                )  # fmt: skip
    plots.label(left, "Throughput and learning", "trained (trajectory / simulated h)", "exact success at the end (1)")
    plots.label(right, "Age and learning", "mean age of a trained token (update)", "exact success at the end (1)")
    for ax in (left, right):
        ax.set_ylim(-0.02, 1.04)
        ax.set_xlim(left=0 if ax is left else -0.1)
    fig.suptitle(
        "black: uncorrected, blue: weights by sequence, hollow: clip around the stale policy\n"
        f"{_bars(config['system_runs'] * len(results))}"
    )
    plots.legend_below(fig, left, 5)
    return fig


def bounds(results: Sequence[Result]) -> Figure:
    """The course's asynchronous system under every bound: what a looser one buys, and what it costs."""
    config = results[0].config
    # One row a run, as the frontier of `labs simulate` has one a seed; the rule does not change how fast a system is.
    runs = [
        [{"bound": bound, **_bounded(results, bound, i)} for bound in config["bounds"]]
        for i in range(config["system_runs"] * len(results))
    ]
    fig, panels = plots.figure(3, 1, height=7.6, sharex=True)
    plain, *others = DENOMINATOR_WORDS
    timelines.frontier(panels, runs, None, learning=plain)
    panels[0].lines[0].set_label("throughput")
    for words, color, line in zip(others, (plots.BLUE, plots.PURPLE), ("-", "--"), strict=True):
        curves = [[row[words] for row in run] for run in runs]
        plots.band(panels[2], config["bounds"], curves, color, words, marker="o", ls=line)
    panels[2].set_ylim(-0.02, 1.04)
    panels[2].set_xticks(config["bounds"], [str(bound) for bound in config["bounds"]])
    plots.label(panels[0], "", "", "trained\n(trajectory / s)")
    plots.label(panels[1], "", "", "age of a trained\ntoken (update)")
    plots.label(panels[2], "", "staleness bound: max_policy_lag (version)", "exact success\nat the end (1)")
    pairs = [pair for ax in panels for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    fig.legend(*zip(*pairs, strict=True), loc="outside lower center", ncols=3)
    fig.suptitle(
        f"Throughput and learning against the staleness bound\nsame tasks, older work is rejected; {_bars(len(runs))}"
    )
    return fig


def _bounded(results: Sequence[Result], bound: int, at: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for denominator, rule in measures.DENOMINATORS.items():
        row = _systems(results, f"bound {bound}", denominator)[at]
        found[measures.WORDS[rule]] = row["curve"]["success"][-1]
        if rule == "none":
            found |= {
                "trained_per_second": row["curve"]["samples"][-1] / (3600 * row["hours"]),
                "lag_mean": row["token_lag"], "lag_max": row["largest_lag"],
            }  # fmt: skip
    return found


def drift(results: Sequence[Result]) -> Figure:
    config = results[0].config
    fig, ax = plots.figure(height=4.4)
    for y, name in enumerate(measures.ARMS):
        values = [v for result in results for v in result.data["drift"][name]]
        found = t_interval(values)
        color = plots.BLUE if "weighted" in name else plots.GREY if name == "fresh" else plots.BLACK
        ax.barh(y, found.value, 0.7, color=color, alpha=0.8)
        ax.errorbar(found.value, y, xerr=_half(found), color=plots.RED, capsize=4)
        ax.annotate(f"{found.value:.3f}", (found.high or found.value, y), (6, 0), textcoords="offset points",
                    va="center")  # fmt: skip
    ax.set_yticks(range(len(measures.ARMS)), list(measures.ARMS))
    ax.invert_yaxis()
    ax.margins(x=0.15)
    fig.suptitle(f"Old actions and old rewards under a drifting target; {_bars(config['runs'] * len(results))}")
    plots.label(
        ax, f"The target changes every {config['drift']} updates; what is old is {config['drift_lag']} updates old",
        "exact success under the target of the moment, mean over training (1)",
    )  # fmt: skip
    return fig


def search(results: Sequence[Result]) -> Figure:
    config = results[0].config
    names, rates = config["search_environments"], config["search_learning_rates"]
    fig, (left, right) = plots.figure(1, 2, height=4.8)
    count = config["search_runs"] * len(results)
    for name, color in zip(names, plots.CYCLE * 10, strict=False):
        cells = [
            {rule: [v for result in results for row in result.data["search"]
                    if (row["environment"], row["learning_rate"]) == (name, rate) for v in row[rule]]
             for rule in ("none", "sequence")}
            for rate in rates
        ]  # fmt: skip
        for rule, line, words in (("none", "-", name), ("sequence", "--", "")):
            curves = list(zip(*(cell[rule] for cell in cells), strict=True))
            plots.band(left, rates, curves, color, words, ls=line, marker="o")
        gaps = [[b - a for a, b in zip(cell["none"], cell["sequence"], strict=True)] for cell in cells]
        plots.band(right, rates, list(zip(*gaps, strict=True)), color, name, marker="o")
    right.axhline(0.0, color=plots.GREY, ls="--", lw=1.4)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
        ax.minorticks_off()
    left.set_ylim(-0.02, 1.04)
    plots.label(left, f"After update {config['updates']}", "step size (1)", "exact success (1)")
    plots.label(right, "Weighted - uncorrected, same seeds", "step size (1)", "difference in success (1)")
    fig.suptitle(f"Lag {config['search_lag']}; solid: uncorrected, dashed: weights by sequence\n{_bars(count)}")
    plots.legend_below(fig, left, 4)
    return fig


def _cell(results: Sequence[Result], at: int, rule: str, key: str) -> list[float]:
    return [
        v for result in results for row in result.data["table"] if (row["lag"], row["rule"]) == (at, rule)
        for v in row[key]
    ]  # fmt: skip


def _systems(results: Sequence[Result], name: str, denominator: str) -> list[dict[str, Any]]:
    return [
        row for result in results for row in result.data["systems"]
        if (row["system"], row["denominator"]) == (name, denominator)
    ]  # fmt: skip


def _half(interval: Any) -> float:
    return 0.0 if interval.high is None else interval.high - interval.value


def _bars(runs: int) -> str:
    return f"95 % t interval of the mean, n = {runs} runs" if runs > 1 else "one run, no interval"
