"""The class sampler against the step-by-step learner and enumeration; the expected update against exact moments."""

from __future__ import annotations

import numpy as np
import pytest

from labs import agent
from labs.classes import Learner, advantages, count_kinds, mean_field, sweep, theory
from labs.errors import InputError
from labs.exact import kinds, log_softmax, truth
from labs.moments import moments
from labs.policy import Policy
from labs.registry import environments
from labs.step import StepConfig

ARITHMETIC = Learner(environment=environments["arithmetic"])


def test_kinds_are_drawn_with_their_probabilities():
    """Chi-square over 13 kinds and 400,000 draws: 12 degrees of freedom, 39.1 is passed once in 10,000 times."""
    t = truth(environments["arithmetic"], np.random.default_rng(0).normal(size=(2, 3, 4)))
    chance = t.kinds.probability(t.log_probs)
    counts = count_kinds(chance, np.random.default_rng(1).random((2, 400_000)))
    assert (counts.sum(axis=1) == 400_000).all()
    assert (((counts - 400_000 * chance) ** 2 / (400_000 * chance)).sum(axis=1) < 39.1).all()
    edges = np.cumsum(chance[0])
    assert count_kinds(chance[0], np.array([0.0, edges[0], np.nextafter(edges[0], 0), 1 - 1e-16]))[:2].tolist() == [
        2,
        1,
    ]


def test_advantages_are_the_learners():
    counts = np.array([[2.0, 1.0, 1.0], [4.0, 0.0, 0.0], [0.0, 2.0, 2.0]])
    reward = np.array([[0.0, 1.0, 0.5]] * 3)
    found = advantages(counts, reward)
    for row, (n, r) in enumerate(zip(counts.astype(int), reward, strict=True)):
        rows = [x for x, k in zip(r.tolist(), n.tolist(), strict=True) for _ in range(k)]
        expected = dict(zip(rows, agent.group_advantages(rows), strict=True))
        for k in range(3):
            if n[k]:
                assert found[row, k] == pytest.approx(expected[r[k]])
    assert (found[1] == 0).all()
    np.testing.assert_allclose(advantages(counts, reward, normalise=False)[0], [-0.375, 0.625, 0.125])


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("arithmetic", "grpo_population"),
        ("arithmetic3", "grpo_population"),
        ("flaky_tools", "grpo_population"),
        ("arithmetic", "dr_grpo"),
    ],
)
def test_the_expected_update_is_the_exact_one(name, estimator):
    environment = environments[name]
    families = len(environment.families)
    start = 0.7 * np.random.default_rng(3).normal(size=environment.policy_shape)
    learner = Learner(
        environment=environment, groups_per_update=families, group_size=5, learning_rate=1.0,
        entropy_coefficient=0.0, normalise=estimator == "grpo_population", max_steps=4,
    )  # fmt: skip
    before, after = mean_field(learner, 1, start)
    config = StepConfig(estimator=estimator, loss="reinforce", loss_agg_mode="seq-mean-token-sum")
    found = moments(environment, Policy.of(environment, start), config, group_size=5, max_steps=4)
    np.testing.assert_allclose(after - before, found.mean, atol=1e-12)


def test_one_sampled_update_scatters_as_the_exact_moments_say():
    """4,000 seeds: every logit within 4.5 standard errors of the exact mean (under 2e-4), spread within 10 %."""
    environment = environments["arithmetic"]
    learner = Learner(environment=environment, groups_per_update=2, group_size=8, learning_rate=1.0)
    logits, curve = sweep(learner, range(4000), updates=1)
    config = StepConfig(estimator="grpo_population", loss="reinforce", loss_agg_mode="seq-mean-token-sum")
    found = moments(environment, Policy.uniform(environment), config, group_size=8)
    gap = np.abs(logits.mean(axis=0) - found.mean)
    assert (gap <= 4.5 * np.sqrt(found.variance / 4000) + 1e-12).all()
    assert logits.var(axis=0).sum() == pytest.approx(found.trace, rel=0.1)
    np.testing.assert_allclose(curve[:, 0], 1 / 64)


def test_sampled_task_classes():
    """A wrong tool is sometimes right in `arithmetic3`, so that tasks of one family differ."""
    environment = environments["arithmetic3"]
    learner = Learner(environment=environment, groups_per_update=3, group_size=4, learning_rate=1.0, operands=(1, 3))
    logits, _ = sweep(learner, range(3000), updates=1)
    config = StepConfig(estimator="grpo_population", loss="reinforce", loss_agg_mode="seq-mean-token-sum")
    found = moments(environment, Policy.uniform(environment), config, group_size=4, operands=(1, 3))
    assert (np.abs(logits.mean(axis=0) - found.mean) <= 4.5 * np.sqrt(found.variance / 3000) + 1e-12).all()


def test_whole_runs_agree_with_the_step_by_step_learner():
    """Success after 40 updates: 60 runs of each, two-sample z under 4 (error probability 6e-5)."""
    environment = environments["arithmetic"]
    _, curve = sweep(ARITHMETIC, range(60), updates=40)
    played = []
    for seed in range(60):
        *_, last = agent.train(environment, seed=seed, updates=40)
        played.append(truth(environment, last.logits).success.value)
    spread = np.sqrt(np.var(curve[:, -1], ddof=1) / 60 + np.var(played, ddof=1) / 60)
    assert abs(curve[:, -1].mean() - np.mean(played)) < 4 * spread


def test_a_seed_does_not_depend_on_its_neighbours():
    logits, curve = sweep(ARITHMETIC, [3, 300], updates=3)
    alone, line = sweep(ARITHMETIC, [300], updates=3)
    assert (logits[1] == alone[0]).all()
    assert (curve[1] == line[0]).all()
    many, _ = sweep(ARITHMETIC, range(301), updates=3)
    np.testing.assert_allclose(many[300], alone[0], atol=1e-14)


def test_the_line_runs_through_the_curves():
    """The dashed line: the default learner ends at 0.966, and no sampled mean of 40 seeds is far from it."""
    line = theory(ARITHMETIC)
    assert line[0] == pytest.approx(1 / 64)
    assert line[-1] == pytest.approx(0.9660, abs=5e-4)
    _, curve = sweep(ARITHMETIC, range(40))
    assert curve[:, -1].mean() == pytest.approx(line[-1], abs=2e-3)
    assert np.abs(curve.mean(axis=0) - line).max() < 0.05
    assert (np.diff(line) > 0).all()


def test_success_is_exact():
    *_, last = mean_field(ARITHMETIC, 5)
    assert theory(ARITHMETIC, 5)[-1] == pytest.approx(truth(environments["arithmetic"], last).success.value, abs=1e-14)


def test_kinds_of_a_policy_sum_to_one():
    environment = environments["flaky_tools"]
    listed = kinds(environment, [], 6)
    assert len(listed) == len(listed.paths) == listed.decisions.shape[0]
    chance = listed.probability(log_softmax(np.random.default_rng(0).normal(size=(5, *environment.policy_shape))))
    np.testing.assert_allclose(chance.sum(axis=-1), 1.0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Learner(environment=environments["arithmetic"], group_size=0), "at least 1"),
        (lambda: Learner(environment=environments["arithmetic"], max_steps=0), "max_steps"),
        (lambda: sweep(ARITHMETIC, []), "no seeds"),
        (lambda: list(mean_field(ARITHMETIC, 1, np.zeros((1, 3, 4)))), "logits have shape"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(InputError, match=match):
        call()
