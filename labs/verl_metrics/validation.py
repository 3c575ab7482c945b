"""Validation metrics: mean@N, and best, worst and majority of K by bootstrap.

verl seeds numpy's *global* generator with 42 before each bootstrap; here the same draws come from a generator of
their own, so that calling this changes nobody else's numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from labs.errors import InputError

N_BOOTSTRAP = 1000


def _draws(size: int, subset_size: int, n_bootstrap: int, seed: int) -> Any:
    # verl's numbers are those of the legacy generator.
    return np.random.RandomState(seed).choice(size, size=(n_bootstrap, subset_size), replace=True)


def _moments(values: Any) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values))


def bootstrap_metric(
    data: Sequence[Any],
    subset_size: int,
    reduce_fns: Sequence[Callable[[Any], float]],
    n_bootstrap: int = N_BOOTSTRAP,
    seed: int = 42,
) -> list[tuple[float, float]]:
    """(mean, population standard deviation) of each function over `n_bootstrap` subsets drawn with replacement.

    Args:
        data: what to draw from; dictionaries are allowed.
        subset_size: size of a subset.
        reduce_fns: each maps one subset (numpy object array) to a number.
        n_bootstrap: number of subsets, the same for every function.
        seed: of the legacy Mersenne Twister.
    """
    if not len(data) or subset_size < 1:
        raise InputError(f"bootstrap needs data and a subset_size from 1, got {len(data)} and {subset_size}")
    items = np.array(data, dtype=object)
    draws = _draws(len(items), subset_size, n_bootstrap, seed)
    return [_moments(np.array([fn(items[rows]) for rows in draws], dtype=np.float64)) for fn in reduce_fns]


def calc_maj_val(data: Sequence[Mapping[str, Any]], vote_key: str, val_key: str) -> Any:
    """The first value of the most frequent vote; among equally frequent votes the first to appear wins."""
    values: dict[Any, list[Any]] = defaultdict(list)
    for row in data:
        values[row[vote_key]].append(row[val_key])
    return values[max(values, key=lambda vote: len(values[vote]))][0]


def subset_sizes(n: int) -> list[int]:
    """2, 4, 8, ... below n, then n itself; empty for one response."""
    if n <= 1:
        return []
    sizes, k = [], 2
    while k < n:
        sizes.append(k)
        k *= 2
    return [*sizes, n]


def _metrics_of(values: list[Any], votes: list[Any] | None, seed: int) -> dict[str, float]:
    """All metrics of the responses to one prompt."""
    n = len(values)
    metrics = {f"mean@{n}": float(np.mean(values))}
    if n == 1:
        return metrics
    metrics[f"std@{n}"] = float(np.std(values))
    numbers = np.array(values, dtype=np.float64)
    for k in subset_sizes(n):
        subsets = numbers[_draws(n, k, N_BOOTSTRAP, seed)]
        metrics[f"best@{k}/mean"], metrics[f"best@{k}/std"] = _moments(subsets.max(axis=1))
        metrics[f"worst@{k}/mean"], metrics[f"worst@{k}/std"] = _moments(subsets.min(axis=1))
        if votes is not None:
            ballots = [{"val": value, "pred": vote} for value, vote in zip(values, votes, strict=True)]
            majority = bootstrap_metric(ballots, k, [lambda rows: calc_maj_val(rows, "pred", "val")], seed=seed)
            metrics[f"maj@{k}/mean"], metrics[f"maj@{k}/std"] = majority[0]
    return metrics


def process_validation_metrics(
    data_sources: Sequence[str],
    sample_uids: Sequence[str],
    infos_dict: Mapping[str, Sequence[Any]],
    seed: int = 42,
    expected_acc_counts: Mapping[tuple[str, str], int] | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """Nested source -> variable -> metric, each the mean over the source's prompts of the metric of one prompt.

    Metrics of a prompt with N responses: `mean@N`, and for N > 1 `std@N` (population), `best@K/mean|std`,
    `worst@K/...`, and with a variable `pred` also `maj@K/...`, for K = 2, 4, 8, ..., N. Sources whose prompts have
    different N log each under its own name. Text variables and None values are skipped.

    Args:
        data_sources, sample_uids: one a response.
        infos_dict: variable -> one value a response.
        seed: of every bootstrap.
        expected_acc_counts: (source, uid) -> sessions that were started. For sources that report `acc`, missing
            sessions count as 0 and `acc_success_only` keeps the mean over those that returned.

    Raises:
        InputError: lengths that differ.
    """
    lengths = {"sample_uids": len(sample_uids), **{name: len(values) for name, values in infos_dict.items()}}
    for name, length in lengths.items():
        if length != len(data_sources):
            raise InputError(f"{name} has {length} entries, data_sources has {len(data_sources)}")
    found: dict[str, dict[str, dict[str, list[Any]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for i, (source, uid) in enumerate(zip(data_sources, sample_uids, strict=True)):
        for name, values in infos_dict.items():
            found[source][uid][name].append(values[i])
    _fill_missing_sessions(found, expected_acc_counts or {})
    result: dict[str, dict[str, dict[str, float]]] = {}
    for source, prompts in found.items():
        gathered: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for variables in prompts.values():
            votes = variables.get("pred")
            for name, raw in variables.items():
                values = [v for v in raw if v is not None]
                if not values or isinstance(values[0], str):
                    continue
                usable = votes is not None and len(votes) == len(values) and all(v is not None for v in votes)
                for metric, value in _metrics_of(values, votes if usable else None, seed).items():
                    gathered[name][metric].append(value)
        result[source] = {
            name: {metric: float(np.mean(values)) for metric, values in metrics.items()}
            for name, metrics in gathered.items()
        }
    return result


def _fill_missing_sessions(found: Any, expected: Mapping[tuple[str, str], int]) -> None:
    reporting = {
        source
        for source, prompts in found.items()
        if any(v is not None for variables in prompts.values() for v in variables.get("acc", []))
    }
    for (source, uid), count in expected.items():
        if source in reporting:
            variables = found[source][uid]
            observed = [v for v in variables.get("acc", []) if v is not None]
            variables["acc_success_only"] = observed
            variables["acc"] = observed + [0.0] * max(count - len(observed), 0)
