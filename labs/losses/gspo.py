"""GSPO: one importance ratio a row, the geometric mean of its tokens' ratios, as verl 0.9.1's `gspo`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall, clip_parts
from labs.properties import Extremes, LossProperties
from labs.registry import losses

#: The row ratio is capped at e^10.
LOG_CAP = 10.0


@losses.entry(
    verl="gspo",
    paper="Zheng et al. 2025, arXiv:2507.18071",
    properties=LossProperties(
        old_log_probs="row",
        stop_gradient=True,
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
    ),
    metrics=CLIP_METRICS,
)
def gspo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per token, with the row's mean log-ratio m_i = sum_t mask (log_prob - old_log_prob) / max(n_i, 1):

        s = exp(min(sg(m_i) + log_prob - sg(log_prob), 10)),  L = max(-A s, -A clip(s, 1 - low, 1 + high))

    The value is the row's ratio on every token; the gradient is that ratio on each token's own log-probability
    (GSPO-token). There is no dual clip: a bad row whose ratio explodes keeps its gradient. The paper clips at 3e-4
    and 4e-4; verl's defaults stay 0.2. Since 0.9.1 `loss_agg_mode` is obeyed; before, it was overridden
    (`gspo_080`). Trainers pass `actor.loss_agg_mode`, whose default token-mean is *not* the paper's objective.

    `actor/ppo_kl` uses the unclamped log-ratio; `actor/pg_clipfrac_lower` is 0. Arguments, returns and errors as in
    `vanilla`.
    """
    call = LossCall("gspo", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    return sequence_surrogate(call, loss_agg_mode)


def sequence_surrogate(call: LossCall, loss_agg_mode: str) -> tuple[Tensor, dict[str, float]]:
    """The formula of `gspo` under an explicit aggregation."""
    log_ratio = call.log_ratio(bound=None).detach()
    row_mean = (log_ratio * call.mask).sum(dim=-1) / call.mask.sum(dim=-1).clamp(min=1)
    # log_prob - sg(log_prob) is 0 in value and carries each token's own gradient.
    own = call.log_prob - call.log_prob.detach()
    ratio = (own + row_mean.unsqueeze(-1)).clamp(max=LOG_CAP).exp()
    unclipped, clipped = clip_parts(call, ratio)
    with torch.no_grad():
        metrics = {
            "actor/pg_clipfrac": call.share(clipped > unclipped),
            "actor/ppo_kl": -call.mean(log_ratio),
            "actor/pg_clipfrac_lower": 0.0,
        }
    return call.loss(torch.maximum(unclipped, clipped), loss_agg_mode), metrics
