"""Runs of the lab as a diagnosis sees them, healthy or with one fault switched on.

`run` trains for real and hands over what each update left: every column of the batch after all stages, and the
record's numbers under verl's names. Faults (`labs.faults.planted`) enter where they would in a trainer: `change` acts
on the batch before the stages, so that baseline, advantage and loss follow from it; others alter what was left behind.

Checks import this for their examples, so that nothing here imports torch before an example is made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from labs.evidence import Step

if TYPE_CHECKING:
    from labs.batch import TokenBatch

Change = Callable[["TokenBatch"], "TokenBatch"]

_cache: dict[str, list[Step]] = {}


def run(
    seed: int = 7,
    steps: int = 1,
    *,
    skill: float = 1.5,
    warmup: int = 0,
    environment: str = "arithmetic",
    step: Mapping[str, Any] | None = None,
    change: Change | None = None,
    rescored: float | None = None,
    drift: float = 0.0,
    **settings: Any,
) -> list[Step]:
    """`steps` updates of a real run.

    Args:
        seed: of the run.
        steps: updates to record.
        skill: logit of the right actions where training starts (environment `arithmetic` only; others start uniform).
        warmup: updates before the first recorded one.
        environment: the environment.
        step: settings of `labs.step.StepConfig`.
        change: the fault, on the batch before the stages.
        rescored: temperature at which `old_log_probs` are computed, while sampling and loss stay at 1.
        drift: standard deviation of what is added to every logit for `log_prob`: the policy of a later mini-batch.
        **settings: of `labs.trainer.TrainerConfig`; by default 6 groups of 8 rollouts, learning rate 2.

    The same run is made once; every call hands out a copy of its own.
    """
    from labs.faults.making import train

    settings = {"groups_per_update": 6, "group_size": 8, "learning_rate": 2.0, **settings}
    chosen = sorted((step or {}).items())
    key = repr((seed, steps, skill, warmup, environment, chosen, change, rescored, drift, sorted(settings.items())))
    if key not in _cache:
        _cache[key] = train(seed, steps, skill, warmup, environment, step or {}, (change, rescored, drift), settings)
    return [duplicate(one) for one in _cache[key]]


def duplicate(step: Step) -> Step:
    """A copy whose columns can be replaced and written to."""
    made = copy.copy(step)
    made.columns = {name: column.copy() for name, column in step.columns.items()}
    made.scalars, made.facts, made.found = dict(step.scalars), dict(step.facts), list(step.found)
    return made


#: Twenty healthy runs: every kind of estimator, loss, batch and drift that the trainer can do without a fault.
_HEALTHY: tuple[dict[str, Any], ...] = (
    {},
    {"step": {"estimator": "rloo"}, "skill": 0.8},
    {"step": {"estimator": "dr_grpo"}, "group_size": 4, "groups_per_update": 12},
    {"step": {"estimator": "grpo_population"}, "skill": 1.0},
    {"step": {"estimator": "reinforce_plus_plus"}},
    {"step": {"estimator": "reinforce_plus_plus_baseline"}},
    {"step": {"estimator": "remax"}, "skill": 1.0},
    {"step": {"estimator": "gae", "lam": 0.95}},
    {"step": {"estimator": "opo"}, "group_size": 16},
    {"step": {"estimator": "gdpo"}},
    {"step": {"loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"}},
    {"step": {"loss": "cispo"}, "format_tokens": 2},
    {"step": {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.01}}, "warmup": 4},
    {"step": {"use_kl_loss": True, "kl_loss_coef": 0.01}, "warmup": 4},
    {"filter_groups": True, "skill": 2.5},
    {"multi_turn_rows": True},
    {"rollout_lag": 1, "warmup": 2, "learning_rate": 0.5},
    {"epochs": 2, "minibatches": 2, "learning_rate": 0.5},
    {"skill": 4.0, "steps": 4},
    {"environment": "long_observations", "skill": 0.0, "warmup": 40, "group_size": 16},
)
HEALTHY = len(_HEALTHY)


def healthy(number: int) -> list[Step]:
    """Healthy run `number`, 0 to 19."""
    settings = {"steps": 3, **_HEALTHY[number]}
    return run(seed=100 + number, **settings)
