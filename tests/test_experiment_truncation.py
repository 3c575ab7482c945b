"""What each truncation rule climbs, against finite differences of sums over all trajectories."""

import math
from functools import cache

import numpy as np
import pytest

from experiments import truncation
from labs.environment import TIMEOUT
from labs.experiment import execute
from labs.settings import build

CONFIG = truncation.Config()
LOGITS = truncation.knowing(1.5) + np.random.default_rng(0).normal(scale=0.4, size=(2, 5, 6))


@cache
def result(**settings):
    return execute("truncation", build(truncation.Config, {**truncation.TINY, **settings}), 7)


def climbs(rule, logits, values):
    """The function of a rule as a plain sum over task classes and trajectories, families as tasks of their own."""
    policy = truncation.exact(logits, CONFIG.limit if rule not in ("continue", "shaping") else None)
    total, kinds = 0.0, policy.kinds
    for i, c in enumerate(policy.classes):
        chance = kinds.probability(policy.log_probs)[c.family]
        above = below = 0.0
        for k, path in enumerate(kinds.paths):
            reward, cut = kinds.reward[i, k], path.end == TIMEOUT
            if rule == "bootstrap" and cut:
                reward += values[c.family, policy.environment.stage_of[path.last]]
            if rule in ("zero", "drop") and cut:
                continue
            if rule == "shaping":
                # Six tokens before the longest answer of fifteen the punishment starts, and grows to 0.2.
                reward -= 0.2 * max(0, truncation._tokens(policy.environment, path) - 9) / 6
            above += chance[k] * reward
            below += chance[k]
        total += c.probability * (above / below if rule == "drop" else above)
    return total


@pytest.mark.parametrize("rule", [r for r in truncation.RULES if r != "mask"])
def test_the_gradient_of_what_a_rule_climbs_is_its_central_difference(rule):
    values, found = truncation.exact(LOGITS).row_values, truncation.gradient(CONFIG, rule, LOGITS)
    for at in ((0, 1, 1), (0, 1, 3), (1, 1, 4), (1, 2, 4), (0, 4, 5), (1, 0, 0)):
        step = np.zeros_like(LOGITS)
        step[at] = 1e-5
        slope = (climbs(rule, LOGITS + step, values) - climbs(rule, LOGITS - step, values)) / 2e-5
        assert found[at] == pytest.approx(slope, abs=1e-9)


def test_the_steps_expected_gradient_is_what_the_rule_climbs():
    for row in result().data["gradients"]:
        assert row["cosine_to_own"] == pytest.approx(1, abs=1e-9), row["rule"]
        if row["rule"] != "drop":
            assert row["scale"] == pytest.approx(1, abs=1e-9), row["rule"]
    by = {row["rule"]: row for row in result().data["gradients"]}
    assert by["continue"]["cosine_to_score"] == pytest.approx(1)
    assert result().headline["zero_cosine"] == by["zero"]["cosine_to_score"] < by["bootstrap"]["cosine_to_score"] < 1
    # A pair teaches only where both rows ended, and the loss divides by the rows that are left of both families' pairs.
    # With q = P(T), other pair: 0, 1 or 2 rows left. E = q^2 cov(R, S | T) sum over the other's m rows of P(m)/(2 + m)
    # for each family, where the whole loss divides a pair's 2 cov by 4 rows.
    q = 1 - result().data["start"]["cut_share"]
    share = sum(math.comb(2, m) * q**m * (1 - q) ** (2 - m) / (2 + m) for m in range(3))
    assert by["drop"]["scale"] == pytest.approx(q**2 * 2 * share / 0.5, rel=1e-9)


def test_the_start_by_hand():
    # Six actions a stage; the right ones weigh e^4: one at most stages, two at `ready`.
    w = math.exp(4)
    one, two = w / (w + 5), w / (2 * w + 4)
    start = result().data["start"]
    short, long = one * two * one, one * two * one * one * one
    assert start["success"] == pytest.approx(short + long)
    assert start["long_share"] == pytest.approx(long / (short + long))
    assert start["score"] < start["success"] - 0.1 * short - 0.03 * long


def test_following_the_exact_gradient_zero_leaves_the_long_way_and_continue_takes_it():
    start = truncation.knowing(4.0)
    config = build(truncation.Config, {"updates": 40})
    ends = {r: truncation._follow(config, r, start)[-1] for r in ("zero", "continue", "bootstrap", "shaping")}
    assert ends["zero"] < 0.02
    assert ends["shaping"] < 0.02
    assert min(ends["continue"], ends["bootstrap"]) > 0.8
    # The ways differ by 0.07 in score: a smaller penalty leaves the order as it is.
    mild = build(truncation.Config, {"updates": 150, "penalty": 0.03})
    assert truncation._follow(mild, "shaping", start)[-1] > 0.9


def test_a_critic_that_saw_the_short_way_alone_does_not_make_up_for_the_cut():
    config = build(truncation.Config, {"updates": 40})
    steps = truncation._train(config, "bootstrap", truncation.knowing(4.0), 0)
    assert steps[-1]["long_share"] < 0.1
    assert steps[-1]["score"] < 0.91


def test_a_limit_that_cuts_nothing_makes_zero_the_plain_score():
    found = result(limit=5)
    assert found.data["start"]["cut_share"] == pytest.approx(0, abs=1e-12)
    assert found.headline["zero_cosine"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("zero", "on", "words"),
    [
        ([0.1], [0.9], "from 1 run(s) each one cannot tell"),
        ([0.1, 0.9, 0.2], [0.5, 0.4, 0.6], "cannot tell"),
        ([0.1, 0.12, 0.11], [0.9, 0.91, 0.92], "Zero without telling prefers short episodes"),
        ([0.9, 0.91, 0.92], [0.1, 0.12, 0.11], "did not shorten"),
    ],
)
def test_the_verdict(zero, on, words):
    assert words in truncation.verdict(zero, on, 0.8, 0.9)
