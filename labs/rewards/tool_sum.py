"""Add the rewards of tool calls to the score, with a weight, because somebody asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError
from labs.registry import rewards


@rewards.entry(needs=("tool_rewards",), verl=None, properties={"per": "row"})
def tool_sum(
    *, scores: Tensor, tool_rewards: Sequence[Sequence[float]], weight: float = 1.0
) -> tuple[Tensor, dict[str, Any]]:
    """`score + weight * sum of the row's tool rewards`.

    No manager of verl does this: there a tool's reward is collected and never trained on. Every call that pays
    invites more calls, so that the verifier alone no longer says what is learnt.

    Raises:
        ValueError: not one list of tool rewards a row.
    """
    if len(tool_rewards) != len(scores):
        raise InputError(f"tool_rewards has {len(tool_rewards)} rows, the scores have {len(scores)}")
    added = weight * torch.tensor([float(sum(row)) for row in tool_rewards], dtype=scores.dtype)
    return scores + added, {"tool_reward_sum": added}
