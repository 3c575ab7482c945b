"""One fault each, planted where it would sit in a trainer: on the batch before the stages, or in what is left behind.

Functions that take a `TokenBatch` are for `labs.faults.run(change=...)`; the others return steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labs.evidence import Step
from labs.faults import duplicate, run

if TYPE_CHECKING:
    from labs.batch import TokenBatch


def altered(
    steps: list[Step], columns: Mapping[str, Any] | None = None, drop: tuple[str, ...] = (), **facts: Any
) -> list[Step]:
    """The steps with some columns set (a value, or a function of the step), some left out, some facts stated."""
    made = []
    for step in steps:
        one = duplicate(step)
        for name, value in (columns or {}).items():
            one.columns[name] = np.asarray(value(step) if callable(value) else value)
        for name in drop:
            one.columns.pop(name, None)
        one.facts.update(facts)
        made.append(one)
    return made


def logged(steps: list[Step], **names: Any) -> list[Step]:
    """Only scalars: those of the steps, with some set (`actor__entropy` stands for `actor/entropy`)."""
    made = []
    for number, step in enumerate(steps):
        values = {n.replace("__", "/"): float(v(number) if callable(v) else v) for n, v in names.items()}
        made.append(replace(step, source="log.jsonl", rows=0, columns={}, scalars={**step.scalars, **values}))
    return made


def uid_per_row(batch: TokenBatch) -> TokenBatch:
    """The group id is made after the prompts were repeated."""
    return batch.replace(uid=np.array([f"row{i}" for i in range(batch.rows)]))


def one_uid(batch: TokenBatch) -> TokenBatch:
    """One group id for the whole batch."""
    return batch.replace(uid=np.array(["all"] * batch.rows))


def tool_text_counted(batch: TokenBatch) -> TokenBatch:
    """The mask of what is attended instead of the mask of what was chosen."""
    return batch.replace(response_mask=batch["attention_mask"][:, -batch.width :])


def everything_counted(batch: TokenBatch) -> TokenBatch:
    """A mask of ones: tool text and padding are trained."""
    return batch.replace(response_mask=0 * batch["response_mask"] + 1)


def paid_by_turn(batch: TokenBatch) -> TokenBatch:
    """No fault: every row is paid 0.1 for each decision beside its score."""
    return batch.replace(scores=batch["scores"] + 0.1 * batch["turns"])


def score_on_reply(step: Step) -> Step:
    """The score is written to the reply before the last action, as when an episode ends with a tool's message."""
    made = duplicate(step)
    chosen, placed = made.columns["loss_mask"] > 0, made.columns["rm_scores"]
    seen = made.columns["attention_mask"][:, -placed.shape[1] :] > 0
    for row in range(made.rows):
        replies = np.flatnonzero(seen[row] & ~chosen[row])
        if len(replies):
            total = placed[row].sum()
            placed[row] = 0.0
            placed[row, replies[-1]] = total
    made.columns["rm_scores"] = placed
    return made


def score_behind_end(step: Step) -> Step:
    """The score is written one position behind the last token."""
    made = duplicate(step)
    placed = made.columns["rm_scores"]
    room = step.columns["length"] < placed.shape[1]
    made.columns["rm_scores"] = np.where(room[:, None], np.roll(placed, 1, axis=1), placed)
    return made


def regrouped(step: Step, rule: Any) -> Step:
    """Advantages recomputed by `rule(scores of a group) -> advantages`, spread over the mask."""
    made = duplicate(step)
    row = np.zeros(step.rows)
    labels = step.columns["uid"]
    for label in dict.fromkeys(labels.tolist()):
        row[labels == label] = rule(step.columns["score"][labels == label])
    made.columns["advantages"] = row[:, None] * (step.columns["response_mask"] > 0)
    made.columns["returns"] = made.columns["advantages"].copy()
    return made


def leave_one_out_std(scores: Any) -> Any:
    """Leave-one-out baseline over the standard deviation of the others plus 1e-6."""
    others = [np.delete(scores, i) for i in range(len(scores))]
    return np.array([(s - o.mean()) / (o.std() + 1e-6) for s, o in zip(scores, others, strict=True)])


def plain(seed: int = 7, **settings: Any) -> list[Step]:
    """A healthy run of GRPO, at a skill where groups are mixed."""
    return run(seed, **{"skill": 2.0, **settings})
