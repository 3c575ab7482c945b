r"""How the rows of a batch are coupled: found by trying, not declared.

Every form says that the gradient of a batch is

    g = sum_j c_j(S) * sum_i u_j(i | its group) . score_i            S = sum over groups of a few counts

with `u_j` a function of the row and its group alone, so that only the sums S tie groups together:

| form | j | S | c |
|---|---|---|---|
| `Local` | 1 | the counts in the denominator | 1 / denominator |
| `Local`, gpg | 1 | and the rows with a reward | rows / max(those, 1) / denominator |
| `Whitened` | 2 | and count, sum, sum of squares of the tokens | 1 / std and -mean / std, over the denominator |

`find` evaluates groups in several batches and takes the first form under which they never feel their neighbours. If
there is none the batch is opaque (None): it has to be taken as a whole.

Whitening is undone without knowing what was whitened: within one call all groups went through one affine map, which
a few reference groups that ride along in every call pin down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from labs.errors import InputError
from labs.exact import Array
from labs.exact_rows import LEVELS, STATS, Index, Rows

#: Largest difference between two evaluations of the same thing, relative to the largest weight (estimators that keep
#: float32 statistics need it; float64 ones agree to 1e-14).
TOLERANCE = 2e-6
#: Least epsilon of a whitening, in its own unit: an estimator in float32 leaves nothing to read it from.
_LEAST = 1e-10
#: Groups that stay while the rest of the batch changes.
_SHARED = 8

#: Ways to divide, by the counts that enter: tried in this order.
_DENOMINATORS: tuple[tuple[str, ...], ...] = (
    ("rows",), (), ("loss_tokens",), ("response_tokens",), ("filled_rows",),
    ("rows", "nonzero"), ("rows", "nonzero", "loss_tokens"), ("nonzero",),
)  # fmt: skip


class Parts(NamedTuple):
    """`u` `[J, G, n, H]` and `sums` `[G, q]` of a batch of G groups."""

    u: Array
    sums: Array


class Form(Protocol):
    """See the module."""

    @property
    def words(self) -> str:
        """What ties groups together, for a reader."""

    def parts(self, rows: Rows, index: Index) -> Parts:
        """Evaluate independent groups `[G, n]`."""

    def coefficients(self, sums: Array) -> Array:
        """`c` `[..., J]` of total sums `[..., q]`."""


def _divisor(names: tuple[str, ...], sums: Array) -> Array:
    """1 / denominator of total counts `[..., len(names)]`; 0 where nothing is left to divide by."""
    out = np.ones(sums.shape[:-1])
    alpha = "nonzero" in names
    for i, name in enumerate(names):
        if name == "nonzero":
            out = out / np.maximum(sums[..., i], 1.0)
        elif alpha and name == "rows":
            # gpg: rows / nonzero; the loss divides by the rows (which cancels) or by tokens.
            out = out * (sums[..., i] if "loss_tokens" in names else 1.0)
        else:
            out = np.divide(out, sums[..., i], out=np.zeros_like(out), where=sums[..., i] > 0)
    return out


def _columns(names: tuple[str, ...]) -> list[int]:
    return [STATS.index(name) for name in names]


@dataclass(frozen=True)
class Local:
    """Weights depend on the group, and on the batch through a denominator made of these counts."""

    names: tuple[str, ...]

    @property
    def words(self) -> str:
        counts = [n.replace("_", " ") for n in self.names if n != "rows" or "nonzero" in self.names]
        return f"counts of the batch ({', '.join(counts)})" if counts else "nothing"

    def parts(self, rows: Rows, index: Index) -> Parts:
        found = rows.weigh(index)
        sums = found.stats[:, _columns(self.names)]
        own = self.coefficients(sums.sum(axis=0))[0]
        return Parts(found.weights[None] / own if own else 0 * found.weights[None], sums)

    def coefficients(self, sums: Array) -> Array:
        return _divisor(self.names, sums)[..., None]


@dataclass(frozen=True)
class Whitened:
    """Advantages are whitened over the batch; weights are linear in them.

    Attributes:
        names: counts in the denominator of the loss.
        reference: `[4, n]` groups that ride along in every call.
        gauge: their advantages in the first call, which is the unit of all others.
        epsilon: of the whitening, in that unit.
        decimals: that an advantage is good to. An estimator in float32 leaves a residue where there is no spread, and
            dividing by the spread would make it count.
    """

    names: tuple[str, ...]
    reference: Index
    gauge: Array
    epsilon: float
    decimals: int

    @property
    def words(self) -> str:
        return "mean and spread of all advantages (whitening)"

    @classmethod
    def of(cls, rows: Rows, names: tuple[str, ...], reference: Index) -> Whitened | None:
        found = rows.weigh(reference)
        x = found.tokens[found.mask > 0]
        if len(x) < 2 or np.ptp(x) < 1e-6:
            return None
        # In units of the whitened advantages, variance + epsilon is 1. The unit is then chosen so that the smallest
        # and the largest are 0 and 1: sums of a 0/1 reward lie on a grid.
        low, span = x.min(), np.ptp(x)
        epsilon = max(1.0 - float(_variance(float(len(x)), x.sum(), (x**2).sum())), _LEAST) / span**2
        decimals = 6 if (x == x.astype(np.float32)).all() else 15
        gauge = np.where(found.mask > 0, (found.tokens - low) / span, 0.0).round(decimals)
        return cls(names, reference, gauge, epsilon, decimals)

    def parts(self, rows: Rows, index: Index) -> Parts:
        found = rows.weigh(np.concatenate([index, self.reference]))
        kept = found.mask > 0
        mine, unit = found.tokens[len(index) :][kept[len(index) :]], self.gauge[kept[len(index) :]]
        slope, shift = np.polyfit(mine, unit, 1)
        counts = found.stats[:, _columns(self.names)]
        scale = _divisor(self.names, counts.sum(axis=0))
        # weight = l * advantage / denominator: what is left of a weight without its advantage is the loss's own factor.
        steady = np.abs(found.advantages) > 1e-9
        factor = np.divide(found.weights, found.advantages * scale, out=np.zeros_like(found.weights), where=steady)
        x = np.where(kept, slope * found.tokens + shift, 0.0).round(self.decimals)
        lane = np.where(steady, slope * found.advantages + shift, 0.0).round(self.decimals)
        moments = np.stack([kept.sum(axis=(1, 2)), x.sum(axis=(1, 2)), (x**2).sum(axis=(1, 2))], axis=1)
        u = np.stack([factor * lane, factor])[:, : len(index)]
        return Parts(u, np.concatenate([counts, moments], axis=1)[: len(index)])

    def coefficients(self, sums: Array) -> Array:
        count, total, squares = np.moveaxis(sums[..., -3:], -1, 0)
        variance = np.maximum(_variance(count, total, squares), 0.0)
        slope = _divisor(self.names, sums[..., :-3]) / np.sqrt(variance + self.epsilon)
        return np.stack([slope, -slope * total / np.maximum(count, 1.0)], axis=-1)


def _variance(count: Any, total: Any, squares: Any) -> Any:
    """Bessel variance from sums; the factor is a float32 number, as in `labs.masked` under an integer mask."""
    single = np.asarray(count, dtype=np.float32)
    factor = (single / np.maximum(single - 1, 1)).astype(np.float64)
    count = np.maximum(count, 1.0)
    return (squares - total**2 / count) / count * factor


def find(rows: Rows, n: int, seed: int = 0) -> Form | None:
    """The form of a batch of groups of n, or None."""
    if rows.random:
        return None
    rng = np.random.default_rng(seed)
    shared = _telling(rows, rng, _SHARED, n)
    # Of different sizes, so that a division by the number of rows does not pass for none; and with ever fewer of the
    # shared groups, so that whatever picks a few tokens of the whole batch has to pick others.
    cuts = [(0, 8, 3), (0, 4, 1), (4, 8, 4), (0, 2, 2), (2, 4, 5), (4, 6, 1), (6, 8, 2)]
    batches = [(slice(i, k), np.concatenate([shared[i:k], draw(rows, rng, extra, n)])) for i, k, extra in cuts]
    forms: list[Form] = [Local(names) for names in _DENOMINATORS]
    reference = _telling(rows, rng, 4, n)
    for names in _DENOMINATORS[:5]:
        try:
            whitened = Whitened.of(rows, names, reference)
        except InputError:
            whitened = None
        if whitened is not None:
            forms.append(whitened)
    for form in forms:
        if _steady(form, rows, batches):
            return form
    return None


def _steady(form: Form, rows: Rows, batches: list[tuple[slice, Index]]) -> bool:
    """Whether groups never feel their neighbours, and the formula gives the weights of a batch of its own."""
    first: Parts | None = None
    for cut, batch in batches:
        whole = rows.weigh(batch).weights
        parts = form.parts(rows, batch)
        bound = TOLERANCE * max(np.abs(whole).max(), 1e-12)
        total = form.coefficients(parts.sums.sum(axis=0))
        if np.abs(np.tensordot(total, parts.u, 1) - whole).max() > bound:
            return False
        first = parts if first is None else first
        u, own = first.u[:, cut], first.sums[cut]
        if not _same(parts.u[:, : len(own)], u) or not _same(parts.sums[: len(own)], own):
            return False
    return True


def _same(one: Array, other: Array) -> bool:
    return bool(np.abs(one - other).max(initial=0.0) <= TOLERANCE * max(np.abs(one).max(initial=0.0), 1e-9))


def draw(rows: Rows, rng: np.random.Generator, groups: int, n: int, task_class: int | None = None) -> Index:
    """Groups of one task class each; a third of the rows by the policy, by uniform rows and by uniform scores each.

    Rows that the policy never takes, and rewards that it hardly ever gets, have to occur.
    """
    reward, out = rows.reward, np.empty((groups, n), dtype=np.int64)
    laws: dict[int, tuple[Index, Array]] = {}
    for g in range(groups):
        own = int(rng.integers(len(rows.shares))) if task_class is None else task_class
        if own not in laws:
            members = np.flatnonzero(rows.task_class == own)
            chance = rows.chance[members]
            _, level, sizes = np.unique(reward[members], return_inverse=True, return_counts=True)
            edges = np.cumsum(chance / chance.sum() + 1 / len(members) + 1 / sizes[level] / len(sizes))
            laws[own] = members, edges / edges[-1]
        members, edges = laws[own]
        out[g] = members[edges.searchsorted(rng.random(n), side="right")]
    return out


def _telling(rows: Rows, rng: np.random.Generator, count: int, n: int, task_class: int | None = None) -> Index:
    """`draw`, with different rewards in at least half of the groups where that is possible at all.

    A group of equal rewards has no weight under most estimators, and then shows nothing.
    """
    found = draw(rows, rng, 8 * count, n, task_class)
    order = np.argsort(np.ptp(rows.reward[found], axis=1) == 0, kind="stable")
    kept: Index = found[np.concatenate([order[: count - count // 4], order[len(order) - count // 4 :]])]
    return kept


def classes(rows: Rows, form: Form | None, n: int, seed: int = 0) -> NDArray[np.int64]:
    """`[R]` coupling class of every row: rows of a class can stand in for each other without anybody else noticing.

    The coarsest grouping by `Rows.features` that survives substitution: with a row replaced by another of its class, in
    random groups, nobody else's weight changes, nor any sum. Rows that agree in everything the stages see always pass,
    and are the classes of an opaque batch.
    """
    if form is not None:
        for level in range(LEVELS - 1):
            found = _number(rows, level)
            if _interchangeable(rows, form, found, n, seed):
                return found
    return _number(rows, LEVELS - 1)


def _number(rows: Rows, level: int) -> NDArray[np.int64]:
    keys = [(int(c), *f) for c, f in zip(rows.task_class, rows.features(level), strict=True)]
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys])


def _interchangeable(rows: Rows, form: Form, found: NDArray[np.int64], n: int, seed: int) -> bool:
    rng = np.random.default_rng(seed)
    plain, swapped = [], []
    for number in range(int(found.max()) + 1):
        members = np.flatnonzero(found == number)
        for other in members[1:]:
            for group in _telling(rows, rng, 6, n, int(rows.task_class[other])):
                group[0] = members[0]
                plain.append(group)
                swapped.append(np.array([other, *group[1:]]))
    if not plain:
        return True
    parts = form.parts(rows, np.array(plain + swapped))
    half = len(plain)
    return _same(parts.u[:, :half, 1:], parts.u[:, half:, 1:]) and _same(parts.sums[:half], parts.sums[half:])
