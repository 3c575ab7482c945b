"""A filtered batch against published numbers, plain enumeration of pairs and batches, and the lab's own moments."""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest

from experiments import filtering
from experiments.filtering import measures
from labs.errors import InputError
from labs.exact import ascend
from labs.experiment import execute
from labs.moments import moments
from labs.policy import Policy
from labs.registry import environments, estimators
from labs.settings import build
from labs.step import StepConfig

PAIRS = {"environment": "arithmetic", "successes": (0.2, 0.7), "estimator": "rloo", "group_size": 2,
         "groups_per_update": 2, "batches": 300}  # fmt: skip


@cache
def result(**settings):
    return execute("filtering", build(filtering.Config, {**filtering.TINY, **settings}), 7)


def pairs(policy, family):
    """Every group of two episodes of `arithmetic`: its probability, leave-one-out gradient, and whether it is kept."""
    single = []
    for first in range(4):
        for second in range(4) if first == 0 else [None]:
            for third in range(4) if second in (1, 2) else [None]:
                walk = [(s, a) for s, a in enumerate((first, second, third)) if a is not None]
                own = np.zeros_like(policy)
                for stage, action in walk:
                    own[family, stage] -= policy[family, stage]
                    own[family, stage, action] += 1
                chance = math.prod(policy[family, s, a] for s, a in walk)
                single.append((chance, float(second == 1 + family and third == 3), own))
    assert len(single) == 13
    for (p, r, s), (q, t, u) in product(single, repeat=2):
        yield p * q, ((r - t) * s + (t - r) * u) / 2, r != t


def cosine(a, b):
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_headline_by_hand():
    """Two groups of two, one of each family: every pair of pairs."""
    environment = environments["arithmetic"]
    policy = np.array([np.exp(ascend(environment, s).log_probs)[f] for f, s in enumerate((0.2, 0.7))])
    found = [list(pairs(policy, f)) for f in range(2)]
    keep = [sum(p for p, _, kept in group if kept) for group in found]
    whole = [sum(p * g for p, g, _ in group) for group in found]
    plain = (whole[0] + whole[1]) / 2
    left = np.zeros_like(policy)
    for (p, g, kept), (q, h, too) in product(*found):
        if kept or too:
            left += p * q * (g * kept + h * too) / (kept + too)
    headline = result(**PAIRS).headline
    assert headline["keep"] == pytest.approx(sum(keep) / 2, rel=1e-10)
    assert headline["refill_scale"] == pytest.approx(2 / sum(keep), rel=1e-10)
    assert headline["refill_cosine"] == pytest.approx(1, abs=1e-12)
    assert headline["left_cosine"] == pytest.approx(cosine(left, plain), abs=1e-10)
    assert headline["same_cosine"] == pytest.approx(cosine(whole[0] / keep[0] + whole[1] / keep[1], plain), abs=1e-10)
    assert headline["left_cosine"] < 1 - 1e-5
    # Played until two are kept: first and second kept group by the places they can have.
    rounds = (1 - keep[0]) * (1 - keep[1])
    first = [keep[0] / (1 - rounds), (1 - keep[0]) * keep[1] / (1 - rounds)]
    # Behind a kept group of family 0 it is the turn of family 1.
    second = first[0] * (1 - keep[1]) * keep[0] / (1 - rounds) + first[1] * keep[0] / (1 - rounds)
    share = (first[0] + second) / 2
    assert [row["in_turn"] for row in result(**PAIRS).data["families"]] == pytest.approx([share, 1 - share])
    assert abs(headline["trained_share"] - 0.5) == pytest.approx(abs(share - 0.5))


def test_published_values():
    # Prompts of success 0.02, 0.3, 0.9 with frequency 0.5, 0.3, 0.2, groups of 8.
    keep = [measures.contrast(p, 8) for p in (0.02, 0.3, 0.9)]
    assert 1 / (0.5 * keep[0] + 0.3 * keep[1] + 0.2 * keep[2]) == pytest.approx(2.1221917, abs=5e-8)
    assert [1 / k for k in keep] == pytest.approx([6.7007522, 1.0612485, 1.7558252], abs=5e-8)
    # Two fixed prompts, groups of 4 around their mean (3/4 of the leave-one-out gradient), over the number kept.
    one, two = measures.contrast(0.02, 4), measures.contrast(0.9, 4)
    assert 0.75 * measures.reciprocal([two]) == pytest.approx(0.621075, abs=5e-7)
    assert 0.75 * measures.reciprocal([one]) == pytest.approx(0.72088812, abs=5e-9)


@pytest.mark.parametrize("keeps", [[0.3], [0.0, 1.0, 0.4], [0.1, 0.2, 0.3, 0.9]])
def test_laws_of_counts(keeps):
    law = measures.counts(keeps)
    brute = [0.0] * (len(keeps) + 1)
    for happened in product((0, 1), repeat=len(keeps)):
        brute[sum(happened)] += math.prod(k if h else 1 - k for h, k in zip(happened, keeps, strict=True))
    assert law == pytest.approx(brute)
    assert measures.reciprocal(keeps) == pytest.approx(sum(p / (1 + k) for k, p in enumerate(brute)))


@pytest.mark.parametrize(("keeps", "groups"), [([0.3, 0.8], 3), ([0.05, 0.5, 0.9], 4), ([0.25], 5), ([0.0, 0.5], 2)])
def test_playing_in_turn_solves_its_equations(keeps, groups):
    """Value of (kept so far, whose turn): one step on, as a linear system."""
    size, families = groups * len(keeps), len(keeps)
    system, ends = np.eye(size), np.zeros((size, families + 1))
    for j, f in product(range(groups), range(families)):
        at, after = j * families + f, (f + 1) % families
        system[at, j * families + after] -= 1 - keeps[f]
        if j + 1 < groups:
            system[at, (j + 1) * families + after] -= keeps[f]
        ends[at, f] += keeps[f]
        ends[at, -1] += 1
    *kept, played = np.linalg.solve(system, ends)[0]
    found, cost = measures.in_turn(keeps, groups)
    assert found == pytest.approx(kept, abs=1e-9)
    assert cost == pytest.approx(played, rel=1e-9)
    assert sum(found) == pytest.approx(groups)


def test_where_nothing_is_ever_kept_playing_never_ends():
    assert measures.in_turn([0.0, 0.0], 3) == ([0.0, 0.0], math.inf)


@pytest.mark.parametrize(("environment", "estimator"), [("arithmetic3", "grpo"), ("routes", "dr_grpo")])
def test_the_unfiltered_gradient_is_that_of_the_exact_moments(environment, estimator):
    there = environments[environment]
    known = measures.skilled(there, (0.05, 0.6))
    groups = measures.tasks(known, estimator, 3)
    step = StepConfig(estimator=estimator, loss="reinforce", loss_agg_mode="seq-mean-token-sum")
    other = moments(there, Policy.of(there, known.log_probs), step, group_size=3)
    assert other.exact
    rows = measures.families(known, groups, 6)
    # grpo keeps float32 statistics.
    plain = measures.gradients(known, groups, rows, 6)[measures.PLAIN]
    assert np.abs(plain - other.mean).max() < 1e-6 * np.abs(plain).max()
    equal = known.equal_groups(3)
    assert [t.keep for t in groups] == pytest.approx((1 - equal).tolist(), abs=1e-12)


def test_every_allowed_estimator_says_nothing_in_groups_of_equal_scores():
    known = ascend(environments["arithmetic"], 0.5)
    names = [n for n in estimators if estimators[n].meta["properties"].groups and set(estimators[n].needs) <= {"index"}]
    assert {"grpo", "rloo", "dr_grpo", "opo"} <= set(names)
    for name in names:
        for task in measures.tasks(known, name, 4):
            assert np.abs(task.equal).max() < 1e-9, name
            assert np.abs(task.mixed).max() > 1e-3, name


def test_shares_of_the_rules_and_their_limits():
    rows, config = result(**PAIRS).data["families"], PAIRS
    keep = [row["family_keep"] for row in rows]
    for row, p in zip(rows, keep, strict=True):
        q = row["family_success"]
        assert p == pytest.approx(2 * q * (1 - q))
        assert row["stream"] == pytest.approx(p / sum(keep))
    for key in ("offered", "stream", "in_turn", "left"):
        assert sum(row[key] for row in rows) == pytest.approx(1), key
    # In a long batch it does not matter how the stream comes, nor whether it is refilled.
    known = measures.skilled(environments["arithmetic"], config["successes"])
    groups = measures.tasks(known, "rloo", 2)
    for row in measures.families(known, groups, 256):
        assert row["in_turn"] == pytest.approx(row["stream"], abs=0.003)
        assert row["left"] == pytest.approx(row["stream"], abs=0.003)


def test_the_trainer_filters_as_counted():
    found = result(**PAIRS)
    row = max(found.data["families"], key=lambda r: abs(r["in_turn"] - r["offered"]))
    error = math.sqrt(0.25 / 600)
    assert abs(found.headline["sampled_share"] - row["in_turn"]) < 4 * error
    assert all(sum(batch) == 2 for batch in found.data["sampled"]["trained"])
    ideal = next(r["cost"] for r in found.metrics if r.get("rule") == measures.TURN)
    assert found.headline["sampled_cost"] > ideal, "two are ordered for each that is dropped"


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([], "cannot tell"),
        ([0.9], "from 1 filtered batch(es), share 0.900, one cannot tell"),
        ([0.2, 0.8, 0.5], "one cannot tell"),
        ([0.7, 0.71, 0.72], "show more than offered, 0.710"),
        ([0.1, 0.11, 0.12], "show fewer than offered"),
    ],
)
def test_the_verdict(shares, words):
    assert words in filtering.verdict({"family": "sum", "in_turn": 0.7, "offered": 0.5}, shares)


def test_what_turns():
    rows = [{"rule": "none", "cosine": 1.0, "scale": 1.0}, {"rule": "a", "cosine": 1 - 1e-12, "scale": 2.0},
            {"rule": "b", "cosine": 0.9, "scale": 2.0}]  # fmt: skip
    assert filtering.turns(rows) == "Only the length changes with a (x 2.000); the direction turns with b (26 degrees)"
    assert filtering.turns(rows[::2]).startswith("The direction turns with b")


def test_one_family_alone_cannot_be_turned():
    """All families alike: every rule is a length."""
    rows = [row for row in result(environment="arithmetic", successes=(0.3,), group_size=3).metrics if "rule" in row]
    cosines = {row["rule"]: row["cosine"] for row in rows}
    assert cosines[measures.SAME] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "word"), [({"estimator": "gae"}, "compare scores"), ({"estimator": "remax"}, "compare scores"),
                           ({"successes": []}, "at least one"), ({"groups_per_update": 4}, "multiple of that")],
)  # fmt: skip
def test_what_is_refused(settings, word):
    with pytest.raises(InputError, match=word):
        build(filtering.Config, settings)
