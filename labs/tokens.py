r"""Episodes written out as tokens: the `TokenBatch` that every later stage works on.

One decision is one sampled token, then `format_tokens` tokens that the policy writes with probability 1 (a bracket, an
end mark), then the tool's reply as a run of observation tokens:

| token | response_mask | log-probability | versions | table_index | row_index |
|---|---|---|---|---|---|
| action | 1 | of the decision | of the policy | (family, stage, action), flat | (family, stage), flat |
| format | 1 | 0 | of the policy | -1 | (family, stage), flat |
| reply | 0 | 0 | -1 | -1 | -1 |
| padding | 0 | 0 | -1 | -1 | -1 |

Rows are padded right to the longest. A reply that nobody reads any more, because the step limit has been reached, is
left out as in verl's tool agent; `trailing_reply` keeps it, and then the score lands on a token that the policy did not
choose.

Token ids: 0 padding, 1 format, then one id for each action, one for each state (its reply repeats it), one for each
family (the prompt).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labs.batch import TokenBatch
from labs.environment import Environment
from labs.episodes import Episodes
from labs.errors import InputError

PAD, FORMAT = 0, 1


def action_id(action: int) -> int:
    """Token id of an action."""
    return 2 + action


def reply_id(environment: Environment, state: int) -> int:
    """Token id of the reply on entering a state."""
    return 2 + len(environment.actions) + state


def prompt_id(environment: Environment, family: int) -> int:
    """Token id that opens the prompt of a family."""
    return 2 + len(environment.actions) + len(environment.states) + family


def encode(
    episodes: Episodes, *, format_tokens: int = 0, trailing_reply: bool = False, dtype: torch.dtype = torch.float64
) -> TokenBatch:
    """The episodes as a `TokenBatch`.

    Args:
        episodes: B rows.
        format_tokens: tokens of probability 1 after every action.
        trailing_reply: keep the reply after the last decision of a truncated row.
        dtype: of the float columns.

    Returns:
        `prompts` [B, P], `responses`, `attention_mask`, `response_mask`, `loss_mask`, `rollout_log_probs`, `versions`,
        `table_index`, `row_index` (see the module); `scores`, `success`, `valid` [B] (the verifier's score, 1 for the
        right answer, 1 unless an invalid action ended it), `turns` [B] (decisions), `terminated`, `truncated`,
        `families` [B], `last_row` [B] (the flat row of the table that would act next) and `uid`.

    Raises:
        InputError: a negative number of format tokens.
    """
    if format_tokens < 0:
        raise InputError(f"format_tokens is {format_tokens}; it must be at least 0")
    environment, paths = episodes.environment, episodes.paths
    families, actions = episodes.families, len(environment.actions)
    taken = paths.actions >= 0
    count = taken.sum(axis=1)
    rows = np.arange(len(episodes))
    after = np.concatenate([paths.states[:, 1:], np.full((len(episodes), 1), -1)], axis=1)
    after[rows, count - 1] = paths.last
    lengths = np.array([state.tokens for state in environment.states])
    reply = np.where(taken, lengths[after], 0)
    reply[rows, count - 1] = np.where(paths.truncated & trailing_reply, lengths[paths.last], 0)
    stage_of = np.array(environment.stage_of)
    row = np.where(taken, families[:, None] * len(environment.stages) + stage_of[paths.states], -1)
    width = np.stack([taken, taken * format_tokens, reply], axis=-1).astype(np.int64)
    nothing, one = np.full_like(row, -1), np.ones_like(row)

    def lay(action: Any, form: Any, observed: Any, fill: float) -> Tensor:
        return _lay(np.stack([action, form, observed], axis=-1), width, fill)

    mask = lay(one, one, 0 * one, 0)
    start = environment.states[0].tokens
    prompts = np.full((len(episodes), 1 + start), reply_id(environment, 0))
    prompts[:, 0] = prompt_id(environment, 0) + families
    observed = lay(one, one, one, 0)
    zero = np.zeros_like(episodes.log_probs)
    return TokenBatch(
        {
            "prompts": torch.from_numpy(prompts),
            "responses": lay(action_id(0) + paths.actions, FORMAT * one, reply_id(environment, 0) + after, PAD),
            "attention_mask": torch.cat([torch.ones(len(episodes), 1 + start, dtype=torch.int64), observed], dim=1),
            "response_mask": mask,
            "loss_mask": mask.clone(),
            "rollout_log_probs": lay(episodes.log_probs, zero, zero, 0.0).to(dtype),
            "versions": lay(episodes.versions, episodes.versions, nothing, -1),
            "table_index": lay(np.where(taken, row * actions + paths.actions, -1), nothing, nothing, -1),
            "row_index": lay(row, row, nothing, -1),
            "scores": torch.from_numpy(episodes.scores).to(dtype),
            "success": torch.from_numpy(episodes.successes).to(dtype),
            "valid": torch.from_numpy(~paths.terminated | paths.submitted).to(dtype),
            "turns": torch.from_numpy(count.astype(np.int64)),
            "terminated": torch.from_numpy(paths.terminated.copy()),
            "truncated": torch.from_numpy(paths.truncated.copy()),
            "families": torch.from_numpy(families),
            "last_row": torch.from_numpy(families * len(environment.stages) + stage_of[paths.last]),
            "uid": episodes.uid,
        }
    )


def _lay(values: NDArray[Any], width: NDArray[np.int64], fill: float) -> Tensor:
    """Repeat `values` `[B, steps, 3]` by `width` along each row and pad to the longest row."""
    total = width.reshape(len(width), -1).sum(axis=1)
    flat = np.repeat(values.ravel(), width.ravel())
    row = np.repeat(np.arange(len(width)), total)
    column = np.arange(len(flat)) - np.repeat(total.cumsum() - total, total)
    out = np.full((len(width), int(total.max())), fill, dtype=values.dtype)
    out[row, column] = flat
    return torch.from_numpy(out)


def sessions(episodes: Episodes, *, format_tokens: int = 0, dtype: torch.dtype = torch.float64) -> TokenBatch:
    """The same episodes with one row for each turn, as an agent that rewrites its context sends them.

    A turn's response is its action and format tokens; everything before it is its prompt, left-padded. Only the last
    turn of a session holds score, success and how the episode ended; `session_keys` [B] are verl's
    `{uid}_{session}_{index}`, and `uid` stays the task's. Otherwise as `encode`.
    """
    whole = encode(episodes, format_tokens=format_tokens, dtype=dtype)
    row, start = (whole["table_index"] >= 0).nonzero(as_tuple=True)
    width, prompt = 1 + format_tokens, whole["prompts"].shape[1]
    columns: dict[str, Any] = {}
    for name, column in whole.items():
        if isinstance(column, Tensor) and tuple(column.shape) == (whole.rows, whole.width):
            columns[name] = column[row[:, None], start[:, None] + torch.arange(width)]
        elif name not in ("prompts", "attention_mask"):
            columns[name] = column[row] if isinstance(column, Tensor) else column[row.numpy()]
    before = prompt + int(start.max())
    text = torch.cat([whole["prompts"], whole["responses"]], dim=1)
    columns["prompts"] = torch.full((len(row), before), PAD)
    columns["attention_mask"] = torch.zeros(len(row), before + width, dtype=torch.int64)
    columns["attention_mask"][:, before:] = 1
    for place, (i, t) in enumerate(zip(row.tolist(), start.tolist(), strict=True)):
        seen = prompt + t
        columns["prompts"][place, before - seen :] = text[i, :seen]
        columns["attention_mask"][place, before - seen : before] = 1
    last = torch.cat([row[1:] != row[:-1], torch.tensor([True])])
    for name in ("scores", "success", "terminated", "truncated"):
        columns[name] = torch.where(last, columns[name], torch.zeros_like(columns[name]))
    session, turn = _numbered([str(label) for label in episodes.uid]), _numbered(row.tolist())
    keys = [f"{episodes.uid[i]}_{session[i]}_{k}" for i, k in zip(row.tolist(), turn, strict=True)]
    return TokenBatch({**columns, "session_keys": np.array(keys)})


def _numbered(labels: list[Any]) -> list[int]:
    """0, 1, 2, ... for every occurrence of a label."""
    seen: dict[Any, int] = {}
    numbers = []
    for label in labels:
        numbers.append(seen.get(label, 0))
        seen[label] = numbers[-1] + 1
    return numbers
