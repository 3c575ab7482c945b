"""Every group of n rows, by multisets of coupling classes, and what it adds to a batch.

A multiset says how many rows of each class a group holds. Given it the rows are independent, each one drawn from its
class, so that first and second moments of the group's part follow from the moments of single rows:

    E[sum] = sum_c N_c h_c          E[sum sum'] = E[sum] E[sum]' + sum_c N_c (E[h h' in c] - h_c h_c')

with h the weight of a row times its score functions. Every row of a class is evaluated as itself among representatives
of the others; rows of a class may differ in their own weight as long as nobody else notices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from labs.exact import Array, multisets, probability
from labs.exact_forms import Form
from labs.exact_rows import Index, Rows

#: Rows in one call of the stages; a matter of memory alone.
_CHUNK = 200_000


@dataclass(frozen=True)
class Atoms:
    """The law of one group of a family, split up by the sums that tie groups together.

    Attributes:
        keys: `[M, q]` the sums, all different.
        chance: `[M]` their probabilities.
        mean: `[M, J * D]` expectation of the group's part, times the indicator of the key.
        second: `[M, J * D, J * D]` the same for the outer product.
    """

    keys: Array
    chance: Array
    mean: Array
    second: Array


def size(rows: Rows, classes: NDArray[np.int64], n: int) -> int:
    """Rows that `atoms` evaluates for all families, from above."""
    total = 0
    for own in range(len(rows.shares)):
        inside = classes[rows.task_class == own]
        most = int(np.bincount(inside).max())
        total += comb(n + len(set(inside.tolist())) - 1, n) * n * (1 if most == 1 else min(most, 8))
    return total


def atoms(rows: Rows, form: Form, classes: NDArray[np.int64], family: int, n: int) -> Atoms:
    """The law of one group of this family, its task class drawn first."""
    keys, chance, mean, vectors, weights, owner = [], [], [], [], [], []
    seen = 0
    for own in np.unique(rows.task_class[rows.family == family]):
        members = [np.flatnonzero((classes == c) & (rows.task_class == own)) for c in np.unique(classes)]
        members = [m for m in members if len(m)]
        counts = multisets(len(members), n)
        share = rows.shares[own] * probability(counts, np.array([rows.chance[m].sum() for m in members]))
        counts, share = counts[share > 0], share[share > 0]
        sums, h = _evaluate(rows, form, members, counts)
        inside = [rows.chance[m] / max(rows.chance[m].sum(), 1e-300) for m in members]
        local = np.split(h, np.cumsum([len(m) for m in members])[:-1], axis=1)
        centre = np.stack([np.einsum("k,mkv->mv", p, part) for p, part in zip(inside, local, strict=True)], axis=1)
        total = np.einsum("mc,mcv->mv", counts, centre)
        keys.append(sums)
        chance.append(share)
        mean.append(share[:, None] * total)
        each = np.concatenate([h, centre, total[:, None]], axis=1)
        spread = [counts[:, [c]] * p for c, p in enumerate(inside)]
        factor = np.concatenate([*spread, -counts, np.ones((len(counts), 1))], axis=1) * share[:, None]
        vectors.append(each.reshape(-1, each.shape[-1]))
        weights.append(factor.ravel())
        owner.append(np.repeat(np.arange(seen, seen + len(counts)), each.shape[1]))
        seen += len(counts)
    return _merge(*map(np.concatenate, (keys, chance, mean, vectors, weights, owner)))


def _evaluate(rows: Rows, form: Form, members: list[Index], counts: NDArray[np.int64]) -> tuple[Array, Array]:
    """Sums `[M, q]` of every multiset, and h `[M, K, J * D]` of every row of the classes within it (0 if absent)."""
    sizes = np.array([len(m) for m in members])
    offset = np.concatenate([[0], np.cumsum(sizes)])
    # A class with fewer places than rows takes several groups to show all of its rows.
    copies = np.where(counts > 0, -(-sizes // np.maximum(counts, 1)), 1).max(axis=1)
    which = np.repeat(np.arange(len(counts)), copies)
    turn = np.arange(len(which)) - np.repeat(np.cumsum(copies) - copies, copies)
    n = int(counts[0].sum())
    here = counts[which]
    edge = np.cumsum(here, axis=1)
    lane = np.arange(n)
    kind = (lane[None, :, None] >= edge[:, None, :]).sum(axis=2)
    first = np.take_along_axis(edge - here, kind, axis=1)
    local = (turn[:, None] * np.take_along_axis(here, kind, axis=1) + lane - first) % sizes[kind]
    column = offset[kind] + local
    index = np.concatenate(members)[column]
    sums: list[Array] = []
    h: Array | None = None
    step = max(_CHUNK // n, 1)
    for start in range(0, len(index), step):
        part = slice(start, start + step)
        u, found = form.parts(rows, index[part])
        terms = np.einsum("jgnh,gnhd->gnjd", u, rows.scores[index[part]], optimize=True)
        if h is None:
            h = np.zeros((len(counts), int(offset[-1]), terms.shape[2] * terms.shape[3]))
        h[which[part][:, None], column[part]] = terms.reshape(*terms.shape[:2], -1)
        sums.append(found)
    assert h is not None
    return np.concatenate(sums)[np.flatnonzero(turn == 0)], h


def _merge(keys: Array, chance: Array, mean: Array, vectors: Array, weights: Array, owner: Index) -> Atoms:
    """Put multisets with equal sums together."""
    scale = np.maximum(np.abs(keys).max(axis=0, initial=0.0), 1e-12)
    _, first, group = np.unique(np.round(keys / scale, 9), axis=0, return_index=True, return_inverse=True)
    group = group.ravel()
    count, width = len(first), vectors.shape[1]
    total, mass = np.zeros((count, width)), np.zeros(count)
    np.add.at(total, group, mean)
    np.add.at(mass, group, chance)
    order = np.argsort(group[owner], kind="stable")
    vectors, weights = vectors[order], weights[order]
    edges = np.searchsorted(group[owner][order], np.arange(count + 1))
    second = np.empty((count, width, width))
    for k in range(count):
        part = slice(edges[k], edges[k + 1])
        second[k] = (vectors[part].T * weights[part]) @ vectors[part]
    return Atoms(keys[first], mass, total, second)
