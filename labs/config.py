"""Configurations: what a setting declares, and what names a configuration.

An experiment's `Config` is a frozen keyword-only dataclass whose fields come from `field`, so that help, unit, range
and choices stand beside the default and nowhere else. Values from outside come in through `labs.settings`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Collection
from typing import Any


def field(
    default: Any,
    *,
    help: str,
    unit: str = "1",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Collection[str] | None = None,
) -> Any:
    """One setting of a `Config`.

    Annotations may be `int`, `float`, `bool`, `str`, each with `| None`, and `tuple[int, ...]` (likewise for the
    others). A range holds for every element of a tuple.

    Args:
        default: its default.
        help: what it does, one line.
        unit: its unit, "1" for a pure number.
        low, high: the closed range.
        above, below: the open range.
        choices: the allowed names; a registry will do, which is read only when a value is checked.
    """
    data = {"help": help, "unit": unit, "low": low, "high": high, "above": above, "below": below, "choices": choices}
    return dataclasses.field(default=default, metadata=data)


def is_number(value: object) -> bool:
    """True for a finite number; true and false are none, and neither is an integer too large for a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def settings(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The settings of a `Config` by name."""
    return {f.name: f for f in dataclasses.fields(cls)}


def as_dict(config: Any) -> dict[str, Any]:
    """The settings of a configuration as JSON types."""
    values = {name: getattr(config, name) for name in settings(type(config))}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def changed(config: Any) -> dict[str, Any]:
    """The settings that differ from their default."""
    default = as_dict(type(config)())
    return {name: value for name, value in as_dict(config).items() if value != default[name]}


def spelled(config: Any) -> str:
    """What to type for the same settings: ` --set key=value ...`, or nothing where all are the default."""

    def word(value: Any) -> str:
        if isinstance(value, list):
            return ",".join(map(word, value))
        return str(int(value) if isinstance(value, float) and value.is_integer() else value).lower()

    pairs = [f"{key}={word(value)}" for key, value in changed(config).items()]
    return " --set " + " ".join(pairs) if pairs else ""


def fingerprint(experiment: str, config: Any) -> str:
    """Twelve hexadecimal digits that name the configuration: the same for equal settings, however they were given."""
    text = json.dumps([experiment, as_dict(config)], sort_keys=True, separators=(",", ":"))
    # The first draw of a generator seeded with the text, which Python promises to keep: it hashes the text with SHA-512
    # and is imported already, where hashlib would bring OpenSSL.
    return f"{int(random.Random(text).random() * 2**48):012x}"
