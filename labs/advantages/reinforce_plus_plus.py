"""REINFORCE++ since verl 0.9.0: the discounted return of each token, whitened over the batch.

    G_t = r_t + gamma G'                   G' is the return of the next policy token of the row, 0 behind the last
    returns = G * m
    A = (returns - mean) / sqrt(var + 1e-8) * m     masked mean and variance (n - 1) over the whole batch

Shapes: all [B, T]. The return is carried across masked positions: a tool call is credited for what happens after the
reply, and gamma is not spent on the reply. A reward on a masked position is lost; an all-masked row is 0. No groups.
One policy token in the batch raises.

Changed at 0.9.0: before, the return restarted at every mask 0, which `reinforce_plus_plus_reset` still does. Rewards
[0, 0, 1] under mask [1, 0, 1] give returns [1, 0, 1] here and [0, 1, 1] there. verl asserts a config and reads gamma
from it alone; here an explicit `gamma` will do as well.

Paper: arXiv:2501.03262.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError, ShapeError
from labs.grouping import expect
from labs.masked import masked_whiten
from labs.properties import Properties
from labs.recursion import carried_return
from labs.registry import estimators, opt


@estimators.entry(
    paper="arXiv:2501.03262",
    verl="compute_reinforce_plus_plus_outcome_advantage",
    properties=Properties(
        credit="token",
        scale="invariant",
        single_token="raises",
        returns="reward to go",
        bias="whitening divides by the spread of the batch and subtracts a mean that contains the row",
    ),
)
@torch.no_grad()
def reinforce_plus_plus(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    gamma: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Whitened returns, carried across tool replies; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T] integer or float, 1 on policy tokens.
        config: mapping or object with `gamma`; required unless `gamma` is given.
        gamma: discount; default `config.gamma`, else 1.

    Returns:
        Whitened advantages and unwhitened returns, both 0 where masked.

    Raises:
        AssertedError: neither config nor gamma.
        InputError: fewer than two policy tokens in the batch.
        ShapeError: columns of different batches, an empty batch, a bool mask.
    """
    if config is None and gamma is None:
        raise AssertedError("reinforce_plus_plus needs a config (it reads gamma from there) or gamma")
    expect(response_mask, token_level_rewards=token_level_rewards)
    if response_mask.dtype == torch.bool:
        raise ShapeError("response_mask is bool; the return is carried with 1 - mask, give an integer or float mask")
    gamma = opt(config, "gamma", 1.0) if gamma is None else gamma
    dtype = torch.promote_types(token_level_rewards.dtype, response_mask.dtype)
    mask = response_mask.to(dtype)
    returns = carried_return(token_level_rewards.to(dtype), mask, gamma).mul_(mask)
    return masked_whiten(returns, response_mask).mul_(mask), returns
