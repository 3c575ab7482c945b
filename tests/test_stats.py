"""Intervals against scipy, their coverage by enumeration, and their edges."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from labs.errors import InputError
from labs.stats import bootstrap, t_interval, wilson

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)


@given(st.integers(1, 500), st.data())
def test_wilson_is_scipys(n, data):
    k = data.draw(st.integers(0, n))
    mine = wilson(k, n)
    theirs = reference.binomtest(k, n).proportion_ci(method="wilson")
    assert mine.low == pytest.approx(theirs.low, abs=1e-12)
    assert mine.high == pytest.approx(theirs.high, abs=1e-12)
    assert 0 <= mine.low <= mine.value <= mine.high <= 1


def test_wilson_of_the_reference_run():
    found = wilson(390, 400)
    assert (round(found.low, 4), round(found.high, 4)) == (0.9546, 0.9864)
    assert found.name == "95 % Wilson interval"
    assert str(found) == "0.975 (95 % Wilson interval 0.9546 to 0.9864, n = 400)"


def test_wilson_covers_as_it_says():
    """Exact coverage at n = 400, averaged over rates: near 95 %, and never far below."""
    n, coverages = 400, []
    intervals = [wilson(k, n) for k in range(n + 1)]
    for p in np.linspace(0.02, 0.98, 49):
        mass = reference.binom.pmf(range(n + 1), n, p)
        coverages.append(sum(m for m, i in zip(mass, intervals, strict=True) if i.low <= p <= i.high))
    assert np.mean(coverages) == pytest.approx(0.95, abs=0.005)
    assert min(coverages) > 0.92


@given(VALUES)
def test_t_interval_is_scipys(values):
    mine = t_interval(values)
    scale = max(map(abs, values))
    assert mine.value == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9 * scale + 1e-12)
    half = reference.t.ppf(0.975, len(values) - 1) * reference.sem(values)
    assert mine.high - mine.value == pytest.approx(half, rel=1e-6, abs=1e-9 * scale + 1e-12)
    assert mine.value - mine.low == pytest.approx(half, rel=1e-6, abs=1e-9 * scale + 1e-12)
    assert mine.n == len(values)


def test_one_value_has_no_interval_and_equal_values_one_of_no_width():
    assert t_interval([2.0])[:4] == (2.0, None, None, 1)
    assert "no interval" in str(t_interval([2.0]))
    same = t_interval([2.0, 2.0, 2.0])
    assert same.low == same.high == 2.0


def test_t_interval_covers_as_it_says():
    rng = np.random.default_rng(0)
    inside = [i.low <= 0 <= i.high for i in (t_interval(rng.normal(size=8)) for _ in range(2000))]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_bootstrap_is_reproducible_and_near_the_t_interval():
    values = np.random.default_rng(1).normal(5, 2, size=200)
    first, second = (bootstrap(values, np.random.default_rng(2)) for _ in range(2))
    assert first == second
    normal = t_interval(values)
    assert first.low == pytest.approx(normal.low, abs=0.1)
    assert first.high == pytest.approx(normal.high, abs=0.1)
    assert "bootstrap" in first.name


def test_bootstrap_of_another_statistic():
    found = bootstrap([1.0, 2.0, 100.0], np.random.default_rng(0), np.median)
    assert (found.value, found.low, found.high) == (2.0, 1.0, 100.0)
    assert bootstrap([3.0], np.random.default_rng(0))[:4] == (3.0, None, None, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson(1, 0),
        lambda: wilson(3, 2),
        lambda: wilson(-1, 2),
        lambda: t_interval([]),
        lambda: t_interval([1.0, math.nan]),
        lambda: bootstrap([math.inf], np.random.default_rng(0)),
    ],
)
def test_refusals(call):
    with pytest.raises(InputError):
        call()
