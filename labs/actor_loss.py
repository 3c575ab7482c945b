"""The whole actor loss: policy loss minus entropy bonus plus KL to the reference, in verl's order.

    loss = losses[loss_mode](...) - entropy_coeff agg(entropy) + kl_loss_coef agg(kl(log_prob, ref_log_prob))

The three terms share the mask, the aggregation mode and the denominators. `compute_policy_loss` and
`get_policy_loss_fn` are verl's other names around the policy losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labs.actor_config import actor_settings
from labs.errors import InputError, InputTypeError
from labs.kl import kl_penalty
from labs.loss_terms import LossCall
from labs.losses.vanilla import clipped_surrogate
from labs.masked import agg_loss
from labs.metrics import Metric
from labs.registry import losses

ACTOR_METRICS = (
    Metric(name="actor/pg_loss", unit="1", formula="the policy loss alone", text="Excludes entropy and KL."),
    Metric(name="actor/entropy_loss", unit="nat", formula="agg(entropy)", low=0, text="Mean entropy of the policy."),
    Metric(name="kl_loss", unit="nat", formula="agg(kl estimate)", text="KL to the reference, before its coefficient."),
    Metric(name="kl_coef", unit="1", formula="kl_loss_coef", text="Weight of the KL in the loss."),
)


def ppo_loss(
    batch: Mapping[str, Any],
    log_prob: Tensor,
    config: Any = None,
    *,
    entropy: Tensor | None = None,
    dp_size: int = 1,
    batch_num_tokens: float | Tensor | None = None,
    global_batch_size: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The actor's loss on a batch, as verl's `ppo_loss` computes it from padded columns.

    Args:
        batch: `response_mask`, `old_log_probs`, `advantages`; `rollout_is_weights` if the loss is to be weighted;
            `ref_log_prob` if `use_kl_loss`.
        log_prob: `[B, T]`, carries the gradient.
        config: see `labs.actor_config.actor_settings`; `policy_loss.loss_mode` names the loss and
            `policy_loss.options` are passed to it by keyword.
        entropy: `[B, T]` in nats. When given it is logged even if `entropy_coeff` is 0.
        dp_size, batch_num_tokens, global_batch_size: denominators of the whole batch. verl takes the token count
            from `loss_mask`, so rejected tokens shrink the numerator and not the denominator.

    Returns:
        The loss, and the metrics of the policy loss and `ACTOR_METRICS` (verl's names: `kl_loss` and `kl_coef` carry
        no prefix here).

    Raises:
        InputError: a missing column, an unknown loss, bad shapes.
    """
    settings = actor_settings(config)
    info: dict[str, Any] = {
        "dp_size": dp_size,
        "batch_num_tokens": batch_num_tokens,
        "global_batch_size": global_batch_size,
        "loss_scale_factor": settings.loss_scale_factor,
    }
    settings = replace(settings, global_batch_info=info)
    mask = _column(batch, "response_mask").to(torch.bool)
    mode = settings.loss_agg_mode
    loss, metrics = losses[settings.policy_loss.loss_mode](
        old_log_prob=_column(batch, "old_log_probs"),
        log_prob=log_prob,
        advantages=_column(batch, "advantages"),
        response_mask=mask,
        loss_agg_mode=mode,
        config=settings,
        rollout_is_weights=batch.get("rollout_is_weights"),
        **settings.policy_loss.options,
    )
    metrics = {**metrics, "actor/pg_loss": float(loss.detach())}
    if entropy is not None:
        bonus = agg_loss(_like("entropy", entropy, mask), mask, mode, **info)
        loss = loss - settings.entropy_coeff * bonus
        metrics["actor/entropy_loss"] = float(bonus.detach())
    if settings.use_kl_loss:
        reference = _like("ref_log_prob", _column(batch, "ref_log_prob"), mask)
        divergence = agg_loss(kl_penalty(log_prob, reference, settings.kl_loss_type), mask, mode, **info)
        loss = loss + divergence * settings.kl_loss_coef
        metrics |= {"kl_loss": float(divergence.detach()), "kl_coef": settings.kl_loss_coef}
    return loss, metrics


def get_policy_loss_fn(name: str) -> Callable[..., tuple[Tensor, dict[str, float]]]:
    """The policy loss with this name (verl's look-up); a miss raises `InputError` with close names."""
    return losses[name]  # type: ignore[no-any-return]


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    cliprange: float | None = None,
    cliprange_low: float | None = None,
    cliprange_high: float | None = None,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: str = "token-mean",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`vanilla` with explicit bounds and local denominators: verl's deprecated `compute_policy_loss`.

    Returns:
        `(pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower)`, four scalars.

    Raises:
        TypeError: `cliprange` is None and one of the two sides is too.
        AssertionError: `clip_ratio_c` of 1 or less.
    """
    low = cliprange if cliprange_low is None else cliprange_low
    high = cliprange if cliprange_high is None else cliprange_high
    if low is None or high is None:
        raise InputTypeError("compute_policy_loss: give cliprange, or both cliprange_low and cliprange_high")
    call = LossCall("compute_policy_loss", old_log_prob, log_prob, advantages, response_mask)
    loss, metrics = clipped_surrogate(call, low, high, clip_ratio_c, loss_agg_mode)
    numbers = [log_prob.new_tensor(metrics[f"actor/{name}"]) for name in ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")]
    return loss, numbers[0], numbers[1], numbers[2]


def _column(batch: Mapping[str, Any], name: str) -> Tensor:
    if name not in batch:
        raise InputError(f"the actor loss needs the column {name}; the batch has {', '.join(sorted(batch))}")
    return batch[name]  # type: ignore[no-any-return]


def _like(name: str, column: Tensor, mask: Tensor) -> Tensor:
    if column.shape != mask.shape:
        raise InputError(
            f"the actor loss: {name} has shape {tuple(column.shape)}, response_mask has {tuple(mask.shape)}"
        )
    return column
