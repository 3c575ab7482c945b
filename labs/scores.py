"""From one score a row to the columns `rm_scores` and `token_level_scores`.

A verifier gives one number a row. A chain of reward entries (`labs.registry.rewards`) shapes it, then it is placed
on one token of the row. Placement looks at `attention_mask`, so that the token can be a tool's: such a score sits
where `response_mask` is 0, and estimators that mask before they sum lose it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.errors import InputError
from labs.registry import call, rewards


def response_lengths(batch: TokenBatch) -> Tensor:
    """[B] int64: attended response tokens of each row, tool text included (what verl's length penalties count)."""
    attended: Tensor = batch["attention_mask"]
    return attended[:, -batch.width :].sum(dim=1)


def assemble_rm_scores(batch: TokenBatch, scores: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """[B, T] with each score at `response_lengths - 1`, verl's reward managers' placement (there always float32).

    An empty response gets its score in the last column (index -1), on padding.

    Raises:
        InputError: not one score a row.
    """
    values = torch.as_tensor(scores)
    _one_a_row(batch, values)
    placed = torch.zeros(batch.rows, batch.width, dtype=dtype)
    placed[torch.arange(batch.rows), response_lengths(batch) - 1] = values.to(dtype)
    return placed


def stream_rm_scores(response_mask: Tensor, reward_score: float) -> Tensor:
    """[L] float32 with the score on the last token of one *unpadded* response, mask 0 or not (verl's agent loop).

    Raises:
        InputError: an empty response, which has no token to hold a score.
    """
    if response_mask.ndim != 1 or response_mask.numel() == 0:
        raise InputError(f"response_mask has shape {tuple(response_mask.shape)}; one response needs at least 1 token")
    placed = torch.zeros_like(response_mask, dtype=torch.float32)
    placed[-1] = reward_score
    return placed


def shape(
    batch: TokenBatch,
    scores: Tensor,
    chain: Sequence[tuple[str, Mapping[str, Any]]] = (("naive", {}),),
    **columns: Any,
) -> tuple[Tensor, dict[str, Any]]:
    """Run reward entries one after the other on `scores` [B].

    Args:
        batch: its columns, and `response_lengths`, `action_lengths` (chosen tokens) and `index` (the uid) made from
            it, are passed to the entries that have a parameter of that name.
        scores: the verifier's numbers, one a row.
        chain: (entry name, its options), applied in order; each sees the scores of the one before.
        **columns: further columns for the entries (tool_rewards, quality, turns).

    Returns:
        The shaped scores and everything the entries report about rows (`acc`, `overlong_reward`, ...).

    Raises:
        InputError: not one score a row, a NaN score, a column that an entry needs and nobody gave, or one that was
            given and no entry takes.
    """
    _one_a_row(batch, scores)
    if bool(scores.isnan().any()):
        raise InputError(f"the score of row {int(scores.isnan().nonzero()[0])} is NaN; a row without a score must go")
    known = {n: column for n, column in {**batch, **columns}.items() if column is not None}
    if "uid" in known:
        known.setdefault("index", known["uid"])
    extra: dict[str, Any] = {}
    unused = set(columns)
    for name, options in chain:
        entry = rewards[name]
        parameters = set(inspect.signature(entry).parameters) - {"scores"} - set(options)
        given = {n: known[n] for n in parameters if n in known}
        given |= {n: _derived(batch, name, n) for n in entry.needs if n not in given}
        unused -= parameters
        scores, found = call(entry, scores=scores, **given, **options)
        extra |= found
    if unused:
        raise InputError(f"no reward of {', '.join(n for n, _ in chain)} takes {', '.join(sorted(unused))}")
    return scores, extra


def _one_a_row(batch: TokenBatch, scores: Tensor) -> None:
    if tuple(scores.shape) != (batch.rows,):
        raise InputError(f"scores have shape {tuple(scores.shape)}, the batch needs one a row, ({batch.rows},)")


def score(
    batch: TokenBatch,
    scores: Tensor,
    chain: Sequence[tuple[str, Mapping[str, Any]]] = (("naive", {}),),
    **columns: Any,
) -> tuple[TokenBatch, dict[str, Any]]:
    """The score stage: shape, place, and set `rm_scores` and `token_level_scores` (the same tensor)."""
    shaped, extra = shape(batch, scores, chain, **columns)
    placed = assemble_rm_scores(batch, shaped)
    return batch.replace(rm_scores=placed, token_level_scores=placed), extra


def _derived(batch: TokenBatch, entry: str, name: str) -> Any:
    if name == "response_lengths":
        return response_lengths(batch)
    if name == "action_lengths":
        return batch["loss_mask" if "loss_mask" in batch else "response_mask"].sum(dim=1)
    raise InputError(f"reward {entry} needs the column {name}; the batch has {', '.join(sorted(batch))}")
