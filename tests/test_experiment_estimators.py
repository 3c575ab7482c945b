"""Bias, variance and direction of the estimators against closed forms."""

import math
from functools import cache

import numpy as np
import pytest

from experiments import estimators
from labs.errors import InputError
from labs.experiment import execute
from labs.settings import build


@cache
def result(**settings):
    return execute("estimators", build(estimators.Config, {**estimators.TINY, **settings}), 7)


def rows(name):
    return [row for row in result().metrics if row.get("estimator") == name]


def test_rloo_has_the_true_gradient_as_expectation_and_the_plain_group_mean_three_quarters_of_it():
    assert result().headline["unbiased"] == 1
    assert result().headline["first_bias"] < 1e-12
    for row, whole in zip(rows("dr_grpo"), rows("rloo"), strict=True):
        assert (row["method"], row["scale"], row["cosine"]) == ("exact", pytest.approx(3 / 4), pytest.approx(1))
        assert row["relative_bias"] == pytest.approx(1 / 4)
        assert row["variance"] == pytest.approx(whole["variance"] * 9 / 16)


def test_the_population_deviation_weighs_the_gradient_by_the_binomial_sum():
    # w_n(p) = sum_k C(n, k) p^k q^(n-k) sqrt(k (n - k)) / (n p q), arXiv:2510.13651, at p = 1/64 in both families.
    p, n = 1 / 64, 4
    terms = (math.comb(n, k) * p**k * (1 - p) ** (n - k) * math.sqrt(k * (n - k)) for k in range(1, n))
    row = rows("grpo_population")[0]
    assert row["policy_success"] == pytest.approx(p)
    # The entry's epsilon of 1e-6 beside deviations of 0.4 and 0.5.
    assert row["scale"] == pytest.approx(sum(terms) / (n * p * (1 - p)), rel=5e-6)


def test_a_constant_baseline_moves_the_variance_along_a_parabola_with_its_foot_at_the_optimum():
    data = result().data["baseline"]
    assert data["largest_change_of_mean"] < 1e-14
    a, b, _ = np.polyfit(data["b"], data["variance"], 2)
    assert -b / (2 * a) == pytest.approx(data["optimal"])
    assert data["mean_score"] == pytest.approx(1 / 64)


def test_learners_start_from_the_uniform_policy_and_are_averaged():
    learning = [row for row in result().metrics if row.get("learner") == "rloo"]
    assert learning[0]["learner_success"] == learning[0]["noiseless_success"] == pytest.approx(1 / 64)
    mean = sum(row["learner_success"] for row in learning) / len(learning)
    assert result().headline["learning"] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("areas", "words"),
    [
        ({"a": [0.5]}, "a trained alone"),
        ({"a": [0.5], "b": [0.6]}, "from 1 run(s) each one cannot tell whether b"),
        ({"a": [0.5, 0.6, 0.7], "b": [0.6, 0.5, 0.7]}, "cannot tell whether b"),
        ({"a": [0.5, 0.6, 0.7], "b": [0.6, 0.7, 0.81]}, "b learned faster than a"),
        ({"a": [0.5, 0.6, 0.7], "b": [0.4, 0.5, 0.61], "c": [0.6, 0.5, 0.7]}, "b learned slower than a"),
    ],
)
def test_the_verdict_on_speed(areas, words):
    assert words in estimators.verdict(areas)
    assert ("cannot tell" in estimators.verdict(areas)) == (len(areas) == 3 or "cannot tell" in words)


def test_refusals():
    with pytest.raises(InputError, match="none of them twice"):
        build(estimators.Config, {"learners": ["rloo", "rloo"]})
    with pytest.raises(InputError, match="no exact moments where tools fail"):
        result(environment="flaky_tools", compared=("remax",))
