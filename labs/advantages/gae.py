"""GAE as verl computes it: carried across masked positions, then whitened over the batch.

    delta_t = r_t + gamma V' - V_t         V' is the value of the next policy token of the row, 0 behind the last
    A_t = delta_t + gamma lam A'           A' likewise
    returns = A + V                        before whitening; the target of the critic
    A = (A - mean) / sqrt(var + 1e-8)      masked mean and variance (n - 1) over the whole batch

Shapes: all [B, T]. A masked position (tool reply, padding, rejected token) costs neither gamma nor lambda, and a
reward on it is lost. There are no groups. One policy token in the batch raises; constant advantages give 0.

Surprising, and verl's: the advantage is not multiplied by the mask again, so masked positions hold the whitened value
carried from the next policy token and padding holds whitened 0 (an all-masked row too): never assume zeros outside
the mask. A NaN value on a masked position spreads to the whole batch. A bool mask raises.

Paper: arXiv:1506.02438. Other rules at tool replies: `gae_step`, `gae_ignore`, `gae_truncated`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from labs.errors import ShapeError
from labs.grouping import expect
from labs.masked import masked_whiten
from labs.properties import Properties
from labs.recursion import carried_gae
from labs.registry import estimators, opt


@estimators.entry(
    needs=("values",),
    paper="arXiv:1506.02438",
    verl="compute_gae_advantage_return",
    properties=Properties(
        credit="token",
        critic=True,
        zero_where_masked=False,
        scale="invariant",
        all_masked_row=False,
        single_token="raises",
        returns="value target",
        bias="whitening divides by the spread of the batch; below lambda 1 the critic's error enters as well",
    ),
)
@torch.no_grad()
def gae(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float | None = None,
    lam: float | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation; see the module.

    Args:
        token_level_rewards: [B, T] float.
        values: [B, T] float, the critic's value of the state in which each token was chosen.
        response_mask: [B, T] integer or float, 1 on policy tokens.
        gamma: discount; default `config.gamma`, else 1.
        lam: lambda; default `config.lam`, else 1.
        config: mapping or object.

    Returns:
        Whitened advantages, and the critic's targets.

    Raises:
        InputError: fewer than two policy tokens in the batch.
        ShapeError: columns of different batches, an empty batch, a bool mask.
    """
    expect(response_mask, token_level_rewards=token_level_rewards, values=values)
    if response_mask.dtype == torch.bool:
        raise ShapeError("response_mask is bool; gae computes with 1 - mask and takes an integer or float mask")
    gamma = opt(config, "gamma", 1.0) if gamma is None else gamma
    lam = opt(config, "lam", 1.0) if lam is None else lam
    columns = (token_level_rewards, values, response_mask)
    dtype = reduce(torch.promote_types, (column.dtype for column in columns))
    rewards, value, mask = (column.to(dtype) for column in columns)
    advantages = carried_gae(rewards, value, mask, gamma, lam)
    returns = advantages + values
    return masked_whiten(advantages, response_mask), returns
