"""KL estimators and their gradients against published numbers, restated exactly."""

import math
from functools import cache

import numpy as np
import pytest

from experiments import kl
from labs.errors import InputError
from labs.exact import truth
from labs.experiment import execute
from labs.registry import environments
from labs.settings import build
from labs.theory import mean_k1

#: One family of the environment: logits 0.9 sin(1.7 (4 s + a) + 0.3).
W = [[0.9 * math.sin(1.7 * (4 * s + a) + 0.3) for a in range(4)] for s in range(3)]


@cache
def result(**settings):
    return execute("kl", build(kl.Config, {**kl.TINY, **settings}), 7)


@cache
def published():
    """Both families with the table W: the gradients of a family depend on its own rows alone, and no score enters."""
    return {
        (row["place"], row["kind"]): row for row in kl.penalties(truth(environments["arithmetic"], np.array([W, W])))
    }


def test_the_sequence_kl_of_the_table():
    policy = truth(environments["arithmetic"], np.array([W, W]))
    assert policy.trajectory_kl(np.zeros((2, 3, 4))).value == pytest.approx(0.23313106, abs=5e-9)


@pytest.mark.parametrize(
    ("place", "kind", "error", "cosine"),
    [
        ("loss", "k2", 0.201008, 0.98275231),
        ("loss", "k1+", 0.201008, 0.98275231),
        ("loss", "k3", 0.16867298, 0.99613569),
        ("reward", "k1", 0.0, 1.0),
        ("loss", "k1", 1.0, 0.0),
    ],
)
def test_token_sums_miss_the_gradient_of_the_sequence_by_the_published_amount(place, kind, error, cosine):
    # arXiv:2510.01555 restated for token sums; one fifth off for k2, nothing left of k1 in the loss.
    row = published()[place, kind]
    assert row["relative_error"] == pytest.approx(error, abs=5e-7)
    assert row["cosine"] == pytest.approx(cosine, abs=5e-9)


def test_each_penalty_finds_its_divergence():
    nearest = {key: row["nearest"] for key, row in published().items() if row["distance"] < 1e-12}
    whole, reverse, forward = kl.DIVERGENCES
    assert nearest == {
        ("loss", "k2"): reverse,
        ("loss", "k1+"): reverse,
        ("loss", "k3"): forward,
        ("reward", "k1"): whole,
    }
    assert published()["loss", "k1"]["norm"] < 1e-15


def test_the_headline_is_the_same_gradient_at_the_configured_policy():
    headline = result().headline
    assert headline["k1_in_reward_error"] < 1e-12
    assert headline["k2_in_loss_error"] > 0.05
    assert "k1 in the reward is the gradient of the KL of whole trajectories" in result().conclusion
    assert "k1 in the loss averages to nothing" in result().conclusion


def test_values_by_hand():
    # Every row (0.7, 0.1, 0.1, 0.1) against a quarter each.
    policy = truth(environments["arithmetic"], np.log(np.full((2, 3, 4), 0.1) + 0.6 * np.eye(4)[0]))
    p, r = np.array([0.7, 0.1, 0.1, 0.1]), 0.25
    d = np.log(p / r)
    for row in kl.token_values(policy):
        x = {"k1": d, "k2": d**2 / 2, "k3": np.exp(-d) - 1 + d}[row["kind"]]
        assert row["value"] == pytest.approx(p @ x)
        assert row["variance"] == pytest.approx(p @ x**2 - (p @ x) ** 2)
        assert row["exact_kl"] == pytest.approx(p @ d)
    assert mean_k1(policy) < p @ d  # a mean over trajectories weighs those that end early by more than their share


def test_what_the_controller_sees_is_an_average_over_trajectories():
    policy = truth(environments["arithmetic"], np.array([W, W]))
    kinds, total = policy.kinds, 0.0
    for f in range(2):
        for path in kinds.paths:
            rows = [policy.environment.stage_of[s] for s in path.states]
            logs = [policy.log_probs[f, s, a] for s, a in zip(rows, path.actions, strict=True)]
            total += 0.5 * math.exp(sum(logs)) * sum(x + math.log(4) for x in logs) / len(logs)
    assert mean_k1(policy) == pytest.approx(total)


@pytest.mark.parametrize(
    ("final", "words"),
    [
        ([0.5], "cannot tell from one run"),
        ([0.5, 0.51, 0.49], "holds it within 10%"),
        ([0.1, 0.11, 0.12], "has not reached"),
        ([1.1, 1.11, 1.12], "overshoots"),
        ([0.3, 0.5, 0.7], "cannot tell from 3 runs"),
    ],
)
def test_the_verdict_on_the_controller(final, words):
    assert words in kl.verdict(final, 0.5)


def test_the_uniform_policy_has_no_gradient_of_a_divergence_to_compare_with():
    with pytest.raises(InputError, match="its own reference"):
        result(success=0.0)
    with pytest.raises(InputError, match="successes is empty"):
        build(kl.Config, {"successes": []})
