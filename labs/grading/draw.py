"""One generator of inputs, driven by a seed (hidden cases) or by hypothesis (properties, shrinking).

An exercise writes `inputs(draw)` once. With `Seeded` it gives generic numbers; with `Searched` hypothesis chooses,
prefers awkward values, and shrinks a failing choice to the smallest one: fewer entries, smaller whole numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Draw(Protocol):
    """Where the choices come from."""

    def integer(self, low: int, high: int) -> int:
        """A whole number in the closed range."""

    def number(self, low: float, high: float) -> float:
        """A number in the closed range."""

    def choice(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""

    def permutation(self, count: int) -> list[int]:
        """An order of `range(count)`."""


class Seeded:
    """Choices from a seed: numbers with all their digits, so that no two terms of a formula agree by accident."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def number(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]

    def permutation(self, count: int) -> list[int]:
        order = list(range(count))
        self._random.shuffle(order)
        return order


class Searched:
    """Choices by hypothesis: numbers are sixteenths, exact in binary, so that a failing input prints short.

    `limit` keeps whole numbers within that distance of their smallest value. Lengths are drawn before what they are
    lengths of, which hypothesis cannot shorten well; searching small inputs first is what makes failing ones small.
    """

    def __init__(self, data: Any, limit: int | None = None) -> None:
        self._data = data
        self._limit = limit

    def _pick(self, strategy: Any) -> Any:
        return self._data.draw(strategy)

    def integer(self, low: int, high: int) -> int:
        from hypothesis import strategies as st

        high = high if self._limit is None else min(high, low + self._limit)
        return int(self._pick(st.integers(low, high)))

    def number(self, low: float, high: float) -> float:
        import math

        from hypothesis import strategies as st

        first, last = math.ceil(low * 16), math.floor(high * 16)
        return int(self._pick(st.integers(first, last))) / 16

    def choice(self, options: Sequence[T]) -> T:
        from hypothesis import strategies as st

        return options[int(self._pick(st.integers(0, len(options) - 1)))]

    def permutation(self, count: int) -> list[int]:
        from hypothesis import strategies as st

        return [int(i) for i in self._pick(st.permutations(range(count)))]


def numbers(draw: Draw, count: int, low: float, high: float) -> list[float]:
    """`count` numbers in the closed range."""
    return [draw.number(low, high) for _ in range(count)]


def table(draw: Draw, rows: int, width: int, low: float, high: float) -> list[list[float]]:
    """`[rows][width]` numbers in the closed range."""
    return [numbers(draw, width, low, high) for _ in range(rows)]


def mask_table(draw: Draw, rows: int, width: int, *, holes: bool = True, empty: bool = False) -> list[list[int]]:
    """`[rows][width]` of 1 and 0.

    Every row has at least one 1 unless `empty`; with `holes` zeros stand anywhere (tool replies), else only at the
    end (padding).
    """
    rows_out = []
    for _ in range(rows):
        if holes:
            row = [draw.choice((1, 1, 0)) for _ in range(width)]
            if not any(row) and not empty:
                row[draw.integer(0, width - 1)] = 1
        else:
            length = draw.integer(0 if empty else 1, width)
            row = [1] * length + [0] * (width - length)
        rows_out.append(row)
    return rows_out


def distribution(draw: Draw, count: int) -> list[float]:
    """`count` positive probabilities that sum to 1."""
    weights = [draw.number(0.125, 1.0) for _ in range(count)]
    total = sum(weights)
    return [w / total for w in weights]
