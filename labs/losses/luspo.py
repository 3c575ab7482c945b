"""LUSPO: GSPO's row ratio with every row weighted by its length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from labs.surrogates import pessimistic, row_mean


@losses.entry(
    paper="arXiv:2602.05261; TRL 1.16 loss_type luspo",
    properties=LossProperties(
        old_log_probs="row",
        is_weights="row",
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
    ),
    metrics=CLIP_METRICS,
)
def luspo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -min(s_i A, clip(s_i, 1 - low, 1 + high) A), s_i = exp(mean_t (log_prob - old_log_prob)).

    Every token of a row carries the row's loss, so summing tokens (the default mode) multiplies it by the length,
    which is the method; under a row mean this is GSPO with its full gradient. Unlike `gspo` nothing is held constant:
    a token's gradient is that of the row's ratio, 1 / n_i of each token's. TRL's own numbers (a mean over all B rows,
    empty ones included) are `trl_grpo(loss_type="luspo", importance_sampling_level="sequence")`. Arguments, returns
    and errors as in `vanilla`; `actor/pg_clipfrac_lower` is 0.
    """
    call = LossCall("luspo", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    low, high = call.settings.clip_bounds
    log_ratio = call.log_ratio(bound=None)
    ratio = row_mean(log_ratio, call.mask).exp().unsqueeze(-1)
    with torch.no_grad():
        clipped = ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))
        metrics = {
            "actor/pg_clipfrac": call.share(clipped),
            "actor/ppo_kl": -call.mean(log_ratio),
            "actor/pg_clipfrac_lower": 0.0,
        }
    return call.loss(pessimistic(ratio, advantages, low, high), loss_agg_mode), metrics
