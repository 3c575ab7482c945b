"""The trainer: any estimator, loss, correction and optimiser on a finite environment, one record an update.

    collect   episodes under the behaviour policy; group filter with refill; cut groups held back (`continue`)
    complete  the columns that the entries declare (`labs.columns`)
    stages    score, kl, correction, mask, advantage, loss (`labs.step`)
    update    critic, then policy: epochs over minibatches, SGD or Adam; reference refresh
    metrics   one record: what was sampled, what was learnt, and the exact success of the policy that sampled

`Trainer` is an iterator of records that never ends; `itertools.islice(trainer, 100)` is a run. Its whole state can be
saved between two records and restored to go on with the same numbers.

>>> from itertools import islice
>>> from labs.registry import environments
>>> trainer = Trainer(environments["arithmetic"], TrainerConfig(groups_per_update=4), seed=0)
>>> [record["update"] for record in islice(trainer, 2)]
[1, 2]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from labs import kl
from labs.batch import TokenBatch
from labs.columns import complete
from labs.critic import ValueTable, value_loss
from labs.enumeration import outcome_probabilities, task_classes
from labs.environment import Environment
from labs.episodes import SUMMARY, Episodes, draw_tasks, join, play, resume
from labs.errors import InputError, one_of
from labs.metrics import Metric
from labs.policy import OPTIMISERS, Policy, kl_divergence, optimiser
from labs.sampling import Group, ReplayBuffer
from labs.step import StepConfig, loss, required, stages
from labs.tokens import sessions
from labs.verl_metrics import compute_data_metrics, compute_off_policy_metrics, compute_variance_proxy_metrics

#: What the losses read; everything else stays behind when a batch is split up.
_LEARNT = (
    "response_mask", "loss_mask", "table_index", "row_index", "old_log_probs", "advantages", "returns", "values",
    "rollout_is_weights", "rollout_log_probs", "ref_log_prob", "entropy", "versions",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How to train; what one step computes is in `step`.

    Attributes:
        step: see `labs.step.StepConfig`.
        groups_per_update, group_size: tasks an update (families alternate) and episodes of each.
        max_steps, operands: the environment's own when None.
        temperature: of sampling, and of every log-probability in the loss (as in verl).
        rollout_lag: the policy that samples is this many updates old.
        optimiser: `sgd` or `adam` (torch's, with its default betas).
        learning_rate: step size; SGD goes `learning_rate * gradient`.
        epochs, minibatches: passes over the batch, and parts of each pass (rows in random order when over 1).
        max_grad_norm: the gradient is scaled down to this norm; None for never.
        row_entropy_coeff: weight of the mean entropy over the rows of the table, as in `labs.agent` (the token
            entropy of verl's actor is `step.entropy_coeff`).
        critic_learning_rate, critic_epochs: Adam on the table of values; only where the estimator reads values.
        cliprange_value: of verl's value loss.
        reference_refresh: the reference becomes the current policy every so many updates; None keeps the first.
        filter_groups: drop groups whose scores are all equal and play others instead.
        filter_budget: most groups played in an update, as a multiple of `groups_per_update`.
        format_tokens, multi_turn_rows: see `labs.tokens.encode` and `labs.tokens.sessions`.
        verl_metrics: put verl's numbers about the batch (`critic/score/mean`, `response_length/max`) in the record.
        threads: of torch during an update; more than 1 only costs on tensors this small. None leaves them alone.

    Raises:
        InputError: a count below 1, a rate that is not positive, an unknown optimiser.
    """

    step: StepConfig = field(default_factory=StepConfig)
    groups_per_update: int = 12
    group_size: int = 16
    max_steps: int | None = None
    operands: tuple[int, int] | None = None
    temperature: float = 1.0
    rollout_lag: int = 0
    optimiser: str = "sgd"
    learning_rate: float = 6.0
    epochs: int = 1
    minibatches: int = 1
    max_grad_norm: float | None = None
    row_entropy_coeff: float = 0.01
    critic_learning_rate: float = 0.05
    critic_epochs: int = 4
    cliprange_value: float = 0.5
    reference_refresh: int | None = None
    filter_groups: bool = False
    filter_budget: int = 10
    format_tokens: int = 0
    multi_turn_rows: bool = False
    verl_metrics: bool = True
    threads: int | None = 1

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise one_of("optimiser", self.optimiser, OPTIMISERS)
        counts = ("groups_per_update", "group_size", "epochs", "minibatches", "critic_epochs", "filter_budget")
        for name in counts:
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("learning_rate", "critic_learning_rate", "temperature"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.rollout_lag < 0 or (self.reference_refresh is not None and self.reference_refresh < 1):
            raise InputError("rollout_lag must be at least 0, and reference_refresh at least 1 or None")
        if self.multi_turn_rows and self.filter_groups:
            raise InputError("multi_turn_rows and filter_groups do not go together: a group's rows are then turns")

    @property
    def critic(self) -> bool:
        """Whether a critic is trained: the estimator, or the truncation rule, reads values."""
        return bool({"values", "bootstrap_values"} & required(self.step))


class Trainer(Iterator[dict[str, Any]]):
    """A run: policy, reference, critic, optimisers, controller, generator, and what is under way.

    Args:
        environment: where to train.
        config: how.
        seed: of the run's only generator.
        policy: where to start, uniform in float64 when None; its temperature is not read.

    Attributes:
        number: updates done, which is the version of `policy`.
        policy: the current policy at the training temperature.
        reference, critic: see `TrainerConfig`.
        episodes, batch: what the last update was made from, the batch after all stages; None before, or if nothing
            was complete.
    """

    def __init__(
        self, environment: Environment, config: TrainerConfig, *, seed: int, policy: Policy | None = None
    ) -> None:
        self.environment, self.config = environment, config
        start = Policy.uniform(environment) if policy is None else Policy.of(environment, policy.logits.detach())
        self.number = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.controller = kl.get_kl_controller(config.step.kl_ctrl)
        self.logits = start.logits.clone().requires_grad_()
        self.reference = self.policy
        self.values = torch.zeros(environment.policy_shape[:2], dtype=self.logits.dtype, requires_grad=True)
        self.optimiser = optimiser(config.optimiser, self.logits, config.learning_rate)
        self.critic_optimiser = optimiser("adam", self.values, config.critic_learning_rate)
        self.past = deque([self.policy], maxlen=config.rollout_lag + 1)
        self.pending: Episodes | None = None
        self.tasks_drawn = self.groups_named = 0
        self.episodes: Episodes | None = None
        self.batch: TokenBatch | None = None
        self._classes = task_classes(environment, self._operands)

    @property
    def policy(self) -> Policy:
        """The current policy, detached."""
        return Policy(self.logits.detach().clone(), self.config.temperature, self.number)

    @property
    def critic(self) -> ValueTable:
        """The current critic, detached."""
        return ValueTable(self.values.detach().clone())

    @property
    def _operands(self) -> tuple[int, int]:
        return self.environment.train_operands if self.config.operands is None else self.config.operands

    @property
    def _max_steps(self) -> int:
        return self.environment.max_steps if self.config.max_steps is None else self.config.max_steps

    def __next__(self) -> dict[str, Any]:
        """One update on freshly collected episodes."""
        with _threads(self.config.threads):
            episodes, metrics = self.collect()
            return self._update(episodes, metrics)

    def update(self, episodes: Episodes) -> dict[str, Any]:
        """One update on given episodes; returns the record."""
        with _threads(self.config.threads):
            return self._update(episodes, {})

    def _update(self, episodes: Episodes | None, note: dict[str, float]) -> dict[str, Any]:
        before, exact = self.policy, self._exact(self.past[0])
        self.episodes, self.batch, norm = episodes, None, 0.0
        if episodes is not None:
            self.batch = self._stages(episodes, before, note)
            if self.config.critic:
                self._fit_critic(self.batch, note)
            norm = self._fit_policy(self.batch, note)
            if self.config.verl_metrics:
                note.update(compute_data_metrics(self.batch, use_critic="values" in self.batch))
                note.update(compute_variance_proxy_metrics(self.batch, norm))
                note.update(compute_off_policy_metrics(self.batch["versions"], self.number + 1))
        self.number += 1
        self.past.append(self.policy)
        if self.config.reference_refresh is not None and self.number % self.config.reference_refresh == 0:
            self.reference = self.policy
        return {
            "update": self.number,
            **(dict.fromkeys(SUMMARY, 0) if episodes is None else episodes.summary()),
            "exact_success_rate": exact,
            "mean_state_entropy": float(before.entropy.mean()),
            "gradient_norm": norm,
            "exact_kl": float(kl_divergence(before, self.policy).mean()),
            **note,
        }

    def _exact(self, policy: Policy) -> float:
        return outcome_probabilities(self.environment, policy.as_list(), self._classes, self._max_steps).success

    def _play(self, groups: int) -> Episodes:
        config, first = self.config, self.tasks_drawn
        tasks = draw_tasks(self.environment, groups, self.generator, self._operands, first=first)
        self.tasks_drawn += groups
        prefix = f"u{self.number + 1}-{self.groups_named}g"
        self.groups_named += 1
        return play(
            self.environment, self.past[0], tasks, config.group_size,
            generator=self.generator, max_steps=self._max_steps, prefix=prefix,
        )  # fmt: skip

    def collect(self) -> tuple[Episodes | None, dict[str, float]]:
        """Episodes for the next update (None when no group is complete), and what collecting them logs."""
        self.tasks_drawn = self.groups_named = 0
        if self.config.filter_groups:
            return self._filtered()
        fresh = self._play(self.config.groups_per_update)
        if self.config.step.truncation != "continue":
            return fresh, {}
        if self.pending is not None:
            fresh = join([self._resumed(self.pending), fresh])
        open_groups = set(fresh.uid[fresh.paths.truncated].tolist())
        held = [uid in open_groups for uid in fresh.uid.tolist()]
        ready = [not h for h in held]
        self.pending = fresh.select(held) if any(held) else None
        return (fresh.select(ready) if any(ready) else None), {"held_back": float(sum(held))}

    def _resumed(self, pending: Episodes) -> Episodes:
        """The held-back groups, in their order, with their cut rows played on under the newest behaviour policy."""
        cut = pending.paths.truncated
        played = resume(pending.select(cut), self.past[0], generator=self.generator, max_steps=self._max_steps)
        if cut.all():
            return played
        mixed = join([pending.select(~cut), played])
        order = torch.cat([torch.tensor((~cut).nonzero()[0]), torch.tensor(cut.nonzero()[0])]).argsort()
        return mixed.select(order.numpy())

    def _filtered(self) -> tuple[Episodes | None, dict[str, float]]:
        """Groups without signal are replaced, verl's way, until the batch is full or the budget is spent."""
        config, budget = self.config, self.config.filter_budget * self.config.groups_per_update

        def refill(count: int) -> None:
            count = min(count, budget - self.tasks_drawn)
            if count < 1:
                return
            played = self._play(count)
            for uid in dict.fromkeys(played.uid.tolist()):
                rows = played.select(played.uid == uid)
                buffer.add(Group(uid=uid, step=self.number + 1, scores=rows.scores.tolist(), payload=rows))

        buffer = ReplayBuffer(refill=refill, filter_groups_metric="reward", train_batch_size=config.groups_per_update)
        refill(config.groups_per_update)
        found = buffer.sample(self.number + 1, config.groups_per_update)
        if found is None and (left := buffer.sampleable(self.number + 1)):
            found = buffer.sample(self.number + 1, left)
        note = {"groups_played": float(self.tasks_drawn)}
        if found is None:
            return None, note
        return join([group.payload for group in found.groups]), {**note, **found.metrics}

    def prepare(self, episodes: Episodes, old: Policy) -> TokenBatch:
        """The episodes as tokens with every column that the entries declare: what `labs.step.stages` takes."""
        config = self.config
        write = sessions if config.multi_turn_rows else Episodes.tokens
        return complete(
            write(episodes, format_tokens=config.format_tokens, dtype=self.logits.dtype), required(config.step),
            old=old, reference=self.reference, critic=self.critic,
            environment=self.environment, tasks=dict(zip(episodes.uid.tolist(), episodes.tasks, strict=True)),
            generator=self.generator, max_steps=self._max_steps,
        )  # fmt: skip

    def _stages(self, episodes: Episodes, old: Policy, note: dict[str, float]) -> TokenBatch:
        batch = self.prepare(episodes, old)
        settings: dict[str, Any] = {"controller": self.controller, "metrics": note, "generator": self.generator}
        *_, (_, done) = stages(batch, self.config.step, **settings)
        return done

    def _parts(self, batch: TokenBatch, epochs: int, minibatches: int) -> Iterator[TokenBatch]:
        batch = TokenBatch({name: batch[name] for name in _LEARNT if name in batch})
        for _ in range(epochs):
            if minibatches == 1:
                yield batch
                continue
            order = torch.randperm(batch.rows, generator=self.generator)
            for rows in torch.tensor_split(order, min(minibatches, batch.rows)):
                yield batch.select(rows.numpy())

    def _fit_critic(self, batch: TokenBatch, note: dict[str, float]) -> None:
        settings = {"cliprange_value": self.config.cliprange_value}
        if "values" not in batch:
            batch = batch.replace(values=self.critic.tokens(batch["row_index"]))
        for part in self._parts(batch, self.config.critic_epochs, self.config.minibatches):
            if not bool(part["response_mask"].any()):
                continue
            predicted = ValueTable(self.values).tokens(part["row_index"])
            value, found = value_loss(part, predicted, settings)
            self.critic_optimiser.zero_grad()
            torch.autograd.backward(value)
            self.critic_optimiser.step()
            note.update(found)

    def _fit_policy(self, batch: TokenBatch, note: dict[str, float]) -> float:
        """The policy's part of the update; returns the norm of the first gradient."""
        config, norm = self.config, 0.0
        for number, part in enumerate(self._parts(batch, config.epochs, config.minibatches)):
            current = Policy(self.logits, config.temperature)
            entropy = None
            if config.step.entropy_coeff:
                entropy = current.token_rows(current.entropy, part["table_index"])
            value, found = loss(
                part, current.token_log_probs(part["table_index"]), config.step,
                entropy=entropy, generator=self.generator,
            )  # fmt: skip
            self.optimiser.zero_grad()
            torch.autograd.backward(value - config.row_entropy_coeff * Policy(self.logits).entropy.mean())
            gradient = self.logits.grad
            assert gradient is not None
            size = float(gradient.norm())
            if config.max_grad_norm is not None and size > config.max_grad_norm:
                gradient.mul_(config.max_grad_norm / size)
            self.optimiser.step()
            norm = size if number == 0 else norm
            note.update(found)
        return norm


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


_RATE: dict[str, Any] = {"unit": "1", "low": 0.0, "high": 1.0}
#: The numbers of a record, beyond verl's own.
METRICS = (
    Metric(name="update", unit="1", formula="number of the policy update", low=1, scope="run"),
    Metric(name="trajectories", unit="trajectory", formula="rows of the update", low=0),
    Metric(name="train_success_rate", **_RATE, formula="right / trajectories"),
    Metric(name="train_invalid_rate", **_RATE, formula="ended by an invalid action / trajectories"),
    Metric(name="train_timeout_rate", **_RATE, formula="cut by the step limit / trajectories"),
    Metric(name="train_mean_actions", unit="1", formula="decisions / trajectories", low=0),
    Metric(name="train_mean_score", unit="reward", formula="mean of the verifier's score, before shaping"),
    Metric(name="groups", unit="group", formula="tasks of the update", low=0),
    Metric(name="all_wrong_groups", unit="group", formula="groups whose best score is not above 0", low=0),
    Metric(name="all_right_groups", unit="group", formula="groups whose worst score is above 0", low=0),
    Metric(
        name="zero_advantage_groups", unit="group", formula="groups of equal scores", low=0,
        text="They teach nothing to an estimator that compares within the group.",
    ),
    Metric(
        name="exact_success_rate", **_RATE, text="What train_success_rate estimates.",
        formula="probability of success of the policy that sampled, by enumeration, on the training tasks",
    ),
    Metric(
        name="mean_state_entropy", unit="nat", formula="mean over (family, stage) of -sum p log p", low=0,
        text="How undecided the policy is; log(actions) when uniform, 0 when it always does the same.",
    ),
    Metric(
        name="gradient_norm", unit="1", formula="norm of the first gradient of the update, before clipping", low=0,
        text="Of loss and entropy terms together.",
    ),
    Metric(
        name="exact_kl", unit="nat", formula="mean over (family, stage) of KL(before, after the update)", low=0,
        text="How far the update moved the policy; no sampling error.",
    ),
    Metric(name="held_back", unit="trajectory", formula="rows of groups that wait for a cut row to finish", low=0),
    Metric(name="groups_played", unit="group", formula="groups played, filtered ones included", low=0),
)  # fmt: skip
