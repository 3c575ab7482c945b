"""RLOO as TRL scores it: KL taken off the score, optional clip, leave-one-out, optional whitening.

    R_i = clip(sum_t r_it) - beta sum_t (old - ref) m      [B]; no clip by default, beta 0
    A_i = R_i - mean_{j != i} R_j                          over the scored rows of the group
    A_i = (A_i - mean) / (std + 1e-4)                      over the batch, std with n - 1; only if asked for
    A_it = A_i * m_it                                      [B, T]; `returns` is the same tensor

Group of one: 0. All-equal group: 0. All-masked row: 0, but its score counts in the others' baseline. A row whose score
is NaN gets 0 and leaves the baselines. Rewards on masked positions count in R.

Paper: arXiv:2402.14740. Source: TRL 1.16, `RLOOTrainer._generate_and_score_completions`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError
from labs.grouping import expect
from labs.properties import Properties
from labs.registry import estimators
from labs.trl import rloo_scores


@estimators.entry(
    needs=("index",),
    accepts_nan=True,
    paper="arXiv:2402.14740",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        group_of_one="zero",
        equal_group="zero",
        reward_on_masked=True,
        unbiased=True,
        bias="the baseline is independent of the row it is subtracted from; lone rows add nothing",
    ),
)
@torch.no_grad()
def trl_rloo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    reward_clip_range: tuple[float, float] | None = None,
    normalize_advantages: bool = False,
    beta: float = 0.0,
    old_log_probs: Tensor | None = None,
    ref_log_prob: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """TRL's leave-one-out advantages; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        reward_clip_range: bounds of the score, before the KL.
        normalize_advantages: whiten over the batch.
        beta: weight of the summed KL (k1) in the score.
        old_log_probs, ref_log_prob: [B, T] float, needed when beta is not 0.

    Raises:
        AssertedError: beta without the log-probabilities.
        ShapeError: columns of different batches, an empty batch.
    """
    expect(
        response_mask,
        token_level_rewards=token_level_rewards,
        ref_log_prob=ref_log_prob,
        **({} if old_log_probs is None else {"old_log_probs": old_log_probs}),  # type: ignore[arg-type]
    )
    scores = token_level_rewards.sum(dim=-1)
    if reward_clip_range is not None:
        scores = scores.clamp(*reward_clip_range)
    if beta != 0.0:
        if old_log_probs is None or ref_log_prob is None:
            raise AssertedError("trl_rloo with beta needs old_log_probs and ref_log_prob, the KL is their difference")
        scores = scores - beta * ((old_log_probs - ref_log_prob) * response_mask).sum(dim=-1)
    advantages = rloo_scores(scores, index, normalize_advantages).unsqueeze(-1) * response_mask
    return advantages, advantages
