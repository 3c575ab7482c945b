"""Is this answer that answer: structure, dtype, shape, and numbers to a tolerance relative to the answer.

Answers are what `labs.grading.worker.encode` makes. A tolerance is never absolute: an entry may be off by `rtol`
times the largest entry of its own array, or by 1e-12 times the largest number that went in (rounding noise, for
answers that are exactly zero).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from labs.grading.spec import Broken

NOISE = 1e-12


class Difference(NamedTuple):
    """Where two answers part: kind is "kind", "length", "keys", "dtype", "shape" or "value"."""

    kind: str
    where: str
    got: Any
    wanted: Any


def plain(value: Any) -> Any:
    """An encoded answer as numbers, lists, tuples and dicts; arrays become nested lists."""
    if not isinstance(value, dict):
        return value
    ((label, content),) = value.items()
    if label == "list":
        return [plain(v) for v in content]
    if label == "tuple":
        return tuple(plain(v) for v in content)
    if label == "dict":
        return {plain(k): plain(v) for k, v in content}
    if not isinstance(content["dtype"], str):
        raise TypeError("an array without a dtype")
    return _nested(content["data"], content["shape"])


def _nested(data: list[Any], shape: list[int]) -> Any:
    if not shape:
        return data[0]
    step = math.prod(shape[1:])
    return [_nested(data[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def kind_of(value: Any) -> str:
    """What an encoded value is, in one word."""
    if value is None:
        return "None"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "str"
    ((label, _),) = value.items()
    return {"torch": "tensor", "numpy": "array"}.get(label, str(label))


def structure(got: Any, wanted: Any, where: str = "") -> Difference | None:
    """First difference in kind, length, keys, dtype or shape; None when there is none. A list may be a tuple."""
    kinds = kind_of(got), kind_of(wanted)
    sequences = {"list", "tuple"}
    if kinds[0] != kinds[1] and not set(kinds) <= sequences:
        return Difference("kind", where, *kinds)
    if kinds[1] in sequences:
        inner, wanted_inner = next(iter(got.values())), next(iter(wanted.values()))
        if len(inner) != len(wanted_inner):
            return Difference("length", where, len(inner), len(wanted_inner))
        for i, (a, b) in enumerate(zip(inner, wanted_inner, strict=True)):
            found = structure(a, b, f"{where}[{i}]")
            if found:
                return found
    elif kinds[1] == "dict":
        mine, theirs = _pairs(got), _pairs(wanted)
        if mine.keys() != theirs.keys():
            return Difference("keys", where, sorted(map(str, mine)), sorted(map(str, theirs)))
        for key in theirs:
            found = structure(mine[key], theirs[key], f"{where}[{key!r}]")
            if found:
                return found
    elif kinds[1] in ("tensor", "array"):
        (a,), (b,) = got.values(), wanted.values()
        for what in ("shape", "dtype"):
            if a[what] != b[what]:
                return Difference(what, where, a[what], b[what])
    return None


def _pairs(value: Any) -> dict[Any, Any]:
    return {plain(k): v for k, v in value["dict"]}


def largest(value: Any) -> float:
    """Largest finite magnitude among all numbers of a plain value, 0 when there is none."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return 0.0
    if isinstance(value, int | float):
        return abs(float(value)) if math.isfinite(value) else 0.0
    if isinstance(value, dict):
        value = list(value.values())
    return max((largest(v) for v in value), default=0.0)


def values(got: Any, wanted: Any, rtol: float, size: float, where: str = "") -> Difference | None:
    """First entry of two plain values that differs; `size` is the largest number that went in.

    Sequences of one structure are assumed; where the structure differs that is the difference. Each list of
    numbers has its own scale, the largest entry of the whole array it belongs to.
    """
    return _values(got, wanted, rtol, size, largest(wanted) if _is_array(wanted) else None, where)


def _is_array(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_array(v) for v in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _values(got: Any, wanted: Any, rtol: float, size: float, scale: float | None, where: str) -> Difference | None:
    if isinstance(wanted, bool | str) or wanted is None:
        return None if got == wanted and isinstance(got, type(wanted)) else Difference("value", where, got, wanted)
    if isinstance(wanted, int | float):
        if not isinstance(got, int | float) or isinstance(got, bool):
            return Difference("value", where, got, wanted)
        if math.isnan(wanted) or math.isinf(wanted):
            same = (math.isnan(wanted) and math.isnan(got)) or got == wanted
        else:
            reference = abs(wanted) if scale is None else scale
            same = abs(got - wanted) <= rtol * reference + NOISE * max(size, reference)
        return None if same else Difference("value", where, got, wanted)
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or got.keys() != wanted.keys():
            return Difference("value", where, got, wanted)
        pairs = [(f"{where}[{k!r}]", got[k], wanted[k]) for k in wanted]
    else:
        if not isinstance(got, list | tuple) or len(got) != len(wanted):
            return Difference("value", where, got, wanted)
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(got, wanted, strict=True))]
    for place, a, b in pairs:
        own = scale
        if own is None and _is_array(b):
            own = largest(b)
        found = _values(a, b, rtol, size, own, place)
        if found:
            return found
    return None


def same(got: Any, wanted: Any, rtol: float = 1e-7, size: float = 100.0) -> None:
    """For properties: raise `Broken` unless two plain values agree; `size` bounds the numbers that went in."""
    if values(got, wanted, rtol, size):
        raise Broken(got, wanted)


def require(condition: bool, got: Any) -> None:
    """For properties: raise `Broken`, showing `got`, unless the condition holds."""
    if not condition:
        raise Broken(got)
