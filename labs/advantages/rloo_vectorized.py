"""RLOO over group sums, in which a lone row is worth 0.

    A_i = (n R_i - sum_g R) / max(n - 1, 1) * [n > 1]
    A_it = A_i * m_it                      [B, T]; `returns` is the same tensor

No standard deviation; epsilon is accepted and unused. Group of one: 0 (`rloo` keeps the raw score). All-masked row: 0,
but its score counts in the others' baseline. A NaN stays inside its group. Labels are told apart as `numpy.unique`
tells them: strings that look like numbers stay strings.

Paper: arXiv:2402.14740.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect, group_ids, spread
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index",),
    paper="arXiv:2402.14740",
    verl="compute_rloo_vectorized_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        group_of_one="zero",
        equal_group="zero",
        reward_on_masked=True,
        unbiased=True,
        bias="the baseline is independent of the row it is subtracted from; lone rows add nothing",
    ),
)
@torch.no_grad()
def rloo_vectorized(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Leave-one-out advantages, index-add form; see the module.

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
    scores = token_level_rewards.sum(dim=-1)
    groups = group_ids(index, scores.shape[0]).to(scores.device)
    count = torch.bincount(groups)[groups].to(scores.dtype)
    totals = torch.zeros_like(scores).index_add(0, groups, scores)
    apart = (count * scores - totals[groups]) / (count - 1).clamp(min=1) * (count > 1)
    advantages = spread(apart, response_mask)
    return advantages, advantages
