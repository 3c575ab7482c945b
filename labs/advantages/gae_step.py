"""GAE at tool replies, OpenRLHF's way: a masked position is a state of value 0 that the recursion steps through.

    V, r = V m, r m
    A_t = r_t + gamma V_{t+1} - V_t + gamma lam A_{t+1}      on every position of [B, T]
    returns = A + V m

A reply of k tokens costs `(gamma lam)^k`, and the tokens before it bootstrap from 0 rather than from the value behind
the reply. Masked positions hold what the recursion leaves there. No groups. All-masked row: 0. A reward on a masked
position is lost. No whitening unless asked for; then as in `gae`, and one policy token in the batch raises.

Paper: arXiv:1506.02438. Source: OpenRLHF 0.11, `get_advantages_and_returns`. Others: `gae`, `gae_ignore`.
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
        returns="value target",
        unbiased=True,
        bias="at gamma = lambda = 1, for any critic; below, the value 0 at replies enters as well",
    ),
)
@torch.no_grad()
def gae_step(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float | None = None,
    lam: float | None = None,
    config: Any = None,
    whiten: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GAE that steps through masked positions; see the module.

    Args:
        token_level_rewards: [B, T] float.
        values: [B, T] float.
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
    value = values * response_mask
    advantages = recursion.gae(token_level_rewards * response_mask, value, recursion.ahead(value), gamma, lam)
    returns = advantages + value
    return (masked_whiten(advantages, response_mask) if whiten else advantages), returns
