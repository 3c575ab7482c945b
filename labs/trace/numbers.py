"""`Number`: a value with the expression that made it, and numpy object arrays of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np


class Number:
    """A value and how it was made: an operator and its arguments, or a name, or neither (a plain number)."""

    __slots__ = ("args", "name", "op", "source", "value")

    def __init__(
        self, value: Any, op: str = "", args: tuple[Number, ...] = (), name: str = "", source: str | None = None
    ) -> None:
        self.value = value
        self.op = op
        self.args = args
        self.name = name
        self.source = source

    @property
    def plain(self) -> bool:
        """True for a number without a past."""
        return not self.op and not self.name


def plain(value: Any) -> Number:
    return value if isinstance(value, Number) else Number(value)


def _apply(op: str, compute: Callable[..., Any]) -> Callable[..., Number]:
    def make(*args: Any) -> Number:
        numbers = tuple(map(plain, args))
        try:
            with np.errstate(all="ignore"):
                value = compute(*(n.value for n in numbers))
        except (OverflowError, ValueError, ZeroDivisionError):
            value = math.nan
        if all(n.plain for n in numbers):
            return Number(value)
        kept = _neutral(op, numbers)
        return kept if kept is not None else Number(value, op, numbers)

    return make


def _is(number: Number, value: float) -> bool:
    return number.plain and bool(number.value == value)


def _neutral(op: str, numbers: tuple[Number, ...]) -> Number | None:
    """The argument that an operation with a plain 0 or 1 leaves as it is."""
    if len(numbers) != 2:
        return None
    left, right = numbers
    if op == "+":
        return right if _is(left, 0) else left if _is(right, 0) else None
    if op == "-" and _is(right, 0):
        return left
    if op == "*":
        if _is(left, 1) or _is(right, 1):
            return right if _is(left, 1) else left
        if (_is(left, 0) and math.isfinite(right.value)) or (_is(right, 0) and math.isfinite(left.value)):
            return Number(0.0)
    return left if op == "/" and _is(right, 1) else None


def _divide(a: Any, b: Any) -> Any:
    return np.float64(a) / np.float64(b)


BINARY = {
    "add": _apply("+", lambda a, b: a + b),
    "sub": _apply("-", lambda a, b: a - b),
    "mul": _apply("*", lambda a, b: a * b),
    "div": _apply("/", _divide),
    "pow": _apply("**", lambda a, b: np.float64(a) ** b),
    "maximum": _apply("max", lambda a, b: math.nan if a != a or b != b else max(a, b)),
    "minimum": _apply("min", lambda a, b: math.nan if a != a or b != b else min(a, b)),
}
UNARY = {
    "neg": _apply("neg", lambda a: -a),
    "exp": _apply("exp", np.exp),
    "log": _apply("log", np.log),
    "log1p": _apply("log1p", np.log1p),
    "expm1": _apply("expm1", np.expm1),
    "sqrt": _apply("sqrt", np.sqrt),
    "abs": _apply("abs", abs),
    "sigmoid": _apply("sigmoid", lambda a: 1 / (1 + np.exp(-np.float64(a)))),
    "tanh": _apply("tanh", np.tanh),
}
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
            "bitwise_and": np.logical_and, "bitwise_or": np.logical_or}  # fmt: skip


def total(items: Iterable[Number]) -> Number:
    """A sum as one node; terms that are a plain 0 are dropped."""
    numbers = list(items)
    value = np.sum([n.value for n in numbers], dtype=np.float64) if numbers else 0.0
    terms = tuple(n for n in numbers if not (n.plain and n.value == 0))
    if all(n.plain for n in terms):
        return Number(value)
    return terms[0] if len(terms) == 1 else Number(value, "sum", terms)


binary = {name: np.frompyfunc(f, 2, 1) for name, f in BINARY.items()}
unary = {name: np.frompyfunc(f, 1, 1) for name, f in UNARY.items()}
values_of = np.frompyfunc(lambda n: n.value, 1, 1)
_number = np.frompyfunc(plain, 1, 1)


def boxed(array: Any) -> Any:
    """An object array of plain numbers from an array of values."""
    box = np.empty(np.shape(array), dtype=object)
    box[...] = _number(np.asarray(array, dtype=object))
    return box


def reduce(shadow: Any, dims: Sequence[int] | None, keep: bool, combine: Callable[[Iterable[Number]], Any]) -> Any:
    if dims is None or len(dims) == 0:
        dims = list(range(shadow.ndim))
    axes = sorted(d % shadow.ndim for d in dims) if shadow.ndim else []
    rest = [d for d in range(shadow.ndim) if d not in axes]
    moved = np.transpose(shadow, rest + axes).reshape(*(shadow.shape[d] for d in rest), -1)
    result = np.empty(moved.shape[:-1], dtype=object)
    for index in np.ndindex(*moved.shape[:-1]):
        result[index] = combine(moved[index])
    return np.expand_dims(result, tuple(axes)) if keep else result


def mean(items: Iterable[Number]) -> Number:
    numbers = list(items)
    return BINARY["div"](total(numbers), Number(len(numbers)))


def variance(correction: float) -> Callable[[Iterable[Number]], Number]:
    def combine(items: Iterable[Number]) -> Number:
        numbers = list(items)
        centre = mean(numbers)
        squares = [BINARY["pow"](BINARY["sub"](n, centre), Number(2)) for n in numbers]
        return BINARY["div"](total(squares), Number(max(len(numbers) - correction, 0)))

    return combine


def fold(name: str) -> Callable[[Iterable[Number]], Number]:
    def combine(items: Iterable[Number]) -> Number:
        numbers = list(items)
        best = numbers[0]
        for n in numbers[1:]:
            best = BINARY[name](best, n)
        return best

    return combine


def box_scalar(result: Any) -> Any:
    return result if isinstance(result, np.ndarray) else boxed(result)
