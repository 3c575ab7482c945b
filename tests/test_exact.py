"""Exact objects against sums over all trajectories, autograd, finite differences and sampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from labs.batched import sample_batch
from labs.enumeration import outcome_probabilities
from labs.errors import InputError
from labs.exact import ascend, log_softmax, truth
from labs.registry import environments

NAMES = ("arithmetic", "arithmetic3", "flaky_tools", "routes")
STEPS = 4


def table(environment, seed=0):
    return np.random.default_rng(seed).normal(size=environment.policy_shape)


def case(name, seed=0, steps=STEPS):
    environment = environments[name]
    return truth(environment, table(environment, seed), max_steps=steps)


def over_trajectories(t, number):
    """Expectation of `number(class index, family, path)` over tasks and trajectories, one by one."""
    total = 0.0
    p = t.probabilities
    for c, own in enumerate(t.classes):
        for k, path in enumerate(t.kinds.paths):
            weight = path.probability * own.probability
            for state, action in zip(path.states, path.actions, strict=True):
                weight *= p[own.family, t.environment.stage_of[state], action]
            total = total + weight * number(c, k, path)
    return total


@pytest.mark.parametrize("name", NAMES)
def test_objective_and_success_are_sums_over_all_trajectories(name):
    t = case(name)
    assert t.objective.value == pytest.approx(over_trajectories(t, lambda c, k, path: t.kinds.reward[c, k]), abs=1e-14)
    rates = outcome_probabilities(t.environment, t.probabilities.tolist(), t.classes, STEPS)
    assert t.success.value == pytest.approx(rates.success, abs=1e-14)
    assert t.objective.value == pytest.approx(rates.score, abs=1e-14)
    assert over_trajectories(t, lambda c, k, path: 1.0) == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_autograd_through_the_sum_over_trajectories(name):
    t = case(name)
    logits = torch.tensor(table(t.environment), requires_grad=True)
    flat = torch.log_softmax(logits, -1).reshape(len(t.family_weights), -1)
    chance = torch.exp(flat @ torch.tensor(t.kinds.counts.reshape(len(t.kinds), -1)).T) * torch.tensor(t.kinds.outcome)
    value = sum(
        own.probability * (chance[own.family] * torch.tensor(t.kinds.reward[c])).sum()
        for c, own in enumerate(t.classes)
    )
    value.backward()
    assert float(value.detach()) == pytest.approx(t.objective.value, abs=1e-14)
    np.testing.assert_allclose(t.objective.gradient, logits.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize("what", ["objective", "success", "trajectory_entropy", "trajectory_kl"])
def test_gradients_are_central_differences(what):
    environment = environments["flaky_tools"]
    start, other = table(environment), table(environment, 5)

    def value(logits):
        t = truth(environment, logits, max_steps=5, temperature=1.3)
        return t.trajectory_kl(other) if what == "trajectory_kl" else getattr(t, what)

    found, step = value(start).gradient, 1e-5
    for place in np.ndindex(start.shape):
        shift = np.zeros_like(start)
        shift[place] = step
        slope = (value(start + shift).value - value(start - shift).value) / (2 * step)
        assert found[place] == pytest.approx(slope, abs=2e-9)


@pytest.mark.parametrize("name", NAMES)
def test_occupancy_and_values_per_decision(name):
    t = case(name)
    steps = over_trajectories(t, lambda c, k, path: len(path.actions))
    assert t.family_weights @ t.visits.sum(axis=1) == pytest.approx(steps, abs=1e-13)
    assert t.occupancy[:, 0, 0] == pytest.approx(1.0)
    # A is centred under the policy, and the Q of the first decision is the mean return of the trajectories behind it.
    acting = t.probabilities[:, list(t.environment.stage_of)][[c.family for c in t.classes]]
    np.testing.assert_allclose((acting[:, None] * t.decisions.advantage).sum(-1), 0, atol=1e-14)
    first = t.environment.stage_of[0]
    for action in range(len(t.environment.actions)):
        masses = over_trajectories(t, lambda c, k, path, a=action: (path.actions[0] == a) * t.kinds.reward[c, k])
        q = sum(
            own.probability * t.probabilities[own.family, first, action] * t.decisions.q[c, 0, 0, action]
            for c, own in enumerate(t.classes)
        )
        assert q == pytest.approx(masses, abs=1e-14)


def test_row_values_are_the_mean_return_from_a_row():
    t = case("arithmetic3")
    for family in range(3):
        for stage in range(3):
            hits = over_trajectories(
                t,
                lambda c, k, path, f=family, o=stage: (
                    (t.classes[c].family == f)
                    * np.array([t.kinds.reward[c, k], 1.0])
                    * sum(t.environment.stage_of[s] == o for s in path.states)
                ),
            )
            assert t.row_values[family, stage] == pytest.approx(hits[0] / hits[1], abs=1e-13)


def test_entropy_and_kl_per_row_and_per_trajectory():
    t, other = case("flaky_tools"), case("flaky_tools", seed=3)
    p, q = t.probabilities, other.probabilities
    np.testing.assert_allclose(t.entropy, -(p * np.log(p)).sum(-1), atol=1e-14)
    np.testing.assert_allclose(t.kl(other), (p * np.log(p / q)).sum(-1), atol=1e-14)

    def log_ratio(c, k, path):
        f = t.classes[c].family
        pairs = zip(path.states, path.actions, strict=True)
        return sum(np.log(p[f, o, a] / q[f, o, a]) for o, a in ((t.environment.stage_of[s], a) for s, a in pairs))

    assert t.trajectory_kl(other).value == pytest.approx(over_trajectories(t, log_ratio), abs=1e-13)
    assert t.trajectory_kl(t).value == pytest.approx(0.0, abs=1e-15)
    weights = t.family_weights[:, None] * t.visits
    assert t.trajectory_entropy.value == pytest.approx((weights * t.entropy).sum(), abs=1e-13)
    # The entropy given the table, with visits held fixed, is not the whole derivative: visits move too.
    assert np.abs(t.trajectory_entropy.gradient[:, 0]).max() > 1e-3


def test_uniform_policy_by_hand():
    t = truth(environments["arithmetic"], np.zeros((2, 3, 4)))
    assert t.success.value == pytest.approx(1 / 64)
    np.testing.assert_allclose(t.visits, [[1, 1 / 4, 1 / 8]] * 2)
    np.testing.assert_allclose(t.row_values, [[1 / 64, 1 / 16, 1 / 8]] * 2)
    # Right action of the first decision: half the tasks, p (q - v) = 1/4 (1/16 - 1/64).
    assert t.objective.gradient[0, 0, 0] == pytest.approx(0.5 * 0.25 * (1 / 16 - 1 / 64))
    np.testing.assert_allclose(t.equal_groups(2), (1 / 64) ** 2 + (63 / 64) ** 2)
    assert len(t.kinds) == 13


def test_optimal_baseline_minimises_the_variance():
    t = case("routes", seed=2)
    for family in range(len(t.family_weights)):
        best = t.optimal_baseline[family]
        low = np.trace(t.reinforce(family, best)[1])
        for shift in (-0.3, -1e-2, 1e-2, 0.3):
            assert np.trace(t.reinforce(family, best + shift)[1]) > low
        mean = t.family_weights[family] * t.reinforce(family, best)[0]
        np.testing.assert_allclose(mean, t.objective.gradient[family].ravel(), atol=1e-14)


def test_trajectories_and_sampling_agree():
    """200,000 episodes: every frequency within 5 standard errors (error probability under 1e-4 over all kinds)."""
    t = case("flaky_tools", steps=6)
    rng, count = np.random.default_rng(1), 200_000
    paths = sample_batch(
        t.environment, t.probabilities, np.zeros(count, int), rng.random((count, 6)), rng.random((count, 6))
    )
    seen = {}
    for states, actions, last in zip(paths.states.tolist(), paths.actions.tolist(), paths.last.tolist(), strict=True):
        key = tuple(states), tuple(actions), last
        seen[key] = seen.get(key, 0) + 1
    chance = t.kinds.probability(t.log_probs)[0]
    for p, path in zip(chance, t.kinds.paths, strict=True):
        room = (-1,) * (6 - len(path.actions))
        found = seen.pop(((*path.states, *room), (*path.actions, *room), path.last), 0)
        assert abs(found - count * p) <= 5 * np.sqrt(count * p) + 3
    assert not seen


def test_a_limit_that_binds_and_costs():
    environment = environments["arithmetic"]
    t = truth(environment, table(environment), max_steps=2)
    assert t.success.value == 0
    paid = replace(environment, costs={"read": 0.25})
    uniform = truth(paid, np.zeros((2, 3, 4)))
    # read at start (1/4) and once more at ready (1/4 of those), where it is invalid but paid all the same, ...
    assert uniform.objective.value == pytest.approx(1 / 64 - 0.25 * (1 / 4 + 1 / 16 + 1 / 32))
    assert uniform.success.value == pytest.approx(1 / 64)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"logits": np.zeros((2, 3, 5))}, "shape"),
        ({"logits": np.full((2, 3, 4), np.nan)}, "not finite"),
        ({"temperature": 0.0}, "temperature"),
        ({"max_steps": 0}, "max_steps"),
        ({"operands": (3, 2)}, "operands"),
    ],
)
def test_refusals(change, match):
    with pytest.raises(InputError, match=match):
        truth(environments["arithmetic"], **{"logits": np.zeros((2, 3, 4)), **change})


def test_additive_reward_of_another_shape_is_refused():
    with pytest.raises(InputError, match="must be"):
        case("arithmetic").additive(np.zeros((3, 4)))


def test_log_softmax_survives_large_logits():
    np.testing.assert_allclose(log_softmax([1000.0, 0.0], 1.0), [0.0, -1000.0])
    np.testing.assert_allclose(log_softmax([2.0, 0.0], 2.0), np.log([np.e, 1]) - np.log(np.e + 1))


def test_steepest_ascent_stops_at_the_first_policy_that_is_good_enough():
    environment = environments["arithmetic"]
    assert np.array_equal(ascend(environment, 0.0).probabilities, np.full((2, 3, 4), 0.25))
    found = ascend(environment, 0.5)
    # One step of 0.1 along a gradient g of length |g| gains about 0.1 |g|.
    assert 0.5 <= found.success.value < 0.5 + 0.1 * 1.1 * np.linalg.norm(found.success.gradient)
    with pytest.raises(InputError, match=r"not reach success 0\.9 in 3 steps"):
        ascend(environment, 0.9, limit=3)
