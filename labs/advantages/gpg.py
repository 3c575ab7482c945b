"""GPG: the score minus the group's mean, scaled up for the rows of the batch that earned nothing.

    alpha = B / max(rows of the batch with a non-zero score, 1)
    A_it = alpha (R_i - mean_g) / f_norm * m_it     [B, T]; `returns` is the same tensor

The standard deviation is not used; epsilon is accepted and unused. Group of one: mean 0, so alpha times the raw score.
All-masked row: 0, but it counts in B and in the group's mean.

Surprising, and verl's: the argument `alpha` is overwritten, and `f_norm` cannot be reached through the dispatcher.
Because alpha counts scores that are exactly 0, shifting all rewards changes more than the baseline.

Paper: arXiv:2504.02546.
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
    paper="arXiv:2504.02546",
    verl="compute_gpg_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_of_one="score",
        equal_group="zero",
        reward_on_masked=True,
        bias="alpha depends on the scores of the batch, and the mean contains the row itself",
    ),
)
@torch.no_grad()
def gpg(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    f_norm: float = 1.0,
    alpha: float = 1.0,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Centred scores times alpha; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        epsilon: not used.
        f_norm: divisor.
        alpha: not used, computed from the scores.
        config: not read.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)
    scores = token_level_rewards.sum(dim=-1)
    # A float32 quotient, as in verl, also for float64 scores.
    weight = scores.shape[0] / torch.count_nonzero(scores).clamp(min=1)

    def rule(group: Tensor) -> Tensor:
        centred = group if group.shape[1] == 1 else group - group.mean(dim=1, keepdim=True)
        return weight * centred / f_norm

    advantages = map_groups(rule, index, scores).unsqueeze(-1) * response_mask
    return advantages, advantages
