"""Clips against hand-made numbers, published biases, and the largest KL that ratios inside the clip allow."""

import math
from functools import cache

import numpy as np
import pytest

from experiments import clipping
from labs.errors import InputError
from labs.exact import truth
from labs.experiment import execute
from labs.registry import environments, losses
from labs.settings import build

#: Logits 0.9 sin(1.7 (4 s + a) + 0.3), and the same for the other family with its two tools exchanged.
W = np.array([[0.9 * math.sin(1.7 * (4 * s + a) + 0.3) for a in range(4)] for s in range(3)])
TABLE = np.array([W, W[:, [0, 2, 1, 3]]])


@cache
def result(**settings):
    return execute("clipping", build(clipping.Config, {**clipping.TINY, **settings}), 7)


def curve(loss, side, key, ratio):
    data = result().data["curves"]
    at = min(range(len(data["ratio"])), key=lambda i: abs(data["ratio"][i] - ratio))
    return data["ratio"][at], data[side][loss][key][at]


@pytest.mark.parametrize(
    ("loss", "options", "bias", "cosine"),
    [
        ("vanilla", {}, 0.59351745, 0.83542335),
        ("cispo", {}, 0.33128465, None),
        ("cispo_variant", {"cap": 1.28}, 0.30064253, None),
        ("vanilla", clipping.OPEN, 0.25952118, None),
        ("gspo", {"clip_ratio_low": 1.0, "clip_ratio_high": 1e6}, 0.20197808, None),
        ("reinforce", {}, 0.38395609, None),
    ],
)
def test_bias_on_stale_data_is_the_published_one(loss, options, bias, cosine):
    # arXiv:2506.13585 and arXiv:2507.18071 restated: data of the uniform policy, advantages R - J.
    environment = environments["arithmetic"]
    current = truth(environment, TABLE)
    assert current.objective.value == pytest.approx(0.022234142, abs=5e-10)
    found = clipping.bias(current, truth(environment, np.zeros_like(TABLE)), loss, options)
    assert found["relative_bias"] == pytest.approx(bias, abs=6e-9)
    if cosine is not None:
        assert found["cosine"] == pytest.approx(cosine, abs=6e-9)


def test_without_staleness_no_clip_acts_and_nothing_is_biased():
    current = truth(environments["arithmetic"], TABLE)
    for loss in ("vanilla", "cispo"):
        assert clipping.bias(current, current, loss, {})["relative_bias"] < 1e-12


@pytest.mark.parametrize(
    ("loss", "side", "ratio", "value", "pull"),
    [
        ("vanilla", "good", 2.0, lambda r: -1.2, lambda r: 0.0),
        ("vanilla", "good", 0.5, lambda r: -r, lambda r: r),
        ("vanilla", "bad", 0.5, lambda r: 0.8, lambda r: 0.0),
        ("vanilla", "bad", 2.0, lambda r: r, lambda r: -r),
        ("vanilla", "bad", 4.0, lambda r: 3.0, lambda r: 0.0),
        ("no clip", "bad", 4.0, lambda r: r, lambda r: -r),
        ("cispo", "good", 2.0, lambda r: -1.2 * math.log(0.2 * r), lambda r: 1.2),
        ("cispo", "bad", 0.5, lambda r: 0.8 * math.log(0.2 * r), lambda r: -0.8),
    ],
)
def test_curves_by_hand(loss, side, ratio, value, pull):
    r, found = curve(loss, side, "loss", ratio)
    assert found == pytest.approx(value(r), abs=1e-6)
    assert -curve(loss, side, "gradient", ratio)[1] == pytest.approx(pull(r), abs=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.5, 3.0)])
def test_no_ratios_inside_the_clip_have_more_kl_than_the_bound_and_two_reach_it(low, high):
    bound = clipping.implied_kl(low, high)
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(4), size=20_000)
    q = generator.dirichlet(np.ones(4), size=20_000)
    ratio = 1 + 0.999 * (q / p - 1) * np.minimum(low / -(q / p - 1).min(1), high / (q / p - 1).max(1))[:, None]
    assert np.allclose((p * ratio).sum(1), 1)
    assert (-(p * np.log(ratio)).sum(1)).max() <= bound
    share = high / (low + high)
    assert bound == pytest.approx(-share * math.log(1 - low) - (1 - share) * math.log(1 + high))


def test_the_clipped_policy_leaves_the_bound_and_the_first_step_is_the_same_without_a_clip():
    found = result(epochs=20, learning_rate=0.1, batches=4)
    assert found.headline["implied_kl"] == pytest.approx(-0.5 * math.log(0.96))
    assert found.headline["clipped_kl"] > 5 * found.headline["implied_kl"]
    assert "the clip does not bound it" in found.conclusion
    first = {row["loss"]: row for row in found.metrics if row.get("epoch") == 1}
    assert first["vanilla"]["largest_kl"] == pytest.approx(first["no clip"]["largest_kl"], rel=1e-9)
    assert first["vanilla"]["clip_fraction"] == 0


@pytest.mark.parametrize(
    ("final", "words"),
    [
        ([0.5], "from 1 batch(es) one cannot tell"),
        ([0.01, 0.03, 0.02], "cannot tell"),
        ([0.5, 0.51, 0.52], "does not bound it"),
        ([0.01, 0.011, 0.012], "did not use up"),
    ],
)
def test_the_verdict(final, words):
    assert words in clipping.verdict("vanilla", final, 0.0204)


def test_the_comparison_with_the_plain_loss():
    assert "larger by 0.300" in clipping._slower("a", {"a": [0.1, 0.2], "no clip": [0.4, 0.5]})
    assert "cannot tell from 2 batch(es)" in clipping._slower("a", {"a": [0.1, 0.6], "no clip": [0.4, 0.5]})


def test_every_other_loss_has_curves_and_a_bias():
    own = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    names = sorted(set(losses) - set(clipping.LEFT_OUT))
    found = clipping.curves({name: (name, own) for name in names})
    for name in names:
        assert np.isfinite([*found["good"][name]["loss"], *found["bad"][name]["gradient"]]).all(), name
        # On policy every one of them pulls a good token up and a bad one down.
        assert found["good"][name]["gradient"][30] < 0 < found["bad"][name]["gradient"][30], name


def test_losses_without_a_curve_are_refused():
    with pytest.raises(InputError, match="none of bypass_mode"):
        build(clipping.Config, {"losses": ["vanilla", "kl_cov"]})
