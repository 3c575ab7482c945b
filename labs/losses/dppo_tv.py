"""DPPO with total variation: a token is dropped once its *probability* moved too far, as verl's `dppo_tv`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="dppo_tv",
    paper="arXiv:2602.04879",
    properties=LossProperties(
        stop_gradient=True,
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="bounded", bad_down="zero"),
    ),
    metrics=CLIP_METRICS,
)
def dppo_tv(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -A sg(min(r, `clip_ratio_c`)) log_prob valid, with p = exp(log_prob), p_old = exp(old_log_prob):

        valid = [p - p_old <= clip_ratio_high] where A > 0,  [p - p_old >= -clip_ratio_low] where A <= 0

    The clip ratios are bounds on a *probability difference* here, so a rare token may multiply its ratio freely. The
    cap on r is 3: verl's code falls back to 20, but `ActorConfig` always holds 3. `actor/pg_clipfrac` is the share of
    dropped tokens, `pg_clipfrac_lower` that of kept tokens whose ratio is capped. Arguments, returns and errors as
    in `vanilla`.
    """
    call = LossCall("dppo_tv", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    low, high = call.settings.clip_bounds
    with torch.no_grad():
        moved = call.log_prob.exp() - call.old.exp()
        valid = torch.where(advantages > 0, moved <= high, moved >= -low)
    return gated_reinforce(call, valid, loss_agg_mode)


def gated_reinforce(call: LossCall, valid: Tensor, loss_agg_mode: str) -> tuple[Tensor, dict[str, float]]:
    """`-A sg(min(r, clip_ratio_c)) log_prob` on the tokens of the boolean `valid`, 0 elsewhere."""
    cap = call.settings.clip_ratio_c
    with torch.no_grad():
        log_ratio = call.log_ratio()
        ratio = log_ratio.exp()
        weight = ratio.clamp(max=cap)
        metrics = {
            "actor/pg_clipfrac": call.share(~valid),
            "actor/ppo_kl": -call.mean(log_ratio),
            "actor/pg_clipfrac_lower": call.share(valid & (ratio > cap)),
        }
    per_token = -call.advantages * weight * call.log_prob * valid.to(weight.dtype)
    return call.loss(per_token, loss_agg_mode), metrics
