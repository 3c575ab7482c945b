"""RLOO: the score minus the mean score of the other rows of its group.

    A_i = R_i - mean_{j != i} R_j, computed as  R_i n/(n-1) - mean_g n/(n-1)
    A_it = A_i * m_it                      [B, T]; `returns` is the same tensor

No standard deviation; epsilon is accepted and unused. Group of one: the raw score (`rloo_vectorized` gives 0).
All-masked row: 0, but its score counts in the others' baseline. Rewards on masked positions count in R.

Paper: arXiv:2402.14740.
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
    paper="arXiv:2402.14740",
    verl="compute_rloo_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        group_of_one="score",
        equal_group="zero",
        reward_on_masked=True,
        unbiased=True,
        bias="the baseline is independent of the row it is subtracted from",
    ),
)
@torch.no_grad()
def rloo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Leave-one-out advantages; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        epsilon: not used.
        config: not read.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)

    def rule(scores: Tensor) -> Tensor:
        n = scores.shape[1]
        if n == 1:
            return scores
        # In this order: subtracting first and scaling afterwards rounds differently from verl.
        return scores * n / (n - 1) - scores.mean(dim=1, keepdim=True) * n / (n - 1)

    advantages = map_groups(rule, index, token_level_rewards.sum(dim=-1)).unsqueeze(-1) * response_mask
    return advantages, advantages
