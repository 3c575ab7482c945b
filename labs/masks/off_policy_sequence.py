"""Drop bad rows that the policy has already left: the off-policy sequence mask of DeepSeek-V3.2.

Learning from a success stays useful however old it is; pushing down a failure that the policy would no longer produce
only distorts it. Hence the asymmetry: rows with a non-negative advantage always stay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labs.errors import InputError
from labs.registry import masks


@masks.entry(
    needs=("advantages", "log_prob", "rollout_log_probs"),
    level="row",
    paper="DeepSeek-V3.2 2025, arXiv:2512.02556; TRL 1.16 off_policy_mask_threshold",
)
def off_policy_sequence(
    *,
    response_mask: Tensor,
    advantages: Tensor,
    log_prob: Tensor,
    rollout_log_probs: Tensor,
    threshold: float = 0.5,
) -> Tensor:
    """`response_mask` without the tokens of negative advantage in rows whose mean drift exceeds `threshold`.

    With an advantage per row this removes whole rows; with one per token, a row keeps its non-negative tokens.

    Args:
        response_mask, advantages, log_prob, rollout_log_probs: `[B, T]` (advantages also `[B]`).
        threshold: in nats per token, of the row mean of rollout_log_probs - log_prob.

    Returns:
        `[B, T]` in the dtype of `response_mask`.
    """
    if advantages.ndim == 1:
        advantages = advantages.unsqueeze(-1)
    keep = keep_on_policy(advantages, log_prob, rollout_log_probs, response_mask, threshold)
    return response_mask * keep


def keep_on_policy(
    advantages: Tensor, log_prob: Tensor, rollout_log_probs: Tensor, mask: Tensor, threshold: float
) -> Tensor:
    """1 where A >= 0 or the row's mean of rollout_log_probs - log_prob is at most `threshold`; TRL's numbers.

    A NaN rollout log-probability (a token the engine could not score) counts as no drift. The result has the shape of
    `advantages` (`[B, 1]` or `[B, T]`) and the dtype of `mask`.
    """
    if not log_prob.shape == rollout_log_probs.shape == mask.shape or advantages.shape[:1] != mask.shape[:1]:
        raise InputError(
            f"off_policy_sequence: shapes of log_prob {tuple(log_prob.shape)}, rollout_log_probs "
            f"{tuple(rollout_log_probs.shape)}, mask {tuple(mask.shape)}, advantages {tuple(advantages.shape)} disagree"
        )
    drift = torch.nan_to_num(rollout_log_probs - log_prob.detach(), nan=0.0)
    row_mean = (drift * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1.0)
    return ((advantages >= 0) | (row_mean <= threshold)).to(mask.dtype)
