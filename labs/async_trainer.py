r"""The trainer inside the asynchronous pipeline: it trains on what arrives, made by the versions that really made it.

`AsyncTrainer` is a `labs.pipeline.records.Learner`. Every token is sampled by the version that its worker held at the
token's simulated time (decision k of at most n stands at the fraction k / n of the rollout's seconds), carries that
version's log-probability, and what comes out of the queue is trained with any estimator, loss and correction of
`labs.step`. What the loss divides by, and what repairs the lag, is the denominator; mu is the behaviour policy, a token
at a time, pi_v the policy that the step starts from:

| denominator | `old_log_probs` | weight | who |
|---|---|---|---|
| none | the current policy's, at every minibatch: the ratio is 1 | none | REINFORCE on what there is |
| behaviour | mu | in the ratio | PPO around the stale policy; verl's bypass mode |
| recomputed | pi_v | none | verl, `old_log_probs` computed anew |
| proximal | pi_v | pi_v / mu, by the step's correction | decoupled PPO, arXiv:2505.24298 |
| log_linear | mu^(1-a) pi^a, at every minibatch | that over mu, by the step's correction | A-3PO, arXiv:2512.06547 |

a = d / (d + 1) for a token d updates old: the proximal policy, one update before the one in the making, guessed on the
line between mu and pi instead of computed.

With lag 0 they are one and the same, and the run is that of `labs.trainer` bit for bit.

Tasks and draws come in blocks of one update, in the order in which the trainer draws them, so that task i sample j has
the same draws under all rules as long as training draws none itself (minibatches, PF-PPO and drawing losses do).

>>> from labs.pipeline.model import simulate
>>> from labs.pipeline.rules import Rules
>>> from labs.pipeline.workload import Workload
>>> from labs.registry import environments
>>> learner = AsyncTrainer(environments["arithmetic"], TrainerConfig(groups_per_update=2, group_size=4), seed=0)
>>> run = simulate(Rules(batch_size=2, group_size=4), Workload([1.0] * 16, group_size=4), learner)
>>> [record["update"] for record in learner.records]
[1, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labs.batch import TokenBatch
from labs.correction import compute_rollout_correction_and_rejection_mask
from labs.enumeration import outcome_probabilities, task_classes
from labs.environment import Environment, Task
from labs.episodes import Episodes, draw_tasks, draw_uniforms, join, play, resume
from labs.errors import InputError, one_of
from labs.metrics import Metric
from labs.pipeline.records import Ticket, Trajectory
from labs.pipeline.workload import uniform
from labs.policy import Policy
from labs.trainer import Trainer, TrainerConfig

DENOMINATORS = ("none", "behaviour", "recomputed", "proximal", "log_linear")
#: Plays of one block under one version that are kept for the rollouts of that block still to come.
_KEPT = 64


class Sampled(NamedTuple):
    """One episode: a row of `episodes`, and its reward as the verifier saw it."""

    episodes: Episodes
    row: int
    reward: float


class _Block(NamedTuple):
    """Tasks of one update and the draws of its rows `[groups * group_size, steps]`."""

    tasks: list[Task]
    uniforms: NDArray[np.float64]
    outcomes: NDArray[np.float64] | None


class AsyncTrainer:
    """A learner for `labs.pipeline.model.simulate`.

    Args:
        environment: where to train.
        config: how; `groups_per_update` is the size of a block of tasks, and should be the rules' `batch_size`.
        seed: of all draws.
        denominator: see the module.
        policy: where to start, uniform when None.
        verifier: the environment whose rules judge an episode that ends, and count as success, after that many
            updates; None for `environment` always. With one, rewards age as well as actions.
        rescore: judge again at the training step, with the verifier of that moment.

    Attributes:
        trainer: holds policy, optimisers and generator.
        records: one a training step: the trainer's record, when the step ended and what was in it, see `METRICS`.

    Raises:
        InputError: an unknown denominator, one that does not go with the correction, or settings that the pipeline's
            own rules replace (`rollout_lag`, `filter_groups`, truncation `continue`).
    """

    def __init__(
        self,
        environment: Environment,
        config: TrainerConfig,
        *,
        seed: int,
        denominator: str = "recomputed",
        policy: Policy | None = None,
        verifier: Callable[[int], Environment] | None = None,
        rescore: bool = False,
    ) -> None:
        check(config, denominator)
        self.environment, self.config, self.seed = environment, config, seed
        self.verifier, self.rescore = verifier, rescore
        self.trainer = _Anchored(environment, config, seed, policy, denominator, verifier)
        self.records: list[dict[str, Any]] = []
        self._published: dict[int, Policy] = {0: self.trainer.policy}
        self._blocks: list[_Block] = []
        self._plays: dict[tuple[int, int], Episodes] = {}
        self._samples = 0
        self._steps = environment.max_steps if config.max_steps is None else config.max_steps

    # The pipeline's side

    def publish(self, version: int) -> None:
        """The workers get the present policy under this number."""
        self._published[version] = self.trainer.policy

    def sample(self, task: Ticket, version: Callable[[float], int]) -> Sampled:
        """The episode of a finished rollout, every decision by the version of its moment."""
        versions = [version(k / self._steps) for k in range(self._steps)]
        if task.sample >= self.config.group_size:
            raise InputError(f"the pipeline asks for sample {task.sample}; group_size is {self.config.group_size}")
        mixed = versions[0] != versions[-1]
        if task.attempt or mixed:
            episodes, row = self._alone(task, versions), 0
        else:
            block, group = divmod(task.task, self.config.groups_per_update)
            episodes, row = self._play(block, versions[0]), group * self.config.group_size + task.sample
        return Sampled(episodes, row, self._judge(episodes, row))

    def train(self, batch: Sequence[Trajectory]) -> dict[str, Any]:
        """One update on these trajectories, in the order of their tasks; returns the record."""
        # Sums over a batch round by order, which must not be that of arrival.
        rows = sorted(batch, key=lambda t: (t.task, t.sample, t.attempt))
        parts = [
            payloads[0].episodes.select([p.row for p in payloads])
            for _, same in groupby((t.payload for t in rows), key=lambda p: id(p.episodes))
            if (payloads := list(same))
        ]
        episodes = join(parts)
        if self.verifier is not None:
            again = [self._judge(t.payload.episodes, t.payload.row) for t in rows] if self.rescore else None
            self.trainer.scores = again or [t.payload.reward for t in rows]
        self._samples += len(rows)
        left = rows[0].exit
        record = self.trainer.update(episodes)
        record |= {"samples": self._samples, "seconds": None if left is None else left.trained}
        self.records.append(record)
        return record

    @property
    def policy(self) -> Policy:
        """The present policy."""
        return self.trainer.policy

    def curve(self) -> list[dict[str, Any]]:
        """Exact success of every policy from the first one on: `update`, `seconds`, `samples`, `success`."""
        success = [r["exact_success_rate"] for r in self.records] + [self.trainer.success]
        rows = [{"update": 0, "seconds": 0.0, "samples": 0}, *self.records]
        return [
            {**{name: row[name] for name in ("update", "seconds", "samples")}, "success": value}
            for row, value in zip(rows, success, strict=True)
        ]

    # Episodes

    def _judge(self, episodes: Episodes, row: int) -> float:
        if self.verifier is None:
            return float(episodes.scores[row])
        judge = self.verifier(self.trainer.number)
        return float(judged(episodes, judge)[row])

    def _block(self, number: int) -> _Block:
        """Blocks are drawn in order, whichever is asked for first, as the trainer would draw them."""
        config, trainer = self.config, self.trainer
        while len(self._blocks) <= number:
            tasks = draw_tasks(self.environment, config.groups_per_update, trainer.generator, config.operands)
            rows = len(tasks) * config.group_size
            self._blocks.append(_Block(tasks, *draw_uniforms(self.environment, rows, self._steps, trainer.generator)))
        return self._blocks[number]

    def _play(self, number: int, version: int) -> Episodes:
        """A whole block under one version: as fast as one row of it, and most of its rows will be asked for."""
        if (found := self._plays.get((number, version))) is None:
            block = self._block(number)
            found = play(
                self.environment, self._published[version], block.tasks, self.config.group_size,
                uniforms=block.uniforms, outcome_uniforms=block.outcomes, max_steps=self._steps,
                prefix=f"u{number + 1}-0g",
            )  # fmt: skip
            self._plays[number, version] = found
            while len(self._plays) > _KEPT:
                del self._plays[next(iter(self._plays))]
        return found

    def _alone(self, ticket: Ticket, versions: list[int]) -> Episodes:
        """One rollout that several versions made, or that was started again with new draws."""
        number, group = divmod(ticket.task, self.config.groups_per_update)
        block = self._block(number)
        row = group * self.config.group_size + ticket.sample
        draws = [block.uniforms[row : row + 1], None if block.outcomes is None else block.outcomes[row : row + 1]]
        if ticket.attempt:
            seed = int(uniform(self.seed, 4, *ticket) * 2**53)
            draws = list(draw_uniforms(self.environment, 1, self._steps, torch.Generator().manual_seed(seed)))
        episodes, start = None, 0
        for version, same in groupby(versions):
            end = start + len(list(same))
            uniforms, outcomes = (None if d is None else d[:, start:end] for d in draws)
            settings: Any = {"uniforms": uniforms, "outcome_uniforms": outcomes, "max_steps": end - start}
            policy = self._published[version]
            if episodes is None:
                prefix = f"u{number + 1}-0g{group}-"
                episodes = play(self.environment, policy, [block.tasks[group]], prefix=prefix, **settings)
            elif episodes.paths.truncated[0]:
                episodes = resume(episodes, policy, **settings)
            start = end
        assert episodes is not None
        episodes.uid[:] = f"u{number + 1}-0g{group}"
        return episodes


def judged(episodes: Episodes, environment: Environment) -> NDArray[np.float64]:
    """`[B]` scores of the episodes under the rules of another environment with the same states and actions."""
    return Episodes(
        environment=environment, tasks=episodes.tasks, uid=episodes.uid, paths=episodes.paths,
        log_probs=episodes.log_probs, versions=episodes.versions,
    ).scores  # fmt: skip


def check(config: TrainerConfig, denominator: str) -> None:
    """Refuse what does not go together; see `AsyncTrainer`."""
    if denominator not in DENOMINATORS:
        raise one_of("the denominator", denominator, DENOMINATORS)
    if config.rollout_lag or config.filter_groups or config.step.truncation == "continue" or config.multi_turn_rows:
        raise InputError(
            "rollout_lag, filter_groups, multi_turn_rows and truncation continue are the trainer's own; in the "
            "pipeline its rules decide lag and filter, and a row is one rollout"
        )
    block = config.step.correction
    weighted = block is not None and block.rollout_is is not None and not block.bypass_mode
    if weighted != (denominator in ("proximal", "log_linear")):
        raise InputError(
            f"the denominator is {denominator} and the correction {'has' if weighted else 'has no'} weights; proximal "
            "and log_linear need rollout_is, none, recomputed and behaviour are without"
        )
    if block is not None and block.bypass_mode and denominator != "behaviour":
        raise InputError(f"bypass_mode makes the behaviour policy the old one, and the denominator is {denominator}")


class _Anchored(Trainer):
    """The trainer with another denominator, and with scores that were given at another time."""

    def __init__(
        self,
        environment: Environment,
        config: TrainerConfig,
        seed: int,
        policy: Policy | None,
        denominator: str,
        verifier: Callable[[int], Environment] | None,
    ) -> None:
        self.denominator, self.verifier = denominator, verifier
        self.scores: list[float] | None = None
        super().__init__(environment, config, seed=seed, policy=policy)

    @property
    def success(self) -> float:
        """Exact success of the present policy."""
        return self._exact(self.policy)

    def _exact(self, policy: Policy) -> float:
        if self.verifier is None:
            return super()._exact(policy)
        judge = self.verifier(self.number)
        classes = task_classes(judge, self._operands)
        return outcome_probabilities(judge, policy.as_list(), classes, self._max_steps).success

    def prepare(self, episodes: Episodes, old: Policy) -> TokenBatch:
        batch = super().prepare(episodes, old)
        if self.scores is not None:
            batch = batch.replace(scores=torch.tensor(self.scores, dtype=batch["scores"].dtype))
        if self.denominator in ("behaviour", "log_linear"):
            current = old.token_log_probs(batch["table_index"]).detach()
            batch = batch.replace(old_log_probs=self._old(batch, current), log_prob=current)
        return batch

    def _old(self, batch: TokenBatch, current: Tensor) -> Tensor:
        mu: Tensor = batch["rollout_log_probs"]
        if self.denominator == "behaviour":
            return mu
        lag = (self.number - batch["versions"]).clamp(min=0).to(current.dtype)
        return torch.where(batch["versions"] >= 0, mu + lag / (lag + 1) * (current - mu), mu)

    def _parts(self, batch: TokenBatch, epochs: int, minibatches: int) -> Iterator[TokenBatch]:
        for number, part in enumerate(super()._parts(batch, epochs, minibatches)):
            # The first minibatch has the columns of the stages already.
            if number and self.denominator in ("none", "log_linear"):
                current = self.policy.token_log_probs(part["table_index"]).detach()
                old = current if self.denominator == "none" else self._old(part, current)
                part = part.replace(old_log_probs=old)
                if self.denominator == "log_linear":
                    part = part.replace(rollout_is_weights=self._weights(part))
            yield part

    def _weights(self, part: TokenBatch) -> Tensor | None:
        block = self.config.step.correction
        assert block is not None
        weights, _, _ = compute_rollout_correction_and_rejection_mask(
            part["old_log_probs"], part["rollout_log_probs"], part["response_mask"],
            block.rollout_is, block.rollout_is_threshold, block.rollout_is_batch_normalize,
        )  # fmt: skip
        return weights

    def _stages(self, episodes: Episodes, old: Policy, note: dict[str, float]) -> TokenBatch:
        batch = super()._stages(episodes, old, note)
        note.update(staleness(batch, old, self.number))
        return batch


def staleness(batch: TokenBatch, policy: Policy, number: int) -> dict[str, float]:
    """How far the batch is from the policy that trains on it: the last rows of `METRICS`.

    Args:
        batch: `rollout_log_probs`, `versions`, `loss_mask`, `table_index`.
        policy: the current one.
        number: its version.
    """
    mask = batch["loss_mask"].bool()
    apart = torch.where(mask, policy.token_log_probs(batch["table_index"]) - batch["rollout_log_probs"], 0.0).detach()
    token, sequence = apart[mask].exp(), apart.sum(dim=1).exp()
    lag = number - batch["versions"]
    high, low = (torch.where(mask, lag, fill).T for fill in (-1, 1 << 30))
    span = high.max(dim=0).values - low.min(dim=0).values
    return {
        "token_lag": float(lag[mask].double().mean()),
        "largest_lag": float(lag[mask].max()),
        "version_span": float(span.double().mean()),
        "token_ratio_99": float(token.quantile(0.99)),
        "token_ratio_max": float(token.max()),
        "sequence_ratio_99": float(sequence.quantile(0.99)),
        "sequence_ratio_max": float(sequence.max()),
        "effective_share": float(sequence.sum() ** 2 / (len(sequence) * (sequence**2).sum())),
    }


#: What a record has beyond those of `labs.trainer`; `exact_success_rate` is that of the policy which the step starts
#: from.
METRICS = (
    Metric(name="samples", unit="trajectory", formula="rows trained so far", low=0),
    Metric(name="seconds", unit="s", formula="simulated time at which the step ended", low=0),
    Metric(name="token_lag", unit="update", low=0, formula="mean over tokens of updates done - updates of its version"),
    Metric(name="largest_lag", unit="update", low=0, formula="largest over tokens of the same"),
    Metric(name="version_span", unit="update", low=0, formula="mean over rows of newest - oldest version of a token"),
    Metric(name="token_ratio_99", unit="1", low=0, formula="99 % quantile of pi / mu over tokens"),
    Metric(name="token_ratio_max", unit="1", low=0, formula="largest pi / mu of a token"),
    Metric(name="sequence_ratio_99", unit="1", low=0, formula="99 % quantile over rows of prod pi / mu"),
    Metric(name="sequence_ratio_max", unit="1", low=0, formula="largest over rows of prod pi / mu"),
    Metric(
        name="effective_share", unit="1", low=0, high=1 + 1e-9, text="Kish's effective sample size as a share.",
        formula="(sum w)^2 / (n sum w^2), w = prod pi / mu of a row",
    ),
)  # fmt: skip
