"""VESPO: REINFORCE weighted by a smooth function of the whole row's importance ratio."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.loss_terms import PPO_KL, LossCall
from labs.metrics import Metric
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from labs.surrogates import vespo_weight


@losses.entry(
    paper="arXiv:2602.10693; TRL 1.16 loss_type vespo",
    properties=LossProperties(
        old_log_probs="row",
        stop_gradient=True,
        extremes=Extremes(good_up="zero", good_down="zero", bad_up="zero", bad_down="zero"),
        is_weights="row",
    ),
    metrics=(PPO_KL, Metric(name="vespo/phi_mean", unit="1", formula="token mean of phi", low=0, healthy="near 1")),
)
def vespo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -phi(W) A log_prob, phi of `labs.surrogates.vespo_weight`, W the row's *product* of ratios.

    phi is 1 on policy and falls to 0 on both sides, so a stale row fades out instead of being clipped. Because W is a
    product, the same drift per token fades a long row sooner. `rollout_is_weights` enter W, not the loss; outside the
    mask they count as 1. Other arguments, returns and errors as in `vanilla`.
    """
    call = LossCall("vespo", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    log_ratio = call.log_ratio(bound=None)
    inside = None if call.weights is None else call.weights.where(call.valid, call.weights.new_tensor(1.0))
    phi = vespo_weight(advantages, log_ratio, call.mask, inside, k_pos, lambda_pos, k_neg, lambda_neg)
    call.weights = None
    metrics = {"actor/ppo_kl": -call.mean(log_ratio), "vespo/phi_mean": call.mean(phi)}
    return call.loss(-phi * advantages * log_prob, loss_agg_mode), metrics
