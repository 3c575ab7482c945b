"""Pass@k GRPO: only the best row of a group is credited, with its lead over the second best.

    A_best = R_best - R_second             over (std_g + eps) with `norm_adv_by_std_in_grpo`; std with n - 1
    A_other = 0
    A_it = A_i * m_it                      [B, T]; `returns` is the same tensor

epsilon is 1e-6. A tie at the top gives 0 to all. All-masked row: 0. Group of one: raises.

Surprising, and verl's: the flag is read from `config` alone and the argument of that name is overwritten; without a
config it refuses to run. So this is the only grouped entry but `grpo` that honours the flag through the dispatcher.

Paper: arXiv:2503.19595.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError, InputError
from labs.grouping import bessel_std, expect, map_groups, members
from labs.properties import Properties
from labs.registry import estimators, opt


@estimators.entry(
    needs=("index",),
    paper="arXiv:2503.19595",
    verl="compute_grpo_passk_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        scale="invariant",
        group_of_one="raises",
        equal_group="zero",
        reward_on_masked=True,
        bias="estimates the gradient of the expected maximum of a group, over a random scale, not of the mean score",
    ),
)
@torch.no_grad()
def grpo_passk(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """The lead of the best row; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels; every group needs two rows.
        epsilon: added to the standard deviation.
        norm_adv_by_std_in_grpo: overwritten by the field of `config`, default True.
        config: required; mapping or object.

    Raises:
        AssertedError: no config.
        InputError: a group of one.
        ShapeError: columns of different batches, an empty batch.
    """
    if config is None:
        raise AssertedError("grpo_passk needs a config: it reads norm_adv_by_std_in_grpo from there and nowhere else")
    norm_adv_by_std_in_grpo = opt(config, "norm_adv_by_std_in_grpo", True)
    expect(response_mask, token_level_rewards=token_level_rewards)
    scores = token_level_rewards.sum(dim=-1)
    for label, rows in members(index, scores.shape[0]).items():
        if len(rows) == 1:
            raise InputError(f"grpo_passk: group {label!r} has 1 row, a lead over the second best needs at least 2")

    def rule(group: Tensor) -> Tensor:
        best, where = group.topk(2, dim=1)
        lead = best[:, :1] - best[:, 1:]
        if norm_adv_by_std_in_grpo:
            lead = lead / (bessel_std(group) + epsilon)
        return torch.zeros_like(group).scatter(1, where[:, :1], lead)

    advantages = map_groups(rule, index, scores).unsqueeze(-1) * response_mask
    return advantages, advantages
