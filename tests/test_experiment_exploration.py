"""The two levers against a learning rate, finite differences, and sums by hand."""

import math
from functools import cache

import numpy as np
import pytest

from experiments import exploration
from labs.errors import InputError
from labs.exact import truth
from labs.experiment import execute
from labs.registry import environments
from labs.settings import build

ARITHMETIC = environments["arithmetic"]


@cache
def result(**settings):
    return execute("exploration", build(exploration.Config, {**exploration.TINY, **settings}), 7)


def test_a_temperature_is_a_learning_rate():
    # The headline's exact value is 0: with theta = logits / T a step along d/dlogits = 1/T d/dtheta moves theta by
    # 1 / T^2 of the step at 1.
    assert result(temperatures=(0.5, 2.0), updates=6).headline["twin_difference"] < 1e-12
    config = build(exploration.Config, exploration.TINY)
    _, hot = exploration.train(config, 0.0, 2.0, 8.0, 1)
    _, slow = exploration.train(config, 0.0, 1.0, 2.0, 1)
    _, other = exploration.train(config, 0.0, 1.0, 4.0, 1)
    assert hot / 2 == pytest.approx(slow, abs=1e-12)
    assert abs(hot / 2 - other).max() > 1e-3


def test_a_bonus_is_none():
    config = build(exploration.Config, {**exploration.TINY, "updates": 20, "repeats": 1})
    steps, table = exploration.train(config, 0.7, 1.0, 8.0, 0)
    plain, _ = exploration.train(config, 0.0, 1.0, 8.0, 0)
    assert steps[-1]["success"] < plain[-1]["success"]
    assert table.any()


def test_rates_of_the_uniform_policy_by_hand():
    # Four actions; valid with chance 1/4 at start, 1/2 at ready, 1/4 at computed (half of the submissions are right).
    decisions = 1 + 1 / 4 + 1 / 8
    invalid = 3 / 4 + 1 / 4 / 2 + 1 / 8 * 3 / 4
    found = exploration.rates(ARITHMETIC, np.zeros(ARITHMETIC.policy_shape), 3.0)
    assert found["success"] == pytest.approx(1 / 64, rel=0.01)
    assert found["valid_rate"] == pytest.approx(1 - invalid / decisions)
    assert found["cost"] == pytest.approx(decisions / found["success"])


def test_entropy_and_its_gradient():
    logits = np.random.default_rng(0).normal(size=(2, 3, 4))
    value, slope = exploration.entropy(logits)
    assert exploration.entropy(np.zeros((2, 3, 4)))[0] == pytest.approx(math.log(4))
    assert value < math.log(4)
    for at in ((0, 0, 0), (1, 2, 3), (0, 1, 2)):
        step = np.zeros_like(logits)
        step[at] = 1e-5
        up, down = exploration.entropy(logits + step)[0], exploration.entropy(logits - step)[0]
        assert slope[at] == pytest.approx((up - down) / 2e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("bonus", "low", "high"), [(0.4, 0.99, 1), (0.6, 0.9, 0.95), (0.7, 0.05, 0.07), (50, 0.0156, 0.017)]
)
def test_ascent_under_a_bonus_ends_where_the_slope_is_zero(bonus, low, high):
    table = exploration.optimum(ARITHMETIC, bonus)
    slope = truth(ARITHMETIC, table).objective.gradient + bonus * exploration.entropy(table)[1]
    assert abs(slope).max() < 1e-5
    assert low < exploration.rates(ARITHMETIC, table)["success"] < high


def test_the_last_row_under_a_bonus_by_hand():
    # At `computed` a right submission earns 1 and any other action 0: the best row is softmax of half the chance to be
    # there with the right number, over c / 6.
    bonus, table = 0.6, exploration.optimum(ARITHMETIC, 0.6)
    found = truth(ARITHMETIC, table)
    p = found.probabilities[0]
    right = p[1, ARITHMETIC.actions.index("add")] * p[0, ARITHMETIC.actions.index("read")]
    edge = right / 2 / (bonus / 6)
    submit = found.log_probs[0, 2, ARITHMETIC.actions.index("submit")]
    rest = found.log_probs[0, 2, ARITHMETIC.actions.index("read")]
    assert submit - rest == pytest.approx(edge, abs=0.01)


def test_following_without_noise_goes_along_the_mean_of_many_runs():
    config = build(exploration.Config, {"updates": 12, "groups_per_update": 64, "group_size": 64})
    ideal = exploration.follow(config, 0.3, 1.4)
    steps, _ = exploration.train(config, 0.3, 1.4, config.learning_rate, 3)
    # `success` of a run is after the update, that of the ideal before.
    assert [s["success"] for s in steps[:-1]] == pytest.approx([s["success"] for s in ideal[1:]], abs=0.02)
    assert ideal[0]["success"] == pytest.approx(0.0158, abs=1e-3)
    assert steps[-1]["cost_so_far"] == pytest.approx(ideal[-1]["cost"], rel=0.1)


def test_an_odd_number_of_groups_weighs_the_families_as_the_sampler_does():
    config = build(exploration.Config, {"updates": 2, "groups_per_update": 1, "learning_rate": 50.0})
    two = build(exploration.Config, {"updates": 2, "groups_per_update": 2, "learning_rate": 50.0})
    assert exploration.follow(config, 0.0, 1.0)[1]["success"] != exploration.follow(two, 0.0, 1.0)[1]["success"]


def test_costs_are_counted():
    steps = [
        one[-1]["cost_so_far"]
        for one in (
            exploration.train(build(exploration.Config, exploration.TINY), 0.3, 1.0, 8.0, 7000 + r)[0] for r in range(2)
        )
    ]
    assert result().data["costs"]["bonus 0.3"] == steps
    assert result().headline["bonus_cost"] == pytest.approx(sum(steps) / 2)


@pytest.mark.parametrize(
    ("costs", "plain", "words"),
    [
        ([4.0], [3.0], "from 1 run(s) one cannot tell"),
        ([4.0, 3.0, 3.5], [3.5, 3.9, 3.2], "one cannot tell"),
        ([4.0, 4.1, 4.2], [3.0, 3.11, 3.19], "did not pay"),
        ([3.0, 3.11, 3.19], [4.0, 4.1, 4.2], "paid here"),
    ],
)
def test_the_verdict(costs, plain, words):
    assert words in exploration.verdict("bonus 1", costs, plain)


@pytest.mark.parametrize(
    "wrong", [{"bonuses": []}, {"temperatures": [1.0]}, {"bonuses": [0.1, 0.1]}, {"bonuses": [0.3, 0.30000001]}]
)
def test_a_lever_that_does_nothing_is_refused(wrong):
    with pytest.raises(InputError, match="takes at least one"):
        build(exploration.Config, wrong)
