"""SAPO: a smooth gate instead of a clip, as verl's `sapo`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="sapo",
    paper="arXiv:2511.20347",
    properties=LossProperties(
        aggregation="seq-mean-token-mean",
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="zero", bad_down="vanishes"),
    ),
    metrics=CLIP_METRICS,
)
def sapo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token, with r = exp(clip(log_prob - old_log_prob, -20, 20)):

        L = -A sigmoid(tau (r - 1)) 4 / tau,  tau = tau_pos where A > 0, tau_neg elsewhere

    The slope of the gate is 1 at r = 1 for every tau, so on policy this is REINFORCE; at r = 1 the *value* is
    -2 A / tau. **`loss_agg_mode` is ignored**: verl forces `seq-mean-token-mean`. The two clip fractions are logged
    as 0. Arguments, returns and errors as in `vanilla`.
    """
    call = LossCall("sapo", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    log_ratio = call.log_ratio()
    per_token = soft_gate(log_ratio.exp(), advantages, call.settings.tau_pos, call.settings.tau_neg)
    metrics = {"actor/pg_clipfrac": 0.0, "actor/ppo_kl": -call.mean(log_ratio), "actor/pg_clipfrac_lower": 0.0}
    return call.loss(per_token, "seq-mean-token-mean"), metrics


def soft_gate(ratio: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """`-A sigmoid(tau (r - 1)) 4 / tau` with the temperature chosen by the sign of the advantage."""
    tau = torch.where(advantages > 0, advantages.new_tensor(tau_pos), advantages.new_tensor(tau_neg))
    return -torch.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau) * advantages
