"""Length penalty on successes only, relative to the group's own short successes (MiMo-V2.6, eq. 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError
from labs.masked import as_torch_index
from labs.registry import rewards


@rewards.entry(
    needs=("index", "response_lengths"), paper="MiMo-V2.6 report, eq. 4", properties={"per": "row", "groups": True}
)
def success_length(
    *,
    scores: Tensor,
    index: Any,
    response_lengths: Tensor,
    amount: float = 0.5,
    pass_rate: float = 0.5,
    quantile: float = 0.5,
    dead_zone: float = 0.1,
    saturation: float = 1.0,
    power: float = 1.0,
    success: float = 1.0,
) -> tuple[Tensor, dict[str, Any]]:
    """Successes lose `amount * clip((L / l* - 1 - dead_zone) / (saturation - dead_zone), 0, 1)^power`.

    `l*` is the `quantile` of the lengths of the group's successes. A group whose share of successes is not above
    `pass_rate` is left alone, and so is every failure.

    Raises:
        ValueError: `power` below 1, or not 0 <= dead_zone < saturation.
    """
    if power < 1 or not 0 <= dead_zone < saturation:
        raise InputError(
            f"success_length: power {power}, dead_zone {dead_zone}, saturation {saturation}; "
            "it needs power >= 1 and 0 <= dead_zone < saturation"
        )
    groups, lengths, passed = as_torch_index(index), response_lengths.to(scores.dtype), scores >= success
    loss = torch.zeros_like(scores)
    for group in sorted(set(groups.tolist())):
        rows = groups == group
        winners = rows & passed
        if winners.sum() / rows.sum() > pass_rate:
            reference = torch.quantile(lengths[winners], quantile).clamp(min=1)
            over = (lengths[winners] / reference - 1 - dead_zone) / (saturation - dead_zone)
            loss[winners] = amount * over.clamp(0, 1) ** power
    return scores - loss, {"length_cost": loss}
