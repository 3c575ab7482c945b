"""GSPO as verl 0.8.0 and 0.9.0 had it: row means forced, whatever aggregation is configured."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.loss_terms import CLIP_METRICS, LossCall
from labs.losses.gspo import sequence_surrogate
from labs.properties import Extremes, LossProperties
from labs.registry import losses


@losses.entry(
    paper="Zheng et al. 2025, arXiv:2507.18071",
    properties=LossProperties(
        old_log_probs="row",
        aggregation="seq-mean-token-mean",
        stop_gradient=True,
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
    ),
    metrics=CLIP_METRICS,
)
def gspo_080(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """`gspo` aggregated by `seq-mean-token-mean` always; `loss_agg_mode` is accepted and ignored.

    Numbers recorded with verl up to 0.9.0 under another mode come from this loss, not from `gspo`.
    """
    call = LossCall("gspo_080", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    return sequence_surrogate(call, "seq-mean-token-mean")
