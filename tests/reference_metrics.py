"""Batch metrics as loops over Python numbers, from their definitions."""

import math
import statistics


def three(values):
    if not values:
        return math.nan, math.nan, math.nan
    return sum(values) / len(values), max(values), min(values)


def valid(matrix, mask):
    return [x for row, flags in zip(matrix, mask, strict=True) for x, m in zip(row, flags, strict=True) if m]


def explained_variance(returns, values):
    if len(returns) < 2:
        return math.nan
    residual = statistics.variance([r - v for r, v in zip(returns, values, strict=True)])
    return 1 - residual / (statistics.variance(returns) + 1e-5)


def variance_proxies(advantages, old, sum_pi_squared, mask, weights, norm):
    """(signal, power, noise, mean A^2, mean W)."""
    power, squares, w_rows = [], [], []
    for i, flags in enumerate(mask):
        kept = [t for t, m in enumerate(flags) if m]
        mean = lambda row, kept=kept: sum(row[t] for t in kept) / len(kept) if kept else 0.0  # noqa: E731
        a = mean(advantages[i])
        w = [1 - 2 * math.exp(old[i][t]) + sum_pi_squared[i][t] for t in kept]
        rho = [1.0] * len(kept) if weights is None else [weights[i][t] for t in kept]
        row_weight = 1.0 if weights is None else mean(weights[i])
        unweighted = sum(x if r != 0 else 0.0 for x, r in zip(w, rho, strict=True))
        power.append(row_weight**2 * a * a * max(unweighted, 0.0))
        squares.append(a * a)
        w_rows.append(sum(x * r * r for x, r in zip(w, rho, strict=True)))
    n = len(mask)
    total, signal = sum(power) / n, 0.0 if norm is None else norm**2
    noise = max(0.0, (total - signal) / (n - 1)) if norm is not None and n > 1 else 0.0
    return signal, total, noise, sum(squares) / n, sum(w_rows) / n
