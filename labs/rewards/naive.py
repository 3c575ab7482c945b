"""The score as the verifier gave it (verl's naive reward manager)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from labs.registry import rewards


@rewards.entry(verl="naive", properties={"shift": True, "per": "row"})
def naive(*, scores: Tensor, tool_rewards: Sequence[Sequence[float]] | None = None) -> tuple[Tensor, dict[str, Any]]:
    """`score` unchanged, stored as `acc`; rewards that tools gave on the way are reported and *not* added.

    Args:
        scores: [B].
        tool_rewards: per row, the rewards of its tool calls. verl keeps them in `extra_fields.tool_rewards`, where
            nothing reads them; the entry `tool_sum` adds them on purpose.
    """
    extra: dict[str, Any] = {"acc": scores}
    if tool_rewards is not None:
        extra["tool_rewards"] = [list(row) for row in tool_rewards]
    return scores, extra
