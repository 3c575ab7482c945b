"""What the experiment measures: forced lag, systems with a clock, exact bias, drifting rewards, the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labs.lagged import RULES
from labs.registry import environments

if TYPE_CHECKING:
    from experiments.staleness import Config
    from labs.async_trainer import AsyncTrainer
    from labs.exact import Array
    from labs.lagged import Lagged
    from labs.pipeline.accounting import Run
    from labs.pipeline.rules import Rules

#: Rule to words; with one step on a batch the two weights are what decoupled PPO is.
WORDS = {
    "none": "uncorrected",
    "token": "weights by token",
    "sequence": "weights by sequence",
    "behaviour": "clip around the stale policy",
    "log_linear": "log-linear proximal",
}
#: Denominator of the trainer to the same words.
DENOMINATORS = {"recomputed": "none", "proximal": "sequence", "behaviour": "behaviour"}
#: The arms of the drifting target: whose age, and the rule.
ARMS = {
    "fresh": (False, False, "none"),
    "old actions": (True, False, "none"),
    "old actions, weighted": (True, False, "sequence"),
    "old rewards": (False, True, "none"),
    "old rewards, weighted": (False, True, "sequence"),
    "both": (True, True, "none"),
    "both, weighted": (True, True, "sequence"),
}


def seeds(seed: int, runs: int) -> list[int]:
    """Seeds of the runs: other ones for every seed of the experiment."""
    return [1_000_003 * (seed % 2**40) + run for run in range(runs)]


def lagged(config: Config, **settings: Any) -> Lagged:
    """The learner of the table under forced lag."""
    from labs.classes import Learner
    from labs.lagged import Lagged

    names = ("learning_rate", "entropy_coefficient", "normalise", "environment")
    own = {name: settings.pop(name) for name in names if name in settings}
    learner = Learner(
        environment=environments[own.pop("environment", config.environment)],
        groups_per_update=config.groups_per_update,
        group_size=config.group_size,
        **{"learning_rate": config.learning_rate, **own},
    )
    return Lagged(learner=learner, threshold=config.threshold, clip=config.clip, **settings)


def table(config: Config, seed: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Final success and mean success over training of every run, by lag and rule."""
    from labs.lagged import train

    rows = []
    for lag in config.lags:
        for rule in RULES:
            _, curve = train(lagged(config, lag=lag, rule=rule), seeds(seed, config.runs), config.updates)
            rows.append({"lag": lag, "rule": rule, "final": curve[:, -1].tolist(), "mean": curve.mean(1).tolist()})
            tick()
    return rows


def bias(config: Config, seed: int) -> list[dict[str, Any]]:
    """Along on-policy runs: a stale step's expectation against the true gradient, and the ratios, all exact."""
    from labs.exact import log_softmax, truth
    from labs.lagged import expected, train
    from labs.offpolicy import Ratios

    base = lagged(config)
    environment = base.learner.environment
    tables, _ = train(base, seeds(seed, config.bias_runs), config.bias_update)
    rows = []
    for run in range(config.bias_runs):
        current = truth(environment, tables[-1, run])
        known = expected(base, current.log_probs, current.log_probs, 0)
        for lag in config.lags:
            behaviour = truth(environment, tables[-1 - lag, run])
            sequence, token = (kind(current, behaviour) for kind in (Ratios.sequence, Ratios.token))
            row: dict[str, Any] = {"run": run, "lag": lag, "effective": sequence.effective}
            for name, ratio in (("sequence", sequence), ("token", token)):
                row[f"{name}_99"] = quantile(ratio.value, ratio.chance, 0.99)
                row[f"{name}_largest"] = ratio.largest
            for rule in RULES:
                step = lagged(config, lag=lag, rule=rule)
                found = expected(step, log_softmax(tables[-1, run]), behaviour.log_probs, lag)
                size = float(np.linalg.norm(known))
                row[f"bias_{rule}"] = float(np.linalg.norm(found - known)) / size
                row[f"scale_{rule}"] = float((found * known).sum()) / size**2
            rows.append(row)
    return rows


def quantile(value: Array, chance: Array, share: float) -> float:
    """The smallest value that is not exceeded with this probability."""
    reached = int(np.searchsorted(np.cumsum(chance), share - 1e-12))
    return float(value[min(reached, len(value) - 1)])


def drift(config: Config, seed: int, tick: Callable[[], None]) -> dict[str, list[float]]:
    """Mean success under the target of the moment, by what is old: actions, rewards, both; with and without weights."""
    from labs.lagged import train

    out = {}
    for name, (actions, rewards, rule) in ARMS.items():
        arm = lagged(
            config, lag=config.drift_lag * actions, reward_lag=config.drift_lag * rewards, rule=rule,
            drift=config.drift, learning_rate=config.drift_learning_rate,
            entropy_coefficient=config.drift_entropy,
        )  # fmt: skip
        _, curve = train(arm, seeds(seed, config.runs), config.updates)
        out[name] = curve.mean(axis=1).tolist()
        tick()
    return out


def search(config: Config, seed: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Final success, uncorrected and with truncated sequence weights, by environment and step size."""
    from labs.lagged import train

    rows = []
    for name in config.search_environments:
        for rate in config.search_learning_rates:
            row: dict[str, Any] = {"environment": name, "learning_rate": rate}
            for rule in ("none", "sequence"):
                arm = lagged(
                    config, environment=name, learning_rate=rate, normalise=config.search_normalise,
                    lag=config.search_lag, rule=rule,
                )  # fmt: skip
                _, curve = train(arm, seeds(seed, config.search_runs), config.updates)
                row[rule] = curve[:, -1].tolist()
            rows.append(row)
            tick()
    return rows


def arms(config: Config) -> dict[str, Rules]:
    """The systems by name, and the course's asynchronous one under every bound on the lag."""
    from labs.pipeline import catalogue

    size = {
        "workers": config.workers, "batch_size": config.groups_per_update, "group_size": config.system_group_size,
        "training_seconds": config.training_seconds,
    }  # fmt: skip
    out = {name: catalogue.load(name).rules(**size) for name in config.systems}
    course = catalogue.load("course-asynchronous")
    return out | {f"bound {bound}": course.rules(**size, max_policy_lag=bound) for bound in config.bounds}


def systems(config: Config, seed: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """The trainer inside the pipeline: curves in time, samples and updates, and how old what it trained on was."""
    rows = []
    for name, rules in arms(config).items():
        for denominator in DENOMINATORS:
            for run, own in enumerate(seeds(seed, config.system_runs)):
                learner, found = system(config, rules, denominator, own)
                curve, records = learner.curve(), learner.records
                rows.append(
                    {
                        "system": name, "denominator": denominator, "run": run, "hours": found.seconds / 3600,
                        "rejected": sum(t.status == "rejected" for t in found.trajectories) / len(found.trajectories),
                        "curve": {
                            "hours": [row["seconds"] / 3600 for row in curve],
                            **{key: [row[key] for row in curve] for key in ("samples", "update", "success")},
                        },
                        **{key: _mean([record[key] for record in records])
                           for key in ("token_lag", "version_span", "effective_share")},
                        **{key: max((record[key] for record in records), default=0.0)
                           for key in ("largest_lag", "sequence_ratio_max")},
                    }
                )  # fmt: skip
            tick()
    return rows


def system(config: Config, rules: Rules, denominator: str, seed: int) -> tuple[AsyncTrainer, Run]:
    """One training run inside the pipeline: the learner, and what the pipeline did."""
    from labs.async_trainer import AsyncTrainer
    from labs.correction import RolloutCorrectionConfig
    from labs.pipeline.model import simulate
    from labs.pipeline.workload import Workload, lognormal_durations
    from labs.step import StepConfig
    from labs.trainer import TrainerConfig

    weights = RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=config.threshold)
    step = StepConfig(
        estimator="grpo_population",
        loss_agg_mode="seq-mean-token-sum",
        loss_options={"clip_ratio_low": config.clip, "clip_ratio_high": config.clip},
        correction=weights if denominator == "proximal" else None,
    )
    made = TrainerConfig(
        step=step, groups_per_update=config.groups_per_update, group_size=config.system_group_size,
        learning_rate=config.system_learning_rate, verl_metrics=False,
    )  # fmt: skip
    work = Workload(
        lognormal_durations(
            config.groups_per_update * config.system_updates, config.rollout_seconds, 1.0, seed,
            group_size=config.system_group_size, within=0.5,
        ),
        group_size=config.system_group_size,
    )  # fmt: skip
    learner = AsyncTrainer(environments[config.environment], made, seed=seed, denominator=denominator)
    return learner, simulate(rules, work, learner)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
