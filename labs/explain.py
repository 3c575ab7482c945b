"""How one entry of a batch came to be: stage by stage, with the numbers put in, down to the logits it moves.

The stages of `labs.step` are run under `labs.trace`: what is printed is the arithmetic that ran, of any estimator, loss
or user's own function, and not a formula written beside it. After each stage its columns become named inputs of the
next, so that every stage is explained in terms of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.errors import InputError, one_of
from labs.policy import Policy
from labs.step import StepConfig, stages
from labs.trace import Tracer


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
    batch: TokenBatch, config: StepConfig, at: tuple[int, int], *, generator: torch.Generator | None = None
) -> list[Step]:
    """Every column that a stage wrote, at row `i` and position `t`.

    Args:
        batch: as `labs.step.stages` takes it.
        config: what the step does.
        at: `(i, t)`.
        generator: for what draws.

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
        for stage, after in stages(batch, config, generator=generator):
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
