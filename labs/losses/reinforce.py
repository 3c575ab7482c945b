"""Plain REINFORCE with optional importance weights: what verl's bypass mode calls, unregistered there."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.loss_terms import PPO_KL, LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    paper="Williams 1992",
    properties=LossProperties(
        old_log_probs="metrics",
        extremes=Extremes(good_up="bounded", good_down="bounded", bad_up="bounded", bad_down="bounded"),
    ),
    metrics=(PPO_KL,),
)
def reinforce(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Per token L = -A log_prob w; `old_log_prob` (verl calls it `rollout_log_prob` here) only feeds the metric.

    The default aggregation is `seq-mean-token-sum`: with row-constant advantages its gradient is the textbook
    estimator, one score function per trajectory. Metric: `actor/ppo_kl` of the unclamped log-ratio. Arguments,
    returns and errors as in `vanilla`.
    """
    call = LossCall("reinforce", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    return call.loss(-advantages * log_prob, loss_agg_mode), {"actor/ppo_kl": -call.mean(call.log_ratio(bound=None))}
