"""CISPO: the clipped ratio as a constant weight on the log-probability, as verl's `cispo`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="cispo",
    paper="MiniMax-M1 2025, arXiv:2506.13585",
    properties=LossProperties(
        stop_gradient=True,
        extremes=Extremes(good_up="bounded", good_down="bounded", bad_up="bounded", bad_down="bounded"),
    ),
    metrics=CLIP_METRICS,
)
def cispo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -sg(clip(r, 1 - clip_ratio_low, 1 + clip_ratio_high)) A log_prob.

    No token ever loses its gradient: where PPO stops, this keeps the bound as weight. `actor/pg_clipfrac` counts
    every token whose ratio left the range, whichever the sign of its advantage; `actor/pg_clipfrac_lower` is 0.
    Other libraries mean other functions by the name: see `cispo_variant`. Arguments, returns and errors as in
    `vanilla`.
    """
    call = LossCall("cispo", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    low, high = call.settings.clip_bounds
    with torch.no_grad():
        log_ratio = call.log_ratio()
        ratio = log_ratio.exp()
        weight = ratio.clamp(1 - low, 1 + high)
        metrics = {
            "actor/pg_clipfrac": call.share(ratio != weight),
            "actor/ppo_kl": -call.mean(log_ratio),
            "actor/pg_clipfrac_lower": 0.0,
        }
    return call.loss(-weight * advantages * log_prob, loss_agg_mode), metrics
