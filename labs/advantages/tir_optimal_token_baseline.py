"""OTB for tool use: the optimal baseline per *token number* instead of per column.

    G_t, w_t, W_t as in `optimal_token_baseline`, then packed: tool replies removed, the k-th policy token in column k
    b_k = sum_g G_k W_k / (sum_g W_k + eps)          over the rows of the group that have a policy token
    A = G - b, scattered back, 0 where masked;  returns = G

Shapes: [B, T]. epsilon 1e-8. Group of one (after rows without a policy token have left it): no baseline, the token
keeps its return. All-masked row: 0. A reward on a masked position is lost.

Zero tail as in `optimal_token_baseline`, on the packed length, so that tool replies shift nothing. Surprising, and
verl's: its text says that this is off by default, its code has it on, and so has this.

Paper: arXiv:2602.07078.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.advantages.optimal_token_baseline import cut_tail_, group_baseline, score_norm
from labs.grouping import expect, labels
from labs.masked import weighed
from labs.properties import Properties
from labs.recursion import Packing
from labs.registry import estimators


@estimators.entry(
    needs=("index", "old_log_probs", "sum_pi_squared"),
    paper="arXiv:2602.07078",
    verl="compute_multi_turn_optimal_token_baseline_advantage",
    properties=Properties(
        credit="token",
        groups=True,
        group_of_one="return",
        equal_group="other",
        returns="reward to go",
        bias="the weighted mean contains the row itself",
    ),
)
@torch.no_grad()
def tir_optimal_token_baseline(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Reward to go minus the optimal baseline per token number; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        old_log_probs: [B, T] float, log-probability of the chosen token.
        sum_pi_squared: [B, T] float, sum over tokens of the squared probability.
        rollout_is_weights: [B, T] float or None; its square scales w.
        handle_zero_tail: drop the baseline where only one row is left.
        epsilon: added to the denominator.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(
        response_mask,
        token_level_rewards=token_level_rewards,
        old_log_probs=old_log_probs,
        sum_pi_squared=sum_pi_squared,
        rollout_is_weights=rollout_is_weights,
    )
    returns = (token_level_rewards * response_mask).flip(dims=[-1]).cumsum(dim=-1).flip(dims=[-1])
    norm = weighed(score_norm(old_log_probs, sum_pi_squared, rollout_is_weights), response_mask)
    packing = Packing(response_mask)
    weights = packing.pack(norm.cumsum(dim=-1))
    # A row without a policy token belongs to no group: a label of its own keeps it from counting as a companion.
    groups = [
        (row, label) if length == 0 else label
        for row, (label, length) in enumerate(
            zip(labels(index, len(packing.lengths)), packing.lengths.tolist(), strict=True)
        )
    ]
    baseline = group_baseline(packing.pack(returns), weights, groups, epsilon)
    if handle_zero_tail:
        cut_tail_(baseline, packing.lengths, groups)
    return weighed(returns - packing.unpack(baseline), response_mask), returns
