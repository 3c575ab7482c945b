"""GRPO as TRL scores it: epsilon 1e-4, a lone row is worth 0, and unscorable rollouts step aside.

    R_i = sum_k w_k reward_k               or the sum of token rewards where no components are given
    A_i = (R_i - mean_g) / (std + 1e-4)    std with n - 1, chosen by `scale_rewards`:
                                           `group` the group's, `batch` the whole batch's, `none` no division
    A_it = A_i * m_it                      [B, T]; `returns` is the same tensor

`multi_objective_aggregation="normalize_then_sum"` (GDPO) normalises each component in its group, sums them with their
weights and whitens over the batch. Group of one: 0. All-equal group: 0 up to rounding. All-masked row: 0, but its
score counts in the group. A row whose score is NaN gets 0 and leaves the statistics. Rewards on masked positions count.

Papers: arXiv:2402.03300 (group), arXiv:2508.08221 (batch), arXiv:2503.20783 (none), arXiv:2601.05242 (GDPO).
Source: TRL 1.16, `GRPOTrainer._generate_and_score_completions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect
from labs.properties import Properties
from labs.registry import estimators, opt
from labs.trl import grpo_scores


@estimators.entry(
    needs=("index",),
    accepts_nan=True,
    paper="arXiv:2402.03300",
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
def trl_grpo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    scale_rewards: str | None = None,
    multi_objective_aggregation: str | None = None,
    reward_components: Tensor | None = None,
    reward_weights: Sequence[float] | Tensor | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """TRL's group-normalised scores; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        scale_rewards: `group`, `batch` or `none`; default `config.scale_rewards`, else `group`.
        multi_objective_aggregation: `sum_then_normalize` or `normalize_then_sum`; default from `config`, else the
            former.
        reward_components: [B, K], one column a reward function; takes the place of `token_level_rewards`.
        reward_weights: [K], default 1 each.
        config: mapping or object.

    Raises:
        InputError: unknown `scale_rewards` or `multi_objective_aggregation`.
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)
    components = token_level_rewards.sum(dim=-1, keepdim=True) if reward_components is None else reward_components
    scores, _std = grpo_scores(
        components,
        index,
        reward_weights,
        opt(config, "scale_rewards", "group") if scale_rewards is None else scale_rewards,
        opt(config, "multi_objective_aggregation", "sum_then_normalize")
        if multi_objective_aggregation is None
        else multi_objective_aggregation,
    )
    advantages = scores.unsqueeze(-1) * response_mask
    return advantages, advantages
