"""OTB: the reward to go minus, at every position, the variance-optimal mean of its group.

    G_t = sum_{s >= t} r_s m_s
    w_t = 1 - 2 pi(a_t) + sum_a pi(a)^2    squared norm of the score in logit space; times rho^2 with IS weights
    W_t = sum_{s <= t} w_s m_s
    b_t = sum_g G_t W_t m_t / (sum_g W_t m_t + eps)          one number per group and column
    A_t = (G_t - b_t) m_t,  returns = G

Shapes: [B, T]. epsilon 1e-8. Group of one: no baseline, the token keeps its return. All-masked row: 0. A reward on a
masked position is lost.

Zero tail (`handle_zero_tail`): where one row of the group is longer than all others it would be its own baseline, so
its baseline is 0 from there on. Surprising, and verl's: "there" is the second largest *token count* taken as a column,
so tool replies shift the cut; and a negative w (rounding, or a `sum_pi_squared` that does not belong) is not clamped.

Paper: arXiv:2602.07078.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect, group_ids, members
from labs.masked import weighed
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index", "old_log_probs", "sum_pi_squared"),
    paper="arXiv:2602.07078",
    verl="compute_optimal_token_baseline_advantage",
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
def optimal_token_baseline(
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
    """Reward to go minus the optimal baseline per column; see the module.

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
    norm = score_norm(old_log_probs, sum_pi_squared, rollout_is_weights)
    weights = weighed(weighed(norm, response_mask).cumsum(dim=-1), response_mask)
    baseline = group_baseline(returns, weights, index, epsilon)
    if handle_zero_tail:
        cut_tail_(baseline, response_mask.sum(dim=-1), index)
    return weighed(returns - baseline, response_mask), returns


def score_norm(old_log_probs: Tensor, sum_pi_squared: Tensor, rollout_is_weights: Tensor | None) -> Tensor:
    """`1 - 2 pi + sum pi^2`, times the squared importance weight if there is one."""
    norm = old_log_probs.exp().mul_(-2).add_(1) + sum_pi_squared
    return norm if rollout_is_weights is None else norm * rollout_is_weights**2


def group_baseline(returns: Tensor, weights: Tensor, index: Any, epsilon: float) -> Tensor:
    """`sum_g G W / (sum_g W + eps)` per column, on every row of the group; 0 for a group of one."""
    rows = returns.shape[0]
    groups = group_ids(index, rows).to(returns.device)
    count = torch.bincount(groups)
    shape = (count.shape[0], returns.shape[1])
    numerator = returns.new_zeros(shape).index_add_(0, groups, returns * weights)
    denominator = weights.new_zeros(shape).index_add_(0, groups, weights)
    baseline = numerator / (denominator + epsilon)
    baseline[count < 2] = 0.0
    return baseline[groups]


def cut_tail_(baseline: Tensor, lengths: Tensor, index: Any) -> None:
    """In place, zero the baseline of the single longest row of a group from the second largest length on."""
    sizes = lengths.tolist()
    for group in members(index, len(sizes)).values():
        if len(group) < 2:
            continue
        second, longest = sorted(group, key=sizes.__getitem__)[-2:]
        if sizes[longest] > sizes[second]:
            baseline[longest, int(sizes[second]) :] = 0.0
