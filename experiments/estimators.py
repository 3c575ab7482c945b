"""How far does the gradient of every advantage estimator lie from the true one, and how much of it is noise?

On arithmetic tasks all that can happen is countable, so bias and variance need no sampling: expectation and covariance
of one step's gradient are enumerated for every estimator at several policies along training (the path of steepest
ascent). A bias along the gradient is a learning rate; one across it goes elsewhere. Beside that the plainest baseline,
a constant, is moved: the expectation stays and the variance is a parabola. Then a few estimators train on equally
many sampled trajectories, with Adam, to which the length of a gradient does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments, estimators
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labs.environment import Environment
    from labs.exact import Truth
    from labs.trainer import TrainerConfig

#: Batches drawn where an estimator cannot be enumerated.
DRAWS = 500
#: A relative bias below this is rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the comparison of estimators."""

    environment: str = field("arithmetic", help="the environment", choices=environments)
    compared: tuple[str, ...] | None = field(None, help="whose moments; none is all", choices=estimators)
    successes: tuple[float, ...] = field((0.0, 0.2, 0.8), help="policies: exact success on the way", low=0, below=1)
    group_size: int = field(4, help="trajectories a task", unit="trajectory", low=2, high=16)
    loss_agg_mode: str = field(
        "seq-mean-token-sum", help="what the loss is divided by",
        choices=("seq-mean-token-sum", "token-mean", "seq-mean-token-mean"),
    )  # fmt: skip
    learners: tuple[str, ...] = field(
        ("rloo", "grpo", "reward_to_go", "remax"), help="who trains; the first is compared with", choices=estimators
    )
    updates: int = field(45, help="policy updates of a learner", low=1, high=100_000)
    groups_per_update: int = field(8, help="tasks an update", unit="group", low=1)
    learning_rate: float = field(0.1, help="Adam's step size", above=0, high=1000)
    repeats: int = field(3, help="runs of each learner", low=1, high=1000)

    def check(self) -> None:
        """At least one policy, estimator and learner, and no learner twice."""
        for name in ("successes", "learners", "compared"):
            value = getattr(self, name)
            if value is not None and (not value or len(set(value)) < len(value)):
                raise InputError(f"{name} is {list(value)}; it takes at least one and none of them twice")


TINY = {
    "compared": ("rloo", "grpo_population", "dr_grpo"), "successes": (0.0,), "updates": 2, "repeats": 2,
    "groups_per_update": 2, "learners": ("rloo",),
}  # fmt: skip
CHANGES = {
    "environment": "long_observations",
    "compared": ["rloo"],
    "successes": [0.1],
    "group_size": 3,
    "loss_agg_mode": "token-mean",
    "learners": ["dr_grpo"],
    "updates": 3,
    "groups_per_update": 4,
    "learning_rate": 0.5,
    "repeats": 1,
}

_RATE: Any = {"unit": "1", "low": 0.0, "high": 1.0}
METRICS = (
    Metric(name="policy_success", **_RATE, formula="exact success of the policy that is looked at"),
    Metric(name="relative_bias", unit="1", formula="|E[g] - grad J| / |grad J|", low=0),
    Metric(name="cosine", unit="1", formula="between E[g] and grad J", low=-1 - 1e-9, high=1 + 1e-9),
    Metric(name="scale", unit="1", formula="<E[g], grad J> / |grad J|^2", text="What a learning rate could undo."),
    Metric(name="variance", unit="1", formula="trace of the covariance of one batch's gradient", low=0),
    Metric(name="signal_to_noise", unit="1", formula="|E[g]| / sqrt(variance)", low=0),
    Metric(name="update", unit="1", formula="number of the policy update", low=1),
    Metric(name="learner_success", **_RATE, formula="exact success of the sampling policy, mean over the repeats"),
    Metric(name="noiseless_success", **_RATE, formula="the same of Adam on the exact gradient"),
    Metric(name="unbiased", unit="1", formula="estimators with a relative bias below 1e-9 at every policy", low=0),
    Metric(name="first_bias", unit="1", formula="largest relative bias of the first estimator", low=0),
    Metric(name="first_scale", unit="1", formula="scale of the first estimator at the first policy"),
    Metric(name="best_signal_to_noise", unit="1", formula="largest signal to noise at the last policy", low=0),
    Metric(name="learning", **_RATE, formula="mean over the updates of exact success, first learner"),
)


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Moments of every estimator at every policy, the constant baseline, and the learners."""
    import torch

    from labs.exact import ascend
    from labs.moments import moments
    from labs.policy import Policy
    from labs.step import StepConfig

    environment: Environment = environments[config.environment]
    chosen = list(config.compared or estimators)
    skipped = [n for n in chosen if environment.random and "reward_baselines" in estimators[n].needs]
    chosen = [n for n in chosen if n not in skipped]
    if not chosen:
        raise InputError(f"compared: {', '.join(skipped)} has no exact moments where tools fail; name another one too")
    work = len(chosen) * len(config.successes)
    total = work + len(config.learners) * config.repeats
    rows: list[dict[str, Any]] = []
    policies: list[Truth] = [ascend(environment, s) for s in config.successes]
    for truth in policies:
        for name in chosen:
            step = StepConfig(estimator=name, loss="reinforce", loss_agg_mode=config.loss_agg_mode)
            found = moments(
                environment, Policy.of(environment, truth.log_probs), step, group_size=config.group_size,
                draws=DRAWS, generator=torch.Generator().manual_seed(seed),
            )  # fmt: skip
            rows.append(
                {
                    "estimator": name,
                    "method": found.method,
                    "policy_success": truth.success.value,
                    "relative_bias": found.relative_bias,
                    "cosine": found.cosine,
                    "scale": found.scale,
                    "variance": found.trace,
                    "signal_to_noise": found.signal_to_noise,
                }
            )
            if progress is not None:
                progress(len(rows), total)
    curves: dict[str, list[list[float]]] = {name: [] for name in config.learners}
    for name in config.learners:
        for r in range(config.repeats):
            curves[name].append(_train(environment, config, name, seed * 1000 + r))
            if progress is not None:
                progress(work + sum(map(len, curves.values())), total)
    ideal = _noiseless(environment, config)
    areas = {name: [sum(curve) / len(curve) for curve in runs] for name, runs in curves.items()}
    learning = [
        {"learner": name, "update": u + 1, "learner_success": sum(values) / len(values), "noiseless_success": ideal[u]}
        for name, runs in curves.items()
        for u, values in enumerate(zip(*runs, strict=True))
    ]
    exact = [row for row in rows if row["method"] == "exact"]
    by_name = {name: [row for row in rows if row["estimator"] == name] for name in chosen}
    unbiased = [n for n, own in by_name.items() if all(row["relative_bias"] < ROUNDING for row in own)]
    first, last = by_name[chosen[0]], [own[-1] for own in by_name.values()]
    steepest = max(last, key=lambda row: row["signal_to_noise"])
    crooked = min(exact or rows, key=lambda row: row["cosine"])
    means = {name: sum(v) / len(v) for name, v in areas.items()}
    return Result(
        data={
            "estimators": [
                {
                    "name": name,
                    "declared_unbiased": bool(estimators[name].meta["properties"].unbiased),
                    "unbiased": name in unbiased,
                    **{key: [row[key] for row in own] for key in ("method", "scale", "cosine")},
                }
                for name, own in by_name.items()
            ],
            "skipped": skipped,
            "baseline": _baseline(policies[-1]),
            "learning": areas,
            "curves": {name: [[round(v, 6) for v in curve] for curve in runs] for name, runs in curves.items()},
            "noiseless": ideal,
        },
        metrics=[*rows, *learning],
        headline={
            "unbiased": len(unbiased),
            "first_bias": max(row["relative_bias"] for row in first),
            "first_scale": first[0]["scale"],
            "best_signal_to_noise": steepest["signal_to_noise"],
            "learning": means[config.learners[0]],
        },
        summary=[
            f"unbiased at every policy: {', '.join(unbiased) or 'none'}",
            f"most crooked: {crooked['estimator']}, cosine {crooked['cosine']:.4f} at success "
            f"{crooked['policy_success']:.3f}",
            f"best signal to noise at success {steepest['policy_success']:.3f}: {steepest['estimator']} with "
            f"{steepest['signal_to_noise']:.3f}, a batch of {len(environment.families)} x {config.group_size}",
            f"exact {len(exact)} of {len(rows)} moments, the others from {DRAWS} batches",
            "mean exact success while learning: " + ", ".join(f"{n} {v:.4f}" for n, v in means.items()),
        ],
        conclusion=f"{_biases(len(unbiased), len(chosen), len(crooked_names(rows)))}; {verdict(areas)}.",
        next=(
            "python -m labs.run --experiment estimators --set group_size=8 compared=rloo,grpo,opo",
            "python -m labs.run --experiment estimators --set loss_agg_mode=token-mean",
        ),
    )


def crooked_names(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Estimators that point more than 0.01 in cosine away from the gradient somewhere."""
    return {row["estimator"] for row in rows if row["cosine"] < 0.99}


def _biases(unbiased: int, count: int, crooked: int) -> str:
    return (
        f"Of {count} estimators {unbiased} have the true gradient as expectation at every policy and {crooked} point "
        "elsewhere (cosine below 0.99)"
    )


def verdict(areas: Mapping[str, Sequence[float]]) -> str:
    """Who learns at another speed than the first learner: paired differences, Bonferroni over the comparisons."""
    (first, base), *others = areas.items()
    if not others:
        return f"{first} trained alone, so nothing was compared"
    faster, slower, open_ = [], [], []
    for name, values in others:
        apart = t_interval([a - b for a, b in zip(values, base, strict=True)], level=1 - 0.05 / len(others))
        if apart.low is None or apart.high is None or apart.low <= 0 <= apart.high:
            open_.append(name)
        else:
            (faster if apart.low > 0 else slower).append(name)
    parts = [
        f"{', '.join(names)} learned {word} than {first}"
        for names, word in ((faster, "faster"), (slower, "slower"))
        if names
    ]
    if open_:
        parts.append(
            f"from {len(base)} run(s) each one cannot tell whether {', '.join(open_)} learned faster or slower than "
            f"{first}"
        )
    return "; ".join(parts)


def _how(settings: Mapping[str, Any], name: str) -> TrainerConfig:
    """How the learner of an estimator trains, from the experiment's settings."""
    from labs.step import StepConfig
    from labs.trainer import TrainerConfig

    return TrainerConfig(
        step=StepConfig(estimator=name, loss="reinforce", loss_agg_mode=settings["loss_agg_mode"]), optimiser="adam",
        **{key: settings[key] for key in ("groups_per_update", "group_size", "learning_rate")}, row_entropy_coeff=0.0,
    )  # fmt: skip


def _train(environment: Environment, config: Config, name: str, seed: int) -> list[float]:
    from labs.trainer import Trainer

    trainer = Trainer(environment, _how(asdict(config), name), seed=seed % 2**63)
    return [float(record["exact_success_rate"]) for record in islice(trainer, config.updates)]


def _noiseless(environment: Environment, config: Config) -> list[float]:
    """Exact success of Adam on the exact gradient of the score, update by update."""
    from labs.exact import truth
    from labs.theory import Ascent

    ascent, out = Ascent(environment, "adam", config.learning_rate), []
    for _ in range(config.updates):
        now = truth(environment, ascent.logits.copy())
        out.append(now.success.value)
        ascent.step(now.objective.gradient)
    return out


def _expected(settings: Mapping[str, Any], name: str) -> tuple[list[float], str]:
    """Exact success along an estimator's expected update where that is not the exact gradient; or why not."""
    from labs.theory import expected_success, refusal

    environment, how = environments[settings["environment"]], _how(settings, name)
    if estimators[name].meta["properties"].unbiased and settings["loss_agg_mode"] == "seq-mean-token-sum":
        return [], ""
    if reason := refusal(environment, how):
        return [], reason
    return expected_success(environment, how, settings["updates"])[:-1].tolist(), ""


def _baseline(truth: Truth) -> dict[str, Any]:
    """Expectation and variance of `(R - b) grad log pi` for one episode of the first family, over constants b."""
    import numpy as np

    best = float(truth.optimal_baseline[0])
    grid = [float(b) for b in np.linspace(min(0.0, 2 * best), max(1.0, 2 * best), 21)]
    plain, _ = truth.reinforce(0)
    found = [truth.reinforce(0, b) for b in grid]
    return {
        "b": grid,
        "variance": [float(np.trace(covariance)) for _, covariance in found],
        "largest_change_of_mean": max(float(np.abs(mean - plain).max()) for mean, _ in found),
        "optimal": best,
        "mean_score": float(
            truth.decisions.v[[c.family == 0 for c in truth.classes], 0, 0]
            @ [c.probability for c in truth.classes if c.family == 0]
            / truth.family_weights[0]
        ),
    }


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`moments` (bias, direction, signal to noise), `baseline` and `learning`."""
    return {"moments": _moments(results[0]), "baseline": _baseline_figure(results[0]), "learning": _learning(results)}


def _moments(result: Result) -> Figure:
    from labs import plots

    names = [row["name"] for row in result.data["estimators"]][::-1]
    points = list(dict.fromkeys(row["policy_success"] for row in result.metrics if "estimator" in row))
    fig, axes = plots.figure(1, 3, height=2.6 + 0.29 * len(names), sharey=True)
    columns = (("scale", "Length", "along the gradient (1)", 1.0), ("cosine", "Direction", "cosine (1)", 1.0),
               ("signal_to_noise", "Signal to noise", "|mean| / std (1)", None))  # fmt: skip
    for ax, (key, title, unit, line) in zip(axes, columns, strict=True):
        for i, (point, color, marker) in enumerate(zip(points, plots.CYCLE * 3, "os^Dv<>" * 3, strict=False)):
            rows = {row["estimator"]: row for row in result.metrics if row.get("policy_success") == point}
            shift = 0.2 * ((len(points) - 1) / 2 - i)
            ax.plot([rows[n][key] for n in names], [y + shift for y in range(len(names))], marker, color=color, ms=6,
                    label=f"policy with success {point:.2f}")  # fmt: skip
        if line is not None:
            ax.axvline(line, color=plots.BLACK, ls="--", lw=1.6, label="exact gradient")
        plots.label(ax, title, unit)
        ax.grid(axis="y", visible=False)
    axes[0].set_xscale("symlog", linthresh=0.5)
    axes[0].set_xticks([0, 1, 3, 10], ["0", "1", "3", "10"])
    axes[2].set_xscale("log")
    axes[2].set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
    axes[2].set_xticks([], minor=True)
    seen = [row["signal_to_noise"] for row in result.metrics if row.get("signal_to_noise")]
    axes[2].set_xlim(0.8 * min(seen), 1.25 * max(seen))
    for y in range(0, len(names), 2):
        for ax in axes:
            ax.axhspan(y - 0.5, y + 0.5, color="#F4F4F4", zorder=0, lw=0)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(-0.6, len(names) - 0.4)
    how = (
        "exact" if all(r["method"] == "exact" for r in result.metrics if "estimator" in r) else "exact where countable"
    )
    fig.suptitle(f"One batch's gradient, n = {result.config['group_size']} a group; {how}, no band")
    plots.legend_below(fig, axes[0], columns=2)
    return fig


def _baseline_figure(result: Result) -> Figure:
    from labs import plots

    data = result.data["baseline"]
    fig, axes = plots.figure(height=3.8)
    axes.plot(data["b"], data["variance"], color=plots.BLUE, label="variance of one episode's gradient, exact")
    axes.axvline(data["optimal"], color=plots.BLACK, ls="--", lw=1.6, label="optimal constant, exact")
    axes.axvline(data["mean_score"], color=plots.ORANGE, ls=":", lw=2.4, label="mean score, exact")
    axes.set_ylim(bottom=0)
    where, moved = result.config["successes"][-1], data["largest_change_of_mean"]
    plots.label(
        axes, f"A constant baseline at success {where:g}: the mean moves by {moved:.0e}",
        "baseline (reward)", "trace of the covariance (1)",
    )  # fmt: skip
    plots.legend_below(fig, axes, columns=2)
    return fig


def _learning(results: Sequence[Result]) -> Figure:
    from labs import plots

    first = results[0]
    fig, axes = plots.figure(height=4.4)
    batch = first.config["groups_per_update"] * first.config["group_size"]
    x = [batch * (u + 1) for u in range(first.config["updates"])]
    name, missing = "", []
    looks = zip(first.config["learners"], plots.CYCLE * 4, ("-", "-.", ":") * 10, strict=False)
    for learner, color, style in looks:
        runs = [curve for result in results for curve in result.data["curves"][learner]]
        name = plots.band(axes, x, runs, color, learner, ls=style).replace("seeds", "runs")
        line, reason = _expected(first.config, learner)
        if line:
            plots.exact(axes, x, line, f"{learner}, expected update", color)
        missing += [f"no line for {learner}: {reason}"] if reason else []
    plots.exact(axes, x, first.data["noiseless"], "exact gradient, as of the unbiased")
    axes.set_ylim(-0.02, 1.02)
    what = "\n".join([f"Adam at equal samples ({name or 'one run, no band'})", *missing])
    plots.label(axes, what, "trajectories sampled", "exact success (1)")
    plots.legend_below(fig, axes, columns=3)
    return fig
