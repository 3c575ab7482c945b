"""TD(lambda): the lambda-return of each policy token, minus the critic's value.

    G_t = r_t + gamma [(1 - lam) V' + lam G']      V', G' of the next policy token; behind the last one both are
    A_t = (G_t - V_t) m_t,  returns = G m          `bootstrap_values` if the row is truncated, else 0

Shapes: [B, T]. The same numbers as GAE before whitening, reached from the target rather than from the errors: lambda 0
is the one-step error, lambda 1 the reward to go minus the value. Masked positions are skipped and hold 0. No groups, no
whitening. All-masked row: 0. A reward on a masked position is lost.

Source: Sutton and Barto, ch. 12; torchrl 0.14, `td_lambda_return_estimate` (0: `td0_advantage_estimate`, 1:
`td1_return_estimate`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs import recursion
from labs.grouping import expect
from labs.properties import Properties
from labs.registry import estimators, opt


@estimators.entry(
    needs=("values",),
    paper="Sutton and Barto, Reinforcement Learning, 2nd ed., ch. 12",
    properties=Properties(
        credit="token",
        critic=True,
        returns="value target",
        unbiased=True,
        bias="at gamma = lambda = 1, for any critic; below, the critic's error enters",
    ),
)
@torch.no_grad()
def td_lambda(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    truncated: Tensor | None = None,
    bootstrap_values: Tensor | None = None,
    gamma: float | None = None,
    lam: float | None = None,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Lambda-returns minus values; see the module.

    Args:
        token_level_rewards: [B, T] float.
        values: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        truncated: [B] bool, cut by the step limit; default none.
        bootstrap_values: [B] float, value of the state behind the last token; read where truncated.
        gamma: discount; default `config.gamma`, else 1.
        lam: lambda; default `config.lam`, else 1.
        config: mapping or object.

    Raises:
        ShapeError: columns of different batches, an empty batch, truncated rows without `bootstrap_values`.
    """
    expect(
        response_mask,
        rows=[("truncated", truncated), ("bootstrap_values", bootstrap_values)],
        token_level_rewards=token_level_rewards,
        values=values,
    )
    gamma = opt(config, "gamma", 1.0) if gamma is None else gamma
    lam = opt(config, "lam", 1.0) if lam is None else lam
    tokens = recursion.Packing(response_mask)
    value, reward = tokens.pack(values), tokens.pack(token_level_rewards)
    following = tokens.following(value, recursion.behind(truncated, bootstrap_values))
    target = recursion.td_lambda(reward, following, gamma, lam, done=tokens.ends)
    return tokens.unpack(target - value), tokens.unpack(target)
