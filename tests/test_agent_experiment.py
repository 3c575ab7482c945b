"""The agent experiment: the reference figures to every digit, and sampled beside exact."""

import math
import statistics

import pytest

import labs
from envs.arithmetic import arithmetic
from labs.classes import Learner, theory
from labs.stats import wilson


@pytest.fixture(scope="module")
def seven():
    return labs.run("agent", seed=7)


class TestReferenceFigures:
    def test_before_and_after(self, seven):
        before, after = seven.data["before"], seven.data["after"]
        assert (before["success_rate"], after["success_rate"]) == (0.020, 0.975)
        assert (before["invalid_rate"], after["invalid_rate"]) == (0.9525, 0.0225)
        assert before["episodes"] == after["episodes"] == 400
        assert seven.data["train_episodes"] == 19_200

    def test_history(self, seven):
        history = seven.data["history"]
        assert [row["update"] for row in history] == [1, 11, 21, 31, 41, 51, 61, 71, 81, 91, 100]
        right = [1, 4, 13, 53, 123, 142, 168, 180, 182, 183, 185]
        assert [row["train_success_rate"] for row in history] == [n / 192 for n in right]
        assert [row["zero_advantage_groups"] for row in history] == [11, 9, 4, 0, 0, 0, 2, 4, 7, 7, 6]
        assert {row["groups"] for row in history} == {12}
        assert history[0]["mean_state_entropy"] == pytest.approx(math.log(4))

    def test_final_policy(self, seven):
        best = [(row["operation"], row["stage"], *_top(row["action_probabilities"])) for row in seven.data["policy"]]
        assert best == [
            ("sum", "start", "read", 0.9874),
            ("sum", "ready", "add", 0.9877),
            ("sum", "computed", "submit", 0.9888),
            ("difference", "start", "read", 0.9886),
            ("difference", "ready", "subtract", 0.9881),
            ("difference", "computed", "submit", 0.9870),
        ]

    def test_mean_success_over_twenty_seeds(self):
        sweep = labs.run("agent", seeds=range(20))
        assert round(statistics.fmean(r.data["after"]["success_rate"] for r in sweep.results), 8) == 0.96675
        exact = [r.data["after"]["exact_success_rate"] for r in sweep.results]
        assert statistics.fmean(exact) == pytest.approx(0.9657, abs=0.001)
        assert statistics.stdev(exact) < 0.003


def _top(probabilities):
    action = max(probabilities, key=probabilities.get)
    return action, round(probabilities[action], 4)


class TestExactBesideSampled:
    def test_everywhere(self, seven):
        after = seven.data["after"]
        assert after["success_interval"] == list(wilson(390, 400)[1:3])
        assert after["success_interval_kind"] == "95 % Wilson interval"
        assert f"{after['exact_success_rate']:.4f}" in seven.summary[1]
        assert "0.9546 to 0.9864" in seven.summary[0]
        texts = [text.get_text() for axes in seven.figures()["policy"].axes for text in axes.texts]
        assert f"exact success {after['exact_success_rate']:.4f}\nsampled 0.9750\n95 % Wilson 0.955 to 0.986" in texts

    def test_the_exact_success_is_the_product_of_the_right_actions(self, seven):
        rows = seven.data["policy"]
        names = ("read", "add", "submit", "read", "subtract", "submit")
        right = [row["action_probabilities"][name] for row, name in zip(rows, names, strict=True)]
        expected = (math.prod(right[:3]) + math.prod(right[3:])) / 2
        assert seven.data["after"]["exact_success_rate"] == pytest.approx(expected, rel=1e-12)
        assert seven.data["before"]["exact_success_rate"] == 1 / 64

    def test_training_rates_scatter_around_the_exact_ones(self, seven):
        """The sum of squared deviations in units of their variance is about the number of updates."""
        z = [
            (row["train_success_rate"] - row["exact_train_success_rate"]) ** 2
            / (row["exact_train_success_rate"] * (1 - row["exact_train_success_rate"]) / 192)
            for row in seven.metrics
        ]
        assert 70 < sum(z) < 140

    def test_an_environment_in_which_a_wrong_tool_may_be_right(self):
        result = labs.run("agent", environment="arithmetic3", updates=1, evaluation_operands=[1, 2])
        # Uniform over five actions: (1/5)^3 for the right tool, and 2 + 2 = 2 * 2 for a quarter of sums and products.
        assert result.data["before"]["exact_success_rate"] == pytest.approx((1 + 2 / 3 * 1 / 4) / 125)
        assert len(result.data["policy"]) == 9


class TestResult:
    def test_shown_trajectories(self, seven):
        shown = seven.data["trajectories"]
        assert len(shown) == 8
        assert shown == seven.trajectories
        tables = {(r["operation"], r["stage"]): r["action_probabilities"] for r in seven.data["policy"]}
        for row in shown:
            assert all(101 <= n <= 200 for n in row["operands"])
            assert row["reward"] == float(row["success"])
            for step in row["steps"]:
                seen = step["observation"]
                expected = math.log(tables[seen["operation"], seen["stage"]][step["action"]])
                assert step["log_probability"] == pytest.approx(expected)
                assert step["policy_version"] == 100
        assert [row["operation"] for row in shown] == ["sum", "difference"] * 4

    def test_policies_are_distributions(self, seven):
        for key in ("policy", "policy_before"):
            for row in seven.data[key]:
                assert sum(row["action_probabilities"].values()) == pytest.approx(1)
                assert list(row["action_probabilities"]) == list(arithmetic.actions)
        assert {p for row in seven.data["policy_before"] for p in row["action_probabilities"].values()} == {0.25}

    @pytest.mark.parametrize(
        ("settings", "word"),
        [({}, "learned the protocol"), ({"updates": 45}, "a part"), ({"updates": 1}, "did not learn")],
    )
    def test_the_conclusion_follows_the_exact_numbers(self, settings, word):
        assert word in labs.run("agent", **settings).conclusion

    def test_next_commands_carry_the_settings(self):
        result = labs.run("agent", updates=2, train_operands=[1, 5])
        assert "--set updates=2 train_operands=1,5 --seeds 0-31" in result.next[0]

    def test_one_update_one_group_one_try(self):
        result = labs.run("agent", updates=1, groups_per_update=1, group_size=1, evaluation_episodes=1, max_steps=1)
        assert result.data["after"]["success_rate"] == result.data["after"]["exact_success_rate"] == 0
        assert result.data["policy"] == result.data["policy_before"]
        assert sorted(result.figures()) == ["learning", "policy"]


class TestFigures:
    def test_the_band_is_named(self, seven):
        legend = seven.figures()["learning"].axes[0].get_legend()
        assert legend.get_title().get_text() == "band: 95 % Wilson interval of 192 draws, one seed"
        names = [text.get_text() for text in legend.get_texts()]
        drawn = ["success, sampled", "invalid action, sampled", "success, exact", "success, expected update"]
        assert names == drawn

    def test_the_dashed_line_is_the_expected_update_and_the_thin_one_the_policys_exact_success(self, seven):
        lines = {line.get_label(): line for line in seven.figures()["learning"].axes[0].lines}
        exact, expected = lines["success, exact"], lines["success, expected update"]
        assert list(exact.get_ydata()) == [row["exact_train_success_rate"] for row in seven.metrics]
        assert expected.get_linestyle() == "--"
        found = theory(Learner(environment=arithmetic), 100)
        assert list(expected.get_ydata()) == pytest.approx(found[:-1].tolist(), abs=1e-12)

    def test_where_groups_are_too_many_to_count_the_figure_says_so(self):
        result = labs.run("agent", environment="routes", updates=2, evaluation_episodes=2)
        lines = result.figures()["learning"].axes[0].lines
        assert [line.get_label() for line in lines][-1] == (
            "no expected update: groups of 12 scores are too many to count"
        )

    def test_groups_of_wrong_answers_can_still_differ_in_cost(self):
        result = labs.run("agent", environment="routes", updates=2, evaluation_episodes=2)
        last = result.metrics[-1]
        assert last["zero_advantage_groups"] < last["all_wrong_groups"] + last["all_right_groups"]
        assert result.summary[-1].endswith("teach nothing (equal answers can differ in cost)")

    def test_shares_of_groups_add_up(self, seven):
        for row in seven.metrics:
            assert row["all_wrong_groups"] + row["all_right_groups"] == row["zero_advantage_groups"] <= row["groups"]
