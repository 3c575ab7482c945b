"""V-trace: off-policy targets with clipped importance weights.

    rho_t = pi(a_t) / mu(a_t)              pi: `old_log_probs`, mu: `rollout_log_probs`
    delta_t = min(rho_t, rho_max) (r_t + gamma V' - V_t)
    vs_t = V_t + delta_t + gamma min(rho_t, c_max) (vs' - V')
    A_t = min(rho_t, rho_max) (r_t + gamma vs' - V_t) m_t,  returns = vs m

Shapes: [B, T]; the prime is the next policy token, behind the last one `bootstrap_values` if the row is truncated,
else 0. Both bounds are 1 by default; with pi = mu `vs` is the undiscounted reward to go at gamma 1. rho_max decides
which policy's value is learnt, c_max only the speed. Masked positions are skipped and hold 0. No groups, no whitening.
All-masked row: 0. A reward on a masked position is lost. The ratio is not limited before it is exponentiated: a
log-ratio over 88 is infinite in float32 and then clipped, but infinity times 0 is NaN.

Paper: arXiv:1802.01561. Source: torchrl 0.14, `vtrace_advantage_estimate` (whose text swaps the two policies).
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
    needs=("values", "old_log_probs", "rollout_log_probs"),
    paper="arXiv:1802.01561",
    properties=Properties(
        credit="token",
        critic=True,
        returns="value target",
        bias="clipped weights aim at a policy between pi and mu; on policy and at gamma 1 it is unbiased",
    ),
)
@torch.no_grad()
def vtrace(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    truncated: Tensor | None = None,
    bootstrap_values: Tensor | None = None,
    gamma: float | None = None,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """V-trace advantages and targets; see the module.

    Args:
        token_level_rewards: [B, T] float.
        values: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        old_log_probs: [B, T] float, the policy that is trained.
        rollout_log_probs: [B, T] float, the policy that acted.
        truncated: [B] bool, cut by the step limit; default none.
        bootstrap_values: [B] float, value of the state behind the last token; read where truncated.
        gamma: discount; default `config.gamma`, else 1.
        rho_max: bound of the weight of an error.
        c_max: bound of the weight of a trace.
        config: mapping or object.

    Raises:
        ShapeError: columns of different batches, an empty batch, truncated rows without `bootstrap_values`.
    """
    expect(
        response_mask,
        rows=[("truncated", truncated), ("bootstrap_values", bootstrap_values)],
        token_level_rewards=token_level_rewards,
        values=values,
        old_log_probs=old_log_probs,
        rollout_log_probs=rollout_log_probs,
    )
    gamma = opt(config, "gamma", 1.0) if gamma is None else gamma
    tokens = recursion.Packing(response_mask)
    value, reward = tokens.pack(values), tokens.pack(token_level_rewards)
    following = tokens.following(value, recursion.behind(truncated, bootstrap_values))
    log_ratio = tokens.pack(old_log_probs - rollout_log_probs)
    advantage, target = recursion.vtrace(reward, value, following, log_ratio, gamma, rho_max, c_max, done=tokens.ends)
    return tokens.unpack(advantage), tokens.unpack(target)
