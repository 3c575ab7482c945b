"""GRPO with the population standard deviation and no epsilon, as the course's learner has it.

    R_i = sum_t r_it
    A_i = (R_i - mean_g) / std_g           std with n, not n - 1
    A_i = 0                                for a group whose scores are all equal (decided on the scores themselves)
    A_it = A_i * m_it                      [B, T]; `returns` is the same tensor

Group of one: 0, as for any group without contrast. All-masked row: 0. There is no rounding residue: a group of equal
scores is exactly 0 whatever the number. Against `grpo` the result is larger by sqrt(n / (n - 1)).

Source: `group_advantages` of the course's closed-form learner.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect, map_groups
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index",),
    paper="arXiv:2402.03300, with the population standard deviation",
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
def grpo_population(token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: Any) -> tuple[Tensor, Tensor]:
    """Group-normalised scores with the population standard deviation; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)

    def rule(scores: Tensor) -> Tensor:
        centred = scores - scores.mean(dim=1, keepdim=True)
        std = centred.square().mean(dim=1, keepdim=True).sqrt()
        equal = scores.amax(dim=1, keepdim=True) == scores.amin(dim=1, keepdim=True)
        return torch.where(equal, torch.zeros_like(centred), centred / std)

    advantages = map_groups(rule, index, token_level_rewards.sum(dim=-1)).unsqueeze(-1) * response_mask
    return advantages, advantages
