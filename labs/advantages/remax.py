"""ReMax: the reward to go minus the score of a greedy rollout of the same task.

    returns_t = sum_{s >= t} r_s m_s       no gamma
    A_t = returns_t - b_i m_t              b_i: score of the greedy rollout, [B]

Shapes: [B, T]. No groups, no critic, but one more rollout per task. All-masked row: 0. A reward on a masked position
is lost.

Surprising, and verl's: only the baseline is masked, so on a tool's reply the advantage is the later return, not 0.

Paper: arXiv:2310.10505.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("reward_baselines",),
    paper="arXiv:2310.10505",
    verl="compute_remax_outcome_advantage",
    properties=Properties(
        credit="token",
        zero_where_masked=False,
        returns="reward to go",
        unbiased=True,
        bias="the greedy score depends on the policy but not on the row it is subtracted from",
    ),
)
@torch.no_grad()
def remax(
    token_level_rewards: Tensor,
    reward_baselines: Tensor,
    response_mask: Tensor,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Reward to go minus the greedy score; see the module.

    Args:
        token_level_rewards: [B, T] float.
        reward_baselines: [B] float, score of the greedy rollout of each row's task.
        response_mask: [B, T], 1 on policy tokens.
        config: not read.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards, rows=[("reward_baselines", reward_baselines)])
    returns = (token_level_rewards * response_mask).flip(dims=[-1]).cumsum(dim=-1).flip(dims=[-1])
    return returns - reward_baselines.unsqueeze(-1) * response_mask, returns
