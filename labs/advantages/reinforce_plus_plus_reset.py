"""REINFORCE++ before verl 0.9.0: the return restarts at every masked position.

    G_t = r_t + gamma m_{t+1} G_{t+1}      on every position, masked ones included
    returns = G                            keeps what it holds on masked positions
    A = (returns - mean) / sqrt(var + 1e-8) * m     masked mean and variance (n - 1) over the whole batch

Shapes: all [B, T]. A tool call gets nothing of what is earned after the tool's reply: the reply cuts the return. A
reward on a masked position shows in `returns` there and reaches no token. No groups. An all-masked row has advantage
0. One policy token in the batch raises.

This is what course texts of mid-2026 describe and what verl 0.8.0 computes; `reinforce_plus_plus` is today's. Rewards
[0, 0, 1] under mask [1, 0, 1] give returns [0, 1, 1] here and [1, 0, 1] there.

Paper: arXiv:2501.03262.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError
from labs.grouping import expect
from labs.masked import masked_whiten
from labs.properties import Properties
from labs.recursion import ahead, linear, numbers
from labs.registry import estimators, opt


@estimators.entry(
    paper="arXiv:2501.03262",
    verl="compute_reinforce_plus_plus_outcome_advantage of verl 0.8.0",
    properties=Properties(
        credit="token",
        scale="invariant",
        single_token="raises",
        crosses_tools=False,
        returns="reward to go",
        bias="drops what is earned behind a tool's reply, and whitens over the batch",
    ),
)
@torch.no_grad()
def reinforce_plus_plus_reset(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    gamma: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Whitened returns that restart at masked positions; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        config: mapping or object with `gamma`; required unless `gamma` is given.
        gamma: discount; default `config.gamma`, else 1.

    Returns:
        Whitened advantages, 0 where masked, and raw returns, not masked.

    Raises:
        AssertedError: neither config nor gamma.
        InputError: fewer than two policy tokens in the batch.
        ShapeError: columns of different batches, an empty batch.
    """
    if config is None and gamma is None:
        raise AssertedError("reinforce_plus_plus_reset needs a config (it reads gamma from there) or gamma")
    expect(response_mask, token_level_rewards=token_level_rewards)
    gamma = opt(config, "gamma", 1.0) if gamma is None else gamma
    numbers(gamma=gamma)
    following = ahead(response_mask.to(token_level_rewards.dtype)).mul_(gamma)
    returns = linear(token_level_rewards, following)
    return masked_whiten(returns, response_mask) * response_mask, returns
