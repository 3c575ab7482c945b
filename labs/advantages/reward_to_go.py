"""OpenRLHF's REINFORCE: the discounted reward to go, with no baseline.

    G_t = r_t m_t + gamma G_{t+1}          on every position: gamma is spent on a tool's reply too
    A_t = G_t m_t,  returns = G            [B, T]

No groups, no critic, no whitening (OpenRLHF whitens later, over the batch). A tool's reply does not reset the return;
`returns` holds the later return there. All-masked row: 0. A reward on a masked position is lost.

Source: OpenRLHF 0.11, `get_cumulative_returns`; the estimator is REINFORCE (Williams 1992).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.grouping import expect
from labs.properties import Properties
from labs.recursion import discounted
from labs.registry import estimators, opt


@estimators.entry(
    paper="Williams 1992",
    properties=Properties(
        credit="token",
        returns="reward to go",
        unbiased=True,
        bias="at gamma 1; the variance is that of the whole return",
    ),
)
@torch.no_grad()
def reward_to_go(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    gamma: float | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Discounted reward to go; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        gamma: discount; default `config.gamma`, else 1.
        config: mapping or object.

    Returns:
        Advantages, 0 where masked, and returns, which are not masked.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)
    gamma = opt(config, "gamma", 1.0) if gamma is None else gamma
    returns = discounted(token_level_rewards * response_mask, gamma)
    return returns * response_mask, returns
