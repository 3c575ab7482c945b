"""The figures of the experiment; bands and bars are over training runs, those of all seeds together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.offpolicy import measures
from labs import plots
from labs.experiment import Result
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour by what a rule does, line by its level.
LOOKS: dict[str, tuple[str, Any]] = {
    measures.NONE: (plots.BLACK, "-"),
    "clip around behaviour": (plots.PURPLE, "-"),
    "token truncation": (plots.BLUE, "--"),
    "sequence truncation": (plots.BLUE, "-"),
    "token mask": (plots.ORANGE, "--"),
    "sequence mask": (plots.ORANGE, "-"),
    "token rejection": (plots.RED, "--"),
    "sequence rejection": (plots.RED, "-"),
    "mean k3 rejection": (plots.RED, ":"),
    measures.EXACT: (plots.GREEN, "-"),
}


def _rows(results: Sequence[Result], key: str) -> list[dict[str, Any]]:
    """The rows that have `key`, each with a number of its training run that no other seed has."""
    return [{**row, "run": (i, row["run"])} for i, result in enumerate(results) for row in result.metrics if key in row]


def _curves(rows: Sequence[dict[str, Any]], key: str) -> list[list[float]]:
    """`[runs][lags]`."""
    return [[row[key] for row in rows if row["run"] == run] for run in dict.fromkeys(row["run"] for row in rows)]


def _names(lags: Sequence[int]) -> tuple[range, list[str]]:
    return range(len(lags)), [str(lag) for lag in lags]


def _band(text: str) -> str:
    return text.replace("seeds", "training runs") or "one training run, no band"


def lag(results: Sequence[Result]) -> Figure:
    config, rows = results[0].config, _rows(results, "rule")
    fig, axes = plots.figure(2, 2, height=8.4, sharex=True)
    places, names = _names(config["lags"])
    panels = (
        ("relative_bias", "Bias", "|E[g] - true| / |true| (1)", "linear"),
        ("cosine", "Direction", "cosine to the true gradient (1)", "linear"),
        ("noise", "Noise", "trace Cov[g] / |true|^2 (1)", "log"),
        ("squared_error", f"Squared error, {config['episodes']:,} episodes", "E|g - true|^2 / |true|^2 (1)", "log"),
    )
    text = ""
    for ax, (key, title, unit, scale) in zip(axes.flat, panels, strict=True):
        for rule, (color, line) in LOOKS.items():
            curves = _curves([row for row in rows if row["rule"] == rule], key)
            # Where everything is masked there is no noise, which a logarithm cannot show.
            known = [i for i in places if scale == "linear" or min(curve[i] for curve in curves) > 1e-6]
            text = plots.band(ax, known, [[c[i] for i in known] for c in curves], color, rule, ls=line) or text
        ax.set_yscale(scale)
        ax.set_xticks(places, names)
        plots.label(ax, title, "lag (update)" if ax in axes[1] else "", unit)
    fig.suptitle(f"{config['environment']}, C = {config['threshold']:g}; exact; {_band(text)}")
    plots.legend_below(fig, axes[0][0], 4)
    return fig


def ratios(results: Sequence[Result]) -> Figure:
    config, rows = results[0].config, _rows(results, "effective")
    fig, (left, middle, right) = plots.figure(1, 3, height=5.6, width_ratios=(5, 4, 4))
    tails = results[0].data["tails"]
    shown = tails if len(tails) < 4 else [tails[len(tails) // 3], tails[2 * len(tails) // 3], tails[-1]]
    for tail, color in zip(shown, (plots.GREEN, plots.ORANGE, plots.RED), strict=False):
        left.step(tail["x"], tail["sequence"], color=color, where="post", label=f"lag {tail['lag']}, episode")
        left.step(tail["x"], tail["token"], color=color, where="post", ls=":", label=f"lag {tail['lag']}, decision")
    last, drawn = shown[-1], f"{config['episodes']:,} drawn episodes"
    points = [(x, d) for x, d in list(zip(last["x"], last["drawn"], strict=True))[::5] if d > 0]
    left.plot(*zip(*points, strict=True), "x", color=plots.BLACK, label=f"lag {last['lag']}, {drawn}")
    left.axvline(config["threshold"], color=plots.GREY, lw=1.0)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_ylim(1e-5, 1.5)
    plots.label(left, "Tails (run 0; grey: C)", "x (1)", "P(current / behaviour > x) (1)")
    places, names = _names(config["lags"])
    text = plots.band(middle, places, _curves(rows, "effective"), plots.BLUE, "exact", ls="--")
    plots.band(middle, places, _curves(rows, "sampled_effective"), plots.ORANGE, drawn)
    plots.logarithmic(middle)
    plots.label(middle, "Effective sample", "lag (update)", "effective / all episodes (1)")
    middle.legend(loc="lower left")
    for key, color, word in (("kl_behaviour", plots.RED, "behaviour"), ("kl_old", plots.BLUE, "old"),
                             ("kl_reference", plots.GREEN, "reference")):  # fmt: skip
        plots.band(right, places, _curves(rows, key), color, word)
    plots.logarithmic(right)
    plots.label(right, "KL of current from", "lag (update)", "KL of whole episodes (nat)")
    right.legend(loc="upper left", bbox_to_anchor=(0.0, 0.97))
    for ax in (middle, right):
        ax.set_xticks(places, names)
    fig.suptitle(f"Ratios of four policies; exact; {_band(text)}")
    plots.legend_below(fig, left, 3)
    return fig


def _bars(ax: Any, at: float, values: Sequence[float], height: float, color: str, text: str | None) -> None:
    found = t_interval(values)
    ax.barh(at, found.value, height, color=color, label=text)
    end = found.value
    if found.low is not None and found.high is not None:
        ax.errorbar(found.value, at, xerr=found.high - found.value, color=plots.BLACK, capsize=3, lw=1.2)
        end = max(found.high, end)
    ax.annotate(f"{found.value:.2f}", (max(end, 0.0), at), (3, 0), textcoords="offset points", va="center", size=9)


def _runs(results: Sequence[Result]) -> str:
    count = sum(result.config["runs"] for result in results)
    return f"mean and 95 % t interval over {count} training runs" if count > 1 else "one training run"


def support(results: Sequence[Result]) -> Figure:
    rows = _rows(results, "behaviour")
    names = list(dict.fromkeys(row["behaviour"] for row in rows))
    fig, (left, right) = plots.figure(1, 2, height=1.8 + 0.62 * len(names), sharey=True, width_ratios=(3, 2))
    looks = (
        ("weighted_bias", plots.BLUE, "exact weights"),
        ("unrepairable", plots.RED, "no estimator can be below this in both of two worlds"),
    )
    for i, name in enumerate(names):
        own = [row for row in rows if row["behaviour"] == name]
        for k, (key, color, text) in enumerate(looks):
            _bars(left, i + 0.36 * k - 0.18, [row[key] for row in own], 0.34, color, text if i == 0 else None)
        _bars(right, i, [row["missing"] for row in own], 0.6, plots.GREY, None)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    for ax in (left, right):
        ax.margins(x=0.12)
        ax.grid(axis="y", visible=False)
    plots.label(left, "Bias", "relative bias (1)", "behaviour policy")
    plots.label(right, "Never sampled", "probability of such episodes (1)")
    fig.suptitle(f"Missing support; exact, {_runs(results)}")
    plots.legend_below(fig, left, 2)
    return fig


def selection(results: Sequence[Result]) -> Figure:
    rows = _rows(results, "selection")
    names = list(dict.fromkeys(row["selection"] for row in rows))
    fig, (left, right) = plots.figure(1, 2, height=2.2 + 0.6 * len(names), sharey=True)
    for i, name in enumerate(names):
        own = [row for row in rows if row["selection"] == name]
        for k, (key, color, text) in enumerate(
            (("relative_bias", plots.RED, "relative bias"), ("cosine", plots.BLUE, "cosine"))
        ):
            _bars(left, i + 0.36 * k - 0.18, [row[key] for row in own], 0.34, color, text if i == 0 else None)
        share = [row["kept_decisions"] / row["decisions"] if row["kept"] else 0.0 for row in own]
        for k, (values, color, text) in enumerate(
            (
                ([row["kept"] for row in own], plots.GREY, "kept episodes"),
                (share, plots.GREEN, "their mean number of decisions"),
            )
        ):
            _bars(right, i + 0.36 * k - 0.18, values, 0.34, color, text if i == 0 else None)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    plots.label(left, "Gradient of what is left", "against the true gradient (1)", "what is trained")
    plots.label(right, "What is left", "share of what was played (1)")
    for ax in (left, right):
        ax.margins(x=0.12)
        ax.grid(axis="y", visible=False)
        ax.legend(loc="upper center", bbox_to_anchor=(0.4, -60 / 72 / (0.6 * len(names))))
    fig.suptitle(f"Dropped and replaced; exact, {_runs(results)}")
    return fig
