"""GPG's loss: minus advantage times log-probability, no ratio at all, as verl's `gpg`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.loss_terms import LossCall
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    verl="gpg",
    paper="Chu et al. 2025, arXiv:2504.02546",
    properties=LossProperties(
        old_log_probs="unused",
        extremes=Extremes(good_up="bounded", good_down="bounded", bad_up="bounded", bad_down="bounded"),
    ),
    metrics=(),
)
def gpg(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Per token L = -A log_prob; the old log-probabilities play no part and no metric is logged.

    Several epochs over one batch are therefore off policy without any correction. Arguments, returns and errors as
    in `vanilla`.
    """
    call = LossCall("gpg", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    return call.loss(-log_prob * advantages, loss_agg_mode), {}
