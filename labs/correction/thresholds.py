"""Threshold strings of verl's `algorithm.rollout_correction`, parsed and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labs.errors import InputError, InputTypeError


@dataclass(frozen=True)
class Window:
    """Inclusive bounds; `lower` is None where only the upper one exists."""

    lower: float | None
    upper: float


def parse_is_threshold(spec: object) -> Window:
    """Bounds of the importance weight: a number or numeric string truncates from above, `"lo_hi"` is IcePop.

    Raises:
        TypeError: a bool, or neither number nor string.
        ValueError: empty, not numeric, not positive, NaN, or lo > hi.
    """
    where = "rollout_is_threshold"
    if isinstance(spec, bool) or not isinstance(spec, int | float | str):
        raise InputTypeError(f"{where} is {spec!r}; it takes a number or a string such as '2.0' or '0.5_5.0'")
    if not isinstance(spec, str):
        return Window(None, _positive(where, spec, str(spec)))
    return _window(where, spec.strip(), spec)


def parse_rs_thresholds(options: list[str], spec: object) -> dict[str, Window]:
    """Bounds of each rejection option, in the statistic's own unit except for k1 (bounds of a ratio).

    Args:
        options: the deduplicated options, in order.
        spec: one value shared by all or one per option, separated by commas. k1 takes `lo_hi` or a number u,
            which means `[1/u, u]`; k2 and k3 take one upper bound.

    Raises:
        TypeError: neither number nor string.
        ValueError: None, a wrong count, not numeric, not positive, lo > hi, or `lo_hi` for k2 and k3.
    """
    where = "rollout_rs_threshold"
    if spec is None:
        raise InputError(f"{where} is None; rollout_rs needs one threshold, or one per option: {', '.join(options)}")
    if isinstance(spec, bool) or not isinstance(spec, int | float | str):
        raise InputTypeError(f"{where} is {spec!r}; it takes a number or a comma-separated string")
    parts = [p.strip() for p in spec.split(",") if p.strip()] if isinstance(spec, str) else [str(spec)]
    if len(parts) not in (1, len(options)):
        raise InputError(f"{where} has {len(parts)} values {spec!r}; it takes 1, or {len(options)}, one per option")
    if len(parts) == 1:
        parts = parts * len(options)
    return {option: _rs_window(option, part) for option, part in zip(options, parts, strict=True)}


def _rs_window(option: str, part: str) -> Window:
    where = f"rollout_rs_threshold of {option}"
    if option.endswith("k1"):
        window = _window(where, part, part)
        if window.lower is not None:
            return window
        return _ordered(where, part, 1.0 / window.upper, window.upper)
    if "_" in part:
        raise InputError(f"{where} is {part!r}; k2 and k3 take one upper bound, without '_'")
    return Window(None, _positive(where, part, part))


def _window(where: str, text: str, shown: str) -> Window:
    if "_" not in text:
        return Window(None, _positive(where, text, shown))
    if text.count("_") > 1:
        # Python reads "2_3" as 23, so that verl takes "1_2_3" for the window [1, 23].
        raise InputError(f"{where} is {shown!r}; a window has one '_' between its two bounds")
    low, high = text.split("_")
    return _ordered(where, shown, _positive(where, low, shown), _positive(where, high, shown))


def _ordered(where: str, shown: str, lower: float, upper: float) -> Window:
    if lower > upper:
        raise InputError(f"{where} is {shown!r}, the window [{lower:g}, {upper:g}]; its lower bound exceeds the upper")
    return Window(lower, upper)


def _positive(where: str, value: object, shown: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except ValueError:
        raise InputError(f"{where} is {shown!r}; it takes a number, or 'lo_hi' where a window is meant") from None
    if math.isnan(number) or number <= 0:
        raise InputError(f"{where} is {shown!r}; bounds must be above 0")
    return number
