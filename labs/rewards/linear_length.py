"""Linear length cost of prime-rl: a success is worth less the more the group could have saved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.masked import as_torch_index
from labs.registry import rewards


@rewards.entry(
    needs=("index", "action_lengths", "response_lengths"), properties={"per": "row", "groups": True, "shift": False}
)
def linear_length(
    *,
    scores: Tensor,
    index: Any,
    action_lengths: Tensor,
    response_lengths: Tensor,
    turns: Tensor | None = None,
    out_weight: float = 0.25,
    in_weight: float = 0.1,
    turn_weight: float = 0.1,
) -> tuple[Tensor, dict[str, Any]]:
    """`score - mean(group scores) * (0.25 out/max + 0.1 in/max + 0.1 turns/max)`.

    `out` are the tokens the policy chose, `in` the tool tokens it read, each divided by the largest of the group
    (0 where the largest is 0). The factor mean(group scores) leaves hard groups alone, so that nothing pushes
    them short. A constant per group does not matter to a group baseline, which recentres.
    """
    groups = as_torch_index(index)
    parts = [(out_weight, action_lengths), (in_weight, response_lengths - action_lengths)]
    if turns is not None:
        parts.append((turn_weight, turns))
    cost = torch.zeros_like(scores)
    for group in sorted(set(groups.tolist())):
        rows = groups == group
        for weight, amount in parts:
            inside = amount[rows].to(scores.dtype)
            cost[rows] += weight * inside / inside.max().clamp(min=1)
        cost[rows] *= scores[rows].mean()
    return scores - cost, {"length_cost": cost}
