"""The walk through one step against numbers worked out by hand."""

import math
from functools import cache

import pytest

from experiments import walkthrough
from labs.errors import InputError
from labs.experiment import execute
from labs.masked import AGG_MODES
from labs.registry import estimators
from labs.settings import build


@cache
def result(**settings):
    return execute("walkthrough", build(walkthrough.Config, {**walkthrough.TINY, **settings}), 7)


def test_the_advantages_are_those_of_the_text():
    # Mean 0.5, deviations 0.5, -0.5 and 0, sample standard deviation 0.5; the second prompt has no contrast.
    advantage = 0.5 / (0.5 + 1e-6)
    found = [row["advantage"] for row in result().trajectories]
    assert found == pytest.approx([advantage, -advantage, 0, 0, 0, 0], abs=1e-12)
    assert result().headline["first_advantage"] == pytest.approx(advantage, abs=1e-12)


def test_the_gradient_is_one_fifteenth_on_the_two_tools_and_nothing_elsewhere():
    # Fifteen chosen tokens. The two rollouts with an advantage share `read` and `submit`, where they cancel.
    size = 0.5 / (0.5 + 1e-6) / 15
    assert result().headline["chosen_tokens"] == 15
    for f, family in enumerate(result().data["gradient"]):
        for s, row in enumerate(family):
            wanted = [0, size, -size, 0] if (f, s) == (0, 1) else [0, 0, 0, 0]
            assert row == pytest.approx(wanted, abs=1e-14)


def test_the_loss_after_the_update_by_hand():
    # Only `add` of the first rollout and `subtract` of the second have moved: by +-2/15 in their logits.
    size = 0.5 / (0.5 + 1e-6)
    up, down = math.exp(2 * size / 15), math.exp(-2 * size / 15)
    total = (up + down + 2) / 4
    assert result().headline["loss"] == pytest.approx(-size * (up - down) / total / 15, abs=1e-12)


def test_a_clipped_second_pass_has_no_gradient_left():
    moved = result(learning_rate=4.0).data
    ratios = [row[5] for row in moved["ratio_after_update"][:2]]
    assert ratios[0] > 1.2
    assert ratios[1] < 0.8
    assert max(abs(v) for row in moved["gradient_second_pass"][0] for v in row[1:3]) == 0


def test_the_name_of_the_estimator_is_in_no_loss():
    rows = [row for row in result().data["names"] if row["kind"] == "estimator"]
    assert {row["name"] for row in rows} == set(estimators)
    assert {row["loss_of_shared_advantages"] for row in rows} == {result().headline["loss"]}
    assert result().headline["largest_loss_change"] == 0
    assert "does not change the loss" in result().conclusion


def test_the_exact_gradient_is_that_of_one_route_of_probability_one_64th():
    # d/dz of (1/4)^3 is (1/64)(1[right] - 1/4), halved because the families share the tasks.
    for family, right in zip(result().data["exact_gradient"], ((0, 1, 3), (0, 2, 3)), strict=True):
        for row, action in zip(family, right, strict=True):
            assert row == pytest.approx([((a == action) - 0.25) / 128 for a in range(4)], abs=1e-15)


def test_how_many_batches_teach():
    p = 1 / 64
    exact = 1 - (p**3 + (1 - p) ** 3) ** 2
    many = result(batches=4000)
    assert many.headline["exact_teaching_share"] == pytest.approx(exact, abs=1e-14)
    # Five standard deviations of a binomial share: a wrong draw once in 1.7 million.
    assert abs(many.headline["teaching_share"] - exact) < 5 * math.sqrt(exact * (1 - exact) / 4000)


def test_without_contrast_it_cannot_tell():
    assert "cannot tell" in result(scores=(0.0,) * 6).conclusion


def test_a_difference_would_be_reported():
    assert "changed the loss by 0.25" in walkthrough._conclusion(0.25, 3, 5, True)


@pytest.mark.parametrize(
    ("settings", "word"), [({"scores": (1.0, 0.0)}, "6 rollouts"), ({"loss": "bypass_mode"}, "correction")]
)
def test_bad_settings(settings, word):
    with pytest.raises(InputError, match=word):
        build(walkthrough.Config, settings)


def test_the_modes_are_those_of_the_loss():
    assert walkthrough.MODES == AGG_MODES
