"""Published claims on groups, baselines, entropy and clipping, computed exactly; see `tests.claims`."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from labs.exact import truth
from labs.registry import losses
from labs.step import StepConfig
from tests.claims import (
    ONE,
    P_W,
    UNCLIPPED,
    UNIFORM,
    W,
    arms,
    binomial,
    by_successes,
    digits,
    expected,
    own_estimators,
    trained,
    weight,
)


@pytest.fixture(autouse=True)
def _own_estimators():
    with own_estimators():
        yield


def test_k01_leave_one_out_and_centring():
    four, two, centred = expected(W, 4), expected(W, 2), expected(W, 4, estimator="dr_grpo")
    assert four.relative_bias < 1e-12
    assert digits(centred.scale, 0.75)
    assert digits(four.trace, 0.013691805)
    assert digits(two.trace, 0.034521934)
    np.testing.assert_allclose(centred.covariance, 0.5625 * four.covariance, atol=1e-12)


def test_k02_the_mean_of_mixed_groups():
    for p, value in ((0.1, 0.1755825), (0.25, 0.27780039), (0.6, 0.59356241), (0.9, 0.8244175)):
        chance = binomial(8, p)
        assert digits(chance @ np.arange(1, 8) / 8 / chance.sum(), value)
    right, _ = by_successes("dr_grpo", 8)
    chance = binomial(8, 0.6) * np.arange(1, 8)
    assert digits(chance @ right / chance.sum(), 0.36007993)
    assert expected(W, 4, estimator="grpo_population").cosine == pytest.approx(1, abs=1e-9)
    # Right answers are underestimated up to this p: the sign changes there.
    edge = 0.74299714
    signs = []
    for p in (edge - 1e-6, edge + 1e-6):
        chance = binomial(8, p) * np.arange(1, 8)
        signs.append(chance @ right / chance.sum() > 1 - p)
    assert signs == [False, True]


def test_k03_dead_groups():
    assert digits(truth(ONE, UNIFORM).equal_groups(16)[0], 0.77726517)
    assert digits(truth(ONE, W).equal_groups(16)[0], 0.69784326)


def test_k04_division_by_the_std_climbs_another_function():
    for n, value in ((2, 1.0), (4, 1.6902817), (8, 2.3276891), (16, 2.8478124), (64, 3.2547725)):
        assert weight("grpo_population", n, 0.1) == pytest.approx(value, rel=5e-8)
    assert weight("grpo_population", 8, 0.001) == pytest.approx(2.6420073, rel=5e-8)
    found = expected(W, 4, estimator="grpo_population")
    assert digits(found.scale, 1.7219613)
    assert found.cosine == pytest.approx(1, abs=1e-9)
    # verl's n - 1: smaller by sqrt((n - 1) / n), up to epsilon.
    assert expected(W, 4, estimator="grpo").scale == pytest.approx(1.7219613 * np.sqrt(0.75), rel=1e-5)


def test_k05_averages_over_successes():
    assert digits(truth(ONE, W).objective.value, P_W)
    assert digits(expected(W, 4, estimator="success_mean").scale, 3.8685616)
    assert digits(expected(W, 4, estimator="success_mean").trace, 0.17869463)
    assert digits(expected(W, 4, estimator="zero_if_none").scale, 2.9337919)
    assert digits(expected(W, 4, estimator="zero_if_none").trace, 0.11758175)
    assert digits(expected(W, 2, estimator="zero_if_none").scale, 1.0)
    assert digits(expected(W, 4, estimator="always_centred").scale, 3.8685616)
    assert digits(expected(W, 4, estimator="always_centred").trace, 0.3175537)


def test_k06_weight_of_easy_and_hard_prompts():
    half = weight("grpo_population", 8, 0.5)
    for p, value in ((0.02, 1.3866676), (0.05, 1.3327161), (0.2, 1.1353015), (0.95, 1.3327161)):
        assert weight("grpo_population", 8, p) / half == pytest.approx(value, rel=5e-8)
    sixteen = weight("grpo_population", 16, 0.02) / weight("grpo_population", 16, 0.5)
    assert sixteen == pytest.approx(1.8629464, rel=5e-8)


@pytest.mark.parametrize(
    ("table", "n", "cosine", "scale"),
    [
        (W, 2, 0.99942696, 0.67040785),
        (W, 4, 0.99974354, 0.81515464),
        (trained(3), 2, 0.98978897, 1.1135671),
        (trained(3), 4, 0.99752559, 1.057049),
    ],
)
def test_k07_token_mean_over_the_batch(table, n, cosine, scale):
    mean, constant = expected(table, n, loss_agg_mode="token-mean"), expected(table, n)
    assert digits(mean.cosine, cosine)
    assert digits(mean.scale / constant.scale * truth(ONE, table).visits.sum(), scale)


@pytest.mark.parametrize(
    ("table", "none", "mean", "opo", "best", "best_at", "opo_at"),
    [
        (trained(2), 0.076827601, 0.12844707, 0.20119294, 0.063316986, 0.11258647, 0.47224709),
        (trained(3), 0.01518797, 0.23097598, 0.29699478, 0.012059023, None, None),
    ],
)
def test_k08_and_k09_baselines(table, none, mean, opo, best, best_at, opo_at):
    t = truth(ONE, table)
    chance = t.kinds.probability(t.log_probs)[0]
    by_length = chance @ (t.kinds.decisions * t.kinds.reward[0]) / (chance @ t.kinds.decisions)
    for baseline, value in ((0, none), (t.objective.value, mean), (by_length, opo), (t.optimal_baseline[0], best)):
        assert digits(np.trace(t.reinforce(0, baseline)[1]), value)
    if best_at:
        assert digits(t.optimal_baseline[0], best_at)
        assert digits(by_length, opo_at)
        assert digits(t.objective.value, 0.35978133)
    else:
        assert digits(4 * expected(table, 4).trace, 0.28815231)


def test_k08_on_the_uniform_table_the_length_weighted_baseline_is_optimal():
    t = truth(ONE, UNIFORM)
    chance = t.kinds.probability(t.log_probs)[0]
    by_length = chance @ (t.kinds.decisions * t.kinds.reward[0]) / (chance @ t.kinds.decisions)
    assert digits(by_length, 0.034090909)
    assert digits(t.optimal_baseline[0], 0.034090909)


@pytest.mark.parametrize(("p", "none", "mean"), [(0.6, 0.0768, 0.0192), (0.7, 0.0378, 0.0672), (0.9, 0.0018, 0.1152)])
def test_k09_two_arms(p, none, mean):
    t = truth(*arms(p, 1 - p))
    assert np.trace(t.reinforce(0)[1]) == pytest.approx(none, abs=1e-12)
    assert np.trace(t.reinforce(0, t.objective.value)[1]) == pytest.approx(mean, abs=1e-12)
    assert t.optimal_baseline[0] == pytest.approx(1 - p)


def test_k10_entropy_changes_through_visits_too():
    t = truth(ONE, W)
    direction = t.objective.gradient
    per_row = -t.visits[..., None] * t.probabilities * (t.log_probs + t.entropy[..., None])
    assert digits((per_row * direction).sum(), 0.0025022996)
    assert digits((t.trajectory_entropy.gradient * direction).sum(), 0.012717731)


@pytest.mark.parametrize(("p", "drift"), [(0.7, 0.0030367712), (0.8, 0.0026679244), (0.9, 0.0011606644)])
def test_k11_clipping_under_coin_flip_rewards(p, drift):
    """Two minibatches of one row, all 16 outcomes of (arm, sign), through the registered loss."""
    start = torch.tensor([np.log(p / (1 - p)), 0.0])
    old = torch.log_softmax(start, 0)
    moved = {"clipped": 0.0, "free": 0.0}
    for name, bounds in (("clipped", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}), ("free", UNCLIPPED)):
        for first, sign1, second, sign2 in product((0, 1), (1.0, -1.0), (0, 1), (1.0, -1.0)):
            logits = start.clone()
            for arm, sign in ((first, sign1), (second, sign2)):
                z = logits.clone().requires_grad_()
                value, _ = losses["vanilla"](
                    old[arm].reshape(1, 1), torch.log_softmax(z, 0)[arm].reshape(1, 1), torch.tensor([[sign]]).double(),
                    torch.ones(1, 1), config=StepConfig(loss_options=bounds).actor(),
                )  # fmt: skip
                (gradient,) = torch.autograd.grad(value, z)
                logits = logits - 0.3 * gradient
            chance = float(old[first].exp() * old[second].exp()) / 4
            moved[name] += chance * float((logits - start)[0] - (logits - start)[1])
    assert moved["clipped"] == pytest.approx(drift, rel=5e-8)
    assert moved["free"] == pytest.approx(0, abs=1e-12)
