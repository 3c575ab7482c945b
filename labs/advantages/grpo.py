"""GRPO: the score minus the group's mean, over the group's standard deviation.

    R_i = sum_t r_it                       all T positions, the mask is not applied
    A_i = (R_i - mean_g) / (std_g + eps)   std with n - 1; without `norm_adv_by_std_in_grpo`: R_i - mean_g
    A_it = A_i * m_it                      [B, T]; `returns` is the same tensor

Group of one: mean 0 and std 1, so the row keeps `R / (1 + eps)` (TRL gives 0). The 1 is a float32 number, so with
float64 rewards the divisor is `1 + eps` rounded to float32. All-masked row: 0, but its score still moves the group's
mean. epsilon is 1e-6.

Surprising, and verl's: rewards on tool replies, rejected tokens and padding count in R. A group of equal scores is 0
only when the float mean is exact: fifteen float32 scores of 2.3 give +0.19 each, because the mean is one unit in the
last place off and the spread of 1e-7 is comparable with epsilon; scores of 0, 0.5 and 1 are exact.

Paper: arXiv:2402.03300; without the division, Dr. GRPO, arXiv:2503.20783.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect, map_groups, mean_std, spread
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index",),
    paper="arXiv:2402.03300",
    verl="compute_grpo_outcome_advantage",
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
def grpo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Group-normalised scores; see the module.

    Args:
        token_level_rewards: [B, T] float; float16 stays float16.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels, equal as Python objects are (`"7"` and `"07"` are two groups).
        epsilon: added to the standard deviation.
        norm_adv_by_std_in_grpo: divide by the standard deviation; read from this argument only.
        config: not read.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)

    def rule(scores: Tensor) -> Tensor:
        mean, std = mean_std(scores)
        centred = scores - mean
        return centred / (std + epsilon) if norm_adv_by_std_in_grpo else centred

    advantages = spread(map_groups(rule, index, token_level_rewards.sum(dim=-1)), response_mask)
    return advantages, advantages
