"""torchrl 0.14's GRPO, DAPO and "CISPO" losses: clips in log space, one-sided for the last."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from labs.errors import one_of
from labs.loss_terms import LossCall
from labs.metrics import Metric
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from labs.surrogates import row_mean

OBJECTIVES = ("grpo", "cispo")


@losses.entry(
    paper="torchrl 0.14.1 GRPOLoss, DAPO, CISPOLoss",
    properties=LossProperties(extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero")),
    metrics=(Metric(name="clip_fraction", unit="1", formula="tokens out of range / all positions", low=0, high=1),),
)
def torchrl_grpo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    objective: str = "grpo",
    prompt_mean: bool = False,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -min(r A, r' A), or -r' A for `cispo`; r' = exp(clip(d, log(1 - low), log(1 + high))).

    `grpo` equals PPO's clip without dual clip (DAPO is the same with clip-higher). `cispo` is misnamed: without a
    stop-gradient and a log-probability it is a plain clipped ratio, whose gradient is *zero* on clipped tokens of
    either sign, and lacks PPO's pessimism. `clip_fraction` divides by all positions, so padding dilutes it.

    Args:
        prompt_mean: mean over all B rows of the row mean, empty rows included, instead of `loss_agg_mode`.

    Other arguments, returns and errors as in `vanilla`.
    """
    if objective not in OBJECTIVES:
        raise one_of("torchrl_grpo: objective", objective, OBJECTIVES)
    call = LossCall("torchrl_grpo", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    low, high = call.settings.clip_bounds
    log_ratio = call.log_ratio(bound=None)
    clipped = log_ratio.clamp(math.log1p(-low) if low < 1 else -math.inf, math.log1p(high))
    gain = clipped.exp() * advantages
    if objective == "grpo":
        gain = torch.min(log_ratio.exp() * advantages, gain)
    metrics = {"clip_fraction": float(((clipped != log_ratio) & call.valid).to(log_ratio.dtype).mean())}
    if prompt_mean:
        weighted = -gain if call.weights is None else -gain * call.weights
        return call.finite(row_mean(weighted, call.mask).mean()), metrics
    return call.loss(-gain, loss_agg_mode), metrics
