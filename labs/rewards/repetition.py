"""Penalty on repeated n-grams of token ids (TRL)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError
from labs.registry import rewards


@rewards.entry(needs=("responses", "response_lengths"), paper="2502.03373, appendix C.2", properties={"per": "row"})
def repetition(
    *,
    scores: Tensor,
    responses: Tensor,
    response_lengths: Tensor,
    ngram_size: int = 3,
    max_penalty: float = -1.0,
) -> tuple[Tensor, dict[str, Any]]:
    """`score + max_penalty * (1 - distinct n-grams / n-grams)`; 0 for a response shorter than n.

    TRL's `get_repetition_penalty_reward` is the penalty itself. The n-grams run over the whole response, tool
    text included.

    Raises:
        ValueError: a positive `max_penalty`, or `ngram_size` below 1.
    """
    if max_penalty > 0:
        raise InputError(f"repetition: max_penalty is {max_penalty}; a penalty must not be positive")
    if ngram_size < 1:
        raise InputError(f"repetition: ngram_size is {ngram_size}; it must be at least 1")
    penalties = []
    for row, length in zip(responses.tolist(), response_lengths.tolist(), strict=True):
        ids = row[:length]
        grams = [tuple(ids[i : i + ngram_size]) for i in range(len(ids) - ngram_size + 1)]
        repeated = 1 - len(set(grams)) / len(grams) if grams else 0.0
        penalties.append(repeated * max_penalty if repeated else 0.0)
    penalty = torch.tensor(penalties, dtype=scores.dtype)
    return scores + penalty, {"repetition_reward": penalty}
