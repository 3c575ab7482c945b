"""GAE that knows truncation: a row cut by the step limit bootstraps from the value of the state it was left in.

    delta_t = r_t + gamma V' - V_t         V': value of the next policy token; behind the last one
    A_t = delta_t + gamma lam A'           `bootstrap_values` if the row is truncated, else 0
    returns = A + V m                      [B, T], before whitening

Masked positions are skipped as in `gae`, and hold 0 here. A terminated row ends with value 0: ending is an outcome,
being cut is not. Without `truncated` no row is cut and this is `gae` before whitening. No groups. All-masked row: 0. A
reward on a masked position is lost. No whitening unless asked for; then one policy token in the batch raises.

Paper: arXiv:1506.02438; the distinction is torchrl's (`done` ends the trace, `terminated` ends the bootstrap) and
AReaL's (bootstrap from the last value when there was no end of sequence). Pardo et al., arXiv:1712.00378.
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
    needs=("values", "truncated", "bootstrap_values"),
    paper="arXiv:1712.00378",
    properties=Properties(
        credit="token",
        critic=True,
        returns="value target",
        unbiased=True,
        bias="at gamma = lambda = 1 on rows that terminate; on truncated rows as good as the bootstrap value",
    ),
)
@torch.no_grad()
def gae_truncated(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    truncated: Tensor | None = None,
    bootstrap_values: Tensor | None = None,
    gamma: float | None = None,
    lam: float | None = None,
    config: Any = None,
    whiten: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """GAE with bootstrap at the step limit; see the module.

    Args:
        token_level_rewards: [B, T] float.
        values: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        truncated: [B] bool, cut by the step limit.
        bootstrap_values: [B] float, the critic's value of the state behind the last token; read where truncated.
        gamma: discount; default `config.gamma`, else 1.
        lam: lambda; default `config.lam`, else 1.
        config: mapping or object.
        whiten: whiten the advantages over the policy tokens of the batch.

    Raises:
        InputError: `whiten` with fewer than two policy tokens.
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
    advantages = tokens.unpack(recursion.gae(reward, value, following, gamma, lam))
    returns = advantages + values * response_mask
    return (masked_whiten(advantages, response_mask) * response_mask if whiten else advantages), returns
