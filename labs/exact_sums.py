r"""From the laws of single groups to the moments of a batch: convolution of the sums that tie groups together.

    g = sum_j c_j(S) V_j,   S = sum over groups,  V_j = sum over groups

    E[g]    = sum over groups a of E[ V_a,j c_j(S_a + S_rest) ]
    E[g g'] = sum over a      of E[ V_a,j V_a,l' c_j c_l(S_a + S_rest) ]
            + sum over a != b of E[ V_a,j V_b,l' c_j c_l(S_a + S_b + S_rest) ]

Groups of a family are alike, so one term for each family and each pair of families is enough. Where all sums lie on a
grid (counts always do) the law of the rest is a dense array over the grid, convolved exactly; otherwise it is a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labs.exact import Array
from labs.exact_forms import Form
from labs.exact_groups import Atoms

#: Cells of a grid, and terms of a sum over lists, that are still quick.
GRID, TERMS = 1 << 22, 1 << 26


class TooLargeError(RuntimeError):
    """The sums take too many values to be enumerated."""


def combine(families: Sequence[Atoms], counts: Sequence[int], form: Form) -> tuple[Array, Array]:
    """Mean `[F * D]` and second moment `[F * D, F * D]` of a batch of `counts[f]` groups of each family.

    Raises:
        TooLargeError: neither a grid nor a list is small enough.
    """
    groups = sum(counts)
    law: _Law = _Grid.of(families, groups, form) or _List(families, form)
    single = form.coefficients(groups * families[0].keys[:1])
    terms = single.shape[-1]
    width = families[0].mean.shape[1] // terms
    mean = np.zeros((len(families), width))
    second = np.zeros((len(families), width, len(families), width))
    parts = [a.mean.reshape(len(a.keys), terms, width) for a in families]
    for f, own in enumerate(families):
        if not counts[f]:
            continue
        first, square = law.expect(_less(counts, f), own, None)
        mean[f] = counts[f] * np.einsum("kj,kjd->d", first, parts[f])
        blocks = own.second.reshape(len(own.keys), terms, width, terms, width)
        second[f, :, f] += counts[f] * np.einsum("kjl,kjdle->de", square, blocks, optimize=True)
        for g in range(f, len(families)):
            pairs = counts[f] * (counts[g] - (f == g))
            if not pairs:
                continue
            _, square = law.expect(_less(counts, f, g), own, families[g])
            cross = np.zeros((width, width))
            for j in range(terms):
                for k in range(terms):
                    cross += parts[f][:, j].T @ square[..., j, k] @ parts[g][:, k]
            second[f, :, g] += pairs * cross
            if g != f:
                second[g, :, f] += pairs * cross.T
    return mean.ravel(), second.reshape(len(families) * width, -1)


def _less(counts: Sequence[int], *gone: int) -> tuple[int, ...]:
    rest = list(counts)
    for f in gone:
        rest[f] -= 1
    return tuple(rest)


class _Law:
    """`expect(rest, a, b)`: for every key of a (and of b), E over the rest of c `[..., J]` and c c' `[..., J, J]`."""

    def expect(self, rest: tuple[int, ...], one: Atoms, other: Atoms | None) -> tuple[Array, Array]:
        raise TypeError("a law is either a grid or a list")


@dataclass(frozen=True)
class _Grid(_Law):
    """Sums on a grid: `codes` of every family's keys add up like the sums themselves."""

    families: Sequence[Atoms]
    codes: list[NDArray[np.int64]]
    first: Array
    square: Array

    @classmethod
    def of(cls, families: Sequence[Atoms], groups: int, form: Form) -> _Grid | None:
        keys = np.concatenate([a.keys for a in families])
        low = keys.min(axis=0, initial=np.inf)
        digits: list[NDArray[np.int64]] = []
        back: list[tuple[int, float]] = []
        for column in (keys - low).T:
            gaps = np.diff(np.unique(np.round(column, 9)))
            step = float(gaps.min(initial=np.inf))
            whole = np.zeros(len(column), dtype=np.int64)
            if np.isfinite(step):
                if not np.allclose(column / step, np.round(column / step), atol=1e-5) or column.max() / step > GRID:
                    return None
                whole = np.round(column / step).astype(np.int64)
                # The step again from the widest value, which averages rounding errors out.
                step = float(column.max() / whole.max())
            place = next((i for i, d in enumerate(digits) if np.array_equal(d, whole)), len(digits))
            if place == len(digits):
                digits.append(whole)
            back.append((place, step if np.isfinite(step) else 0.0))
        radix = [groups * int(d.max()) + 1 for d in digits]
        strides = np.cumprod([1, *radix]).astype(np.int64)
        if float(np.prod([float(r) for r in radix])) > GRID:
            return None
        code = sum((d * s for d, s in zip(digits, strides, strict=False)), np.zeros(len(keys), dtype=np.int64))
        grid = np.arange(strides[-1])
        axes = [grid // s % r for s, r in zip(strides, radix, strict=False)]
        total = np.stack([groups * lo + axes[p] * step for lo, (p, step) in zip(low, back, strict=True)], axis=-1) \
            if back else np.zeros((len(grid), 0))  # fmt: skip
        first = form.coefficients(total)
        edges = np.cumsum([len(a.keys) for a in families])[:-1]
        return cls(families, np.split(code, edges), first, first[:, :, None] * first[:, None, :])

    def expect(self, rest: tuple[int, ...], one: Atoms, other: Atoms | None) -> tuple[Array, Array]:
        law = np.zeros(len(self.first))
        law[0] = 1.0
        for own, code, count in zip(self.families, self.codes, rest, strict=True):
            for _ in range(count):
                top = int(np.flatnonzero(law)[-1]) + 1
                grown = np.zeros_like(law)
                for c, p in zip(code.tolist(), own.chance.tolist(), strict=True):
                    grown[c : c + top] += p * law[: max(min(top, len(law) - c), 0)]
                law = grown
        law = law[: int(np.flatnonzero(law)[-1]) + 1]
        code = self._code(one)
        sums = code if other is None else code[:, None] + self._code(other)
        values, inverse = np.unique(sums, return_inverse=True)
        first, square = self._at(self.first, law, values), self._at(self.square, law, values)
        return first[inverse].reshape(*sums.shape, -1), square[inverse].reshape(*sums.shape, *square.shape[1:])

    def _code(self, atoms: Atoms) -> NDArray[np.int64]:
        return next(c for a, c in zip(self.families, self.codes, strict=True) if a is atoms)

    @staticmethod
    def _at(table: Array, law: Array, values: NDArray[np.int64]) -> Array:
        flat = table.reshape(len(table), -1)
        support = np.flatnonzero(law)
        if len(support) * 4 < len(law):
            rows = [law[support] @ flat[v + support] for v in values]
        else:
            rows = [law @ flat[v : v + len(law)] for v in values]
        return np.array(rows).reshape(len(values), *table.shape[1:])


class _List(_Law):
    """Sums that lie on no grid, as lists of values and probabilities."""

    def __init__(self, families: Sequence[Atoms], form: Form) -> None:
        self.families, self.form = families, form

    def expect(self, rest: tuple[int, ...], one: Atoms, other: Atoms | None) -> tuple[Array, Array]:
        sums, chance = np.zeros((1, one.keys.shape[1])), np.ones(1)
        for own, count in zip(self.families, rest, strict=True):
            for _ in range(count):
                sums, chance = _convolved(sums, chance, own)
        base = one.keys if other is None else one.keys[:, None] + other.keys
        flat = base.reshape(-1, base.shape[-1])
        if len(flat) * len(sums) > TERMS:
            raise TooLargeError
        firsts, squares = [], []
        for part in _parts(flat, len(sums)):
            c = self.form.coefficients(part[:, None] + sums)
            firsts.append(np.einsum("r,krj->kj", chance, c))
            squares.append(np.einsum("r,krj,krl->kjl", chance, c, c, optimize=True))
        first, square = np.concatenate(firsts), np.concatenate(squares)
        return first.reshape(*base.shape[:-1], -1), square.reshape(*base.shape[:-1], *square.shape[1:])


def _convolved(sums: Array, chance: Array, own: Atoms) -> tuple[Array, Array]:
    if len(sums) * len(own.keys) > TERMS // 16:
        raise TooLargeError
    total = (sums[:, None] + own.keys).reshape(-1, sums.shape[1])
    weight = (chance[:, None] * own.chance).ravel()
    scale = np.maximum(np.abs(total).max(axis=0, initial=0.0), 1e-12)
    _, first, group = np.unique(np.round(total / scale, 10), axis=0, return_index=True, return_inverse=True)
    merged = np.zeros(len(first))
    np.add.at(merged, group.ravel(), weight)
    return total[first], merged


def _parts(flat: Array, times: int) -> Iterator[Array]:
    step = max((1 << 21) // times, 1)
    for start in range(0, len(flat), step):
        yield flat[start : start + step]
