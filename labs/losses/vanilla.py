"""PPO's clipped surrogate with separate bounds (clip-higher) and dual clip, as verl's `vanilla`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError
from labs.loss_terms import CLIP_METRICS, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="vanilla",
    paper="Schulman et al. 2017, arXiv:1707.06347; dual clip: Ye et al. 2020, arXiv:1912.09729; "
    "clip-higher: Yu et al. 2025, arXiv:2503.14476",
    properties=LossProperties(extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="zero", bad_down="zero")),
    metrics=CLIP_METRICS,
)
def vanilla(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token, with r = exp(clip(log_prob - old_log_prob, -20, 20)):

        y = max(-A r, -A clip(r, 1 - clip_ratio_low, 1 + clip_ratio_high))
        L = y where A >= 0,  min(y, -A clip_ratio_c) where A < 0

    Without the second line a token with a negative advantage whose ratio explodes has an unbounded gradient. TRL's
    two-sided bound `delta` is the same thing: clip_ratio_c = delta gives its loss for every delta over 1 + high.

    Args:
        old_log_prob, log_prob, advantages, response_mask: `[B, T]`; advantages carry no gradient here.
        loss_agg_mode, config, rollout_is_weights: see `labs.loss_terms.LossCall`. Setting `clip_ratio` alone changes
            nothing: `clip_ratio_low` and `clip_ratio_high` have defaults of their own (0.2) and win.

    Returns:
        The loss (NaN with zero gradient for a batch without a valid token, except under `token-sum`: 0), and
        `actor/pg_clipfrac`, `actor/ppo_kl`, `actor/pg_clipfrac_lower`.

    Raises:
        AssertionError: `clip_ratio_c` of 1 or less.
        InputError: bad shapes, dtypes or settings.
    """
    call = LossCall("vanilla", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    return clipped_surrogate(call, *call.settings.clip_bounds, call.settings.clip_ratio_c, loss_agg_mode)


def clipped_surrogate(
    call: LossCall, low: float, high: float, dual: float, loss_agg_mode: str
) -> tuple[Tensor, dict[str, float]]:
    """The formula of `vanilla` for explicit bounds."""
    if not dual > 1.0:
        raise AssertedError(f"{call.name}: clip_ratio_c is {dual}; the bound of the dual clip must be over 1")
    log_ratio = call.log_ratio()
    ratio = log_ratio.exp()
    negative = call.advantages < 0
    # The larger of the two sides, and the smaller of that and the dual bound, is -A times a ratio clamped between
    # bounds that depend on the sign of A: same values, same gradients, half the passes over memory.
    kept = torch.where(negative, ratio.clamp(1 - low, dual), ratio.clamp(max=1 + high))
    with torch.no_grad():
        beyond = negative & (ratio > dual)
        metrics = {
            "actor/pg_clipfrac": call.share((ratio != kept) & ~beyond & (call.advantages != 0)),
            "actor/ppo_kl": -call.mean(log_ratio),
            "actor/pg_clipfrac_lower": call.share(beyond),
        }
    return call.loss(-call.advantages * kept, loss_agg_mode), metrics
