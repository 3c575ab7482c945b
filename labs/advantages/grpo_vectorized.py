"""GRPO over integer group ids, with statistics in float32 whatever the rewards are.

    A_i = (R_i - mean_g) / (std_g + eps),  A_it = A_i * m_it      [B, T]; `returns` is the same tensor

Std with n - 1, epsilon 1e-6, group of one: mean 0 and std 1, so `R / (1 + eps)`. All-masked row: 0.

Surprising, and verl's: the statistics are float32 even for float64 rewards, so float64 agrees with `grpo` only to
about 1e-7 and a group of equal scores can be off zero (eight scores of 2.3: 0.048). Labels that read as integers are
taken as those integers, so `"7"` and `"07"` are one group here and two in `grpo`; a negative integer label raises.
verl's dispatcher never forwards the std flag to it: through the dispatcher `norm_adv_by_std_in_grpo=False` is inert.

Paper: arXiv:2402.03300.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import ShapeError
from labs.grouping import expect, spread
from labs.masked import as_torch_index, group_mean_std
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index",),
    paper="arXiv:2402.03300",
    verl="compute_grpo_vectorized_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        scale="invariant",
        group_of_one="score",
        equal_group="zero",
        reward_on_masked=True,
        bias="divides by the group's own spread, and the mean contains the row itself (a factor (n - 1) / n)",
    ),
)
@torch.no_grad()
def grpo_vectorized(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Group-normalised scores, index-add form; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels, mapped by `labs.masked.as_torch_index`.
        epsilon: added to the standard deviation.
        norm_adv_by_std_in_grpo: divide by the standard deviation; read from this argument only.
        config: not read.

    Raises:
        IndexError: a negative integer label.
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)
    scores = token_level_rewards.sum(dim=-1)
    groups = as_torch_index(index, device=scores.device)
    if groups.shape != scores.shape:
        raise ShapeError(f"index holds {groups.numel()} group labels, the batch has {scores.numel()} rows")
    mean, std, _count = group_mean_std(scores, groups, eps=0.0)
    scores = scores - mean[groups]
    if norm_adv_by_std_in_grpo:
        scores = scores / (std[groups] + epsilon)
    advantages = spread(scores, response_mask)
    return advantages, advantages
