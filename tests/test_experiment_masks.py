"""What the masks decide, against counts and closed forms."""

from functools import cache

import pytest

from experiments import masks
from experiments.masks import measures
from labs.enumeration import trajectories
from labs.errors import InputError
from labs.experiment import execute
from labs.masked import AGG_MODES
from labs.registry import environments, estimators
from labs.settings import build


@cache
def result(seed=7, **settings):
    return execute("masks", build(masks.Config, {**masks.TINY, **settings}), seed)


class TestMistake:
    def test_a_token_mean_scales_the_choices_by_chosen_over_counted(self):
        right, wrong = (result().data["mistake"][k] for k in ("right", "wrong"))
        assert right["counted_tokens"] == right["chosen_tokens"] == wrong["chosen_tokens"]
        exact = wrong["chosen_tokens"] / wrong["counted_tokens"]
        assert exact < 1
        assert result().headline["gradient_scale"] == pytest.approx(exact, abs=1e-12)
        assert result().headline["gradient_cosine"] == pytest.approx(1, abs=1e-12)
        assert "only scales" in result().conclusion

    @pytest.mark.parametrize(("mode", "cosine"), [("token-sum", True), ("seq-mean-token-mean", False)])
    def test_other_denominators(self, mode, cosine):
        found = result(loss_agg_mode=mode, groups=6).headline
        assert (found["gradient_cosine"] > 1 - 1e-9) == cosine
        if mode == "token-sum":  # no denominator that could count the reply
            assert found["gradient_scale"] == pytest.approx(1, abs=1e-12)
        else:
            assert "turns the gradient" in result(loss_agg_mode=mode, groups=6).conclusion

    def test_text_gets_a_gradient_only_by_mistake(self):
        found = result().data["mistake"]
        assert found["right"]["text_gradient"] == 0
        assert found["wrong"]["text_gradient"] > 0

    def test_the_expected_share_is_that_of_all_trajectories(self):
        environment, policy = environments["arithmetic"], measures.skilled(1.5)
        tokens = {"tool": 0.0, "all": 0.0}
        for family in range(2):
            table = policy.probabilities[family].tolist()
            for path in trajectories(environment, environment.max_steps):
                chance = path.probability
                for state, action in zip(path.states, path.actions, strict=True):
                    chance *= table[environment.stage_of[state]][action]
                replies = sum(environment.states[s].tokens for s in path.states[1:])
                tokens["tool"] += chance * replies
                tokens["all"] += chance * (replies + len(path.actions))
        assert measures.exact_share(policy) == pytest.approx(tokens["tool"] / tokens["all"], abs=1e-12)

    def test_the_sampled_share_is_near_it(self):
        found = result(groups=60, group_size=40).headline
        assert found["tool_share"] == pytest.approx(found["exact_tool_share"], abs=0.02)

    def test_the_ledger_adds_up(self):
        rows, wrong = result().trajectories, result().data["mistake"]["wrong"]
        assert sum(row["action_tokens"] for row in rows) == wrong["chosen_tokens"]
        assert sum(row["action_tokens"] + row["tool_tokens"] for row in rows) == wrong["counted_tokens"]

    def test_batches_that_cannot_tell(self):
        assert "no tool replied" in masks._conclusion(0.0, 1.0, 1.0, 0.0, "token-mean")
        assert "no tool replied" in result(skill=-9.0).conclusion
        lucky = result(skill=0.0)
        assert lucky.headline["tool_share"] > 0
        assert not any(row["score"] for row in lucky.trajectories)
        assert "nothing has a gradient" in lucky.conclusion


class TestRejection:
    def test_only_the_mask_stage_shrinks_only_response_mask(self):
        found = result().data["rejection"]
        rows = found["masks"]
        assert {row["loss_mask"] for row in rows} == {rows[0]["response_mask"]}
        assert [row["response_mask"] for row in rows[:3]] == [rows[0]["loss_mask"]] * 3
        assert {row["response_mask"] for row in rows[3:]} == {found["kept"]}
        assert 0 < found["rejected"] == rows[0]["loss_mask"] - found["kept"]

    def test_the_two_denominators_differ_by_the_share_that_is_kept(self):
        found = result().data["rejection"]
        assert found["weight_norm"]["loss_mask"] / found["weight_norm"]["response_mask"] == pytest.approx(
            found["kept"] / found["masks"][0]["loss_mask"], abs=1e-12
        )

    def test_a_wide_window_rejects_nothing(self):
        assert result(threshold=1000.0).headline["rejected_share"] == 0


class TestHoles:
    def line(self, name):
        found = result(gamma=0.9, lam=0.8).data["holes"]
        assert found["mask"] == [1, 0, 0, 0, 0, 1, 0, 0, 1]
        return [found["lines"][name][t] for t in (0, 5, 8)]

    def test_both_versions_of_reinforce_plus_plus(self):
        assert self.line("reinforce_plus_plus") == pytest.approx([0.81, 0.9, 1], abs=1e-12)
        assert self.line("reinforce_plus_plus_reset") == [0, 0, 1]

    def test_gae_spends_gamma_lambda_on_decisions_or_on_tokens(self):
        for name in ("gae", "gae_truncated"):
            assert self.line(f"{name}, critic 0") == pytest.approx([0.72**2, 0.72, 1], abs=1e-12)
        for name in ("gae_step", "gae_ignore"):
            assert self.line(f"{name}, critic 0") == pytest.approx([0.72**8, 0.72**3, 1], abs=1e-12)

    def test_gae_with_a_critic_by_hand(self):
        # Values 0.405, 0.45, 0.5 at the choices: gamma V' equals V, and every difference but the last is 0.
        assert self.line("gae, critic") == pytest.approx([0.5 * 0.72**2, 0.5 * 0.72, 0.5], abs=1e-12)
        # Stepping through the reply, the token before it looks ahead to a value of 0.
        before, last = -0.45 + 0.72**2 * (0.9 * 0.5) + 0.72**3 * 0.5, 0.5
        assert self.line("gae_step, critic")[1:] == pytest.approx([before, last], abs=1e-12)


class TestLanding:
    def test_who_loses_the_score(self):
        table = {row["estimator"]: row for row in result().data["landing"]}
        for name, row in table.items():
            assert row["lost"] == (estimators[name].meta["properties"].reward_on_masked is not True), name
            assert row["action"] != row["nowhere"], name
        assert result().headline["losers_of_the_score"] == sum(row["lost"] for row in table.values())

    def test_leave_one_out_keeps_it_to_the_digit(self):
        row = next(row for row in result().data["landing"] if row["estimator"] == "rloo")
        assert (row["action"], row["tool"], row["nowhere"]) == (1, 1, 0)


def test_a_single_rollout_is_refused():
    with pytest.raises(InputError, match="at least 2"):
        build(masks.Config, {"groups": 1, "group_size": 1})


def test_the_modes_are_those_of_the_loss():
    assert masks.MODES == AGG_MODES
