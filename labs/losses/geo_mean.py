"""GMPO: the geometric mean of one-sidedly clipped ratios, one term a row, as verl's `geo_mean`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall, row_weight
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="geo_mean",
    paper="Zhao et al. 2025, arXiv:2507.20673",
    properties=LossProperties(
        old_log_probs="row",
        aggregation="row-mean",
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
        all_masked="zero",
        is_weights="row",
    ),
    metrics=CLIP_METRICS,
)
def geo_mean(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per row, with d = log_prob - old_log_prob (not clamped) and n the row's tokens:

        c_t = min(d, clip_ratio_high) where A > 0,  max(d, -clip_ratio_low) where A < 0   (a clip in *log* space)
        L_i = -(sum A mask / (n + 1e-8)) exp(sum c mask / (n + 1e-8)),   loss = mean of L_i over all B rows

    **`loss_agg_mode` and `global_batch_info` are ignored**, and a row without a valid token counts as 0 in the mean.
    A clipped token carries no gradient. `rollout_is_weights` act through their geometric mean in the row,
    exp(sum log(w + 1e-10) mask / (n + 1e-8)). The advantage is meant to be constant in a row. Arguments, returns
    and errors as in `vanilla`; `pg_clipfrac` counts clipped tokens with A > 0, `pg_clipfrac_lower` with A < 0.
    """
    call = LossCall("geo_mean", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    low, high = call.settings.clip_bounds
    log_ratio = call.log_ratio(bound=None)
    clamped = log_ratio.clamp(-low, high)
    sign = torch.sign(advantages)
    one_sided = sign * torch.minimum(sign * log_ratio, sign * clamped)
    count = call.mask.sum(dim=-1) + 1e-8
    ratio = ((one_sided * call.mask).sum(dim=-1) / count).exp()
    per_row = -(advantages * call.mask).sum(dim=-1) / count * ratio
    if rollout_is_weights is not None:
        per_row = per_row * row_weight(rollout_is_weights, call.mask)
    with torch.no_grad():
        clipped = log_ratio != clamped
        metrics = {
            "actor/pg_clipfrac": call.share(clipped & (advantages > 0)),
            "actor/ppo_kl": -call.mean(log_ratio),
            "actor/pg_clipfrac_lower": call.share(clipped & (advantages < 0)),
        }
    return call.finite(per_row.mean()), metrics
