"""Intervals: of a rate (Wilson), of a mean over seeds (t), of anything else (bootstrap).

Every interval carries its name, so that no figure and no table has to guess what its bar means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from labs.errors import InputError

#: The 97.5 % quantile of the standard normal distribution.
Z95 = 1.959963984540054


class Interval(NamedTuple):
    """An estimate with its interval.

    `value` the estimate, `low` and `high` the bounds (None where there is none, as for the mean of one value), `n` how
    many values went in, `name` what the interval is.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    name: str

    def __str__(self) -> str:
        bounds = "no interval" if self.low is None else f"{self.name} {self.low:.4g} to {self.high:.4g}"
        return f"{self.value:.4g} ({bounds}, n = {self.n})"


def wilson(successes: float, n: int, z: float = Z95) -> Interval:
    """Wilson's score interval of a rate.

    ``(p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)``; it stays within [0, 1] and is right at 0 and n.

    Args:
        successes: how many of `n`.
        n: trials, at least 1.
        z: normal quantile; the default gives 95 %.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".
    """
    if n < 1 or not 0 <= successes <= n:
        raise InputError(f"wilson: {successes:g} successes of {n}; n must be at least 1 and successes from 0 to n")
    p = successes / n
    scale = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / scale
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / scale
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    level = "95 %" if z == Z95 else f"z = {z:g}"
    return Interval(p, low, high, n, f"{level} Wilson interval")


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of independent values with Student's interval: ``mean -+ t(n-1) s / sqrt(n)``, s with n - 1.

    One value has no interval; equal values have one of width zero.
    """
    values = _finite(values, "t_interval")
    n = len(values)
    mean = math.fsum(values) / n
    name = f"{100 * level:g} % t interval"
    if n == 1:
        return Interval(mean, None, None, 1, name)
    from scipy.special import stdtrit

    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * std / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, name)


def bootstrap(
    values: Sequence[float],
    generator: Any,
    statistic: Callable[..., Any] | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Percentile bootstrap of a statistic of independent values.

    Args:
        values: the values.
        generator: a `numpy.random.Generator`; the same one gives the same interval.
        statistic: `f(samples, axis)`, the mean when None.
        level: coverage.
        resamples: how many samples are drawn with replacement.

    Source: Efron and Tibshirani (1993), "An introduction to the bootstrap", section 13.3.
    """
    import numpy as np

    data = np.asarray(_finite(values, "bootstrap"))
    statistic = np.mean if statistic is None else statistic
    name = f"{100 * level:g} % bootstrap percentile interval"
    value = float(statistic(data, axis=0))
    if len(data) == 1:
        return Interval(value, None, None, 1, name)
    drawn = statistic(data[generator.integers(len(data), size=(resamples, len(data)))], axis=1)
    low, high = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(value, float(low), float(high), len(data), name)


def _finite(values: Sequence[float], where: str) -> list[float]:
    """The values as a list; refuses none at all and any that is not finite."""
    out = [float(v) for v in values]
    if not out or not all(map(math.isfinite, out)):
        raise InputError(f"{where}: got {out[:5]}; it needs at least one value, all finite")
    return out
