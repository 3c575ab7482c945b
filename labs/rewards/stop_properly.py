"""A truncated response earns less, or a fixed negative amount (ProRL; OpenRLHF)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError
from labs.registry import rewards


@rewards.entry(needs=("truncated",), paper="2505.24864", properties={"per": "row"})
def stop_properly(*, scores: Tensor, truncated: Tensor, coefficient: float = 0.0) -> tuple[Tensor, dict[str, Any]]:
    """Truncated rows: `coefficient * score` for a coefficient in [0, 1], the coefficient itself when it is negative.

    At 1 nothing changes, at 0 a truncated success counts as a failure. Rows that ended by themselves keep their
    score.

    Raises:
        ValueError: a coefficient above 1.
    """
    if not coefficient <= 1:
        raise InputError(f"stop_properly: coefficient is {coefficient}; 0 to 1 scales, a negative number replaces")
    changed = scores * coefficient if coefficient >= 0 else torch.full_like(scores, coefficient)
    return torch.where(truncated.bool(), changed, scores), {"truncated": truncated.bool()}
