r"""Exact expectation and covariance of the parameter gradient of one training step, for any estimator and loss.

A batch is `groups` groups of n episodes, families in turn, tasks and episodes drawn independently; what the step makes
of it is `labs.step`. `moments` averages over every batch that can occur:

1. `labs.exact_rows` writes out every possible row;
2. `labs.exact_forms` finds out what ties rows and groups together, and which rows others cannot tell apart;
3. `labs.exact_groups` enumerates groups as multisets of those classes;
4. `labs.exact_sums` puts groups together through the sums that they share (a denominator, a whitening).

When a batch is tied together in another way it is enumerated whole if it is small; when there are too many multisets or
sums, batches are sampled and the result says so (`method`), with a standard error.

    bias = E[g] - grad J      scale = <E[g], grad J> / |grad J|^2      signal_to_noise = |E[g]| / sqrt(trace Cov[g])

with J the expected score of the batch's tasks under the current policy (each family weighs as many groups as it has).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import comb, prod
from typing import Any

import numpy as np
import torch

from labs.environment import Environment
from labs.errors import InputError
from labs.exact import Array, multisets, probability
from labs.exact_forms import Form, classes, find
from labs.exact_groups import atoms, size
from labs.exact_rows import Index, Rows
from labs.exact_sums import TooLargeError, combine
from labs.policy import Policy
from labs.registry import environments, losses
from labs.step import StepConfig

#: Rows (all groups) and whole batches up to which an enumeration is quick.
ROWS, BATCHES = 2_500_000, 4000


@dataclass(frozen=True, kw_only=True)
class Moments:
    """What `moments` found; D = families * stages * actions.

    Attributes:
        mean: `[families, stages, actions]`, expectation of the gradient (of the objective, so plus is uphill).
        covariance: `[D, D]` of one batch.
        truth: gradient of J, see the module.
        method: `exact` or `sampled`.
        evaluated: rows that were sent through the step.
        classes: largest number of coupling classes of a task.
        coupling: what ties groups together, in words.
        standard_error: of `mean`, zero where exact.
    """

    mean: Array
    covariance: Array
    truth: Array
    method: str
    evaluated: int
    classes: int
    coupling: str
    standard_error: Array

    @property
    def exact(self) -> bool:
        """Whether every batch was counted."""
        return self.method == "exact"

    @property
    def bias(self) -> Array:
        """`mean - truth`."""
        return self.mean - self.truth

    @property
    def relative_bias(self) -> float:
        """`|mean - truth| / |truth|`."""
        return float(np.linalg.norm(self.bias) / np.linalg.norm(self.truth))

    @property
    def cosine(self) -> float:
        """Between mean and truth; NaN where one of them is 0."""
        size = np.linalg.norm(self.mean) * np.linalg.norm(self.truth)
        return float((self.mean * self.truth).sum() / size) if size else float("nan")

    @property
    def scale(self) -> float:
        """How long the mean is along the truth: `<mean, truth> / |truth|^2`."""
        return float((self.mean * self.truth).sum() / (self.truth**2).sum())

    @property
    def variance(self) -> Array:
        """Of every logit's gradient, in the shape of `mean`."""
        return np.diagonal(self.covariance).reshape(self.mean.shape)

    @property
    def trace(self) -> float:
        """Total variance, the trace of the covariance."""
        return float(np.trace(self.covariance))

    @property
    def signal_to_noise(self) -> float:
        """`|mean| / sqrt(trace)`; infinite without noise."""
        return float(np.linalg.norm(self.mean) / np.sqrt(self.trace)) if self.trace > 0 else float("inf")

    @property
    def signal_to_noise_per_logit(self) -> Array:
        """`|mean| / standard deviation` of every logit, 0 where there is neither."""
        spread = np.sqrt(np.maximum(self.variance, 0.0))
        return np.divide(np.abs(self.mean), spread, out=np.zeros_like(spread), where=spread > 0)

    def interval(self, z: float = 2.576) -> tuple[Array, Array]:
        """Normal interval for the mean, 99 % by default; a point where exact."""
        return self.mean - z * self.standard_error, self.mean + z * self.standard_error


def moments(
    environment: Environment,
    policy: Policy,
    config: StepConfig,
    *,
    group_size: int,
    groups: int | None = None,
    draws: int | None = None,
    generator: torch.Generator | None = None,
    force: str | None = None,
    **rows: Any,
) -> Moments:
    """Expectation and covariance of the gradient of one step.

    Args:
        environment: where the episodes are played.
        policy: the current policy; gradients are with respect to its logits.
        config: of the step; without entropy bonus.
        group_size: n.
        groups: in the batch, family `g mod families`; one for each family when None.
        draws: batches to sample where sampling is needed (20,000; 2,000 where each has to be evaluated on its own).
        generator: of the sampling, seeded with 0 when None.
        force: `exact` (an error where that is too much) or `sampled`; whichever is possible when None.
        **rows: `old` (what the step starts from, the current policy when None), `behaviour` (what sampled, the old
            policy when None), `reference` (uniform when None), `critic` (the exact values of the old policy by row of
            the table when None), `operands`, `max_steps`, `format_tokens`.

    Raises:
        InputError: an entropy bonus, a group size or number of groups below 1, `exact` where it is too much, a greedy
            baseline in a random environment; whatever the step refuses.
    """
    if group_size < 1 or (groups is not None and groups < 1):
        raise InputError(f"group_size is {group_size} and groups is {groups}; both must be at least 1")
    if force not in (None, "exact", "sampled"):
        raise InputError(f"force is {force!r}; it must be exact, sampled or None")
    table = Rows.of(environment, policy, config, **rows)
    families = len(environment.families)
    total = families if groups is None else groups
    counts = [len(range(f, total, families)) for f in range(families)]
    form = find(table, group_size)
    found = classes(table, form, group_size)
    result: tuple[Array, Array, int] | None = None
    if force != "sampled" and not table.random:
        if form is None:
            result = _whole(table, found, counts, group_size)
        elif size(table, found, group_size) <= ROWS:
            result = _grouped(table, form, found, counts, group_size)
    if result is None and force == "exact":
        raise InputError(
            f"{config.estimator} with {total} groups of {group_size} has too many different batches to count them all; "
            "take smaller groups, or let it be sampled"
        )
    exact = result is not None
    error = np.zeros(families * table.scores.shape[2])
    if result is None:
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        mean, covariance, evaluated = _sampled(table, form, counts, group_size, draws, generator)
        error = np.sqrt(np.diagonal(covariance) / max(evaluated // (total * group_size), 1))
    else:
        mean, second, evaluated = result
        covariance = second - np.outer(mean, mean)
    shape = environment.policy_shape
    weight = np.array(counts) / total / table.truth.family_weights
    return Moments(
        mean=mean.reshape(shape),
        covariance=covariance,
        truth=table.truth.objective.gradient * weight[:, None, None],
        method="exact" if exact else "sampled",
        evaluated=evaluated,
        classes=_most(table, found),
        coupling=_words(form),
        standard_error=error.reshape(shape),
    )


def _words(form: Form | None) -> str:
    return "the batch as a whole" if form is None else form.words


def _most(rows: Rows, found: Index) -> int:
    return max(len(set(found[rows.task_class == c].tolist())) for c in range(len(rows.shares)))


def _grouped(rows: Rows, form: Form, found: Index, counts: list[int], n: int) -> tuple[Array, Array, int] | None:
    laws = [atoms(rows, form, found, f, n) for f in range(len(counts))]
    try:
        return *combine(laws, counts, form), size(rows, found, n)
    except TooLargeError:
        return None


def _whole(rows: Rows, found: Index, counts: list[int], n: int) -> tuple[Array, Array, int] | None:
    """Every batch by itself: the product of the multisets of all groups."""
    families = [f for f, count in enumerate(counts) for _ in range(count)]
    options: dict[int, list[tuple[float, list[Index]]]] = {}
    for f in set(families):
        own = [rows.task_class == c for c in np.unique(rows.task_class[rows.family == f])]
        if sum(comb(n + len(set(found[o].tolist())) - 1, n) for o in own) > BATCHES:
            return None
        options[f] = [item for o in own for item in _multisets(rows, found, o, n)]
    if prod(len(options[f]) for f in families) > BATCHES:
        return None
    width = rows.scores.shape[2]
    mean, second = np.zeros(len(counts) * width), np.zeros((len(counts) * width,) * 2)
    evaluated = 0
    for chosen in product(*(options[f] for f in families)):
        chance = prod(p for p, _ in chosen)
        index = np.array([[members[0] for members in group] for _, group in chosen])
        weights = rows.weigh(index).weights
        evaluated += index.size
        total, noise = np.zeros_like(mean), np.zeros_like(second)
        for g, (_, group) in enumerate(chosen):
            block = slice(families[g] * width, (families[g] + 1) * width)
            for i, members in enumerate(group):
                h = np.einsum("h,khd->kd", weights[g, i], rows.scores[members])
                p = rows.chance[members] / rows.chance[members].sum()
                total[block] += p @ h
                noise[block, block] += (h.T * p) @ h - np.outer(p @ h, p @ h)
        mean += chance * total
        second += chance * (np.outer(total, total) + noise)
    return mean, second, evaluated


def _multisets(rows: Rows, found: Index, own: Any, n: int) -> Iterator[tuple[float, list[Index]]]:
    """Probability and, for each place of the group, the rows that can stand there."""
    members = [np.flatnonzero((found == c) & own) for c in np.unique(found[own])]
    counts = multisets(len(members), n)
    share = rows.shares[rows.task_class[members[0][0]]]
    chances = share * probability(counts, np.array([rows.chance[m].sum() for m in members]))
    for chance, row in zip(chances.tolist(), counts, strict=True):
        if chance > 0:
            yield chance, [m for m, k in zip(members, row, strict=True) for _ in range(k)]


def _sampled(
    rows: Rows, form: Form | None, counts: list[int], n: int, draws: int | None, generator: torch.Generator
) -> tuple[Array, Array, int]:
    """Mean, covariance and number of rows of sampled batches."""
    families = np.array([f for f, count in enumerate(counts) for _ in range(count)])
    draws = (2_000 if form is None else 20_000) if draws is None else draws
    rng = np.random.default_rng(int(torch.randint(1 << 62, (1,), generator=generator)))
    index = np.empty((draws, len(families), n), dtype=np.int64)
    for g, f in enumerate(families):
        inside = np.flatnonzero(rows.family == f)
        picked = np.unique(rows.task_class[inside])
        own = rng.choice(picked, size=draws, p=rows.shares[picked] / rows.shares[picked].sum())
        for c in picked:
            members = np.flatnonzero(rows.task_class == c)
            where = np.flatnonzero(own == c)
            p = rows.chance[members] / rows.chance[members].sum()
            index[where, g] = rng.choice(members, size=(len(where), n), p=p)
    width = rows.scores.shape[2]
    gradients = np.zeros((draws, len(counts), width))
    step = 1 if form is None else max(200_000 // (len(families) * n), 1)
    for start in range(0, draws, step):
        part = index[start : start + step]
        if form is None:
            weights = rows.weigh(part[0], generator).weights[None]
        else:
            u, sums = form.parts(rows, part.reshape(-1, n))
            c = form.coefficients(sums.reshape(len(part), len(families), -1).sum(axis=1))
            u = u.reshape(len(u), len(part), len(families), n, -1)
            weights = np.einsum("bj,jbgnh->bgnh", c, u, optimize=True)
        terms = np.einsum("bgnh,bgnhd->bgd", weights, rows.scores[part], optimize=True)
        for g, f in enumerate(families):
            gradients[start : start + step, f] += terms[:, g]
    flat = gradients.reshape(draws, -1)
    return flat.mean(axis=0), np.cov(flat, rowvar=False), int(index.size)


def how(environment: Environment, policy: Policy, config: StepConfig, *, group_size: int = 16, **rows: Any) -> str:
    """One sentence: whether `moments` counts or samples at this group size, and why. For `labs show`."""
    table = Rows.of(environment, policy, config, **rows)
    form = find(table, group_size)
    found = classes(table, form, group_size)
    kinds = f"{_most(table, found)} coupling classes a task, groups tied by {_words(form)}"
    if table.random:
        return f"sampled with an interval: the step itself draws random numbers ({kinds})"
    if form is None:
        return f"exact for at most {BATCHES} batches, sampled with an interval beyond ({kinds})"
    if size(table, found, group_size) <= ROWS:
        return f"exact at n = {group_size} ({kinds})"
    most = max(n for n in range(1, group_size) if n == 1 or size(table, found, n) <= ROWS)
    return f"exact up to n = {most}, sampled with an interval beyond ({kinds})"


def method(kind: str, name: str, *, group_size: int = 16) -> str:
    """`how` for an entry of a registry: an `estimator` under the REINFORCE loss, or a `loss` after `grpo`.

    On `arithmetic` with a fixed uneven table; the old policy of a loss is another one than the current, as from the
    second minibatch on. Other kinds have no moments of their own and give an empty text.
    """
    environment = environments["arithmetic"]
    table = np.sin(1.7 * np.arange(np.prod(environment.policy_shape)) + 0.3).reshape(environment.policy_shape)
    policy = Policy.of(environment, table)
    if kind == "estimator":
        config = StepConfig(estimator=name, loss="reinforce", loss_agg_mode="seq-mean-token-sum")
        return how(environment, policy, config, group_size=group_size)
    if kind == "loss":
        options = {option.rpartition(".")[2]: 1.0 for option in losses[name].meta["properties"].needs_config}
        config = StepConfig(estimator="grpo", loss=name, loss_options=options)
        return how(environment, policy, config, group_size=group_size, old=Policy.of(environment, 0.8 * table))
    return ""
