"""verl's DAPO reward manager: the score plus a penalty that grows in a buffer before the length limit."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.errors import AssertedError
from labs.registry import opt, rewards


@rewards.entry(needs=("response_lengths",), verl="dapo", paper="2503.14476, eq. 13", properties={"per": "row"})
def dapo(
    *,
    scores: Tensor,
    response_lengths: Tensor,
    max_resp_len: int | None = None,
    overlong_buffer_cfg: Any = None,
) -> tuple[Tensor, dict[str, Any]]:
    """`score + min(-(L - (max_resp_len - len)) / len * penalty_factor, 0)`.

    L counts attended response tokens, tool text included. There is no floor: a response longer than the limit
    loses more than the factor. A *negative* factor punishes short responses instead.

    Args:
        scores: [B].
        response_lengths: [B].
        max_resp_len: the limit.
        overlong_buffer_cfg: mapping or object with enable (False), len, penalty_factor (1.0), log (False). Without
            `enable` the score is unchanged.

    Returns:
        Scores, and `acc` (the score before shaping); with `log` also `overlong_reward` and `overlong`.

    Raises:
        AssertionError: enabled without a limit, with a limit below `len`, or with `len` not above 0.
    """
    extra: dict[str, Any] = {"acc": scores}
    if not opt(overlong_buffer_cfg, "enable", False):
        return scores, extra
    buffer = opt(overlong_buffer_cfg, "len")
    if max_resp_len is None:
        raise AssertedError("dapo: max_resp_len is None; the overlong buffer needs the limit it lies before")
    if buffer is None or not buffer > 0:
        raise AssertedError(
            f"dapo: overlong_buffer_cfg.len is {buffer}; it must be above 0 (enable=False turns it off)"
        )
    if max_resp_len < buffer:
        raise AssertedError(f"dapo: max_resp_len {max_resp_len} is below overlong_buffer_cfg.len {buffer}")
    exceed = (response_lengths - (max_resp_len - buffer)).to(scores.dtype)
    penalty = (-exceed / buffer * opt(overlong_buffer_cfg, "penalty_factor", 1.0)).clamp(max=0)
    if opt(overlong_buffer_cfg, "log", False):
        extra |= {"overlong_reward": penalty, "overlong": penalty < 0}
    return scores + penalty, extra
