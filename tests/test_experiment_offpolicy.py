"""Off-policy gradients against a second enumeration in plain Python, finite differences and published biases."""

import math
from functools import cache

import numpy as np
import pytest

from experiments import offpolicy
from experiments.offpolicy import measures
from labs.correction import RolloutCorrectionConfig
from labs.errors import InputError
from labs.exact import ascend, truth
from labs.experiment import execute
from labs.moments import moments
from labs.offpolicy import Behind, Estimate, Ratios, selection, support, top_k, without
from labs.policy import Policy
from labs.registry import environments
from labs.settings import build
from labs.step import StepConfig

ARITHMETIC = environments["arithmetic"]
#: Logits 0.9 sin(1.7 (4 s + a) + 0.3), and the same for the other family with its two tools exchanged.
W = np.array([[0.9 * math.sin(1.7 * (4 * s + a) + 0.3) for a in range(4)] for s in range(3)])
TABLE = np.array([W, W[:, [0, 2, 1, 3]]])


def walks(family):
    """Every episode of `arithmetic` as [(stage, action), ...] with its score: read, add or subtract, submit."""
    for first in range(4):
        if first != 0:
            yield [(0, first)], 0.0
            continue
        for second in range(4):
            if second not in (1, 2):
                yield [(0, 0), (1, second)], 0.0
                continue
            for third in range(4):
                yield [(0, 0), (1, second), (2, third)], float(third == 3 and second == 1 + family)


def softmax(table):
    return np.exp(table) / np.exp(table).sum(axis=-1, keepdims=True)


def chance(policy, family, walk):
    return math.prod(policy[family, stage, action] for stage, action in walk)


def score(policy, family, walk):
    out = np.zeros(policy.shape)
    for stage, action in walk:
        out[family, stage] -= policy[family, stage]
        out[family, stage, action] += 1
    return out


def expect(sampler, function):
    """Mean of `function(family, walk, reward)` over families and the episodes of the sampler."""
    return sum(
        chance(sampler, family, walk) * function(family, walk, reward) / 2
        for family in range(2)
        for walk, reward in walks(family)
    )


def climb(function, table, eps=1e-5):
    """Gradient of a function of the logits by central differences."""
    out = np.zeros_like(table)
    for at in np.ndindex(table.shape):
        step = np.zeros_like(table)
        step[at] = eps
        out[at] = (function(table + step) - function(table - step)) / (2 * eps)
    return out


def success(table):
    return expect(softmax(table), lambda f, walk, reward: reward)


@cache
def result(**settings):
    return execute("offpolicy", build(offpolicy.Config, {**offpolicy.TINY, **settings}), 7)


def size(vector):
    return float(np.linalg.norm(vector))


def test_the_headline_by_hand():
    """One training run, no inner updates: every number again, episode by episode."""
    settings = {"runs": 1, "inner": 0, "threshold": 1.3}
    config = build(offpolicy.Config, {**offpolicy.TINY, **settings})
    run = measures.policies(config, 7000)
    new, past = np.exp(run.current.log_probs), np.exp(run.at(2).log_probs)
    b = expect(past, lambda f, walk, reward: reward)
    true = climb(success, run.current.log_probs)

    def weight(f, walk):
        return chance(new, f, walk) / chance(past, f, walk)

    def off(cap):
        mean = expect(past, lambda f, walk, r: min(weight(f, walk), cap(f, walk)) * (r - b) * score(new, f, walk))
        return size(mean - true) / size(true)

    found = result(**settings).headline
    plain = expect(past, lambda f, walk, r: (r - b) * score(new, f, walk))
    assert found["uncorrected_bias"] == pytest.approx(size(plain - true) / size(true), abs=1e-7)
    assert found["truncated_bias"] == pytest.approx(off(lambda f, walk: 1.3), abs=1e-7)
    assert found["exact_bias"] == pytest.approx(0, abs=1e-12)
    second = expect(past, lambda f, walk, r: weight(f, walk) ** 2)
    assert found["effective"] == pytest.approx(1 / second, rel=1e-9)
    assert found["uncorrected_bias"] > found["truncated_bias"] + 0.05 > 0.1, "the case has to be telling"


def lost_support(known, k):
    """Relative bias of exact weights under top-k sampling, baseline J."""
    new, true, b = np.exp(known.log_probs), climb(success, known.log_probs), success(known.log_probs)
    tops = np.argsort(-new, axis=-1, kind="stable")[..., :k]

    def inside(f, walk):
        return all(action in tops[f, stage] for stage, action in walk)

    mean = expect(new, lambda f, walk, r: inside(f, walk) * (r - b) * score(new, f, walk))
    return size(mean - true) / size(true)


def gated(known):
    """Cosine of training on what is kept when episodes of 3 decisions are kept every other time."""
    new, true = np.exp(known.log_probs), climb(success, known.log_probs)
    keep = {1: 1.0, 2: 1.0, 3: 0.5}
    kept = expect(new, lambda f, walk, r: keep[len(walk)])
    trained = expect(new, lambda f, walk, r: keep[len(walk)] * r) / kept
    mean = expect(new, lambda f, walk, r: keep[len(walk)] * (r - trained) * score(new, f, walk))
    return float((mean * true).sum() / size(mean) / size(true))


def test_the_support_and_the_selection_of_the_headline_by_hand():
    config = build(offpolicy.Config, offpolicy.TINY)
    learning = [measures.policies(config, 7000 + r).at(6 - 2) for r in range(2)]
    found = result().headline
    assert found["support_bias"] == pytest.approx(
        max(np.mean([lost_support(known, k) for known in learning]) for k in (2, 3)), abs=1e-7
    )
    # Two decisions between updates, lag 1 let through: an episode of 3 is 1.5 updates old.
    assert found["selection_cosine"] == pytest.approx(np.mean([gated(known) for known in learning]), abs=1e-7)


@pytest.mark.parametrize(
    ("block", "bias"),
    [
        ({"rollout_is": "sequence", "rollout_is_threshold": 2.0}, 0.013568114),
        ({"rollout_is": "token", "rollout_is_threshold": 2.0}, 0.25952118),
        ({"rollout_is": "sequence", "rollout_is_threshold": "1e-9_2.0"}, 0.041195044),
    ],
)
def test_bias_of_truncation_and_masking_is_the_published_one(block, bias):
    current = truth(ARITHMETIC, TABLE)
    uniform = truth(ARITHMETIC, 0 * TABLE)
    behind = Behind.of(current, current, uniform, baseline=current.objective.value)
    step = StepConfig(loss="reinforce", correction=RolloutCorrectionConfig(**block))
    assert behind.estimate(step).relative_bias == pytest.approx(bias, abs=6e-9)


@pytest.mark.parametrize("rule", ["token truncation", "clip around behaviour"])
def test_the_expectation_is_that_of_leave_one_out_groups(rule):
    past, old, new = (ascend(ARITHMETIC, s) for s in (0.2, 0.4, 0.5))
    step = measures.rules(offpolicy.Config(threshold=1.2))[rule]
    found = Behind.of(new, old, past).estimate(step)
    table = [Policy.of(ARITHMETIC, t.log_probs) for t in (new, old, past)]
    step = StepConfig(estimator="rloo", loss=step.loss, correction=step.correction, loss_agg_mode="seq-mean-token-sum")
    other = moments(ARITHMETIC, table[0], step, group_size=2, old=table[1], behaviour=table[2])
    assert other.exact
    assert found.relative_bias > 0.1
    assert np.abs(found.mean - other.mean).max() < 1e-14


def test_variance_and_error_by_hand():
    new, past = ascend(ARITHMETIC, 0.5), ascend(ARITHMETIC, 0.3)
    step = measures.rules(offpolicy.Config())[measures.EXACT]
    found = Behind.of(new, new, past, baseline=0.2).estimate(step)
    p, q = new.probabilities, past.probabilities

    def term(f, walk, reward):
        return chance(p, f, walk) / chance(q, f, walk) * (reward - 0.2) * score(p, f, walk)

    second = expect(q, lambda f, walk, r: (term(f, walk, r) ** 2).sum())
    mean = expect(q, term)
    # A batch holds one episode of each family; half of the sum of the families' own covariances.
    own = sum(size(2 * mean[f]) ** 2 for f in range(2))
    assert found.variance == pytest.approx((2 * second - own) / 4, rel=1e-10)
    true = size(new.objective.gradient) ** 2
    assert found.error(8) == pytest.approx(found.variance / 8 / true, rel=1e-10)


def test_laws_of_the_ratios_by_hand():
    new, past = truth(ARITHMETIC, TABLE), ascend(ARITHMETIC, 0.3)
    p, q = new.probabilities, past.probabilities
    law, token = Ratios.sequence(new, past), Ratios.token(new, past)
    ratio = lambda f, walk: chance(p, f, walk) / chance(q, f, walk)  # noqa: E731
    assert law.mean == pytest.approx(1, abs=1e-11)
    assert law.chi2 == pytest.approx(expect(q, lambda f, walk, r: ratio(f, walk) ** 2) - 1, rel=1e-9)
    assert law.tail(1.5) == pytest.approx(expect(q, lambda f, walk, r: ratio(f, walk) > 1.5))
    assert law.carried(1.5) == pytest.approx(expect(p, lambda f, walk, r: ratio(f, walk) > 1.5))
    assert law.largest == pytest.approx(max(ratio(f, walk) for f in range(2) for walk, _ in walks(f)))
    length = expect(q, lambda f, walk, r: len(walk))
    above = expect(q, lambda f, walk, r: sum(p[f, s, a] > 1.5 * q[f, s, a] for s, a in walk))
    assert token.tail(1.5) == pytest.approx(above / length)
    assert token.mean == pytest.approx(1, abs=1e-11)
    drawn = law.draw(np.random.default_rng(0), 20_000)
    assert abs(drawn.mean() - 1) < 5 * math.sqrt(law.chi2 / 20_000)


def test_what_was_never_sampled_is_lost_whatever_the_weights():
    known = truth(ARITHMETIC, TABLE)
    never = np.arange(4) == 1

    def gone(table):
        return expect(softmax(table), lambda f, walk, r: any(a == 1 for _, a in walk))

    found = support(known, without(known, never), baseline=0.1)
    lost = climb(gone, known.log_probs)
    true = climb(success, known.log_probs)
    assert found.missing == pytest.approx(gone(TABLE))
    assert found.missing_score == pytest.approx(success(TABLE) / 2), "adding is what one of two families needs"
    assert found.unrepairable == pytest.approx(size(lost) / 2 / size(true), abs=1e-8)
    # The two worlds: with what the weights make of the same data, one of them is missed by at least half the distance.
    p = known.probabilities
    worlds = [found.weighted.truth + s * lost - expect(
        p, lambda f, walk, r: any(a == 1 for _, a in walk) * r * score(p, f, walk)) for s in (0, 1)]  # fmt: skip
    misses = [size(found.weighted.mean - world) / size(true) for world in worlds]
    assert max(misses) >= found.unrepairable - 1e-9
    whole = support(known, top_k(known, 4), baseline=0.1)
    assert whole.missing == whole.unrepairable == 0
    assert max(whole.weighted.relative_bias, whole.unweighted.relative_bias) < 1e-12
    with pytest.raises(InputError, match="must be distributions"):
        support(known, np.zeros_like(TABLE))


def test_selection_climbs_the_score_of_what_is_kept():
    known = truth(ARITHMETIC, TABLE)
    found = selection(known, (known.kinds.decisions < 3) * 0.25 + 0.5)

    def share(walk):
        return 0.75 if len(walk) < 3 else 0.5

    def conditional(table):
        p = softmax(table)
        return expect(p, lambda f, w, r: share(w) * r) / expect(p, lambda f, w, r: share(w))

    assert np.allclose(found.dropped.mean, climb(conditional, known.log_probs), atol=1e-9)
    assert np.allclose(found.failed.mean, 0.5 * known.objective.gradient)
    assert found.kept_score == pytest.approx(conditional(TABLE))
    assert found.kept_decisions < found.decisions
    everything = selection(known, np.ones(13))
    assert everything.kept == pytest.approx(1)
    assert everything.dropped.relative_bias < 1e-12
    with pytest.raises(InputError, match="keeps no trajectory"):
        selection(known, np.zeros(13))


def test_on_policy_every_rule_is_the_plain_gradient():
    rows = [row for row in result(inner=0, lags=(0,), runs=1).metrics if "rule" in row]
    assert {row["rule"] for row in rows} == set(measures.rules(offpolicy.Config()))
    for row in rows:
        assert row["relative_bias"] < 1e-12, row["rule"]
        assert row["kept"] == pytest.approx(1)
    assert len({round(row["noise"], 9) for row in rows}) == 1


def test_normalised_weights_are_refused_and_an_estimate_without_mean_points_nowhere():
    known = truth(ARITHMETIC, TABLE)
    step = StepConfig(correction=RolloutCorrectionConfig(rollout_is_batch_normalize=True))
    with pytest.raises(InputError, match="ties rows together"):
        Behind.of(known, known, known).estimate(step)
    assert Estimate(0 * TABLE, known.objective.gradient).cosine == 0


@pytest.mark.parametrize(
    ("truncated", "words"),
    [
        ([0.5, 0.51, 0.52], "truncated sequence weights nearer at lag 4"),
        ([1.5, 1.51, 1.52], "truncated sequence weights farther at lag 4"),
        ([0.5, 1.5, 1.0], "truncated sequence weights one cannot tell at lag 4"),
        ([1.0, 1.01, 1.02], "truncated sequence weights one cannot tell at lag 4"),
    ],
)
def test_the_verdict(truncated, words):
    base = {measures.NONE: [1.0, 1.01, 1.02], "sequence truncation": truncated, measures.EXACT: [0.1, 0.11, 0.12]}
    said = offpolicy.verdict({4: base}, 64)
    assert words in said
    assert "exact weights nearer at lag 4" in said
    assert "over 3 run(s)" in said


def test_one_run_cannot_tell():
    assert "nearer" not in result(runs=1).conclusion
    assert "one cannot tell at lag 0, 4" in result(runs=1).conclusion


@pytest.mark.parametrize("lags", [[], [2, 1], [0, 0], [0, 7]])
def test_lags_that_a_run_does_not_have(lags):
    with pytest.raises(InputError, match="ascending, none above version"):
        build(offpolicy.Config, {**offpolicy.TINY, "lags": lags})
