r"""The dashed line under a learning curve of the trainer: follow the expected update instead of a sampled one.

Where an estimator compares the scores of a group and gives every token of a row the same advantage, the group is a
multinomial over the few scores that exist: the estimator itself is asked what it makes of every such group, once, and

    expected gradient = sum over families, task classes, groups of P(group) * sum over rows of A_row * score function

divided by what the loss divides by. A count of tokens is taken at its expectation, so that the line is the limit for
many groups an update, as in `labs.classes.mean_field`; with `seq-mean-token-sum` and SGD it is exact for any number.
Adam divides by the size of what it sees, noise included: its line is that of batches without noise.
`refusal` says in words why there is no such line for other settings. `penalised` is the same for a KL in the reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from labs.batch import TokenBatch
from labs.classes import GROUPS, Law, Learner
from labs.dispatch import compute_advantage
from labs.errors import InputError
from labs.exact import Array, Truth, log_softmax, multisets, probability, truth
from labs.kl import get_kl_controller
from labs.policy import optimiser as make

if TYPE_CHECKING:
    from labs.environment import Environment
    from labs.trainer import TrainerConfig

#: Estimators that see a group's scores alone and give each row one number.
ESTIMATORS = ("dr_grpo", "grpo", "grpo_population", "grpo_vectorized", "rloo", "rloo_vectorized")
#: Losses whose gradient at the policy that sampled is that of REINFORCE.
LOSSES = ("reinforce", "vanilla")
MODES = ("seq-mean-token-mean", "seq-mean-token-sum", "token-mean")


def refusal(environment: Environment, config: TrainerConfig) -> str:
    """Why `expected_success` has no line for these settings; empty where it has."""
    step = config.step
    levels = _levels(environment, config)
    reasons = (
        (step.estimator not in ESTIMATORS, f"estimator {step.estimator} looks beyond a group's scores"),
        (step.loss not in LOSSES, f"loss {step.loss} is not REINFORCE at the policy that sampled"),
        (step.loss_agg_mode not in MODES, f"{step.loss_agg_mode} is not followed"),
        (config.epochs > 1 or config.minibatches > 1, "only the first step on a batch is on-policy"),
        (config.rollout_lag > 0, "the policy that samples is an older one"),
        (step.use_kl_in_reward or step.use_kl_loss, "a KL penalty counts as well"),
        (bool(step.masks) or step.correction is not None, "tokens are taken out of the loss"),
        (step.truncation is not None, f"truncation {step.truncation} changes rows"),
        (tuple(n for n, _ in step.rewards) not in ((), ("naive",)), "the score is shaped"),
        (step.entropy_coeff != 0, "the entropy of visited tokens counts as well"),
        (config.filter_groups or config.multi_turn_rows, "groups are not independent draws"),
        (config.max_grad_norm is not None, "the gradient is cut to a length"),
        (step.gamma != 1, "the discount depends on the position"),
        (comb(config.group_size + levels - 1, levels - 1) > GROUPS, f"groups of {levels} scores are too many to count"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def _learner(environment: Environment, config: TrainerConfig) -> Learner:
    return Learner(
        environment=environment, groups_per_update=config.groups_per_update, group_size=config.group_size,
        max_steps=config.max_steps, operands=config.operands,
    )  # fmt: skip


def _levels(environment: Environment, config: TrainerConfig) -> int:
    """Most scores that a task can have."""
    return Law(_learner(environment, config)).levels if any(environment.costs.values()) else 2


def expected_success(environment: Environment, config: TrainerConfig, updates: int, start: Any = None) -> Array:
    """`[updates + 1]` exact success of what is sampled, before every expected update and after the last.

    Args:
        environment, config: as of the `Trainer`.
        updates: how many.
        start: logits to start from, 0 when None.

    Raises:
        InputError: settings that have no such line, see `refusal`.
    """
    if reason := refusal(environment, config):
        raise InputError(f"the expected update is not known here: {reason}")
    law, temperature = Law(_learner(environment, config)), config.temperature
    tables = [_contrasts(config, reward) for reward in law.kinds.reward]
    groups = np.bincount(np.arange(config.groups_per_update) % len(law.own), minlength=len(law.own))
    rows = config.groups_per_update * config.group_size
    tokens = law.kinds.decisions * (1.0 + config.format_tokens)
    each = 1 / tokens if config.step.loss_agg_mode == "seq-mean-token-mean" else np.ones(len(tokens))
    ascent, out = Ascent(environment, config.optimiser, config.learning_rate, start), np.empty(updates + 1)
    for update in range(updates + 1):
        logits = ascent.logits
        log_probs = log_softmax(logits, temperature)
        out[update] = law.success(log_probs)
        chance = law.probabilities(log_probs)
        push = np.zeros(chance.shape)
        for f, own in enumerate(law.own):
            for share, c in zip(law.shares[f], own, strict=True):
                level, counts, contrast = tables[c]
                of_value = np.bincount(level, weights=chance[f], minlength=counts.shape[1]).astype(np.float64)
                total = probability(counts, of_value) @ (counts * contrast)
                one = np.divide(total, of_value, out=np.zeros_like(total), where=of_value > 0)
                push[f] += groups[f] * share * chance[f] * one[level]
        below: Any = rows
        if config.step.loss_agg_mode == "token-mean":
            below = config.group_size * groups @ (chance @ tokens)
        chosen = ((push * each) @ law.counts).reshape(logits.shape)
        gradient = (chosen - chosen.sum(axis=-1, keepdims=True) * np.exp(log_probs)) / below / temperature
        plain = log_softmax(logits)
        p = np.exp(plain)
        entropy = -(p * plain).sum(axis=-1, keepdims=True)
        ascent.step(gradient - config.row_entropy_coeff / entropy.size * p * (plain + entropy))
    return out


class Ascent:
    """A table of logits that goes up a gradient by the trainer's optimiser, SGD or Adam with torch's defaults.

    Attributes:
        logits: a view of the current table; a step changes it.
    """

    def __init__(self, environment: Environment, optimiser: str, learning_rate: float, start: Any = None) -> None:
        first = np.zeros(environment.policy_shape) if start is None else np.array(start, dtype=np.float64)
        self._table = torch.from_numpy(first)
        self._optimiser = make(optimiser, self._table, learning_rate)
        self.logits: Array = self._table.numpy()

    def step(self, gradient: Array) -> None:
        """One step up."""
        self._table.grad = -torch.from_numpy(np.ascontiguousarray(gradient))
        self._optimiser.step()


def penalised(
    environment: Environment, kl_ctrl: Mapping[str, Any], *, updates: int, learning_rate: float, rows: int
) -> dict[str, list[float]]:
    """Adam on the exact gradient of score - coefficient * KL(trajectory), the coefficient moved by a KL controller.

    That is the expectation of `reward_to_go` with k1 in the reward, a loss by `seq-mean-token-sum` and the uniform
    policy as reference and start; the controller sees the expectation of what it sees in training.

    Args:
        environment: where.
        kl_ctrl: verl's block, see `labs.kl.get_kl_controller`.
        updates, learning_rate: of Adam.
        rows: trajectories an update, which the controller counts.

    Returns:
        `trained_kl` after every update (see `mean_k1`) and the `coefficient` it was made with.
    """
    controller, ascent = get_kl_controller(kl_ctrl), Ascent(environment, "adam", learning_rate)
    reference = np.zeros(environment.policy_shape)
    curves: dict[str, list[float]] = {"trained_kl": [], "coefficient": []}
    now = truth(environment, ascent.logits.copy())
    for _ in range(updates):
        curves["coefficient"].append(controller.value)
        ascent.step(now.objective.gradient - controller.value * now.trajectory_kl(reference).gradient)
        controller.update(mean_k1(now), rows)
        now = truth(environment, ascent.logits.copy())
        curves["trained_kl"].append(mean_k1(now))
    return curves


def mean_k1(policy: Truth) -> float:
    """Exact expectation, against the uniform policy, of the mean over trajectories of their mean k1 per decision."""
    d = policy.log_probs + np.log(policy.log_probs.shape[-1])
    chance = policy.kinds.probability(policy.log_probs)
    means = np.einsum("ksa,fsa->fk", policy.kinds.counts, d) / policy.kinds.decisions
    return float(policy.family_weights @ (chance * means).sum(axis=1))


def _contrasts(config: TrainerConfig, reward: Array) -> tuple[Any, Any, Array]:
    """Score of every trajectory as a number of its level, all groups as counts of levels, and their advantages."""
    values, level = np.unique(reward, return_inverse=True)
    counts = multisets(len(values), config.group_size)
    which = np.stack([np.repeat(np.arange(len(values)), row) for row in counts])
    step, scores = config.step, torch.from_numpy(values[which.ravel()]).unsqueeze(-1)
    uid = np.repeat(np.arange(len(counts)), config.group_size).astype(str).astype(object)
    columns = {"token_level_rewards": scores, "response_mask": torch.ones_like(scores), "uid": uid}
    found = compute_advantage(
        TokenBatch(columns), step.estimator, gamma=step.gamma, lam=step.lam, config=step.algorithm(),
        norm_adv_by_std_in_grpo=step.norm_adv_by_std_in_grpo, options=step.estimator_options,
    )["advantages"].numpy().reshape(which.shape)  # fmt: skip
    contrast = np.zeros(counts.shape)
    np.put_along_axis(contrast, which, found, axis=1)
    return level, counts, contrast
