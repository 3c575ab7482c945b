"""Entropy of the policy's rows: from logits, as a term of the actor loss, and with a coefficient that adapts.

`entropy_from_logits` (also with chunking), `logprobs_from_logits` and `compute_entropy_loss` carry verl 0.9.1's names
and numbers; the controller is TRL 1.16's, after Skywork-OR1 (He et al. 2025, arXiv:2505.22312).
"""

from __future__ import annotations

import torch
from torch import Tensor

from labs.errors import InputError
from labs.masked import agg_loss


def entropy_from_logits(logits: Tensor) -> Tensor:
    """`H = logsumexp(logits) - sum softmax(logits) logits` over the last axis, in nats.

    A logit of -inf (a forbidden action) gives NaN, because 0 times -inf is NaN; forbid with a large finite negative
    number instead.

    Args:
        logits: `[..., V]` floating point.
    """
    if logits.ndim == 0 or logits.shape[-1] == 0 or not logits.dtype.is_floating_point:
        raise InputError(f"entropy_from_logits: logits have shape {tuple(logits.shape)} and dtype {logits.dtype}; they "
                         "must be floating point [..., V] with at least one action")  # fmt: skip
    return torch.logsumexp(logits, dim=-1) - torch.sum(torch.softmax(logits, dim=-1) * logits, dim=-1)


def entropy_from_logits_with_chunking(logits: Tensor, chunk_size: int = 2048) -> Tensor:
    """The entropy of `[N, V]` logits by chunks of rows, computed and returned in float32 whatever comes in."""
    if logits.ndim != 2 or chunk_size < 1:
        raise InputError(
            f"entropy_from_logits_with_chunking: logits {tuple(logits.shape)}, chunk_size {chunk_size}; "
            "it takes [N, V] and a chunk of at least 1 row"
        )
    return torch.cat([entropy_from_logits(chunk.float()) for chunk in torch.split(logits, chunk_size)])


def logprobs_from_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability `[...]` of the actions `labels` under `[..., V]` logits."""
    if logits.shape[:-1] != labels.shape:
        raise InputError(
            f"logprobs_from_logits: logits {tuple(logits.shape)} do not match labels {tuple(labels.shape)}"
        )
    return logits.log_softmax(dim=-1).gather(-1, labels.unsqueeze(-1).long()).squeeze(-1)


def compute_entropy_loss(logits: Tensor, response_mask: Tensor, loss_agg_mode: str = "token-mean") -> Tensor:
    """`agg_loss` of the token entropies of `[B, T, V]` logits; despite its name a quantity to *raise*."""
    if logits.shape[:-1] != response_mask.shape:
        raise InputError(
            f"compute_entropy_loss: logits {tuple(logits.shape)} do not match the mask {tuple(response_mask.shape)}"
        )
    return agg_loss(entropy_from_logits(logits), response_mask, loss_agg_mode)


class AdaptiveEntropyController:
    """A coefficient that climbs by `delta` while entropy is at or under `target`, and falls while it is over.

    While the last measured entropy was over the target the coefficient is gated to 0, so a step never pays for
    entropy that is already there; the stored coefficient survives and recovers. `update` takes effect one step later.

    Args:
        coefficient: at the start.
        target: entropy in nats.
        delta, low, high: step and range of the coefficient.
        last_entropy: what was measured before the first step (minus infinity: apply the coefficient).
    """

    def __init__(
        self,
        coefficient: float,
        target: float,
        *,
        delta: float = 0.005,
        low: float = 0.0,
        high: float = 1.0,
        last_entropy: float = -float("inf"),
    ) -> None:
        if not low <= high or not delta >= 0:
            raise InputError(
                f"AdaptiveEntropyController: low {low}, high {high}, delta {delta}; low <= high and delta >= 0"
            )
        self.coefficient, self.target = coefficient, target
        self.delta, self.low, self.high = delta, low, high
        self.last_entropy = last_entropy

    @property
    def applied(self) -> float:
        """The coefficient of the next step."""
        return self.coefficient if self.last_entropy <= self.target else 0.0

    def update(self, entropy: float) -> None:
        """Take the entropy measured in this step."""
        if entropy <= self.target:
            self.coefficient = min(self.coefficient + self.delta, self.high)
        else:
            self.coefficient = max(self.coefficient - self.delta, self.low)
        self.last_entropy = entropy
