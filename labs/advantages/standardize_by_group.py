"""torchrl's group normalisation: the score minus the mean, over a standard deviation that is clamped from below.

    A_i = (R_i - mean_g) / max(std_g, eps)     std with n - 1, eps 1e-4 (a floor, not a summand)
    A_it = A_i * m_it                          [B, T]; `returns` is the same tensor

Group of one: 0. All-equal group: 0; a rounding residue stays at the size of residue / eps. All-masked row: 0, but its
score counts in the group. Rewards on masked positions count in R.

Source: torchrl 0.14, `objectives.value.advantages._standardize_by_group`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import bessel_std, expect, map_groups
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index",),
    paper="arXiv:2402.03300, torchrl's form",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        scale="invariant",
        group_of_one="zero",
        equal_group="zero",
        reward_on_masked=True,
        bias="divides by the group's own spread, and the mean contains the row itself (a factor (n - 1) / n)",
    ),
)
@torch.no_grad()
def standardize_by_group(
    token_level_rewards: Tensor, response_mask: Tensor, index: Any, epsilon: float = 1e-4, **_: Any
) -> tuple[Tensor, Tensor]:
    """Group-normalised scores with a floor under the spread; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        epsilon: the floor.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)

    def rule(scores: Tensor) -> Tensor:
        if scores.shape[1] == 1:
            return torch.zeros_like(scores)
        return (scores - scores.mean(dim=1, keepdim=True)) / bessel_std(scores).clamp(min=epsilon)

    advantages = map_groups(rule, index, token_level_rewards.sum(dim=-1)).unsqueeze(-1) * response_mask
    return advantages, advantages
