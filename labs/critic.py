"""The value loss: verl's clipped form, the critic's whole loss, and OpenRLHF's variant; and the table of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labs.actor_config import critic_settings, number
from labs.errors import InputError
from labs.masked import agg_loss, masked_mean
from labs.metrics import Metric

VALUE_METRICS = (
    Metric(name="critic/vf_loss", unit="reward^2", formula="the loss", low=0, text="Half the mean squared error."),
    Metric(
        name="critic/vf_clipfrac", unit="1", formula="mean over tokens of [clipped error > plain error]", low=0, high=1,
        healthy="under 0.3", text="Share of tokens whose value moved further than the clip range allows.",
    ),
    Metric(name="critic/vpred_mean", unit="reward", formula="mean over tokens of vpreds", text="Mean predicted value."),
)  # fmt: skip


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cliprange_value: float,
    loss_agg_mode: str = "token-mean",
    dp_size: int = 1,
    batch_num_tokens: float | Tensor | None = None,
    global_batch_size: float | Tensor | None = None,
    loss_scale_factor: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`0.5 agg(max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2))`, verl 0.9.1's.

    The clip takes the *larger* error, so a value that moved further than c from the old one gets no gradient unless
    it moved away from the return.

    Args:
        vpreds, returns, values, response_mask: `[B, T]`; `values` are the predictions at sampling time.
        cliprange_value: c, in units of the reward.
        loss_agg_mode, dp_size, batch_num_tokens, global_batch_size, loss_scale_factor: see `labs.masked.agg_loss`.

    Returns:
        `(vf_loss, vf_clipfrac)`, two scalars.

    Raises:
        InputError: shapes differ, a column is not floating point, c is negative, an unknown mode.
    """
    _same_shape("compute_value_loss", response_mask, vpreds=vpreds, returns=returns, values=values)
    number("compute_value_loss: cliprange_value", cliprange_value, low=0.0)
    clipped = torch.clamp(vpreds, values - cliprange_value, values + cliprange_value)
    plain_error, clipped_error = (vpreds - returns) ** 2, (clipped - returns) ** 2
    loss = 0.5 * agg_loss(
        torch.max(plain_error, clipped_error), response_mask, loss_agg_mode, dp_size, batch_num_tokens,
        global_batch_size, loss_scale_factor,
    )  # fmt: skip
    return loss, masked_mean((clipped_error > plain_error).float(), response_mask)


def value_loss(
    batch: Mapping[str, Any],
    vpreds: Tensor,
    config: Any = None,
    *,
    dp_size: int = 1,
    batch_num_tokens: float | Tensor | None = None,
    global_batch_size: float | Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The critic's loss on a batch with `response_mask`, `values` and `returns`: verl's `value_loss`.

    Args:
        vpreds: `[B, T]` predictions that carry the gradient.
        config: `labs.actor_config.CriticConfig`, a mapping, verl's own, or None.
        dp_size, batch_num_tokens, global_batch_size: denominators of the whole batch.

    Returns:
        The loss and `VALUE_METRICS`.
    """
    settings = critic_settings(config)
    mask = batch["response_mask"].to(torch.bool)
    loss, clipfrac = compute_value_loss(
        vpreds, batch["returns"], batch["values"], mask, settings.cliprange_value, settings.loss_agg_mode, dp_size,
        batch_num_tokens, global_batch_size, settings.loss_scale_factor,
    )  # fmt: skip
    return loss, {
        "critic/vf_loss": float(loss.detach()),
        "critic/vf_clipfrac": float(clipfrac),
        "critic/vpred_mean": float(masked_mean(vpreds.detach(), mask)),
    }


def openrlhf_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    action_mask: Tensor,
    clip_eps: float | None = None,
    token_level_loss: bool = True,
) -> Tensor:
    """OpenRLHF 0.11.2's `ValueLoss`: as `compute_value_loss`, with clipping off by default and no guard.

    `token_level_loss` false takes the mean of row means over the rows with a valid token. A batch without one is
    NaN, and so is a NaN outside the mask, because the mask multiplies.
    """
    _same_shape("openrlhf_value_loss", action_mask, values=values, old_values=old_values, returns=returns)
    error = (values - returns) ** 2
    if clip_eps is not None:
        moved = old_values + (values - old_values).clamp(-clip_eps, clip_eps)
        error = torch.max((moved - returns) ** 2, error)
    return 0.5 * agg_loss(error, action_mask, "token-mean" if token_level_loss else "seq-mean-token-mean")


def _same_shape(where: str, mask: Tensor, **columns: Tensor) -> None:
    for name, column in columns.items():
        if column.shape != mask.shape:
            raise InputError(f"{where}: {name} has shape {tuple(column.shape)}, the mask has {tuple(mask.shape)}")
        if not column.dtype.is_floating_point:
            raise InputError(f"{where}: {name} has dtype {column.dtype}; it must be floating point")


@dataclass(frozen=True)
class ValueTable:
    """The critic: one value for each (family, stage), the expected score from there on.

    Args:
        values: `[families, stages]` float, in units of the score.
    """

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not self.values.dtype.is_floating_point:
            raise InputError(
                f"the critic has shape {tuple(self.values.shape)} and dtype {self.values.dtype}; "
                "it must be floating point [families, stages]"
            )

    @classmethod
    def zeros(cls, families: int, stages: int, dtype: torch.dtype = torch.float64) -> ValueTable:
        """A critic that expects nothing."""
        return cls(torch.zeros(families, stages, dtype=dtype))

    def tokens(self, row_index: Tensor) -> Tensor:
        """The value of the row that chose each token, in the shape of `row_index`; 0 where it is -1."""
        flat = self.values.reshape(-1)[row_index.clamp(min=0)]
        return torch.where(row_index < 0, torch.zeros_like(flat), flat)
