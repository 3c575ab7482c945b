"""Every possible row of a batch, once, and what one step makes of any batch built from them.

A row is a task class and a trajectory (`labs.exact.Kinds`), written out as tokens with every column that the step
needs. A batch is then a table of row numbers `[groups, n]`, and `Rows.weigh` sends it through `labs.step.stages`:
nothing of the order of operations is repeated here. Rows are padded to the longest trajectory that exists, as verl pads
to the maximum response length, so that the width of a batch does not depend on what was sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labs.batch import TokenBatch
from labs.columns import complete
from labs.critic import ValueTable
from labs.enumeration import task_classes
from labs.environment import Environment, check_max_steps
from labs.episodes import pack
from labs.errors import InputError
from labs.exact import Array, Truth, truth
from labs.policy import Policy
from labs.registry import losses
from labs.step import StepConfig, required, stages

Index = NDArray[np.int64]

#: Counts of a group after all stages; a batch's is the sum over its groups. `nonzero` are rows with a reward.
STATS = ("rows", "loss_tokens", "response_tokens", "filled_rows", "nonzero")


_ALWAYS = ("prompts", "attention_mask", "response_mask", "loss_mask", "scores", "log_prob", "old_log_probs")


_LOG_PROBS = ("log_prob", "old_log_probs", "ref_log_prob", "rollout_log_probs", "sum_pi_squared")
#: Levels of `Rows.features`.
LEVELS = 5


class Weighed(NamedTuple):
    """What a step makes of a batch of G groups of n rows with at most H decisions.

    `weights` `[G, n, H]`: `-d loss / d log_prob` of every decision; `advantages`: `[G, n, H]`; `mask` `[G, n, T]` and
    `tokens` `[G, n, T]`: final response mask and advantages of every token; `stats` `[G, 5]`: see `STATS`. Rows that a
    stage dropped are 0 everywhere.
    """

    weights: Array
    advantages: Array
    mask: Array
    tokens: Array
    stats: Array


@dataclass(frozen=True, kw_only=True)
class Rows:
    """See the module; build with `Rows.of`.

    Attributes:
        config: of the step.
        batch: one row for each (task class, trajectory), class by class.
        family: `[R]` index of every row's family.
        task_class: `[R]` index of every row's task class.
        chance: `[R]` probability of the row given its task class, under the behaviour policy.
        shares: `[classes]` probability of each task class given its family.
        place: `[R, H]` token position of each decision, -1 behind the last.
        scores: `[R, H, D]` gradient of the decision's log-probability with respect to its family's logits,
            D = stages * actions.
        truth: exact objects of the current policy.
        random: a stage draws random numbers.
    """

    config: StepConfig
    batch: TokenBatch
    family: Index
    task_class: Index
    chance: Array
    shares: Array
    place: Index
    scores: Array
    truth: Truth
    random: bool

    @classmethod
    def of(
        cls,
        environment: Environment,
        policy: Policy,
        config: StepConfig,
        *,
        old: Policy | None = None,
        behaviour: Policy | None = None,
        reference: Policy | None = None,
        critic: ValueTable | None = None,
        operands: tuple[int, int] | None = None,
        max_steps: int | None = None,
        format_tokens: int = 0,
    ) -> Rows:
        """Write out every row; arguments as in `labs.moments.moments`."""
        if config.entropy_coeff:
            raise InputError(
                f"entropy_coeff is {config.entropy_coeff}; the entropy bonus is a function of whole rows of the policy "
                "and not part of the estimator, set it to 0"
            )
        steps = environment.max_steps if max_steps is None else max_steps
        check_max_steps(steps)
        chosen = environment.train_operands if operands is None else operands
        old = policy if old is None else old
        behaviour = old if behaviour is None else behaviour
        reference = Policy.uniform(environment) if reference is None else reference
        current = truth(
            environment, policy.logits.detach(), operands=chosen, max_steps=steps, temperature=policy.temperature
        )
        classes, kinds = task_classes(environment, chosen), current.kinds
        count = len(kinds)
        names = [f"c{c}" for c in range(len(classes)) for _ in range(count)]
        tasks = {f"c{c}": own.example for c, own in enumerate(classes)}
        episodes = pack(environment, [tasks[n] for n in names], kinds.paths * len(classes), behaviour, names)
        batch = episodes.tokens(format_tokens=format_tokens)
        wanted = required(config)
        if environment.random and "reward_baselines" in wanted:
            raise InputError(
                f"environment {environment.name} is random, so that a greedy baseline is a random number of its own; "
                f"exact moments of {config.estimator} need an environment whose tools do not fail"
            )
        if critic is None and {"values", "bootstrap_values"} & wanted:
            acting = truth(environment, old.logits.detach(), operands=chosen, max_steps=steps)
            critic = ValueTable(torch.from_numpy(acting.row_values))
        batch = complete(
            batch, wanted, old=old, reference=reference, critic=critic, environment=environment, tasks=tasks,
            max_steps=steps,
        )  # fmt: skip
        index = batch["table_index"]
        batch = batch.replace(log_prob=policy.token_log_probs(index).detach())
        # The stages copy every column many times over: only what they read comes along.
        batch = TokenBatch({n: c for n, c in batch.items() if n in wanted or n in _ALWAYS})
        task_class = np.repeat(np.arange(len(classes)), count)
        family = np.array([classes[c].family for c in task_class])
        table = behaviour.log_probs.detach().double().numpy()
        place, scores = _decisions(index, policy)
        return cls(
            config=config,
            batch=batch,
            family=family,
            task_class=task_class,
            chance=np.concatenate([kinds.probability(table)[c.family] for c in classes]),
            shares=np.array([c.probability for c in classes]) / current.family_weights[[c.family for c in classes]],
            place=place,
            scores=scores,
            truth=current,
            random=config.pf_ppo is not None or losses[config.loss].meta["properties"].random,
        )

    def __len__(self) -> int:
        return len(self.family)

    @property
    def reward(self) -> Array:
        """`[R]` the verifier's score."""
        return np.asarray(self.batch["scores"].double().numpy())

    def weigh(self, rows: Index, generator: torch.Generator | None = None) -> Weighed:
        """Send the batch of groups `rows` `[G, n]` (numbers of rows) through the stages."""
        groups, n = rows.shape
        flat = rows.ravel()
        place = torch.arange(groups * n)
        batch = self.batch.select(flat).replace(uid=np.repeat(np.arange(groups), n), place=place)
        *_, (_, done) = stages(batch, self.config, generator=generator)
        kept = done["place"].numpy()
        mask = np.zeros((groups * n, done.width))
        tokens, weights = np.zeros_like(mask), np.zeros_like(mask)
        mask[kept] = done["response_mask"].double().numpy()
        # Resampled rows (PF-PPO) can come more than once.
        np.add.at(weights, kept, done["loss_weights"].double().numpy())
        tokens[kept] = done["advantages"].double().numpy()
        found = [np.zeros(groups * n) for _ in STATS]
        for column, value in zip(found, _counts(done), strict=True):
            np.add.at(column, kept, value)
        where = self.place[flat]
        taken = where >= 0
        pick = np.where(taken, where, 0)
        lanes = np.arange(groups * n)[:, None]
        return Weighed(
            np.where(taken, weights[lanes, pick], 0.0).reshape(groups, n, -1),
            np.where(taken, tokens[lanes, pick] * mask[lanes, pick], 0.0).reshape(groups, n, -1),
            mask.reshape(groups, n, -1),
            tokens.reshape(groups, n, -1),
            np.stack(found, axis=1).reshape(groups, n, -1).sum(axis=1),
        )

    def features(self, level: int) -> list[tuple[Any, ...]]:
        """What could couple a row to others, from little (level 0) to everything that the stages can see (level 4).

        0: the score; 1: and how many tokens the policy chose; 2: and where they and the replies are; 3: and every other
        column but the log-probabilities; 4: and those.
        """
        batch = self.batch
        lengths = batch["attention_mask"].sum(dim=1)
        columns: list[Mapping[str, Any]] = [
            {"scores": batch["scores"]},
            {"count": batch["loss_mask"].sum(dim=1)},
            {"loss_mask": batch["loss_mask"], "length": lengths},
            {n: c for n, c in batch.items() if n in required(self.config) and n not in _LOG_PROBS and n != "uid"},
            {n: batch[n] for n in _LOG_PROBS if n in batch},
        ]
        used = {name: column for part in columns[: level + 1] for name, column in part.items()}
        keys = [
            np.round(c.double().numpy(), 12).tolist() if isinstance(c, Tensor) else list(map(str, c))
            for c in used.values()
        ]
        return [tuple(map(repr, row)) for row in zip(*keys, strict=True)]


def _decisions(index: Tensor, policy: Policy) -> tuple[Index, Array]:
    """Token position of each decision and its score function, from the table index of every token `[R, T]`."""
    chosen = (index >= 0).numpy()
    rows, actions = len(chosen), policy.logits.shape[2]
    cells = policy.logits.shape[1] * actions
    most = int(chosen.sum(axis=1).max())
    place, scores = np.full((rows, most), -1), np.zeros((rows, most, cells))
    probabilities = policy.probabilities.detach().double().numpy().reshape(-1, actions)
    for r in range(rows):
        where = np.flatnonzero(chosen[r])
        place[r, : len(where)] = where
        for h, flat in enumerate(index[r].numpy()[where].tolist()):
            row = flat // actions
            start = row * actions % cells
            scores[r, h, start : start + actions] -= probabilities[row]
            scores[r, h, flat % cells] += 1.0
    return place, scores / policy.temperature


def _counts(batch: TokenBatch) -> list[Array]:
    """`STATS` of every row."""
    kept = batch["response_mask"].sum(dim=1)
    rewards = batch["token_level_rewards"].sum(dim=1)
    columns = (torch.ones_like(kept), batch["loss_mask"].sum(dim=1), kept, kept > 0, rewards != 0)
    return [c.double().numpy() for c in columns]
