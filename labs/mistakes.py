"""Common mistakes in an estimator or a loss, as changes of a registered entry that a user's function is compared with.

A change is a name in plain words and a function from an entry to the entry with the mistake in it, with the entry's own
signature. `labs.verify` tries them on functions that equal no entry: who wrote `min` where `max` belongs is told so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.actor_config import actor_settings
from labs.masked import AGG_MODES, agg_loss

#: An entry in, the entry with the mistake out.
Change = Callable[[Callable[..., Any]], Callable[..., Any]]


def _changed(around: Callable[..., Any]) -> Change:
    """`around(entry, **columns)` in place of the entry, for whoever asks for its parameters too."""

    def change(entry: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(entry)
        def wrapped(*args: Any, **columns: Any) -> Any:
            bound = inspect.signature(entry).bind(*args, **columns).arguments
            return around(entry, **{**bound, **bound.pop("_", {})})

        return wrapped

    return change


@_changed
def _sign_flipped(entry: Any, **columns: Any) -> Any:
    first, second = entry(**columns)
    return -first, second


@_changed
def _one_group(entry: Any, *, index: Any, **columns: Any) -> Any:
    return entry(index=np.full(len(index), "all", dtype=object), **columns)


@_changed
def _mean_reward(entry: Any, *, token_level_rewards: Tensor, response_mask: Tensor, **columns: Any) -> Any:
    counts = response_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return entry(token_level_rewards=token_level_rewards / counts, response_mask=response_mask, **columns)


@_changed
def _population(entry: Any, *, index: Any, response_mask: Tensor, epsilon: float = 1e-6, **columns: Any) -> Any:
    """Only what has `epsilon` under a group's standard deviation comes here."""
    scores, out = columns["token_level_rewards"].sum(-1), torch.zeros(response_mask.shape[0], dtype=torch.float64)
    for label in set(index.tolist()):
        rows = torch.from_numpy(np.flatnonzero(index == label))
        group = scores[rows].double()
        out[rows] = (group - group.mean()) / (group.std(unbiased=False) + epsilon)
    advantages = out[:, None] * response_mask
    return advantages, advantages


@_changed
def _no_epsilon(entry: Any, *, epsilon: float = 0.0, **columns: Any) -> Any:
    first, second = entry(epsilon=0.0, **columns)
    return first.nan_to_num(0.0, 0.0, 0.0), second


def estimator_changes(name: str, entry: Callable[..., Any]) -> Iterator[tuple[str, Change]]:
    """The changes that make sense for an entry, the most telling first."""
    parameters = inspect.signature(entry).parameters
    yield f"{name} with the sign flipped", _sign_flipped
    if name == "grpo":
        yield f"{name} with the population standard deviation (n, not n - 1)", _population
        yield f"{name} without epsilon in the denominator", _no_epsilon
    if "index" in parameters:
        yield f"{name} over the whole batch as one group, whatever index says", _one_group
    yield f"{name} of the mean reward of a row in place of the sum", _mean_reward


@_changed
def _upside_down(entry: Any, *, old_log_prob: Tensor, log_prob: Tensor, **columns: Any) -> Any:
    return entry(old_log_prob=old_log_prob, log_prob=2 * old_log_prob - log_prob, **columns)


@_changed
def _unmasked(entry: Any, *, response_mask: Tensor, **columns: Any) -> Any:
    return entry(response_mask=torch.ones_like(response_mask), **columns)


@_changed
def _mean_over_all(entry: Any, *, response_mask: Tensor, **columns: Any) -> Any:
    loss, metrics = entry(response_mask=response_mask, **columns)
    return loss * response_mask.sum() / response_mask.numel(), metrics


def _aggregated(mode: str) -> Change:
    return _changed(lambda entry, **columns: entry(**{**columns, "loss_agg_mode": mode}))


def _clipped(rule: Callable[[Tensor, Tensor], Tensor], dual: bool) -> Change:
    """PPO's two sides, `-A r` and `-A clip(r)`, joined by a rule that is not the maximum; verl's defaults."""

    def around(entry: Any, **columns: Any) -> Any:
        advantages, mask = columns["advantages"], columns["response_mask"]
        settings = actor_settings(columns.get("config"))
        low, high = settings.clip_bounds
        ratio = (columns["log_prob"] - columns["old_log_prob"]).clamp(-20, 20).exp()
        loss = rule(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
        if dual:
            loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * settings.clip_ratio_c), loss)
        return agg_loss(loss, mask, columns.get("loss_agg_mode", "token-mean")), {}

    return _changed(around)


def loss_changes(name: str, entry: Callable[..., Any]) -> Iterator[tuple[str, Change]]:
    """The changes that make sense for a loss, the most telling first."""
    if name == "vanilla":
        for dual, text in ((False, ", without the dual clip"), (True, "")):
            yield f"the clipped loss (vanilla) with min in place of max{text}", _clipped(torch.minimum, dual)
        yield "the clipped loss (vanilla) without the dual clip", _clipped(torch.maximum, False)
        yield "the clipped loss (vanilla) without its clip", _clipped(lambda plain, _: plain, False)
        yield (
            "the clipped loss (vanilla) with the clipped side alone, no max",
            _clipped(lambda _, clipped: clipped, False),
        )
    yield f"{name} with the sign flipped: it moves away from what it should move to", _sign_flipped
    yield f"{name} with the ratio upside down, old over new", _upside_down
    yield f"{name} without the mask: padding and tool replies count", _unmasked
    yield f"{name} with the mean over all positions, padding included, in place of the valid tokens", _mean_over_all
    for mode in AGG_MODES[1:]:
        yield f"{name} aggregated as {mode}, whatever loss_agg_mode says", _aggregated(mode)


@_changed
def _valid_only(entry: Any, *, response_mask: Tensor, **columns: Any) -> Any:
    first, second = entry(response_mask=response_mask, **columns)
    return first * response_mask, second


def recognise(
    mine: Callable[..., Any], entries: Mapping[str, Callable[..., Any]], pairs: Any, agree: Any, *, masked: bool = True
) -> list[str]:
    """What a function is, in words, where it equals no entry: an entry with a mistake in it, or a multiple of an entry.

    Args:
        mine: the user's function.
        entries: the registered ones by name, all of its kind.
        pairs: two functions in; for every batch its columns and what each gave (see `labs.verify`).
        agree: whether two answers are equal.
        masked: False for an estimator that is not 0 on masked positions; then the valid tokens are compared.

    Returns:
        Sentences that begin with the name of an entry; of several kinds of likeness the most telling only.
    """
    changes = loss_changes if _is_loss(mine) else estimator_changes
    if not masked:
        mine = _valid_only(mine)
    for name, entry in entries.items():
        if not masked and _equal(pairs(mine, _valid_only(entry)), agree):
            return [f"{name}, but not 0 on masked positions"]
    found = [
        text
        for name, entry in entries.items()
        for text, change in changes(name, entry)
        if _equal(pairs(mine, change(entry) if masked else _valid_only(change(entry))), agree)
    ]
    if found:
        return found[:1]
    found = [text for name, entry in entries.items() if (text := _multiple(name, pairs(mine, entry)))]
    if found or not _is_loss(mine):
        return found
    for part, text in ((0, "the value of {}, with another gradient"), (1, "the gradient of {}, with another value")):
        found = [text.format(n) for n, entry in entries.items() if _equal(pairs(mine, entry), agree, part)]
        if found:
            return found
    return []


def _is_loss(function: Callable[..., Any]) -> bool:
    return "old_log_prob" in inspect.signature(function).parameters


def _equal(found: Any, agree: Any, part: int | None = None) -> bool:
    """Equal on every batch; the first that parts them ends it. A pair that raises alike says nothing."""
    answers = 0
    for _, a, b in found:
        raised = isinstance(a, str) or isinstance(b, str)
        if part is not None and not raised:
            a, b = a[part : part + 1], b[part : part + 1]
        if not agree(a, b):
            return False
        answers += not raised
    return answers > 0


def _multiple(name: str, found: Any) -> str:
    """`2 times NAME` where all answers of the first are that multiple of the second's."""
    factor = 0.0
    for _, a, b in found:
        if isinstance(a, str) or isinstance(b, str):
            return ""
        mine, theirs = (torch.cat([part.double().reshape(-1) for part in answer]) for answer in (a, b))
        if mine.shape != theirs.shape or not bool((mine.isfinite() & theirs.isfinite()).all()):
            return ""
        factor = factor or float(mine @ theirs / (theirs @ theirs).clamp(min=1e-30))
        if not torch.allclose(mine, factor * theirs, rtol=1e-5, atol=1e-8):
            return ""
    return f"{factor:.6g} times {name}" if factor not in (0.0, 1.0) else ""
