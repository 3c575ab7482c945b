"""REINFORCE++-baseline: the score minus the group's mean, whitened over all policy tokens of the batch.

    X_it = (R_i - mean_g) * m_it
    A = (X - mean) / sqrt(var + 1e-8) * m           masked mean and variance (n - 1) over the whole batch
    `returns` is the same tensor                    [B, T]

The mean of the group contains the row itself; epsilon is accepted and unused. Group of one: baseline 0, so the raw
score enters the whitening. All-equal group: its rows get minus the batch mean over the spread, which is 0 only if
lengths and scores balance. All-masked row: 0. One policy token in the batch raises; constant input gives 0.

Surprising, and verl's: whitening sees one value per token, so long rows weigh more; one NaN makes everything NaN.

Paper: arXiv:2501.03262.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect, map_groups
from labs.masked import masked_whiten
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index",),
    paper="arXiv:2501.03262",
    verl="compute_reinforce_plus_plus_baseline_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        scale="invariant",
        group_of_one="whitened",
        equal_group="other",
        single_token="raises",
        reward_on_masked=True,
        bias="whitening divides by the spread of the batch and subtracts a mean that contains the row",
    ),
)
@torch.no_grad()
def reinforce_plus_plus_baseline(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Group-centred scores, whitened over the batch; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        epsilon: not used.
        config: not read.

    Raises:
        InputError: fewer than two policy tokens in the batch.
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)

    def rule(scores: Tensor) -> Tensor:
        return scores if scores.shape[1] == 1 else scores - scores.mean(dim=1, keepdim=True)

    tokens = map_groups(rule, index, token_level_rewards.sum(dim=-1)).unsqueeze(-1) * response_mask
    advantages = masked_whiten(tokens, response_mask) * response_mask
    return advantages, advantages
