"""How a run of the lab becomes steps: see `labs.faults.run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.environment import SUBMITTED, TIMEOUT
from labs.episodes import Episodes
from labs.evidence import Step
from labs.faults import Change
from labs.policy import Policy
from labs.registry import environments
from labs.step import StepConfig
from labs.trainer import Trainer, TrainerConfig

#: Right actions of the environment `arithmetic`, by family and stage.
_RIGHT = ((0, 1, 3), (0, 2, 3))


class _Faulty(Trainer):
    """A trainer whose batch is changed before the stages."""

    fault: tuple[Change | None, float | None, float] = (None, None, 0.0)

    def prepare(self, episodes: Episodes, old: Policy) -> TokenBatch:
        batch = super().prepare(episodes, old)
        change, rescored, drift = self.fault
        table = batch["table_index"]
        if rescored is not None:
            batch = batch.replace(
                log_prob=batch["old_log_probs"], old_log_probs=old.at(rescored).token_log_probs(table)
            )
        if drift:
            moved = torch.randn(old.logits.shape, generator=self.generator, dtype=old.logits.dtype)
            batch = batch.replace(log_prob=Policy(old.logits + drift * moved).token_log_probs(table))
        return batch if change is None else change(batch)


def train(
    seed: int, steps: int, skill: float, warmup: int, environment: str, step: Mapping[str, Any],
    fault: tuple[Change | None, float | None, float], settings: Mapping[str, Any],
) -> list[Step]:  # fmt: skip
    """See `labs.faults.run`."""
    place = environments[environment]
    start = None
    if environment == "arithmetic":
        table = [[[skill * (a == right) for a in range(4)] for right in rights] for rights in _RIGHT]
        start = Policy.of(place, table)
    trainer = _Faulty(place, TrainerConfig(step=StepConfig(**step), **settings), seed=seed, policy=start)
    trainer.fault = fault
    made = []
    for number in range(warmup + steps):
        before = trainer.policy
        record = next(trainer)
        if number >= warmup:
            made.append(_step(trainer, before, record))
    return made


def _step(trainer: Trainer, policy: Policy, record: Mapping[str, Any]) -> Step:
    config, episodes, batch = trainer.config, trainer.episodes, trainer.batch
    number = int(record["update"])
    scalars = {n: float(v) for n, v in record.items() if "/" in n and isinstance(v, int | float)}
    scalars["actor/grad_norm"] = float(record["gradient_norm"])
    facts: dict[str, Any] = {
        "n": config.group_size,
        "estimator": config.step.estimator,
        "loss_mode": config.step.loss,
        "loss_agg_mode": config.step.loss_agg_mode,
        "actions": len(trainer.environment.actions),
        "gamma": config.step.gamma,
        "lam": config.step.lam,
    }
    made = Step(source=f"{number}.npz", format="lab", step=number, scalars=scalars, facts=facts)
    if episodes is None or batch is None:
        return made
    columns = {n: c.numpy().copy() if isinstance(c, Tensor) else np.asarray(c).copy() for n, c in batch.items()}
    chosen = batch["row_index"] >= 0
    table = policy.entropy.reshape(-1)
    columns["entropy"] = torch.where(chosen, table[batch["row_index"].clamp(min=0)], 0.0).numpy()
    scalars["actor/entropy"] = float(columns["entropy"][columns["table_index"] >= 0].mean())
    columns["score"] = columns["rm_scores"].sum(axis=1)
    # Success alone is the verifier's score unless actions cost something.
    columns["parts/success"] = columns["success"]
    columns["length"] = columns["attention_mask"][:, -batch.width :].sum(axis=1)
    columns["finish_reason"] = np.where(columns["truncated"], "length", "stop").astype(object)
    if "session_keys" in batch:
        keys = [str(key).rsplit("_", 2) for key in batch["session_keys"]]
        columns["session"] = np.array([key[1] for key in keys], dtype=object)
        columns["index"] = np.array([int(key[2]) for key in keys])
    elif batch.rows == len(episodes):
        columns |= _text(episodes)
    made.columns, made.rows = columns, batch.rows
    return made


def _text(episodes: Episodes) -> dict[str, Any]:
    """Prompt, output and right answer of every row as text."""
    environment = episodes.environment
    prompts, outputs, answers = [], [], []
    for row, task in enumerate(episodes.tasks):
        path = episodes.path(row)
        after = [*path.states[1:], path.last]
        lines = []
        for i, action in enumerate(path.actions):
            lines.append(environment.actions[action])
            if i < len(path.actions) - 1 and path.end != TIMEOUT:
                lines.append(environment.text(task, after[i]))
        if path.end == SUBMITTED:
            lines.append(f"answer {environment.value(task, path.last)}")
        prompts.append(environment.text(task, 0))
        outputs.append("\n".join(lines))
        answers.append(str(environment.families[task.family](*task.operands)))
    return {n: np.array(c, dtype=object) for n, c in (("prompt", prompts), ("output", outputs), ("gts", answers))}
