"""OpenRLHF 0.11's policy loss: PPO or GSPO, dual clip on demand, and a gate against rollout mismatch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import AssertedError, InputError, one_of
from labs.loss_terms import LossCall
from labs.metrics import Metric
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from labs.surrogates import row_mean

_CHOICES = {
    "policy_loss_type": ("ppo", "gspo"),
    "is_correction_level": ("off", "token", "seq"),
    "is_correction_mode": ("mask", "clip"),
    "is_correction_gating": ("ratio", "binary_kl", "tv"),
}


@losses.entry(
    paper="OpenRLHF 0.11.2 PolicyLoss",
    properties=LossProperties(extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero")),
    metrics=(
        Metric(name="clip_ratio", unit="1", formula="share of tokens where the clipped side is smaller", low=0, high=1),
        Metric(name="ppo_kl", unit="nat", formula="token mean of old_log_prob - log_prob"),
        Metric(name="vllm_kl", unit="nat", formula="token mean of rollout_log_probs - old_log_prob"),
        Metric(name="is_filter_ratio", unit="1", formula="share of tokens or rows out of the gate", low=0, high=1),
    ),
)
def openrlhf_ppo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    dual_clip: float | None = None,
    policy_loss_type: str = "ppo",
    is_correction_level: str = "off",
    is_correction_mode: str = "mask",
    is_correction_gating: str = "ratio",
    is_correction_threshold: tuple[float, float] = (0.5, 5.0),
    rollout_log_probs: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    r"""`PolicyLoss`: -min(r A, clip(r) A), for A < 0 bounded by -`dual_clip` A, times the weight of the gate.

    r is exp(clip(log-ratio, +-20)) per token (`ppo`), or exp of the row's mean log-ratio times the mask (`gspo`, which
    carries the full gradient and forces row means).

    The gate (only with `ppo`) looks at pi_old / pi_rollout, its row's geometric mean (`seq`), or a divergence of the
    sampled token (`binary_kl`, `tv`; probabilities clamped to [1e-6, 1 - 1e-6]; its row mean for `seq`). Inside
    [low, high] the token keeps its raw weight pi_old / pi_rollout, outside `mask` gives 0 and `clip` the bound.

    Args:
        loss_agg_mode: OpenRLHF's `token_level_loss` True and False are `token-mean` and `seq-mean-token-mean`.
        config: its clip range and `global_batch_info` are read; `clip_ratio_c` is not (`dual_clip` is off by default).
        rollout_log_probs: `[B, T]`, needed unless the level is `off`.

    A batch without a valid token is NaN. Returns the loss and `clip_ratio`, `ppo_kl` and, with a gate, `vllm_kl` and
    `is_filter_ratio`.

    Raises:
        AssertionError: `dual_clip` of 1 or less.
        InputError: an unknown choice; `clip` at row level or of a divergence; a lower bound over 0 on a divergence.
    """
    given = {
        "policy_loss_type": policy_loss_type,
        "is_correction_level": is_correction_level,
        "is_correction_mode": is_correction_mode,
        "is_correction_gating": is_correction_gating,
    }
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise one_of(f"openrlhf_ppo: {name}", value, _CHOICES[name])
    if dual_clip is not None and not dual_clip > 1.0:
        raise AssertedError(f"openrlhf_ppo: dual_clip is {dual_clip}; it must be over 1")
    gated, by_row = is_correction_level != "off", is_correction_level == "seq"
    if is_correction_mode == "clip" and (by_row or is_correction_gating != "ratio"):
        raise InputError(
            "openrlhf_ppo: mode clip needs level token and gating ratio, the only weight that can be clamped"
        )
    if is_correction_gating != "ratio" and gated and is_correction_threshold[0] > 0:
        raise InputError("openrlhf_ppo: a divergence is bounded from above only; the lower threshold must be 0")
    call = LossCall("openrlhf_ppo", old_log_prob, log_prob, advantages, response_mask, config, rollout_is_weights)
    rollout = call.needs("rollout_log_probs", rollout_log_probs) if gated else call.old
    low, high = call.settings.clip_bounds
    if policy_loss_type == "ppo":
        ratio = call.log_ratio().exp()
    else:
        ratio = row_mean(log_prob - rollout, call.mask).exp().unsqueeze(-1) * call.mask
    plain, clipped = ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages
    gain = torch.min(plain, clipped)
    if dual_clip is not None:
        gain = torch.where(advantages < 0, torch.max(gain, dual_clip * advantages), gain)
    with torch.no_grad():
        metrics = {
            "clip_ratio": _mean((clipped < plain).to(gain.dtype), call.mask),
            "ppo_kl": _mean(call.old - log_prob, call.mask),
        }
    per_token = -gain
    if gated and policy_loss_type == "ppo":
        weight, outside = _gate(
            call, rollout, is_correction_gating, by_row, is_correction_mode == "clip", is_correction_threshold
        )
        per_token = weight * per_token
        filtered = outside.to(gain.dtype)
        metrics |= {
            "vllm_kl": _mean(rollout - call.old, call.mask),
            "is_filter_ratio": float(filtered.mean()) if by_row else _mean(filtered, call.mask),
        }
    return call.loss(per_token, "seq-mean-token-mean" if policy_loss_type == "gspo" else loss_agg_mode), metrics


@torch.no_grad()
def _gate(
    call: LossCall, rollout: Tensor, gating: str, by_row: bool, clip: bool, threshold: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    low, high = threshold
    log_ratio = call.old - rollout

    def unit(values: Tensor) -> Tensor:
        return (values * call.mask).sum(-1, keepdim=True) / call.mask.sum(-1, keepdim=True) if by_row else values

    if gating == "ratio":
        statistic = unit(log_ratio).exp()
    else:
        p, q = (column.exp().clamp(1e-6, 1 - 1e-6) for column in (rollout, call.old))
        binary = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        statistic = unit(binary if gating == "binary_kl" else (p - q).abs())
    inside = (statistic >= low) & (statistic <= high)
    if clip:
        return statistic.clamp(low, high), ~inside
    return torch.where(inside, log_ratio.exp(), 0.0), ~inside


def _mean(values: Tensor, mask: Tensor) -> float:
    return float((values.detach() * mask).sum() / mask.sum())
