"""TRL's GMPO: the geometric-mean objective with wide clips in log space, and its options."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.loss_terms import LossCall, row_weight
from labs.losses.trl_grpo import TRL_METRICS
from labs.masks.high_entropy import keep_high_entropy
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from labs.surrogates import clip_shares, k3, row_mean, token_share


@losses.entry(
    paper="Zhao et al. 2025, arXiv:2507.20673; TRL 1.16 GMPOTrainer",
    properties=LossProperties(
        old_log_probs="row",
        aggregation="row-mean",
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
        all_masked="zero",
        is_weights="row",
    ),
    metrics=TRL_METRICS[:7],
)
def gmpo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    epsilon: float = 0.4,
    epsilon_high: float | None = None,
    beta: float = 0.0,
    ref_log_prob: Tensor | None = None,
    entropy: Tensor | None = None,
    top_entropy_quantile: float = 1.0,
    gradient_accumulation_steps: int = 1,
) -> tuple[Tensor, dict[str, float]]:
    r"""Per row, with d = log_prob - old_log_prob and n the tokens of the mask:

        c_t = min(d, epsilon_high) where A > 0, max(d, -epsilon) elsewhere
        L_i = -A_i exp(sum c mask / max(n, 1)) + beta mean_t k3,   loss = mean of L_i over all B rows

    Differs from verl's `geo_mean` in epsilon (0.4), in the count (clamped to 1, not padded with 1e-8), and in the
    options: the entropy mask drops tokens from the geometric mean but not from the KL. A_i is the row's mean
    advantage, which is meant to be constant. A row without a valid token keeps L_i = -A_i 1 in the mean (no gradient)
    when advantages come as `[B]`; as `[B, T]` it counts 0. `loss_agg_mode` and `config` are ignored.

    Args:
        advantages: `[B, T]`, `[B, 1]` or `[B]`.
        entropy: `[B, T]`, needed when `top_entropy_quantile` is under 1.

    Raises:
        InputError: bad shapes, or a column that an option needs is missing.
    """
    call = LossCall("gmpo", old_log_prob, log_prob, advantages, response_mask, None, rollout_is_weights, by_row=True)
    by_row, mask = call.advantages, call.mask
    low, high = epsilon, epsilon if epsilon_high is None else epsilon_high
    log_ratio = call.log_ratio(bound=None)
    clamped = log_ratio.clamp(-low, high)
    one_sided = torch.where(by_row > 0, torch.minimum(log_ratio, clamped), torch.maximum(log_ratio, clamped))
    acting = mask
    if top_entropy_quantile < 1.0:
        acting = mask * keep_high_entropy(call.needs("entropy", entropy), mask, 1 - top_entropy_quantile)
    advantage = by_row.squeeze(1) if by_row.shape[1] == 1 else row_mean(by_row, mask)
    per_row = -row_mean(one_sided, acting).exp() * advantage
    if rollout_is_weights is not None:
        per_row = per_row * row_weight(rollout_is_weights, mask)
    metrics = clip_shares((log_ratio < -low) & (by_row < 0), (log_ratio > high) & (by_row > 0), mask)
    if beta != 0.0:
        divergence = k3(log_prob, call.needs("ref_log_prob", ref_log_prob))
        per_row = per_row + beta * row_mean(divergence, mask)
        metrics["kl"] = token_share(divergence, mask)
    if entropy is not None:
        metrics["entropy"] = token_share(call.needs("entropy", entropy), mask)
    return call.finite(per_row.mean() / gradient_accumulation_steps), metrics
