"""What every policy loss shares: its checked inputs, ratios, means over the mask, and the aggregation.

A loss of `labs.losses` is a matrix `[B, T]` of per-token losses and a rule that turns it into a number. `LossCall`
holds one call: it refuses bad input with a sentence, counts the mask once for all metrics, and aggregates. Nothing
here differs from verl 0.9.1 in value; verl's per-metric repetition of the masking is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.actor_config import ActorConfig, actor_settings
from labs.errors import InputError
from labs.masked import agg_loss
from labs.metrics import Metric

#: verl clamps log-ratios to this many nats before it exponentiates; beyond it a token has ratio e^20 and no gradient.
LOG_RATIO_BOUND = 20.0

PG_CLIPFRAC = Metric(
    name="actor/pg_clipfrac", unit="1", formula="mean over tokens of [the clip made the loss larger]", low=0, high=1,
    healthy="under 0.3", text="Share of tokens whose ratio left the clip range on the side that stops the gradient.",
)  # fmt: skip
PG_CLIPFRAC_LOWER = Metric(
    name="actor/pg_clipfrac_lower", unit="1", formula="mean over tokens of [advantage < 0 and the second bound acts]",
    low=0, high=1, healthy="near 0",
    text="Share of tokens that the bound against exploding ratios at a negative advantage cuts off.",
)  # fmt: skip
PPO_KL = Metric(
    name="actor/ppo_kl", unit="nat", formula="mean over tokens of old_log_prob - log_prob", healthy="under 0.1",
    text="First-order estimate of KL(old, current); its sign can be negative on a finite batch.",
)  # fmt: skip
CLIP_METRICS = (PG_CLIPFRAC, PPO_KL, PG_CLIPFRAC_LOWER)


class LossCall:
    """One call of a policy loss.

    Args:
        name: of the loss, for messages.
        old_log_prob: `[B, T]`, or None for "the policy that sampled is the current one" (every ratio is 1).
        log_prob, advantages: `[B, T]` floating point.
        response_mask: `[B, T]` bool, integer or float.
        config: see `labs.actor_config.actor_settings`.
        rollout_is_weights: `[B, T]` or None; multiplied into the per-token loss after any clipping.
        by_row: advantages may also be `[B]`, and they and the weights `[B, 1]`, as TRL has them.

    Raises:
        InputError: a missing, empty or integer column, or shapes that differ.
    """

    def __init__(
        self,
        name: str,
        old_log_prob: Tensor | None,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
        *,
        by_row: bool = False,
    ) -> None:
        self.name = name
        self.settings: ActorConfig = actor_settings(config)
        shape = _floating(name, "log_prob", log_prob).shape
        if len(shape) != 2 or 0 in shape:
            raise InputError(
                f"{name}: log_prob has shape {tuple(shape)}; a loss takes [B, T] with at least one row and token"
            )
        self.old = log_prob.detach() if old_log_prob is None else _floating(name, "old_log_prob", old_log_prob, shape)
        self.log_prob = log_prob
        if by_row and isinstance(advantages, Tensor) and advantages.ndim == 1:
            advantages = advantages.unsqueeze(1)
        self.advantages = _floating(name, "advantages", advantages, shape, by_row)
        self.mask = _shaped(name, "response_mask", response_mask, shape)
        self.weights = rollout_is_weights
        if rollout_is_weights is not None:
            _floating(name, "rollout_is_weights", rollout_is_weights, shape, by_row)
        self.valid = self.mask if self.mask.dtype is torch.bool else self.mask.bool()
        self.tokens = self.mask.sum()

    def needs(self, column: str, value: Tensor | None) -> Tensor:
        """An optional `[B, T]` column that the chosen options make necessary."""
        if value is None:
            raise InputError(f"{self.name}: {column} is missing; these options need it as {tuple(self.mask.shape)}")
        return _shaped(self.name, column, value, self.mask.shape)

    def log_ratio(self, bound: float | None = LOG_RATIO_BOUND) -> Tensor:
        """`log_prob - old_log_prob`, clamped to `+-bound` (which also stops the gradient there)."""
        difference = self.log_prob - self.old
        return difference if bound is None else difference.clamp(-bound, bound)

    def mean(self, values: Tensor) -> float:
        """Mean over the mask, `sum / (count + 1e-8)`, as a number; what lies outside the mask cannot reach it."""
        inside = torch.where(self.valid, values.detach(), 0.0)
        if self.mask.dtype is not torch.bool:
            inside = inside * self.mask
        return float(inside.sum() / (self.tokens + 1e-8))

    def share(self, event: Tensor) -> float:
        """Share of the mask on which the boolean `event` is true."""
        counted = event & self.mask if self.mask.dtype is torch.bool else torch.where(event, self.mask, 0)
        return float(counted.sum() / (self.tokens + 1e-8))

    def loss(self, per_token: Tensor, loss_agg_mode: str) -> Tensor:
        """Weight the per-token losses and aggregate them with the denominators of `global_batch_info`."""
        if self.weights is not None:
            per_token = per_token * self.weights
        return self.finite(agg_loss(per_token, self.mask, loss_agg_mode, **self.settings.global_batch_info))

    def finite(self, loss: Tensor) -> Tensor:
        """`loss`, unless it is NaN because a valid token of an input is: that is refused with its place.

        NaN outside the mask, and the 0/0 of a batch without a valid token, pass as in verl.
        """
        if not bool(loss.detach().isnan()):
            return loss
        columns = {"log_prob": self.log_prob, "old_log_prob": self.old, "advantages": self.advantages}
        for name, column in {**columns, "rollout_is_weights": self.weights}.items():
            wrong = torch.zeros_like(self.valid) if column is None else ~column.detach().isfinite() & self.valid
            if column is not None and bool(wrong.any()):
                row, token = wrong.nonzero()[0].tolist()
                value = float(column.expand_as(self.mask)[row, token])
                raise InputError(
                    f"{self.name}: {name} is {value} at row {row}, token {token}, where response_mask is 1; "
                    "it must be finite there"
                )
        return loss


def _shaped(name: str, column: str, value: Any, shape: torch.Size | None = None, by_row: bool = False) -> Tensor:
    if not isinstance(value, Tensor):
        raise InputError(f"{name}: {column} is {type(value).__name__}; a loss takes a torch tensor [B, T]")
    if shape is not None and value.shape != shape and not (by_row and value.shape == (shape[0], 1)):
        raise InputError(
            f"{name}: {column} has shape {tuple(value.shape)}, log_prob has {tuple(shape)}; they must agree"
        )
    return value


def _floating(name: str, column: str, value: Any, shape: torch.Size | None = None, by_row: bool = False) -> Tensor:
    if not _shaped(name, column, value, shape, by_row).dtype.is_floating_point:
        raise InputError(f"{name}: {column} has dtype {value.dtype}; it must be floating point")
    return value  # type: ignore[no-any-return]


def clip_parts(call: LossCall, ratio: Tensor) -> tuple[Tensor, Tensor]:
    """`(-A * ratio, -A * clip(ratio, 1 - low, 1 + high))`, the two sides that PPO takes the larger of."""
    low, high = call.settings.clip_bounds
    return -call.advantages * ratio, -call.advantages * ratio.clamp(1 - low, 1 + high)


def row_weight(weights: Tensor, mask: Tensor) -> Tensor:
    """`[B]`: geometric mean of the token weights, `exp(sum log(w + 1e-10) mask / (n + 1e-8))`, as verl has it."""
    return ((torch.log(weights + 1e-10) * mask).sum(dim=-1) / (mask.sum(dim=-1) + 1e-8)).exp()
