"""What groups teach, against closed forms and published values."""

import math
from functools import cache

import pytest

from experiments import groups
from experiments.groups import measures
from labs.errors import InputError
from labs.experiment import execute
from labs.settings import build
from labs.stats import t_interval


@cache
def result(seed=7, **settings):
    return execute("groups", build(groups.Config, {**groups.TINY, **settings}), seed)


def kind(estimator):
    return next(row for row in result().data["kinds"] if row["estimator"] == estimator)


def ids(estimator):
    return {row["ids"]: row for row in measures.ids(estimator)}


class TestKinds:
    def test_leave_one_out_by_hand(self):
        row = kind("rloo")
        assert [row[k] for k in measures.PLACES] == pytest.approx([0, 0, 1, -1 / 3, 1], abs=1e-12)

    def test_group_normalisation_by_hand(self):
        # Mean 1/4, deviations 3/4 and -1/4, sample standard deviation 1/2, population sqrt(3)/4.
        assert [kind("grpo")[k] for k in measures.PLACES] == pytest.approx([0, 0, 1.5, -0.5, 1], abs=1e-5)
        assert [kind("grpo_population")[k] for k in measures.PLACES] == pytest.approx(
            [0, 0, math.sqrt(3), -1 / math.sqrt(3), 0], abs=1e-12
        )

    def test_who_gives_a_lone_rollout_nothing_or_refuses_it(self):
        assert [kind(n)["lone, right"] for n in ("rloo_vectorized", "trl_grpo", "trl_rloo")] == [0, 0, 0]
        assert kind("grpo_passk")["lone, right"] is None
        assert kind("grpo_passk")["mixed, wrong"] == 0

    @pytest.mark.parametrize("n", [2, 3, 16])
    def test_population_against_sample_standard_deviation(self, n):
        assert measures.std_ratio(n) == pytest.approx(math.sqrt(n / (n - 1)), rel=1e-5)


class TestEqualGroups:
    def test_the_uniform_policy_has_the_published_share(self):
        found = result(skills=(0.0,), group_sizes=(16,))
        assert found.headline["exact_equal_share"] == pytest.approx(0.77726517, abs=1e-8)

    def test_exact_is_the_closed_form_and_sampling_agrees(self):
        found = result(skills=(1.0, 2.0), group_sizes=(2, 8), groups=2000)
        assert len(found.data["shares"]) == 8
        for row in found.data["shares"]:
            right = math.exp(row["skill"] / (1 + (row["task"] == "difference")))
            p = (right / (right + 3)) ** 3
            assert row["p"] == pytest.approx(p, abs=1e-12)
            assert row["exact"] == pytest.approx(p ** row["n"] + (1 - p) ** row["n"], abs=1e-12)
        # Five standard errors in eight comparisons: a wrong draw once in 200,000.
        assert found.headline["largest_deviation"] < 5


class TestSize:
    def test_signal_to_noise_of_independent_groups_grows_with_their_number(self):
        one, four = (build(groups.Config, {"budget": b, "large": 2}) for b in (8, 32))
        assert measures.noise(four, 2, 1.0) == pytest.approx(2 * measures.noise(one, 2, 1.0), rel=1e-9)

    @pytest.mark.slow
    def test_the_ratio_of_the_headline_from_the_variance_of_leave_one_out(self):
        # One parameter direction at a time: with A = n/(n-1) (R - mean), E[g] is the same at every n, and the variance
        # of groups of n at a fixed number of rows is a + b / (n - 1); three sizes must lie on one such line.
        config = build(groups.Config, {"budget": 48, "large": 4})
        variance = {n: measures.noise(config, n, 2.0) ** -2 for n in (2, 4, 8)}
        assert (variance[2] - variance[4]) / (variance[4] - variance[8]) == pytest.approx(
            (1 - 1 / 3) / (1 / 3 - 1 / 7), rel=1e-6
        )
        found = result(start=2.0)
        assert found.headline["signal_to_noise_ratio"] == pytest.approx(math.sqrt(variance[2] / variance[4]), rel=1e-9)

    def test_training_differs_by_seed_and_not_by_run(self):
        first = measures.train(build(groups.Config, groups.TINY), 7, None)
        assert first == measures.train(build(groups.Config, groups.TINY), 7, None)
        assert first != measures.train(build(groups.Config, groups.TINY), 8, None)

    def test_the_conclusion_can_tell_and_cannot(self):
        config = groups.Config()
        words = [
            groups._conclusion(t_interval(v), 1.4, config) for v in ([0.1, 0.11], [-0.1, -0.11], [0.1, -0.1], [0.1])
        ]
        assert "groups of 16 learn faster" in words[0]
        assert "groups of 2 learn faster" in words[1]
        assert "cannot tell" in words[2]
        assert "cannot tell" in words[3]


class TestIds:
    def test_leave_one_out_stays_unbiased_whatever_the_ids(self):
        for row in ids("rloo").values():
            assert (row["scale_easy"], row["scale_hard"]) == pytest.approx((1, 1), abs=1e-12)

    def test_centring_keeps_its_factor_of_the_size_that_the_ids_make(self):
        found = ids("dr_grpo")
        assert found["right ids"]["scale_easy"] == pytest.approx(3 / 4, abs=1e-12)
        assert found["one id for all"]["scale_hard"] == pytest.approx(7 / 8, abs=1e-12)
        assert found["ids of the neighbour"]["scale_easy"] == pytest.approx(3 / 4, abs=1e-12)
        assert found["an id for each row"]["scale_easy"] == pytest.approx(1, abs=1e-12)

    @pytest.mark.slow
    def test_labels_that_look_like_one_number_are_one_group_to_the_vectorised_entry(self):
        merged, kept = ids("grpo_vectorized"), ids("grpo")
        assert merged["'7' and '07'"]["noise"] == pytest.approx(merged["one id for all"]["noise"], rel=1e-5)
        assert kept["'7' and '07'"]["noise"] == pytest.approx(1, rel=1e-12)

    def test_a_wrong_id_changes_how_hard_and_easy_tasks_weigh_under_division_by_the_spread(self):
        found = ids("grpo")
        right, wrong = (found[k]["scale_hard"] / found[k]["scale_easy"] for k in ("right ids", "one id for all"))
        assert right < 1 < wrong


class TestSessions:
    def test_grpo_hears_the_last_row_of_each_session_and_the_others_hear_all(self):
        table = {row["estimator"]: row for row in measures.sessions()}
        assert table["grpo"]["rows"] == [2, 5, 7, 8]
        assert result().headline["baseline_rows"] == 4
        for name in ("dr_grpo", "rloo", "grpo_vectorized"):
            assert table[name]["rows"] == list(range(9))

    def test_the_baselines_by_hand(self):
        table = {row["estimator"]: row["advantages"] for row in measures.sessions()}
        # Mean of four finals 1.75 / 4; of nine rows 1.75 / 9.
        std = math.sqrt(sum((s - 0.4375) ** 2 for s in measures.SCORES) / 3)
        assert table["grpo"][:3] == pytest.approx([0.5625 / (std + 1e-6)] * 3, rel=1e-6)
        assert table["dr_grpo"][:3] == pytest.approx([-1.75 / 9, -1.75 / 9, 1 - 1.75 / 9], abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"estimator": "gae"}, "estimator is"),
        ({"budget": 100}, "multiple of twice large"),
        ({"skills": ()}, "at least one"),
    ],
)
def test_bad_settings(settings, word):
    with pytest.raises(InputError, match=word):
        build(groups.Config, settings)
