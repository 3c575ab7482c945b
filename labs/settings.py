"""Values from a file or the command line become a configuration here, and only here.

Unknown names, wrong types and impossible values are refused with one sentence; nothing passes silently.

>>> from dataclasses import dataclass
>>> from labs.config import field
>>> @dataclass(frozen=True, kw_only=True)
... class Config:
...     updates: int = field(100, help="policy updates", low=1)
>>> build(Config, parse_pairs(Config, ["updates=3"]))
Config(updates=3)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from labs.config import is_number as finite
from labs.config import settings
from labs.errors import InputError, one_of

C = TypeVar("C")

_NAMES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text"}


def _kind(declared: dataclasses.Field[Any]) -> tuple[str, bool, bool]:
    """`(base, optional, many)` of a field's annotation."""
    text = declared.type if isinstance(declared.type, str) else getattr(declared.type, "__name__", "")
    if text not in _NAMES:
        text = declared.type if isinstance(declared.type, str) else str(declared.type)
    optional = text.endswith("| None")
    text = text.removesuffix("| None").strip()
    many = text.startswith("tuple[")
    base = text.removeprefix("tuple[").split(",")[0].strip() if many else text
    if base not in _NAMES:
        raise InputError(
            f"setting {declared.name} has the annotation {text}; allowed: int, float, bool, str, tuples of one of them"
        )
    return base, optional, many


def allowed(declared: dataclasses.Field[Any]) -> str:
    """What a setting may be, in words."""
    base, optional, many = _kind(declared)
    data = declared.metadata
    if data["choices"] is not None:
        text = "one of " + ", ".join(map(str, data["choices"]))
    else:
        text = _NAMES[base]
        words = {"low": "at least", "above": "above", "high": "at most", "below": "below"}
        limits = [f"{word} {data[key]:,}" for key, word in words.items() if data[key] is not None]
        text += f" {' and '.join(limits)}" if limits else ""
    return ("a list, each " if many else "") + text + (" or none" if optional else "")


def _element(declared: dataclasses.Field[Any], base: str, value: Any, where: str) -> Any:
    """Check one value (or one element of a tuple) and give it the declared type."""
    data = declared.metadata
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "int": is_number and isinstance(value, int),
        "float": finite(value),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
    }[base]
    if fits and base == "float":
        value = float(value)
    if fits and data["choices"] is not None:
        if value not in data["choices"]:
            raise one_of(f"{where}{declared.name}", value, [str(c) for c in data["choices"]])
    elif fits and base in ("int", "float"):
        fits = (
            (data["low"] is None or value >= data["low"])
            and (data["high"] is None or value <= data["high"])
            and (data["above"] is None or value > data["above"])
            and (data["below"] is None or value < data["below"])
        )
    if not fits:
        raise InputError(f"{where}{declared.name} is {json.dumps(value)}; allowed: {allowed(declared)}")
    return value


def _setting(cls: type[Any], name: str, where: str) -> dataclasses.Field[Any]:
    known = settings(cls)
    if name not in known:
        if name == "seed":
            raise InputError(f"{where}seed is no setting; the seed is given by --seed or --seeds")
        raise one_of(f"{where}the name of a setting", name, list(known))
    return known[name]


def checked(cls: type[Any], values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The values with the types that `cls` declares.

    Args:
        cls: the dataclass.
        values: by name.
        where: put before every message ("--set: ", "file.json: ").

    Raises:
        InputError: an unknown name, a wrong type or a value out of range.
    """
    out: dict[str, Any] = {}
    for name, value in values.items():
        declared = _setting(cls, name, where)
        base, optional, many = _kind(declared)
        if value is None and optional:
            out[name] = None
        elif not many:
            out[name] = _element(declared, base, value, where)
        elif isinstance(value, list | tuple):
            out[name] = tuple(_element(declared, base, v, where) for v in value)
        else:
            raise InputError(f"{where}{name} is {json.dumps(value)}; allowed: {allowed(declared)}")
    return out


def build(cls: type[C], values: Mapping[str, Any], where: str = "") -> C:
    """Make a `Config` from values that come from outside; settings that are missing keep their default.

    Raises:
        InputError: what `checked` refuses, and what the class's own `check()` refuses: rules that tie several settings
            together.
    """
    config = cls(**checked(cls, values, where))
    check = getattr(config, "check", None)
    if check is not None:
        check()
    return config


def parse_pairs(cls: type[Any], pairs: Iterable[str], where: str = "--set: ") -> dict[str, Any]:
    """Read `key=value` texts by the type of each setting; lists are `[1, 2]` or `1,2`, None is `none`.

    Raises:
        InputError: no `=`, an unknown name, text that does not read as the setting's type, or a name given twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"{where}{pair!r} is no setting; write key=value")
        declared = _setting(cls, name, where)
        if name in values:
            raise InputError(f"{where}{name} is given twice")
        base, optional, many = _kind(declared)
        if optional and text.lower() in ("none", "null"):
            values[name] = None
        elif many:
            inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
            values[name] = [_read(base, part.strip().strip("\"'")) for part in inner.split(",") if part.strip()]
        else:
            values[name] = _read(base, text)
    return values


def _read(base: str, text: str) -> Any:
    """Text as the base type; the text itself when it does not read as one, for `build` to refuse."""
    try:
        if base == "bool":
            return {"true": True, "false": False}[text.lower()]
        return {"int": int, "float": float, "str": str}[base](text)
    except (ValueError, KeyError):
        return text


def read_file(path: str) -> dict[str, Any]:
    """The JSON object in a file; raises `InputError` when there is none, or when it names a setting twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{path}: {name} is given twice")
        return dict(pairs)

    try:
        with open(path, encoding="utf-8-sig") as file:
            values = json.load(file, object_pairs_hook=unique)
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from error
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"--config {path} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"--config {path} holds {type(values).__name__}; it must hold one JSON object of settings")
    return values
