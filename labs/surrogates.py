"""Pieces that the policy losses of other libraries share: ratios by row, bounds, gates, and their logged shares.

Written in TRL 1.16's order of operations, which differs from verl's in three habits: no log-ratio is clamped, counts
are clamped to 1 instead of padded with 1e-8, and the mask multiplies (a NaN outside it is not kept out).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """`[B]`: mean over the mask in each row; a row without a valid token gives 0."""
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1.0)


def pessimistic(ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float | None = None) -> Tensor:
    """`-min(min(r, delta) A, clip(r, 1 - low, 1 + high) A)`: PPO's surrogate, with the two-sided bound `delta`.

    For A < 0 PPO leaves r without a bound from above; `delta` gives it one, beyond which the gradient stops.
    """
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return -torch.min(bounded * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def k3(log_prob: Tensor, ref_log_prob: Tensor) -> Tensor:
    """`exp(d) - d - 1` with d = ref - log_prob, without the caps of `labs.kl`."""
    difference = ref_log_prob - log_prob
    return difference.exp() - difference - 1


@torch.no_grad()
def vespo_weight(
    advantages: Tensor,
    log_ratio: Tensor,
    mask: Tensor,
    importance_sampling_ratio: Tensor | None = None,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
) -> Tensor:
    """VESPO's weight `phi(W) = exp(lambda + k log W - lambda W)`, a constant, 1 at W = 1 and 0 at both ends.

    W is the product over the row of the token ratios (each log-ratio clamped to +-20), times all importance ratios of
    the row; log W is clamped to [log 1e-8, 20]. `(k, lambda)` are the `pos` pair where A >= 0, else the `neg` pair.
    Masked positions of `importance_sampling_ratio` are *not* left out, as in TRL: they must hold 1.

    Args:
        advantages: `[B, 1]` or `[B, T]`; the weight has its shape.
        log_ratio, mask: `[B, T]`.
        importance_sampling_ratio: `[B, T]`, `[B, 1]` or None.
    """
    lowest = math.log(1e-8)
    log_weight = (log_ratio.clamp(-20.0, 20.0) * mask).sum(dim=-1, keepdim=True)
    if importance_sampling_ratio is not None:
        log_weight = log_weight + importance_sampling_ratio.log().clamp(lowest, 20.0).sum(dim=-1, keepdim=True)
    log_weight = log_weight.clamp(lowest, 20.0)
    good = advantages >= 0
    k = torch.where(good, advantages.new_tensor(k_pos), advantages.new_tensor(k_neg))
    lam = torch.where(good, advantages.new_tensor(lambda_pos), advantages.new_tensor(lambda_neg)).clamp(min=1e-4)
    phi = (lam + k * log_weight - lam * log_weight.exp()).exp()
    return phi.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def token_share(values: Tensor, mask: Tensor) -> float:
    """Mean over the mask (count at least 1) of `[B, T]` values, or over the rows of `[B, 1]` values."""
    values = values.detach()
    if values.shape[1] == 1:
        return float(values.sum() / float(values.shape[0]))
    return float((values * mask).sum() / mask.sum().float().clamp(min=1.0))


def clip_shares(low_clipped: Tensor, high_clipped: Tensor, mask: Tensor) -> dict[str, float]:
    """TRL's five `clip_ratio/*` metrics.

    The smallest and largest row shares skip rows without a valid token, and are NaN when no row has one.
    """

    def rows(event: Tensor) -> Tensor:
        share = event.float().squeeze(1) if event.shape[1] == 1 else (event.float() * mask).sum(-1) / mask.sum(-1)
        return share[~share.isnan()]

    low, high = rows(low_clipped), rows(high_clipped)
    return {
        "clip_ratio/low_mean": token_share(low_clipped.float(), mask),
        "clip_ratio/high_mean": token_share(high_clipped.float(), mask),
        "clip_ratio/region_mean": token_share((low_clipped | high_clipped).float(), mask),
        "clip_ratio/low_min": float(low.min()) if low.numel() else math.nan,
        "clip_ratio/high_max": float(high.max()) if high.numel() else math.nan,
    }
