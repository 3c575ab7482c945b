"""OPO: the score minus the length-weighted mean score of its group.

    b_g = sum_j len_j R_j / sum_j len_j,   len = policy tokens that still count (after rejection)
    A_it = (R_i - b_g) * m_it              [B, T]; `returns` is the same tensor

The weights are the optimal ones if the squared gradient norm of a row grows with its length. No standard deviation;
epsilon is accepted and unused. Group of one: baseline 0, so the raw score. All-masked row: 0, and weight 0.

Surprising, and verl's: a group of two or more rows that are all fully masked has baseline 0/0, and NaN * 0 leaves NaN
in its rows. Rewards on masked positions count in R.

Paper: arXiv:2505.23585.
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
    paper="arXiv:2505.23585",
    verl="compute_opo_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        group_of_one="score",
        equal_group="zero",
        reward_on_masked=True,
        bias="the weighted mean contains the row itself",
    ),
)
@torch.no_grad()
def opo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Scores minus the length-weighted baseline; see the module.

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

    def rule(scores: Tensor, lengths: Tensor) -> Tensor:
        if scores.shape[1] == 1:
            return scores
        return scores - (lengths * scores).sum(dim=1, keepdim=True) / lengths.sum(dim=1, keepdim=True)

    scores = map_groups(rule, index, token_level_rewards.sum(dim=-1), response_mask.sum(dim=-1))
    advantages = scores.unsqueeze(-1) * response_mask
    return advantages, advantages
