"""Are an entropy bonus and a sampling temperature the same lever, and what does a success cost under each?

Both make a policy try more. A temperature T acts on what is sampled and, as in verl, on the log-probabilities of the
loss: then logits / T is the policy, and gradient ascent at T is ascent at 1 with a learning rate divided by T^2, to the
last digit. A bonus of c changes where training ends: at a maximum of J + c * (mean entropy of the rows).

Exact: a policy sampled at other temperatures, and the policy at which ascent from the uniform one ends under a bonus,
by success, share of valid actions and decisions per success. Then training under each lever, sampled and (dashed)
following the exact expected update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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

    from labs.enumeration import TaskClass
    from labs.environment import Environment
    from labs.exact import Array

#: The settings of the exact curves.
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
BONUSES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.5)
PLAIN = "neither"
KEYS = ("success", "valid_rate", "cost")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the comparison of the two levers."""

    environment: str = field("arithmetic", help="the environment", choices=environments)
    success: float = field(
        0.3, help="exact success of the policy that is sampled at other temperatures", low=0, below=1
    )
    bonuses: tuple[float, ...] = field((0.3, 0.7), help="entropy coefficients to train with", above=0, high=1000)
    temperatures: tuple[float, ...] = field((0.7, 1.4), help="temperatures to train at", above=0, high=1000)
    updates: int = field(60, help="policy updates", low=1, high=100_000)
    groups_per_update: int = field(4, help="tasks an update", unit="group", low=1)
    group_size: int = field(16, help="trajectories a task", unit="trajectory", low=2)
    learning_rate: float = field(8.0, help="step size of gradient ascent", above=0, high=1000)
    repeats: int = field(3, help="runs of each setting", low=1, high=1000)

    def check(self) -> None:
        """One of each lever, none of them doing nothing."""
        for name, idle in (("bonuses", 0.0), ("temperatures", 1.0)):
            given = getattr(self, name)
            # Twice is what cannot be told apart in a legend.
            if not given or len({f"{value:g}" for value in given}) < len(given) or idle in given:
                raise InputError(f"{name} is {list(given)}; it takes at least one, none twice, and not {idle:g}")

    @property
    def levers(self) -> dict[str, tuple[float, float]]:
        """Name -> entropy coefficient, temperature."""
        return {
            PLAIN: (0.0, 1.0),
            **{f"bonus {c:g}": (c, 1.0) for c in self.bonuses},
            **{f"temperature {t:g}": (0.0, t) for t in self.temperatures},
        }


TINY = {"bonuses": (0.3,), "temperatures": (2.0,), "updates": 3, "groups_per_update": 2, "group_size": 8, "repeats": 2}
CHANGES = {
    "environment": "arithmetic3",
    "success": 0.5,
    "bonuses": [0.5],
    "temperatures": [0.5],
    "updates": 4,
    "groups_per_update": 3,
    "group_size": 9,
    "learning_rate": 3.0,
    "repeats": 1,
}

_RATE: Any = {"unit": "1", "low": -1e-9, "high": 1 + 1e-9}
METRICS = (
    Metric(name="temperature", unit="1", formula="of sampling", low=0),
    Metric(name="bonus", unit="reward/nat", formula="weight of the mean entropy of the policy's rows", low=0),
    Metric(name="success", **_RATE, formula="exact P(success) of what is sampled; over runs, the mean"),
    Metric(name="valid_rate", **_RATE, formula="1 - P(invalid) / E[decisions], exact; over runs, the mean"),
    Metric(name="cost", unit="decision", formula="E[decisions] / P(success), exact; over runs, the mean", low=1),
    Metric(name="update", unit="1", formula="number of the policy update", low=1),
    Metric(name="sampled_success", **_RATE, formula="right / trajectories of the update; mean over runs"),
    Metric(name="sampled_valid_rate", **_RATE, formula="valid / decisions of the update; mean over runs"),
    Metric(
        name="cost_so_far", unit="decision", formula="decisions / max(successes, 1) of all updates; mean over runs",
        low=0,
    ),
    Metric(name="plain_success", **_RATE, formula="success after training with neither; mean over runs"),
    Metric(name="bonus_success", **_RATE, formula="the same with the largest bonus"),
    Metric(name="best_bonus_success", **_RATE, formula="success where ascent under that bonus ends, exact"),
    Metric(name="plain_cost", unit="decision", formula="cost_so_far at the end, neither", low=0),
    Metric(name="bonus_cost", unit="decision", formula="cost_so_far at the end, largest bonus", low=0),
    Metric(
        name="twin_difference", unit="1", low=0,
        formula="largest difference in a probability, temperature T against learning rate / T^2, same seed",
    ),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """The exact curves, then training under every lever."""
    from labs.exact import ascend, truth

    environment: Environment = environments[config.environment]
    policy = ascend(environment, config.success).log_probs
    heat = [{"temperature": t, **rates(environment, policy, t)} for t in TEMPERATURES]
    bonuses = sorted({*BONUSES, *config.bonuses})
    best = [{"bonus": c, **rates(environment, optimum(environment, c))} for c in bonuses]
    total = len(config.levers) * config.repeats
    runs: dict[str, list[list[dict[str, float]]]] = {name: [] for name in config.levers}
    twins = 0.0
    for name, (bonus, temperature) in config.levers.items():
        for r in range(config.repeats):
            found, table = train(config, bonus, temperature, config.learning_rate, seed * 1000 + r)
            runs[name].append(found)
            if temperature != 1 and r == 0:
                _, twin = train(config, 0.0, 1.0, config.learning_rate / temperature**2, seed * 1000)
                one = truth(environment, table, temperature=temperature).probabilities
                twins = max(twins, float(abs(one - truth(environment, twin).probabilities).max()))
            if progress is not None:
                progress(sum(map(len, runs.values())), total)
    ideal = {name: follow(config, *lever) for name, lever in config.levers.items()}
    history = [
        {"lever": name, "update": u + 1, **{key: _mean([step[key] for step in steps]) for key in steps[0]}}
        for name, own in runs.items()
        for u, steps in enumerate(zip(*own, strict=True))
    ]
    last = {row["lever"]: row for row in history if row["update"] == config.updates}
    costs = {name: [one[-1]["cost_so_far"] for one in own] for name, own in runs.items()}
    largest = max(config.bonuses)
    most = f"bonus {largest:g}"
    at_best = next(row for row in best if row["bonus"] == largest)
    return Result(
        data={
            "temperatures": heat,
            "bonuses": best,
            "costs": costs,
            "curves": {
                name: {key: [[round(s[key], 6) for s in one] for one in own] for key in _SAMPLED}
                for name, own in runs.items()
            },
            "ideal": {name: {key: [round(s[key], 6) for s in own] for key in KEYS} for name, own in ideal.items()},
        },
        metrics=[*heat, *best, *history],
        headline={
            "plain_success": last[PLAIN]["success"],
            "bonus_success": last[most]["success"],
            "best_bonus_success": at_best["success"],
            "plain_cost": _mean(costs[PLAIN]),
            "bonus_cost": _mean(costs[most]),
            "twin_difference": twins,
        },
        summary=[
            f"sampled exact, policy of success {heat[4]['success']:.3f}: "
            + "; ".join(f"temperature {h['temperature']:g} {_said(h)}" for h in heat if h["temperature"] in (0.5, 2.0)),
            "ascent  exact, under a bonus: "
            + "; ".join(f"{b['bonus']:g} {_said(b)}" for b in best if b["bonus"] in config.bonuses),
            "trained success: " + ", ".join(f"{name} {row['success']:.3f}" for name, row in last.items()),
            "trained valid actions: " + ", ".join(f"{name} {row['valid_rate']:.3f}" for name, row in last.items()),
            "cost    decisions per success over all of training: "
            + ", ".join(f"{name} {_mean(own):.2f}" for name, own in costs.items()),
        ],
        conclusion=(
            f"A temperature of T is a learning rate divided by T^2 (the same policies up to {twins:.0e}) and leaves "
            f"the goal alone, a bonus of {largest:g} moves it to success {at_best['success']:.3f}; "
            f"{verdict(most, costs[most], costs[PLAIN])}."
        ),
        next=(
            f"python -m labs.run --experiment exploration --set environment=routes bonuses={largest:g}",
            "python -m labs.run --experiment exploration --set temperatures=0.5,2 updates=200",
        ),
    )


#: Per update, over the runs: what was sampled.
_SAMPLED = ("sampled_success", "sampled_valid_rate", "cost_so_far")


def verdict(name: str, costs: Sequence[float], plain: Sequence[float]) -> str:
    """Whether a success cost more decisions under the bonus than without, over all of training; same seeds."""
    apart = t_interval([a - b for a, b in zip(costs, plain, strict=True)])
    what = f"over training a success cost {_mean(costs):.2f} decisions with {name} and {_mean(plain):.2f} without"
    if apart.low is None or apart.high is None or apart.low <= 0 <= apart.high:
        return f"{what}, and from {len(costs)} run(s) one cannot tell which is less"
    return f"{what}: exploring {'did not pay' if apart.low > 0 else 'paid'} here"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _said(row: Mapping[str, float]) -> str:
    return f"{row['success']:.3f} (valid {row['valid_rate']:.3f}, {row['cost']:.1f} decisions a success)"


def rates(environment: Environment, logits: Any, temperature: float = 1.0) -> dict[str, float]:
    """Exact success, share of valid decisions and decisions per success of a policy; infinite cost reads 1e12."""
    import numpy as np

    from labs.enumeration import outcome_probabilities
    from labs.exact import log_softmax

    table = np.exp(log_softmax(logits, temperature)).tolist()
    found = outcome_probabilities(environment, table, _classes(environment.name), environment.max_steps)
    return {
        "success": found.success,
        "valid_rate": 1 - found.invalid / found.actions,
        "cost": found.actions / max(found.success, found.actions * 1e-12),
    }


@cache
def _classes(environment: str) -> list[TaskClass]:
    from labs.enumeration import task_classes

    return task_classes(environments[environment], environments[environment].train_operands)


def entropy(logits: Any) -> tuple[float, Array]:
    """Mean entropy of the policy's rows in nats, and its gradient `-p (log p + H) / rows`."""
    import numpy as np

    from labs.exact import log_softmax

    log_probs = log_softmax(logits)
    p = np.exp(log_probs)
    rows = -(p * log_probs).sum(axis=-1, keepdims=True)
    return float(rows.mean()), -p * (log_probs + rows) / rows.size


def optimum(environment: Environment, bonus: float) -> Array:
    """Logits of the maximum of J + bonus * (mean entropy) that ascent (L-BFGS) from the uniform policy finds.

    There can be two: a sharp policy, and one near the uniform, in which a large bonus catches the learner.
    """
    import numpy as np
    from scipy.optimize import minimize

    from labs.exact import truth

    def negative(flat: Any) -> tuple[float, Any]:
        logits = flat.reshape(environment.policy_shape)
        objective, (spread, slope) = truth(environment, logits).objective, entropy(logits)
        return -(objective.value + bonus * spread), -(objective.gradient + bonus * slope).ravel()

    start = np.zeros(int(np.prod(environment.policy_shape)))
    found = minimize(negative, start, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-9, "maxiter": 2000})
    table: Array = found.x.reshape(environment.policy_shape)
    return table


def train(
    config: Config, bonus: float, temperature: float, rate: float, seed: int
) -> tuple[list[dict[str, float]], Array]:
    """One run: what was sampled and what is exact after every update, and the last logits."""
    from labs.step import StepConfig
    from labs.trainer import Trainer, TrainerConfig

    environment: Environment = environments[config.environment]
    # Unbiased, so that the expected update is the exact gradient: see `follow`.
    step = StepConfig(estimator="rloo", loss="reinforce", loss_agg_mode="seq-mean-token-sum")
    trainer = Trainer(
        environment,
        TrainerConfig(
            step=step, groups_per_update=config.groups_per_update, group_size=config.group_size, learning_rate=rate,
            row_entropy_coeff=bonus, temperature=temperature, verl_metrics=False,
        ),
        seed=seed % 2**63,
    )  # fmt: skip
    out, decisions, right = [], 0.0, 0.0
    for record in islice(trainer, config.updates):
        decisions += record["trajectories"] * record["train_mean_actions"]
        right += record["trajectories"] * record["train_success_rate"]
        out.append(
            {
                **rates(environment, trainer.policy.logits.numpy(), temperature),
                "sampled_success": record["train_success_rate"],
                "sampled_valid_rate": 1 - record["train_invalid_rate"] / record["train_mean_actions"],
                "cost_so_far": decisions / max(right, 1.0),
            }
        )
    return out, trainer.policy.logits.numpy()


def follow(config: Config, bonus: float, temperature: float) -> list[dict[str, float]]:
    """What is sampled in every update when each goes along the exact expectation: no noise."""
    import numpy as np

    from labs.exact import truth

    environment: Environment = environments[config.environment]
    logits, out, decisions, right = np.zeros(environment.policy_shape), [], 0.0, 0.0
    families = len(environment.families)
    groups = np.bincount(np.arange(config.groups_per_update) % families, minlength=families)
    for _ in range(config.updates):
        now = rates(environment, logits, temperature)
        right += now["success"]
        decisions += now["success"] * now["cost"]
        out.append({**now, "cost": decisions / right})
        exact = truth(environment, logits, temperature=temperature)
        share = groups / groups.sum() / exact.family_weights
        gradient = exact.objective.gradient * share[:, None, None]
        logits = logits + config.learning_rate * (gradient + bonus * entropy(logits)[1])
    return out


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`exact` (what either lever does to a policy) and `learning` (sampled, over the exact expected update)."""
    return {"exact": _exact(results[0]), "learning": _learning(results)}


def _exact(result: Result) -> Figure:
    from labs import plots

    fig, axes = plots.figure(2, 2, height=6.4, sharex="col", sharey="row")
    for column, (key, name) in enumerate((("temperature", "temperatures"), ("bonus", "bonuses"))):
        rows = result.data[name]
        x = [row[key] for row in rows]
        for what, color, text in (
            ("success", plots.BLUE, "success"),
            ("valid_rate", plots.GREEN, "valid actions"),
        ):
            plots.exact(axes[0][column], x, [row[what] for row in rows], text, color)
        plots.exact(axes[1][column], x, [row["cost"] for row in rows], "decisions per success", plots.RED)
        axes[0][column].set_ylim(-0.02, 1.02)
        axes[1][column].set_yscale("log")
    axes[1][0].set_xscale("log")
    axes[1][0].set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    axes[1][0].xaxis.minorticks_off()
    plots.label(axes[0][0], f"Sampling a policy of success {result.config['success']:g}", y="share (1)")
    plots.label(axes[0][1], "What ascent under a bonus ends at")
    axes[1][0].set(xlabel="temperature (1)", ylabel="decisions per success (1)")
    axes[1][1].set_xlabel("entropy bonus (reward/nat)")
    axes[0][1].legend(loc="lower left")
    fig.suptitle(f"Two levers on {result.config['environment']}: exact, no band")
    return fig


def _learning(results: Sequence[Result]) -> Figure:
    from labs import plots

    first = results[0]
    fig, axes = plots.figure(3, 2, height=9.0, sharex=True, sharey="row")
    x, named = list(range(1, first.config["updates"] + 1)), ""
    colors = dict(zip(first.data["curves"], _colors(len(first.data["curves"])), strict=True))
    for column, word in enumerate(("bonus", "temperature")):
        shown = [name for name in first.data["curves"] if name == PLAIN or name.startswith(word)]
        for name in shown:
            for row, (key, exact) in enumerate(zip(_SAMPLED, KEYS, strict=True)):
                runs = [one for result in results for one in result.data["curves"][name][key]]
                ax = axes[row][column]
                named = plots.band(ax, x, runs, colors[name], name, lw=1.4) or named
                plots.exact(ax, x, first.data["ideal"][name][exact], "", colors[name])
        plots.label(axes[0][column], word.capitalize())
        axes[2][column].set_xlabel("update (1)")
        axes[2][column].set_yscale("log")
        axes[1][column].legend(loc="lower right")
    for ax, text in zip(
        axes[:, 0], ("success (1)", "valid actions (1)", "decisions per success so far (1)"), strict=True
    ):
        ax.set_ylabel(text)
    for ax in axes[:2].ravel():
        ax.set_ylim(-0.03, 1.03)
    axes[2][0].set_ylim(2, None)
    named = named.replace("seeds", "runs") or "one run, no band"
    fig.suptitle(f"Sampled in each update ({named});\ndashed: following the exact expected update")
    return fig


def _colors(count: int) -> list[str]:
    from labs import plots

    return [(plots.BLACK, plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED, plots.PURPLE)[i % 6] for i in range(count)]
