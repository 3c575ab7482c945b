"""Length reward of Kimi k1.5: within a group, short successes gain and long answers lose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.masked import as_torch_index
from labs.registry import rewards


@rewards.entry(
    needs=("index", "response_lengths"), paper="2501.12599, section 2.3.3", properties={"per": "row", "groups": True}
)
def kimi_length(
    *, scores: Tensor, index: Any, response_lengths: Tensor, weight: float = 1.0, success: float = 1.0
) -> tuple[Tensor, dict[str, Any]]:
    """`score + weight * q` with `lambda = 0.5 - (L - min L) / (max L - min L)` over the row's group.

    A success (score >= `success`) has `q = lambda`, any other row `q = min(0, lambda)`. A group whose lengths are
    all equal has `q = 0`. The paper switches it on after a warm-up: put it into the chain when it is due.
    """
    groups, lengths = as_torch_index(index), response_lengths.to(scores.dtype)
    q = torch.zeros_like(scores)
    for group in sorted(set(groups.tolist())):
        rows = groups == group
        low, high = lengths[rows].min(), lengths[rows].max()
        if high > low:
            q[rows] = 0.5 - (lengths[rows] - low) / (high - low)
    q = weight * torch.where(scores >= success, q, q.clamp(max=0))
    return scores + q, {"length_reward": q}
