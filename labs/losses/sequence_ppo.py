"""PPO on whole trajectories: one clipped ratio a row, the *product* of its tokens' ratios (TRL's RLOO loss)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.errors import InputError
from labs.loss_terms import LossCall, row_weight
from labs.metrics import Metric
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from labs.surrogates import pessimistic, row_mean

_CLIPPED = Metric(name="clip_ratio/region_mean", unit="1", formula="share of rows that the clip stops", low=0, high=1)


@losses.entry(
    paper="Ahmadian et al. 2024, arXiv:2402.14740; TRL 1.16 RLOOTrainer",
    properties=LossProperties(
        old_log_probs="row",
        aggregation="row-sum",
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
        all_masked="zero",
        is_weights="row",
    ),
    metrics=(_CLIPPED,),
)
def sequence_ppo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per row L_i = -min(R_i A_i, clip(R_i, 1 - low, 1 + high) A_i), R_i = exp(sum_t mask (log_prob - old_log_prob)).

    This is the importance ratio of the trajectory itself, unbiased and with a variance that grows exponentially in its
    length; the clip range that suits a token stops nearly every row. The loss is the mean over all B rows;
    `loss_agg_mode` is ignored. On policy the gradient of a token is -A_i / B, whatever the row's length.

    Args:
        old_log_prob: `[B, T]`, or `[B]` with each row's sum.
        advantages: `[B, T]` (their row mean counts), `[B, 1]` or `[B]`; by row, a row without a valid token has
            ratio 1 and adds -A_i / B to the value, though nothing to the gradient.
        config: its clip range is read.

    Raises:
        InputError: bad shapes.
    """
    summed = isinstance(old_log_prob, Tensor) and old_log_prob.ndim == 1
    call = LossCall(
        "sequence_ppo", None if summed else old_log_prob, log_prob, advantages, response_mask, config,
        rollout_is_weights, by_row=True,
    )  # fmt: skip
    low, high = call.settings.clip_bounds
    old = old_log_prob if summed else (call.old * call.mask).sum(1)
    if old is None or old.shape != log_prob.shape[:1]:
        raise InputError(f"sequence_ppo: old_log_prob has the wrong length for {log_prob.shape[0]} rows")
    ratio = ((log_prob * call.mask).sum(1) - old).exp()
    by_row = call.advantages
    advantage = by_row.squeeze(1) if by_row.shape[1] == 1 else row_mean(by_row, call.mask)
    per_row = pessimistic(ratio, advantage, low, high)
    if rollout_is_weights is not None:
        per_row = per_row * row_weight(rollout_is_weights, call.mask)
    stopped = ((ratio < 1 - low) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))
    return call.finite(per_row.mean()), {"clip_ratio/region_mean": float(stopped.float().mean())}
