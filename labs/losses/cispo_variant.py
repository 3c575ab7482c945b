"""CISPO with its disputed parts as options: cap, floor, anchor, and whether a capped token keeps its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError, one_of
from labs.loss_terms import PG_CLIPFRAC, PPO_KL, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses

ANCHORS = ("old", "rollout")


@losses.entry(
    paper="MiniMax-M1 2025, arXiv:2506.13585",
    properties=LossProperties(
        stop_gradient=True,
        extremes=Extremes(good_up="bounded", good_down="vanishes", bad_up="bounded", bad_down="vanishes"),
    ),
    metrics=(PG_CLIPFRAC, PPO_KL),
)
def cispo_variant(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    cap: float | None = None,
    floor: float | None = None,
    anchor: str = "old",
    rollout_log_probs: Tensor | None = None,
    stop_gradient: bool = True,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -sg(clip(r, floor, cap)) A log_prob, with r relative to the `anchor` policy.

    Six libraries give the name CISPO to six functions:

    | library | options |
    |---|---|
    | verl, NeMo, slime, SkyRL | cap = 1 + clip_ratio_high, floor = 1 - clip_ratio_low (`cispo` is this one) |
    | MiniMax-M1's experiments | cap alone: the default here |
    | TRL | cap = epsilon_high *itself*, no floor: its default 0.2 caps every weight at 0.2 |
    | SkyRL, optionally | anchor = "rollout" |
    | torchrl | `stop_gradient=False`: L = -clip(r) A, a capped token has no gradient |

    Args:
        cap, floor: bounds of the weight; None is 1 + clip_ratio_high, and no floor.
        anchor: `old`, or `rollout` (then `rollout_log_probs` `[B, T]` is needed; do not also pass importance weights).
        stop_gradient: False replaces sg(clip(r)) log_prob by clip(r).

    A capped token's gradient is -cap A with `stop_gradient`, 0 without. Other arguments, returns and errors as in
    `vanilla`.
    """
    if anchor not in ANCHORS:
        raise one_of("cispo_variant: anchor", anchor, ANCHORS)
    if anchor == "rollout" and (rollout_log_probs is None or rollout_is_weights is not None):
        raise InputError("cispo_variant: anchor 'rollout' needs rollout_log_probs, and no rollout_is_weights on top")
    behaviour = rollout_log_probs if anchor == "rollout" else old_log_prob
    call = LossCall("cispo_variant", behaviour, log_prob, advantages, response_mask, config, rollout_is_weights)
    upper = 1 + call.settings.clip_bounds[1] if cap is None else cap
    lower = 0.0 if floor is None else floor
    if not 0 <= lower <= upper:
        raise InputError(f"cispo_variant: floor {lower} and cap {upper}; it takes 0 <= floor <= cap")
    log_ratio = call.log_ratio()
    ratio = log_ratio.exp()
    weight = ratio.clamp(lower, upper)
    with torch.no_grad():
        metrics = {"actor/pg_clipfrac": call.share(ratio != weight), "actor/ppo_kl": -call.mean(log_ratio)}
    per_token = -weight.detach() * advantages * log_prob if stop_gradient else -weight * advantages
    return call.loss(per_token, loss_agg_mode), metrics
