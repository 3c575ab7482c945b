"""DPPO with binary KL: a token is dropped once the KL of "this token or not" grew too large, as verl's `dppo_kl`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall
from labs.losses.dppo_tv import gated_reinforce
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="dppo_kl",
    paper="arXiv:2602.04879",
    properties=LossProperties(
        stop_gradient=True,
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="bounded", bad_down="zero"),
    ),
    metrics=CLIP_METRICS,
)
def dppo_kl(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""As `dppo_tv`, with the gate on the binary KL (epsilon 1e-8 inside the second logarithm)

        k = p_old (old_log_prob - log_prob) + (1 - p_old) log((1 - p_old + 1e-8) / (1 - p + 1e-8))
        valid = [k <= high or p <= p_old] where A > 0,  [k <= low or p >= p_old] where A <= 0

    The clip ratios are bounds in nats here: 0.2 nat of binary KL is far looser than a ratio of 1.2. Arguments,
    returns and errors as in `vanilla`.
    """
    call = LossCall("dppo_kl", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    low, high = call.settings.clip_bounds
    with torch.no_grad():
        p, p_old = call.log_prob.exp(), call.old.exp()
        rest = (1 - p_old) * torch.log((1.0 - p_old + 1e-8) / (1.0 - p + 1e-8))
        divergence = p_old * (call.old - call.log_prob) + rest
        valid = torch.where(advantages > 0, (divergence <= high) | (p <= p_old), (divergence <= low) | (p >= p_old))
    return gated_reinforce(call, valid, loss_agg_mode)
