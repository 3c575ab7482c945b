"""Soft overlong punishment with a floor (TRL; OpenRLHF with another factor)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError
from labs.registry import rewards


@rewards.entry(needs=("response_lengths",), paper="2503.14476, eq. 13", properties={"per": "row", "floor": True})
def soft_overlong(
    *,
    scores: Tensor,
    response_lengths: Tensor,
    max_completion_len: int,
    soft_punish_cache: int,
    penalty_factor: float = 1.0,
) -> tuple[Tensor, dict[str, Any]]:
    """`score + penalty_factor * p` with p = 0 up to `max - cache`, then linear, and -1 beyond `max`.

    | length L | p |
    |---|---|
    | L <= max - cache | 0 |
    | max - cache < L <= max | (max - cache - L) / cache |
    | L > max | -1 |

    TRL's `get_soft_overlong_punishment` is p itself; verl's manager (`dapo`) has no floor. A cache of 0 leaves
    the step at `max`.

    Raises:
        ValueError: a cache outside 0..max.
    """
    if not 0 <= soft_punish_cache <= max_completion_len:
        raise InputError(f"soft_overlong: soft_punish_cache {soft_punish_cache} is not in 0..{max_completion_len}")
    start = max_completion_len - soft_punish_cache
    slope = (start - response_lengths).to(scores.dtype) / max(soft_punish_cache, 1)
    penalty = torch.where(response_lengths > max_completion_len, -torch.ones_like(slope), slope.clamp(max=0))
    penalty = penalty_factor * penalty
    return scores + penalty, {"overlong_reward": penalty}
