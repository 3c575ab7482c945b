"""Clip-Cov: drop a few random tokens whose advantage and log-probability covary most, as verl's `clip_cov`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError
from labs.loss_terms import PG_CLIPFRAC, PPO_KL, LossCall, clip_parts
from labs.masked import masked_mean
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="clip_cov",
    paper="Cui et al. 2025, arXiv:2505.22617",
    properties=LossProperties(
        on_policy="partial",
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
        row_order=False,
        random=True,
    ),
    metrics=(PG_CLIPFRAC, PPO_KL),
)
def clip_cov(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = max(-A r, -A clip(r, 1 - low, 1 + high)) keep, with r unclamped and no dual clip.

    With cov = (A - mean A)(log_prob - mean log_prob) over the mask, the candidates are the valid tokens with
    `clip_cov_lb < cov < clip_cov_ub` that PPO's clip left alone; of them max(1, int(`clip_cov_ratio` n)), chosen at
    random, get keep = 0.

    Args:
        generator: source of the random choice. None draws from torch's *global* generator, as verl does.

    `actor/pg_clipfrac` counts the dropped tokens only, not those that PPO clips. Other arguments, returns and errors
    as in `vanilla`.

    Raises:
        AssertionError: `clip_cov_ratio` of 0 or less.
    """
    call = LossCall("clip_cov", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    chosen = call.settings.policy_loss
    ratio_of_tokens = 0.0002 if chosen.clip_cov_ratio is None else chosen.clip_cov_ratio
    upper = 5.0 if chosen.clip_cov_ub is None else chosen.clip_cov_ub
    lower = 1.0 if chosen.clip_cov_lb is None else chosen.clip_cov_lb
    if not ratio_of_tokens > 0:
        raise AssertedError(f"clip_cov: policy_loss.clip_cov_ratio is {ratio_of_tokens}; it must be over 0")
    log_ratio = call.log_ratio(bound=None)
    unclipped, clipped = clip_parts(call, log_ratio.exp())
    with torch.no_grad():
        covariance = (advantages - masked_mean(advantages, call.mask)) * (log_prob - masked_mean(log_prob, call.mask))
        open_tokens = call.valid & ~(clipped > unclipped)
        candidates = ((covariance < upper) & (covariance > lower) & open_tokens).nonzero()
        dropped = torch.zeros_like(call.valid)
        if len(candidates) > 0:
            wanted = max(int(ratio_of_tokens * call.tokens.item()), 1)
            picked = candidates[torch.randperm(len(candidates), generator=generator)[:wanted]]
            dropped[picked[:, 0], picked[:, 1]] = True
        metrics = {"actor/pg_clipfrac": call.share(dropped), "actor/ppo_kl": -call.mean(log_ratio)}
    per_token = torch.maximum(unclipped, clipped) * (~dropped).to(unclipped.dtype)
    return call.loss(per_token, loss_agg_mode), metrics
