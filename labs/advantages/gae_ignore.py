"""GAE at tool replies, slime's and ROLL's way: the recursion does not know the mask.

    A_t = r_t + gamma V_{t+1} - V_t + gamma lam A_{t+1}      on every position up to the row's last policy token
    returns = A + V

A tool's reply is a sequence of ordinary states: its rewards count, its values must be real ones, and each of its
tokens costs gamma lambda. Behind the last policy token everything is 0, so that a reward there is lost. Advantages on
replies are not zeroed. No groups. All-masked row: 0. No whitening unless asked for; then as in `gae`, and one policy
token in the batch raises.

Paper: arXiv:1506.02438. Source: read in slime and ROLL, no recorded rows. Others: `gae`, `gae_step`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs import recursion
from labs.grouping import expect
from labs.masked import masked_whiten
from labs.properties import Properties
from labs.registry import estimators, opt


@estimators.entry(
    needs=("values",),
    paper="arXiv:1506.02438",
    properties=Properties(
        credit="token",
        critic=True,
        zero_where_masked=False,
        reward_on_masked="between choices",
        returns="value target",
        unbiased=True,
        bias="at gamma = lambda = 1, for any critic",
    ),
)
@torch.no_grad()
def gae_ignore(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float | None = None,
    lam: float | None = None,
    config: Any = None,
    whiten: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GAE that treats tool replies as states; see the module.

    Args:
        token_level_rewards: [B, T] float.
        values: [B, T] float, meaningful on tool replies too.
        response_mask: [B, T], 1 on policy tokens.
        gamma: discount; default `config.gamma`, else 1.
        lam: lambda; default `config.lam`, else 1.
        config: mapping or object.
        whiten: whiten the advantages over the policy tokens of the batch.

    Raises:
        InputError: `whiten` with fewer than two policy tokens.
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards, values=values)
    gamma = opt(config, "gamma", 1.0) if gamma is None else gamma
    lam = opt(config, "lam", 1.0) if lam is None else lam
    inside = response_mask.bool().flip(dims=[-1]).cumsum(dim=-1).flip(dims=[-1]) > 0
    value = torch.where(inside, values, 0.0)
    reward = torch.where(inside, token_level_rewards, 0.0)
    advantages = recursion.gae(reward, value, recursion.ahead(value), gamma, lam)
    returns = advantages + value
    return (masked_whiten(advantages, response_mask) if whiten else advantages), returns
