"""KL-Cov: penalise the drift of the tokens whose advantage and log-probability covary most, as verl's `kl_cov`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError, InputError
from labs.loss_terms import PPO_KL, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="kl_cov",
    paper="Cui et al. 2025, arXiv:2505.22617",
    properties=LossProperties(
        extremes=Extremes(good_up="grows", good_down="vanishes", bad_up="grows", bad_down="vanishes")
    ),
    metrics=(
        replace(PPO_KL, formula="mean over tokens of |log_prob - old_log_prob|", low=0.0, text="Mean absolute drift."),
    ),
)
def kl_cov(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -A r, plus `ppo_kl_coef` |log_prob - old_log_prob| on the top tokens.

    The top tokens are the max(1, int(n `kl_cov_ratio`)) valid ones with the largest
    (A - mean A)(log_prob - mean log_prob). **There is no PPO clip at all and the log-ratio is not clamped**: an
    extreme ratio has an extreme gradient. `actor/ppo_kl` is the mean *absolute* log-ratio here. Arguments and
    returns as in `vanilla`.

    Raises:
        AssertionError: `kl_cov_ratio` of 0 or less.
        InputError: `kl_cov_ratio` over 1 (verl asks `topk` for more tokens than there are).
    """
    call = LossCall("kl_cov", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    chosen = call.settings.policy_loss
    fraction = 0.0002 if chosen.kl_cov_ratio is None else chosen.kl_cov_ratio
    coefficient = 1.0 if chosen.ppo_kl_coef is None else chosen.ppo_kl_coef
    if not fraction > 0:
        raise AssertedError(f"kl_cov: policy_loss.kl_cov_ratio is {fraction}; it must be over 0")
    if fraction > 1:
        raise InputError(f"kl_cov: policy_loss.kl_cov_ratio is {fraction}; it is a fraction of the tokens, at most 1")
    log_ratio = call.log_ratio(bound=None)
    per_token = -advantages * log_ratio.exp()
    with torch.no_grad():
        valid = call.valid.reshape(-1).nonzero().squeeze(-1)
        penalised = torch.zeros_like(call.valid)
        if len(valid) > 0:
            good, likely = advantages.reshape(-1)[valid], log_prob.reshape(-1)[valid]
            covariance = (good - good.mean()) * (likely - likely.mean())
            top = covariance.topk(max(1, int(len(valid) * fraction))).indices
            penalised.view(-1)[valid[top]] = True
        metrics = {"actor/ppo_kl": call.mean(log_ratio.abs())}
    per_token = torch.where(penalised, per_token + coefficient * log_ratio.abs(), per_token)
    return call.loss(per_token, loss_agg_mode), metrics
