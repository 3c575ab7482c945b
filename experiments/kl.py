"""Which KL does a KL penalty descend: k1, k2 and k3, in the reward or in the loss?

The value of an estimator and its gradient are two questions. Values: mean and variance per decision of k1, k2 and k3
under the policy, exact, at policies further and further from the reference. Gradients: the exact expectation of
what a penalty adds to one step, through the step itself, beside the gradients of three divergences: KL of whole
trajectories; KL(policy, reference) and KL(reference, policy) summed over the visited rows with the visits held fixed,
which leaves out where the policy goes. Last, a fixed and an adaptive coefficient train with k1 in the reward: does the
adaptive one hold its target?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labs.environment import Environment
    from labs.exact import Array, Truth

KINDS = ("k1", "k2", "k3")
#: Where a penalty acts, and how it is estimated: verl's names.
PENALTIES = (*(("loss", kind) for kind in (*KINDS, "k1+")), *(("reward", kind) for kind in KINDS))
DIVERGENCES = ("trajectory KL(policy, reference)", "rows' KL(policy, reference)", "rows' KL(reference, policy)")
CONTROLLERS = ("fixed", "adaptive")
CURVES = ("trained_kl", "coefficient")
#: A relative distance below this is rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the comparison of KL estimators; the reference is the uniform policy."""

    environment: str = field("arithmetic", help="the environment", choices=environments)
    success: float = field(0.3, help="exact success of the policy whose gradients are compared", low=0, below=1)
    successes: tuple[float, ...] = field((0.05, 0.3, 0.6, 0.9), help="and of those whose values are", low=0, below=1)
    updates: int = field(120, help="policy updates under a controller", low=1, high=100_000)
    kl_coef: float = field(0.1, help="coefficient, at first", unit="reward/nat", above=0, high=1000)
    target_kl: float = field(0.5, help="target of the adaptive controller", unit="nat/token", above=0, high=100)
    horizon: float = field(100.0, help="of the adaptive controller", unit="trajectory", above=0)
    groups_per_update: int = field(4, help="tasks an update", unit="group", low=1)
    group_size: int = field(8, help="trajectories a task", unit="trajectory", low=2)
    learning_rate: float = field(0.1, help="Adam's step size", above=0, high=1000)
    repeats: int = field(3, help="runs of each controller", low=1, high=1000)

    def check(self) -> None:
        """A policy to look at, and one that differs from its reference."""
        if not self.successes:
            raise InputError("successes is empty; it takes at least one")


TINY = {"successes": (0.1, 0.3), "updates": 3, "groups_per_update": 6, "group_size": 16, "repeats": 2}
CHANGES = {
    "environment": "long_observations",
    "success": 0.5,
    "successes": [0.2],
    "updates": 4,
    "kl_coef": 0.5,
    "target_kl": 0.01,
    "horizon": 10.0,
    "groups_per_update": 4,
    "group_size": 9,
    "learning_rate": 0.3,
    "repeats": 1,
}

_COSINE: Any = {"unit": "1", "low": -1 - 1e-9, "high": 1 + 1e-9}
METRICS = (
    Metric(name="policy_success", unit="1", formula="exact success of the policy", low=0, high=1),
    Metric(
        name="exact_kl", unit="nat/token", formula="sum over rows of visits * KL(policy, reference) / decisions", low=0
    ),
    Metric(name="value", unit="nat/token", formula="exact mean of the estimator over the policy's decisions"),
    Metric(name="variance", unit="nat^2", formula="exact variance of the estimator over the policy's decisions", low=0),
    Metric(name="norm", unit="1/nat", formula="length of the expected gradient, coefficient 1", low=0),
    Metric(name="distance", unit="1", formula="|E[g] - grad D| / |grad D| of the nearest divergence D", low=0),
    Metric(name="relative_error", unit="1", formula="the same, D = KL of whole trajectories", low=0),
    Metric(name="cosine", **_COSINE, formula="between E[g] and the gradient of the KL of whole trajectories"),
    Metric(name="update", unit="1", formula="number of the policy update", low=1),
    Metric(name="trained_kl", unit="nat/token", formula="exact mean over trajectories of their mean k1; over repeats"),
    Metric(name="sampled_kl", unit="nat/token", formula="what the controller saw; mean over repeats"),
    Metric(name="coefficient", unit="reward/nat", formula="what one nat costs; mean over repeats", low=0),
    Metric(name="trained_success", unit="1", formula="exact success; mean over repeats", low=0, high=1),
    Metric(name="k1_in_reward_error", unit="1", formula="relative_error of k1 in the reward", low=0),
    Metric(name="k2_in_loss_error", unit="1", formula="relative_error of k2 in the loss", low=0),
    Metric(name="k3_in_loss_error", unit="1", formula="relative_error of k3 in the loss", low=0),
    Metric(name="k2_in_loss_cosine", **_COSINE, formula="cosine of k2 in the loss"),
    Metric(name="k3_in_loss_cosine", **_COSINE, formula="cosine of k3 in the loss"),
    Metric(name="adaptive_kl", unit="nat/token", formula="trained_kl after the last update, adaptive, mean of repeats"),
)


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Values, expected gradients, and the controllers."""
    from labs.exact import ascend

    environment: Environment = environments[config.environment]
    total = len(PENALTIES) + len(CONTROLLERS) * config.repeats
    values = [row for s in config.successes for row in token_values(ascend(environment, s))]
    gradients = []
    policy = ascend(environment, config.success)
    if not policy.log_probs.std() > 0:
        raise InputError(f"success is {config.success}, which the uniform policy has already; it is its own reference")
    for i, row in enumerate(penalties(policy)):
        gradients.append(row)
        if progress is not None:
            progress(i + 1, total)
    runs: dict[str, list[list[dict[str, float]]]] = {kind: [] for kind in CONTROLLERS}
    for kind in CONTROLLERS:
        for r in range(config.repeats):
            runs[kind].append(_train(environment, config, kind, seed * 1000 + r))
            if progress is not None:
                progress(len(PENALTIES) + sum(map(len, runs.values())), total)
    training = [
        {"controller": kind, "update": u + 1, **{key: _mean([step[key] for step in steps]) for key in steps[0]}}
        for kind, own in runs.items()
        for u, steps in enumerate(zip(*own, strict=True))
    ]
    by = {(row["place"], row["kind"]): row for row in gradients}
    final = {kind: [one[-1]["trained_kl"] for one in own] for kind, own in runs.items()}
    right = {kind: _mean([one[-1]["trained_success"] for one in own]) for kind, own in runs.items()}
    far = [row for row in values if row["policy_success"] == values[-1]["policy_success"]]
    spread = {row["kind"]: row["variance"] for row in far}
    k1, k2, k3 = by["reward", "k1"], by["loss", "k2"], by["loss", "k3"]
    return Result(
        data={
            "gradients": gradients,
            "values": values,
            "final_kl": final,
            "curves": {
                kind: {
                    key: [[round(step[key], 6) for step in one] for one in own] for key in ("trained_kl", "coefficient")
                }
                for kind, own in runs.items()
            },
        },
        metrics=[*values, *({k: v for k, v in row.items() if k != "distances"} for row in gradients), *training],
        headline={
            "k1_in_reward_error": k1["relative_error"],
            "k2_in_loss_error": k2["relative_error"],
            "k3_in_loss_error": k3["relative_error"],
            "k2_in_loss_cosine": k2["cosine"],
            "k3_in_loss_cosine": k3["cosine"],
            "adaptive_kl": _mean(final["adaptive"]),
        },
        summary=[
            f"value   at success {far[0]['policy_success']:.2f} KL is {far[0]['exact_kl']:.4f} nat/token: "
            + ", ".join(f"{row['kind']} {row['value']:.4f}" for row in far),
            "spread  variances there: " + ", ".join(f"{kind} {v:.4g}" for kind, v in spread.items()),
            *(f"{place:6}  " + "; ".join(_of(by[place, kind]) for kind in KINDS) for place in ("loss", "reward")),
            f"control target {config.target_kl:g}; at the end "
            + ", ".join(
                f"{kind} {_mean(final[kind]):.3f} nat/token, success {right[kind]:.3f}" for kind in CONTROLLERS
            ),
        ],
        conclusion=(
            f"k1 in the reward {'is' if k1['relative_error'] < ROUNDING else 'is not'} the gradient of the KL of whole "
            f"trajectories, k2 in the loss misses it by {k2['relative_error']:.1%} and k3 by "
            f"{k3['relative_error']:.1%}, and k1 in the loss averages to "
            f"{'nothing' if by['loss', 'k1']['norm'] < ROUNDING else 'something'}; "
            f"{verdict(final['adaptive'], config.target_kl)}."
        ),
        next=(
            "python -m labs.run --experiment kl --set success=0.8",
            "python -m labs.run --experiment kl --set target_kl=0.05 horizon=30",
        ),
    )


def verdict(final: Sequence[float], target: float, tolerance: float = 0.1) -> str:
    """Whether the runs of the adaptive controller ended within 10 % of the target."""
    found = t_interval(final)
    what = f"the adaptive controller ended at {found.value:.3f} nat/token for a target of {target:g}"
    if found.low is None or found.high is None:
        return f"{what}, but one cannot tell from one run whether it holds it"
    low, high = target * (1 - tolerance), target * (1 + tolerance)
    if low <= found.low and found.high <= high:
        return f"{what} and holds it within {tolerance:.0%}"
    if found.high < low or found.low > high:
        return f"{what}, which it {'has not reached' if found.high < low else 'overshoots'}"
    return f"{what}, but one cannot tell from {len(final)} runs whether it holds it within {tolerance:.0%}"


def token_values(policy: Truth) -> list[dict[str, Any]]:
    """Exact mean and variance of every estimator over the decisions of a policy, against the uniform reference."""
    import numpy as np
    import torch

    from labs.kl import kl_penalty

    visits = policy.visits * policy.family_weights[:, None]
    weight = visits[..., None] * policy.probabilities / visits.sum()
    log_probs = torch.from_numpy(np.ascontiguousarray(policy.log_probs))
    reference = torch.full_like(log_probs, -float(np.log(log_probs.shape[-1])))
    exact = float((visits * policy.kl(np.zeros(log_probs.shape))).sum() / visits.sum())
    rows = []
    for kind in KINDS:
        x = kl_penalty(log_probs, reference, kind).numpy()
        mean = float((weight * x).sum())
        rows.append(
            {
                "kind": kind, "policy_success": policy.success.value, "exact_kl": exact, "value": mean,
                "variance": max(float((weight * x**2).sum()) - mean**2, 0.0),
            }
        )  # fmt: skip
    return rows


def divergences(policy: Truth) -> dict[str, Array]:
    """Gradients of the three divergences from the uniform reference; those of rows hold the visits fixed."""
    import numpy as np

    zero = np.zeros(policy.environment.policy_shape)
    p, uniform = policy.probabilities, np.full(zero.shape, 1 / zero.shape[-1])
    visits = (policy.visits * policy.family_weights[:, None])[..., None]
    d = policy.log_probs - np.log(uniform)
    reverse = p * (d - policy.kl(zero)[..., None])
    gradients = (policy.trajectory_kl(zero).gradient, visits * reverse, visits * (p - uniform))
    return dict(zip(DIVERGENCES, gradients, strict=True))


def penalties(policy: Truth) -> list[dict[str, Any]]:
    """What every penalty adds to the expected gradient, coefficient 1, and how far that is from every divergence."""
    import numpy as np

    from labs.moments import moments
    from labs.policy import Policy
    from labs.step import StepConfig

    def expected(**settings: Any) -> Array:
        step = StepConfig(estimator="reward_to_go", loss="reinforce", loss_agg_mode="seq-mean-token-sum", **settings)
        return moments(policy.environment, Policy.of(policy.environment, policy.log_probs), step, group_size=1).mean

    plain, targets, rows = expected(), divergences(policy), []
    for place, kind in PENALTIES:
        if place == "loss":
            added = expected(use_kl_loss=True, kl_loss_coef=1.0, kl_loss_type=kind)
        else:
            added = expected(use_kl_in_reward=True, kl_penalty=kind, kl_ctrl={"kl_coef": 1.0})
        descent = plain - added
        norm = float(np.linalg.norm(descent))
        apart = {name: float(np.linalg.norm(descent - g) / np.linalg.norm(g)) for name, g in targets.items()}
        whole = targets[DIVERGENCES[0]]
        nearest = min(apart, key=apart.__getitem__)
        rows.append(
            {
                "place": place, "kind": kind, "norm": norm, "distances": apart, "nearest": nearest,
                "distance": apart[nearest], "relative_error": apart[DIVERGENCES[0]],
                "cosine": float((descent * whole).sum() / norm / np.linalg.norm(whole)) if norm > ROUNDING else 0.0,
            }
        )  # fmt: skip
    return rows


def _of(row: Mapping[str, Any]) -> str:
    """What a penalty is the gradient of, in a few words."""
    if row["norm"] < ROUNDING:
        return f"{row['kind']} nothing"
    if row["distance"] < ROUNDING:
        return f"{row['kind']} = {row['nearest']}"
    return f"{row['kind']} none (cosine {row['cosine']:.3f} to trajectory KL)"


def _train(environment: Environment, config: Config, kind: str, seed: int) -> list[dict[str, float]]:
    from labs.exact import truth
    from labs.step import StepConfig
    from labs.theory import mean_k1
    from labs.trainer import Trainer, TrainerConfig

    control = {"type": kind, "kl_coef": config.kl_coef, "target_kl": config.target_kl, "horizon": config.horizon}
    step = StepConfig(
        estimator="reward_to_go", loss="reinforce", loss_agg_mode="seq-mean-token-sum", use_kl_in_reward=True,
        kl_penalty="k1", kl_ctrl=control,
    )  # fmt: skip
    trainer = Trainer(
        environment,
        TrainerConfig(
            step=step, groups_per_update=config.groups_per_update, group_size=config.group_size, optimiser="adam",
            learning_rate=config.learning_rate, row_entropy_coeff=0.0,
        ),
        seed=seed % 2**63,
    )  # fmt: skip
    out = []
    for record in islice(trainer, config.updates):
        now = truth(environment, trainer.policy.logits.numpy())
        out.append(
            {
                "trained_kl": mean_k1(now),
                "sampled_kl": float(record["actor/reward_kl_penalty"]),
                "coefficient": float(record["actor/reward_kl_penalty_coeff"]),
                "trained_success": now.success.value,
            }
        )
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`values`, `gradients` and `controllers`."""
    return {"values": _values(results[0]), "gradients": _gradients(results[0]), "controllers": _controllers(results)}


def _values(result: Result) -> Figure:
    from labs import plots

    fig, axes = plots.figure(1, 2, height=4.2)
    rows = result.data["values"]
    for kind, color, marker in zip(KINDS, (plots.BLUE, plots.ORANGE, plots.GREEN), "os^", strict=True):
        own = [row for row in rows if row["kind"] == kind]
        x = [row["exact_kl"] for row in own]
        for ax, key in zip(axes, ("value", "variance"), strict=True):
            ax.plot(x, [row[key] for row in own], marker + "-", color=color, ms=10 if kind == "k1" else 6, label=kind)
    line = sorted({row["exact_kl"] for row in rows})
    plots.exact(axes[0], line, line, "KL(policy, reference), exact")
    axes[1].set_yscale("log")
    plots.label(axes[0], "Mean of the estimator", "exact KL (nat/token)", "mean (nat/token)")
    plots.label(axes[1], "Its variance", "exact KL (nat/token)", "variance (nat²)")
    fig.suptitle("Trained policies against the uniform one, k3 with verl's caps; exact, no band")
    plots.legend_below(fig, axes[0], columns=4)
    return fig


def _gradients(result: Result) -> Figure:
    from labs import plots

    rows = result.data["gradients"]
    fig, axes = plots.figure(height=4.8)
    names = [f"{row['kind']} in the {row['place']}" for row in rows]
    table = [[row["distances"][name] for name in DIVERGENCES] for row in rows]
    heads = [name.replace(" KL", "\nKL") for name in DIVERGENCES]
    plots.heatmap(axes, table, names, heads, high=1.5, form="{:.3f}")
    plots.label(
        axes, f"Distance of the expected gradient, at success {result.config['success']:g} (exact)",
        "gradient of; relative distance, 0 = the same, 1 = no gradient at all (1)", "",
    )  # fmt: skip
    return fig


def _controllers(results: Sequence[Result]) -> Figure:
    from labs import plots
    from labs.theory import penalised

    settings = results[0].config
    fig, axes = plots.figure(2, 1, height=6.6, sharex=True)
    x, name = list(range(1, settings["updates"] + 1)), ""
    axes[0].axhline(settings["target_kl"], color=plots.GREY, ls=":", lw=2, label="target of the adaptive one")
    for kind, color, dark in zip(CONTROLLERS, (plots.ORANGE, plots.BLUE), ("#7A4A00", plots.BLACK), strict=True):
        control = {"type": kind, **{key: settings[key] for key in ("kl_coef", "target_kl", "horizon")}}
        expected = penalised(
            environments[settings["environment"]], control, updates=settings["updates"],
            learning_rate=settings["learning_rate"], rows=settings["groups_per_update"] * settings["group_size"],
        )  # fmt: skip
        for ax, key in zip(axes, CURVES, strict=True):
            runs = [one for result in results for one in result.data["curves"][kind][key]]
            *runs, line = [_shown(key, one) for one in (*runs, expected[key])]
            name = plots.band(ax, x, runs, color, kind).replace("seeds", "runs")
            plots.exact(ax, x, line, f"{kind}, expected update", dark)
    plots.label(axes[0], "Mean k1 of a trajectory, exact", "", "k1 (nat/token)")
    plots.label(axes[1], "Coefficient", "update", "log10 of reward/nat")
    fig.suptitle(f"k1 in the reward, Adam ({name or 'one run, no band'}; dashed: no noise)")
    plots.legend_below(fig, axes[0])
    return fig


def _shown(key: str, line: Sequence[float]) -> list[float]:
    return [math.log10(max(v, 1e-12)) for v in line] if key == "coefficient" else list(line)
