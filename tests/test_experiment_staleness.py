"""Old data: the published shape, what weights repair, a case where leaving it uncorrected loses."""

import json
from functools import cache

import numpy as np
import pytest

from experiments import staleness
from experiments.staleness import drawing, measures
from labs.async_trainer import AsyncTrainer
from labs.classes import Learner
from labs.correction import RolloutCorrectionConfig
from labs.errors import InputError
from labs.experiment import execute
from labs.lagged import RULES, Lagged, train
from labs.pipeline.model import simulate
from labs.pipeline.rules import Rules
from labs.pipeline.workload import Workload
from labs.registry import environments
from labs.settings import build
from labs.stats import Interval, t_interval
from labs.step import StepConfig
from labs.trainer import TrainerConfig


def config(**settings):
    return build(staleness.Config, {**staleness.TINY, **settings})


@cache
def result(seed=7):
    return execute("staleness", config(), seed)


def gap(low, high):
    return Interval((low + high) / 2, low, high, 5, "95 % t interval")


class TestShape:
    """The published and measured table: success by lag on `arithmetic`, step size 0.8, 100 updates."""

    @staticmethod
    @cache
    def table():
        made = build(staleness.Config, {"lags": [0, 8, 32], "runs": 6})
        return {(row["lag"], row["rule"]): row for row in measures.table(made, 7, lambda: None)}

    def cell(self, lag, rule, key="final"):
        return float(np.mean(self.table()[lag, rule][key]))

    def test_without_lag_all_rules_are_one(self):
        finals = {tuple(np.round(self.table()[0, rule]["final"], 12)) for rule in RULES}
        assert len(finals) == 1
        assert self.cell(0, "none") > 0.95

    def test_clipping_around_the_stale_policy_collapses(self):
        assert 0.7 < self.cell(8, "behaviour") < 0.9
        assert self.cell(32, "behaviour") < 0.2

    def test_the_decoupled_form_decays_gently(self):
        for rule in ("token", "log_linear"):
            assert 0.93 < self.cell(8, rule) < self.cell(0, rule)
            assert 0.8 < self.cell(32, rule) < self.cell(8, rule)

    def test_uncorrected_only_slows_on_the_default_task(self):
        assert self.cell(8, "none") == pytest.approx(self.cell(0, "none"), abs=0.01)
        assert self.cell(8, "none", "mean") < self.cell(0, "none", "mean") - 0.05
        assert self.cell(32, "none") > 0.8

    def test_whole_sequence_weights_lead_in_mean_success(self):
        for lag in (8, 32):
            lead = t_interval(
                [a - b for a, b in zip(*(self.table()[lag, r]["mean"] for r in ("sequence", "none")), strict=True)]
            )
            assert lead.low > 0.05


class TestBias:
    def test_no_lag_no_bias_and_the_rest_is_in_order(self):
        rows = measures.bias(build(staleness.Config, {"bias_runs": 2, "lags": [0, 4, 16]}), 7)
        for row in rows:
            biases = [row[f"bias_{rule}"] for rule in RULES]
            if row["lag"] == 0:
                assert biases == pytest.approx([0] * 5, abs=1e-12)
                assert row["effective"] == row["sequence_largest"] == pytest.approx(1, abs=1e-12)
            else:
                assert row["bias_sequence"] < row["bias_token"] < row["bias_behaviour"]
                assert row["effective"] < 1 < row["token_99"] <= row["token_largest"] <= row["sequence_largest"]
        # Until a ratio exceeds the threshold truncation cuts nothing, and whole weights are exact.
        uncut = [row for row in rows if row["sequence_largest"] <= 2]
        assert len(uncut) >= 2
        assert all(row["bias_sequence"] < 1e-12 for row in uncut)

    def test_quantile(self):
        value, chance = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.4, 0.1])
        assert [measures.quantile(value, chance, q) for q in (0.5, 0.51, 0.9, 0.99, 1.0)] == [1, 2, 2, 3, 3]


class TestSystems:
    @staticmethod
    @cache
    def rows():
        made = config(systems=["areal"], bounds=[1], system_runs=2, system_updates=5)
        return measures.systems(made, 7, lambda: None)

    def test_what_the_rows_say(self):
        rows = self.rows()
        assert {row["system"] for row in rows} == {"areal", "bound 1"}
        assert {row["denominator"] for row in rows} == set(measures.DENOMINATORS)
        for row in rows:
            curve = row["curve"]
            assert len({len(column) for column in curve.values()}) == 1
            assert curve["hours"] == sorted(curve["hours"])
            assert curve["update"] == list(range(len(curve["update"])))
            assert curve["hours"][-1] <= row["hours"]
            assert row["token_lag"] <= row["largest_lag"]
        assert all(row["largest_lag"] <= 1 for row in rows if row["system"] == "bound 1")
        assert max(row["version_span"] for row in rows if row["system"] == "areal") > 0

    def test_one_clock_for_all_rules_and_nothing_else_in_common(self):
        rows = [row for row in self.rows() if row["system"] == "areal" and row["run"] == 0]
        assert len({tuple(row["curve"]["hours"]) for row in rows}) == 1

    def test_the_frontier_of_bounds_shows_what_the_rows_say(self):
        """Two bounds, two runs of two seeds each: throughput, age and success are the mean of four rows."""
        from labs import plots

        made = config(bounds=[0, 2], system_runs=2, system_updates=5)
        found = [execute("staleness", made, seed) for seed in (7, 8)]
        rows = [row for one in found for row in one.data["systems"]]
        with plots.style():
            figure = drawing.bounds(found)
        throughput, age, learning = figure.axes
        speed = [
            np.mean([row["curve"]["samples"][-1] / row["hours"] / 3600 for row in rows if row["system"] == name])
            for name in ("bound 0", "bound 2")
        ]
        assert throughput.lines[0].get_ydata() == pytest.approx(speed)
        assert speed[0] < speed[1]
        mean_age, largest = (line.get_ydata() for line in age.lines[:2])
        assert mean_age[0] == largest[0] == 0
        assert 0 < mean_age[1] <= largest[1] <= 2
        assert [line.get_label() for line in learning.lines] == drawing.DENOMINATOR_WORDS
        for line, denominator in zip(learning.lines, measures.DENOMINATORS, strict=True):
            known = [
                np.mean([row["curve"]["success"][-1] for row in rows
                         if (row["system"], row["denominator"]) == (name, denominator)])
                for name in ("bound 0", "bound 2")
            ]  # fmt: skip
            assert line.get_ydata() == pytest.approx(known)


class TestDrift:
    def test_weights_repair_old_actions_and_never_old_rewards(self):
        found = measures.drift(build(staleness.Config, {"runs": 6}), 7, lambda: None)
        assert found["old rewards, weighted"] == found["old rewards"]
        gaps = {name: staleness.paired(found["fresh"], found[name]) for name in measures.ARMS if name != "fresh"}
        assert gaps["old actions"].low > 0.05
        assert staleness.paired(found["old actions, weighted"], found["old actions"]).low > 0.03
        assert gaps["old rewards"].low > 0.05
        assert gaps["both, weighted"].low > gaps["old actions, weighted"].high


@pytest.mark.slow
class TestFound:
    """Where leaving old data uncorrected loses: at equal samples, 95 % intervals over 50 seeds."""

    def test_in_routes_at_every_step_size(self):
        made = build(
            staleness.Config, {"search_learning_rates": [5.0, 10.0, 20.0, 40.0, 60.0, 100.0], "search_runs": 50}
        )
        rows = measures.search(made, 11, lambda: None)
        gaps = [staleness.paired(row["sequence"], row["none"]) for row in rows]
        assert all(g.low > 0.1 and g.n == 50 for g in gaps)
        # Not even the best step size for the one reaches the best of the other.
        best = {rule: max(rows, key=lambda row, r=rule: np.mean(row[r]))[rule] for rule in ("none", "sequence")}
        assert t_interval(best["sequence"]).low > t_interval(best["none"]).high

    def test_and_in_the_pipeline_itself_with_its_trainer(self):
        # Rollouts shorter than training and a budget of 33 batches ahead: the forced lag of the search, with a clock.
        rules = Rules(
            workers=192, batch_size=12, group_size=16, training_seconds=10.0, submission="budget",
            submission_batches=33.0, ingestion="train",
        )  # fmt: skip
        weights = RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=2.0)
        ends = {"recomputed": [], "proximal": []}
        for seed in range(12):
            for denominator, correction in (("recomputed", None), ("proximal", weights)):
                step = StepConfig(estimator="dr_grpo", loss_agg_mode="seq-mean-token-sum", correction=correction)
                made = TrainerConfig(step=step, learning_rate=30.0, verl_metrics=False)
                learner = AsyncTrainer(environments["routes"], made, seed=seed, denominator=denominator)
                simulate(rules, Workload([1.0] * 19_200, group_size=16), learner)
                assert learner.records[-1]["largest_lag"] == 32
                ends[denominator].append(learner.curve()[-1]["success"])
        assert staleness.paired(ends["proximal"], ends["recomputed"]).low > 0.05

    def test_in_arithmetic3_at_the_default_step_size(self):
        learner = Learner(environment=environments["arithmetic3"])
        none, sequence = (
            train(Lagged(learner=learner, lag=16, rule=rule), range(50))[1][:, -1] for rule in ("none", "sequence")
        )
        assert t_interval(list(sequence - none)).low > 0.3


class TestWords:
    def test_shape(self):
        told = staleness.shape(gap(0.6, 0.8), gap(0.1, 0.3), 32)
        assert "ends below the decoupled form by 0.700" in told
        assert "loses 0.200 of mean success" in told
        untold = staleness.shape(gap(-0.1, 0.2), gap(-0.1, 0.1), 32)
        assert "cannot be told" in untold
        assert "not visibly slower" in untold
        other = staleness.shape(gap(-0.3, -0.1), gap(-0.3, -0.1), 32)
        assert "ends above" in other
        assert "even gains 0.200" in other

    def test_repair(self):
        yes, no = gap(0.1, 0.3), gap(-0.1, 0.1)
        words = {"action_loss": yes, "action_repair": yes, "reward_loss": yes, "reward_repair": no}
        assert "weights return 0.200 of the 0.200" in staleness.repair(words)
        assert "nothing of the 0.200 that old rewards cost" in staleness.repair(words)
        assert "cost anything, 0.000 (95 % -0.100 to 0.100, n = 5), and weights return nothing of the 0.200" in (
            staleness.repair({**words, "action_loss": no})
        )
        assert "do not visibly repair" in staleness.repair({**words, "action_repair": no})
        assert "old rewards do not visibly cost" in staleness.repair({**words, "reward_loss": no})

    def test_verdict(self):
        def rows(**gaps):
            return [{"environment": name, "interval": interval} for name, interval in gaps.items()]

        one = staleness.verdict(rows(routes=gap(0.2, 0.4), arithmetic=gap(-0.1, 0.4), flaky_tools=gap(-0.4, -0.2)))
        assert "loses to truncated weights in routes by 0.300 (95 % 0.200 to 0.400, n = 5)" in one
        assert "wins in flaky_tools, -0.300" in one
        assert "cannot be told from them in arithmetic, 0.150" in one
        lone = staleness.verdict(rows(routes=Interval(0.3, None, None, 1, "")))
        assert "loses to truncated weights in none" in lone
        assert "cannot be told from them in routes, 0.300 (no interval" in lone

    def test_the_search_lets_uncorrected_training_choose_its_step_size(self):
        found = [
            {"environment": name, "learning_rate": rate, "uncorrected": value}
            for name, rate, value in (("a", 1.0, 0.1), ("a", 2.0, 0.9), ("b", 1.0, 0.5), ("b", 2.0, 0.4))
        ]
        assert [(row["environment"], row["learning_rate"]) for row in staleness.at_best(found)] == [
            ("a", 2.0),
            ("b", 1.0),
        ]

    def test_the_tiny_run_cannot_tell_and_says_so(self):
        assert "cannot be told from the decoupled form" in result().conclusion

    def test_headline_is_recomputed_from_the_rows(self):
        found = result()
        cell = {(row["lag"], row["rule"]): row for row in found.data["table"]}
        assert found.headline["behaviour_final"] == pytest.approx(np.mean(cell[3, "behaviour"]["final"]))
        assert found.headline["delay"] == pytest.approx(
            np.mean(cell[0, "none"]["mean"]) - np.mean(cell[3, "none"]["mean"])
        )
        row = found.data["search"][0]
        assert found.headline["search_difference"] == pytest.approx(np.mean(row["sequence"]) - np.mean(row["none"]))
        assert json.loads(json.dumps(found.data)) == found.data


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lags": [1, 2]}, "starts with 0"),
        ({"lags": [0]}, "two lags at least"),
        ({"systems": ["verl"]}, "allowed"),
        ({"search_environments": ["maze"]}, "search_environments"),
        ({"bounds": []}, "at least one, ascending"),
        ({"bounds": [1, 1]}, "at least one, ascending"),
        ({"systems": ["areal", "areal"]}, "systems has areal twice"),
        ({"search_environments": ["routes", "routes"]}, "routes twice"),
        ({"search_learning_rates": [5.0, 5.0]}, "5.0 twice"),
        ({"search_learning_rates": []}, "at least one environment"),
        ({"lags": [0, 200], "updates": 10}, "lags goes to 200; with updates=10 the largest is 9"),
        ({"lags": [0, 9], "bias_update": 6}, "with bias_update=6 the largest is 6"),
        ({"bias_update": 10_000, "updates": 12}, "bias_update is 10000"),
        ({"search_lag": 12}, "search_lag is 12; with updates=12 the largest is 11"),
        ({"drift_lag": 100}, "drift_lag is 100"),
        ({"drift": 12}, "drift is 12"),
        ({"rollout_seconds": 1e308}, "rollout_seconds"),
        ({"training_seconds": 1e308}, "training_seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings, says):
    with pytest.raises(InputError, match=says):
        config(**settings)
