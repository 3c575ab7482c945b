"""The columns that entries declare in `needs`, filled in from tables and tasks.

| column | what it is here |
|---|---|
| old_log_probs, ref_log_prob [B, T] | the old and the reference table at the tokens that were chosen |
| entropy [B, T] | of the old policy's row, nats; 0 on format tokens |
| sum_pi_squared [B, T] | of the old policy's row; 1 on format tokens, which have no alternative |
| values [B, T] | the critic at the row that chose the token |
| bootstrap_values [B] | the critic at the row that would have acted next, 0 where nothing was cut |
| reward_baselines [B] | score of one greedy episode of the row's task |
| tool_rewards [B] of lists | 1 for each tool call that the environment accepted |
| quality [B] | 1 / decisions |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.critic import ValueTable
from labs.environment import Environment, Task
from labs.episodes import play
from labs.errors import InputError
from labs.policy import Policy

T = TypeVar("T")


def complete(
    batch: TokenBatch,
    names: Iterable[str],
    *,
    old: Policy,
    reference: Policy | None = None,
    critic: ValueTable | None = None,
    environment: Environment | None = None,
    tasks: Mapping[str, Task] | None = None,
    generator: torch.Generator | None = None,
    max_steps: int | None = None,
) -> TokenBatch:
    """The batch with every one of `names` that it lacks.

    Args:
        batch: from `labs.tokens`.
        names: usually `labs.step.required(config)`.
        old: the policy that this step starts from.
        reference: for `ref_log_prob`.
        critic: for `values` and `bootstrap_values`.
        environment, tasks, generator, max_steps: for `reward_baselines`; `tasks` by uid.

    Raises:
        InputError: a column that needs something which was not given, or one that the lab does not make.
    """
    index = batch["table_index"]
    columns: dict[str, object] = {}
    for name in names:
        if name in batch:
            continue
        if name == "old_log_probs":
            columns[name] = old.token_log_probs(index).detach()
        elif name == "ref_log_prob":
            columns[name] = _given(name, "reference policy", reference).token_log_probs(index).detach()
        elif name == "entropy":
            columns[name] = old.token_rows(old.entropy, index).detach()
        elif name == "sum_pi_squared":
            forced = batch["loss_mask"].bool() & (index < 0)
            squares = old.token_rows(old.sum_pi_squared, index).detach()
            columns[name] = torch.where(forced, torch.ones_like(squares), squares)
        elif name == "values":
            columns[name] = _given(name, "critic", critic).tokens(batch["row_index"]).detach()
        elif name == "bootstrap_values":
            ahead = _given(name, "critic", critic).tokens(batch["last_row"]).detach()
            columns[name] = torch.where(batch["truncated"], ahead, torch.zeros_like(ahead))
        elif name == "reward_baselines":
            if environment is None or tasks is None:
                raise InputError(
                    "reward_baselines needs the environment and the tasks by uid, for a greedy episode each"
                )
            columns[name] = greedy_scores(batch, old, environment, tasks, generator, max_steps)
        elif name == "tool_rewards":
            calls = (batch["turns"] - batch["terminated"].long()).tolist()
            rewards = np.empty(batch.rows, dtype=object)
            rewards[:] = [[1.0] * n for n in calls]
            columns[name] = rewards
        elif name == "quality":
            columns[name] = 1.0 / batch["turns"].to(batch["scores"].dtype)
        else:
            raise InputError(f"the column {name} is needed, and neither the batch has it nor can it be made")
    return batch.replace(**columns)


def greedy_scores(
    batch: TokenBatch,
    policy: Policy,
    environment: Environment,
    tasks: Mapping[str, Task],
    generator: torch.Generator | None,
    max_steps: int | None = None,
) -> Tensor:
    """`[B]` score of one greedy episode of every row's task; rows of one task share it."""
    labels = [str(label) for label in batch["uid"]]
    order = list(dict.fromkeys(labels))
    generator = torch.Generator() if generator is None and not environment.random else generator
    seen = play(environment, policy, [tasks[u] for u in order], generator=generator, mode="greedy", max_steps=max_steps)
    score = dict(zip(order, seen.scores.tolist(), strict=True))
    return torch.tensor([score[u] for u in labels], dtype=batch["rollout_log_probs"].dtype)


def _given(column: str, what: str, value: T | None) -> T:
    if value is None:
        raise InputError(f"the column {column} is needed, and no {what} was given to make it from")
    return value
