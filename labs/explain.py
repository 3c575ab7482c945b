"""How one entry of a batch came to be: stage by stage, with the numbers put in, down to the logits it moves.

The stages of `labs.step` are run under `labs.trace`: what is printed is the arithmetic that ran, of any estimator, loss
or user's own function, and not a formula written beside it. After each stage its columns become named inputs of the
next, so that every stage is explained in terms of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labs import agent
from labs.batch import TokenBatch
from labs.columns import complete
from labs.environment import Environment
from labs.episodes import Episodes, play
from labs.errors import InputError, one_of
from labs.kl import KLController
from labs.policy import Policy
from labs.step import StepConfig, required, stages
from labs.trace import Tracer
from labs.trainer import Trainer


@dataclass(frozen=True)
class Step:
    """One column after one stage, at one place.

    Attributes:
        stage: which stage wrote it.
        column: its name.
        index: `(i, t)`, or `(i,)` for a column with one entry a row.
        value: the entry.
        text: lines of plain arithmetic, `name = expression = value`, the first for the entry itself.
    """

    stage: str
    column: str
    index: tuple[int, ...]
    value: float
    text: str


def trace(
    batch: TokenBatch,
    config: StepConfig,
    at: tuple[int, int],
    *,
    generator: torch.Generator | None = None,
    controller: KLController | None = None,
) -> list[Step]:
    """Every column that a stage wrote, at row `i` and position `t`.

    Args:
        batch: as `labs.step.stages` takes it.
        config: what the step does.
        at: `(i, t)`.
        generator: for what draws.
        controller: of the KL in reward, as it stood before the step; None makes a new one.

    Raises:
        InputError: `at` is outside the batch; whatever the stages refuse.
    """
    row, position = at
    if not (0 <= row < batch.rows and 0 <= position < batch.width):
        raise InputError(
            f"place {row},{position} is outside the batch; it has rows 0 to {batch.rows - 1} and positions 0 to "
            f"{batch.width - 1}"
        )
    found: list[Step] = []
    with Tracer() as tracer:
        for name, column in batch.items():
            if _traced(column):
                tracer.name(column, name)
        before: dict[str, Any] = dict(batch)
        for stage, after in stages(batch, config, controller=controller, generator=generator):
            fresh: dict[int, tuple[str, Tensor]] = {}
            for name, column in sorted(after.items()):
                if _traced(column) and (name not in before or not _same(before[name], column)):
                    index = (row, position) if column.ndim == 2 else (row,)
                    if column.ndim == 2 and column.shape[1] != batch.width:
                        continue  # prompts and attention cover more than the response
                    number = tracer.number(column, index)
                    text = tracer.explain(column, index, name)
                    if name in before and f"{name}[" in text.split(" = ", 1)[1]:
                        text = _renamed(text, name)
                    found.append(Step(stage, name, index, float(number.value), text))
                    fresh.setdefault(id(column), (name, column))
            # The optimiser's view of a stage: its results are given.
            for name, column in fresh.values():
                tracer.name(column, name)
            before = dict(after)
    return found


def _traced(column: Any) -> bool:
    return isinstance(column, Tensor) and column.ndim in (1, 2) and column.numel() > 0


def _same(left: Any, right: Tensor) -> bool:
    return left is right or (isinstance(left, Tensor) and left.shape == right.shape and bool((left == right).all()))


def _renamed(text: str, name: str) -> str:
    """A column that a stage rewrites: the old one gets a prime, so that no line defines itself."""
    head, rest = text.split(" = ", 1)
    return f"{head} = {rest.replace(f'{name}[', f'{name}_before[')}"


def logit_lines(batch: TokenBatch, policy: Policy, at: tuple[int, int], names: tuple[Any, ...]) -> list[str]:
    """What the entry's `loss_weights` adds to the gradient of each logit of the row that chose the token.

        gradient of logit a  +=  loss_weights[i,t] * (1[a is the action taken] - p(a)) / temperature

    Args:
        batch: after the last stage.
        policy: whose table it is.
        at: `(i, t)`.
        names: families, stages, actions.
    """
    row, position = at
    place = int(batch["table_index"][row, position])
    if place < 0:
        return ["no logit: the policy did not choose this token"]
    families, stage_names, actions = names
    family, rest = divmod(place, len(stage_names) * len(actions))
    stage, taken = divmod(rest, len(actions))
    table = policy.probabilities.detach()
    weight = float(batch["loss_weights"][row, position])
    lines = [f"the policy chose {actions[taken]} at {families[family]}, {stage_names[stage]}; gradient of its logits:"]
    scale = "" if policy.temperature == 1 else f" / {policy.temperature!r}"
    for a, action in enumerate(actions):
        p = float(table[family, stage, a])
        value = weight * ((a == taken) - p) / policy.temperature
        lines.append(f"  {action} = {weight!r} * ({int(a == taken)} - {p!r}){scale} = {value!r}")
    return lines


def render(steps: list[Step], column: str) -> Iterator[str]:
    """The steps that lead to `column`, stage by stage.

    Raises:
        InputError: no stage wrote such a column.
    """
    known = list(dict.fromkeys(s.column for s in steps))
    if column not in known:
        raise one_of("column", column, known)
    last = max(i for i, s in enumerate(steps) if s.column == column)
    needed = {column}
    kept = []
    for step in reversed(steps[: last + 1]):
        if step.column in needed:
            kept.append(step)
            needed |= {name for name in known if f"{name}[" in step.text or f"{name}_before[" in step.text}
    stage = ""
    for step in reversed(kept):
        if step.stage != stage:
            stage = step.stage
            yield f"\n{stage}"
        yield from (f"  {line}" for line in step.text.split("\n"))


@dataclass(frozen=True)
class Update:
    """One update of a run, as `trace` needs it: the batch before the stages, its settings, who sampled, the axes.

    `episodes` are the batch's as they were played, `behaviour` the policies that played them by version, as far as the
    run still had them, and `controller` the one of the KL in reward.
    """

    batch: TokenBatch
    config: StepConfig
    policy: Policy
    names: tuple[list[str], list[str], list[str]]
    episodes: Episodes
    behaviour: Mapping[int, Policy]
    generator: torch.Generator | None = None
    controller: KLController | None = None

    def finished(self) -> TokenBatch:
        """The batch after the last stage."""
        *_, (_, batch) = stages(self.batch, self.config, controller=self.controller, generator=self.generator)
        return batch

    def loudest(self) -> tuple[int, int]:
        """Row and position of the chosen token with the largest |advantage|, the first of several; draws nothing."""
        again = replace(
            self,
            controller=deepcopy(self.controller),
            generator=None if self.generator is None else self.generator.clone_state(),
        ).finished()
        size = again["advantages"].abs() * again["response_mask"]
        if "place" in again or again.rows != self.batch.rows:
            return 0, 0
        return divmod(int(size.argmax()), again.width)


def of_batch(
    environment: Environment,
    batch: TokenBatch,
    config: StepConfig,
    policy: Policy,
    episodes: Episodes,
    generator: torch.Generator | None = None,
) -> Update:
    """A batch that `policy` sampled and that is ready for the stages."""
    return Update(batch, config, policy, _axes(environment), episodes, {policy.version: policy}, generator)


def of_trainer(trainer: Trainer, number: int) -> Update:
    """Update `number` of a fresh trainer: the ones before it are run, its own batch is collected and prepared."""
    for _ in range(number - 1):
        next(trainer)
    episodes, _ = trainer.collect()
    if episodes is None:
        raise InputError(f"update {number} trained on nothing: no group was complete")
    batch = trainer.prepare(episodes, trainer.policy)
    behaviour = {policy.version: policy for policy in trainer.past}
    return Update(
        batch, trainer.config.step, trainer.policy, _axes(trainer.environment), episodes, behaviour,
        trainer.generator, trainer.controller,
    )  # fmt: skip


def of_learner(environment: Environment, number: int, **settings: Any) -> Update:
    """Update `number` of `labs.agent.train(environment, **settings)`, episode for episode on its own draws.

    The closed form of the learner is the step of this configuration: the population's standard deviation, plain
    REINFORCE, one weight a trajectory.
    """
    record: list[agent.Draws] = []
    group_size = settings["group_size"]
    logits = agent.uniform_logits(environment)
    for update in agent.train(environment, record=record, **{**settings, "updates": number}):
        if update.number == number - 1:
            logits = update.logits
    draws = record[-1]
    policy = replace(Policy.of(environment, logits), version=number - 1)
    episodes = play(
        environment, policy, draws.tasks, group_size, uniforms=draws.uniforms, outcome_uniforms=draws.outcome_uniforms
    )
    config = StepConfig(estimator="grpo_population", loss="reinforce", loss_agg_mode="seq-mean-token-sum")
    batch = complete(episodes.tokens(), required(config), old=policy)
    return Update(batch, config, policy, _axes(environment), episodes, {policy.version: policy})


def _axes(environment: Environment) -> tuple[list[str], list[str], list[str]]:
    return list(environment.families), list(environment.stages), list(environment.actions)


def explain(update: Update, at: tuple[int, int], column: str) -> str:
    """The whole explanation: what the token is, the stages that lead to `column`, and the logits it ends in."""
    batch = update.batch
    steps = trace(batch, update.config, at, generator=update.generator, controller=update.controller)
    head = [f"row {at[0]} of {batch.rows}, position {at[1]} of {batch.width}, group {batch['uid'][at[0]]}"]
    mask, denominator = int(batch["response_mask"][at]), int(batch.get("loss_mask", batch["response_mask"])[at])
    head.append(f"  response_mask {mask}: the policy {'chose' if mask else 'did not choose'} this token")
    head.append(f"  loss_mask {denominator}: it {'counts' if denominator else 'does not count'} in denominators")
    text = [*head, *render(steps, column)]
    weights = [s for s in steps if s.column == "loss_weights"]
    done = batch.replace(loss_weights=torch.zeros_like(batch["old_log_probs"]).index_put(
        (torch.tensor(at[0]), torch.tensor(at[1])), torch.tensor(weights[-1].value, dtype=batch["old_log_probs"].dtype)
    ))  # fmt: skip
    text.append(f"\nlogits\n  loss_weights[{at[0]},{at[1]}] = {weights[-1].value + 0.0!r}")
    text += [f"  {line}" for line in logit_lines(done, update.policy, at, update.names)]
    return "\n".join(text)
