"""Bypass mode: correct for the rollout policy inside the loss, as verl's `bypass_mode`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.correction import METRICS, compute_rollout_correction_and_rejection_mask
from labs.errors import InputError, one_of
from labs.loss_terms import CLIP_METRICS, LossCall
from labs.losses.reinforce import reinforce
from labs.losses.vanilla import vanilla
from labs.properties import Extremes, LossProperties
from labs.registry import losses, opt

LOSS_TYPES = ("ppo_clip", "reinforce")


@losses.entry(
    verl="bypass_mode",
    paper="verl 0.9.1, rollout correction",
    properties=LossProperties(
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="zero", bad_down="zero"),
        all_masked="raises",
        is_weights="ignored",
    ),
    metrics=(*CLIP_METRICS, *METRICS),
)
def bypass_mode(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Treat `old_log_prob` as the *rollout* policy's, reject and weight against the current policy, then the loss.

    `policy_loss.rollout_correction` holds `loss_type` and the arguments of
    `labs.correction.compute_rollout_correction_and_rejection_mask` (verl's dataclass default weights whole rows up
    to 2). Rejection shrinks the mask of numerator and local denominator. Then

    * `ppo_clip` (default): `vanilla` on the remaining mask, *without* the weights, whose ratio is already in it;
    * `reinforce`: `reinforce` on the remaining mask, with the weights, held constant.

    A weight passed as `rollout_is_weights` is ignored. The metrics are those of the inner loss and `rollout_corr/*`.

    In verl the trainer's `algorithm.rollout_correction.bypass_mode` alone does not select this loss:
    `actor.policy_loss.loss_mode=bypass_mode` must be set too, else the corrections are silently inert.

    Raises:
        InputError: no valid token, an unknown `loss_type`, no `rollout_correction` block.
    """
    call = LossCall("bypass_mode", old_log_prob, log_prob, advantages, response_mask, config)
    block = call.settings.policy_loss.rollout_correction
    if block is None:
        raise InputError("bypass_mode: policy_loss.rollout_correction is null; it holds what to weight and to reject")
    loss_type = opt(block, "loss_type", "ppo_clip")
    with torch.no_grad():
        weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
            old_log_prob=log_prob,
            rollout_log_prob=call.old,
            response_mask=response_mask,
            rollout_is=opt(block, "rollout_is"),
            rollout_is_threshold=opt(block, "rollout_is_threshold", 2.0),
            rollout_is_batch_normalize=opt(block, "rollout_is_batch_normalize", False),
            rollout_rs=opt(block, "rollout_rs"),
            rollout_rs_threshold=opt(block, "rollout_rs_threshold"),
        )
    if loss_type == "reinforce":
        loss, inner = reinforce(call.old, log_prob, advantages, mask, loss_agg_mode, call.settings, weights)
    elif loss_type == "ppo_clip":
        loss, inner = vanilla(call.old, log_prob, advantages, mask, loss_agg_mode, call.settings)
    else:
        raise one_of("policy_loss.rollout_correction.loss_type", loss_type, LOSS_TYPES)
    return loss, {**inner, **metrics}
