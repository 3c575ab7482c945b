"""DRO: REINFORCE with a quadratic penalty on the log-ratio, as verl's `dro`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.errors import InputError
from labs.loss_terms import PPO_KL, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="dro",
    paper="Richemond et al. 2024, arXiv:2405.19107",
    properties=LossProperties(
        extremes=Extremes(good_up="bounded", good_down="bounded", bad_up="bounded", bad_down="bounded"),
        needs_config=("policy_loss.dro_beta",),
    ),
    metrics=(PPO_KL,),
)
def dro(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token L = -(A log_prob - beta / 2 (log_prob - old_log_prob)^2) with beta = `policy_loss.dro_beta`.

    The pull back grows linearly with the log-ratio and never saturates; nothing is clamped. Arguments and returns as
    in `vanilla`; the only metric is `actor/ppo_kl`.

    Raises:
        InputError: `dro_beta` is null, zero or negative (it has no default).
    """
    call = LossCall("dro", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    beta = call.settings.policy_loss.dro_beta
    if beta is None or not beta > 0:
        raise InputError(f"dro: policy_loss.dro_beta is {beta!r}; it must be a number over 0")
    log_ratio = call.log_ratio(bound=None)
    per_token = -(log_prob * advantages - 0.5 * beta * log_ratio.square())
    return call.loss(per_token, loss_agg_mode), {"actor/ppo_kl": -call.mean(log_ratio)}
