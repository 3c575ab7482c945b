"""Forced lag for many seeds: on policy the class sampler, off policy the trainer's own step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labs.async_trainer import AsyncTrainer
from labs.classes import Learner, sweep
from labs.correction import RolloutCorrectionConfig
from labs.environment import Task
from labs.episodes import pack
from labs.errors import InputError
from labs.exact import log_softmax, truth
from labs.lagged import RULES, Lagged, expected, gradient, train
from labs.offpolicy import Behind
from labs.policy import Policy
from labs.registry import environments
from labs.step import StepConfig
from labs.trainer import TrainerConfig

LEARNER = Learner(environment=environments["arithmetic"])
#: Rule to the trainer's denominator and the unit of its weights.
TRAINED = {
    "none": ("recomputed", None),
    "token": ("proximal", "token"),
    "sequence": ("proximal", "sequence"),
    "behaviour": ("behaviour", None),
    "log_linear": ("log_linear", "token"),
}


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic3"])
@pytest.mark.parametrize("rule", RULES)
def test_without_lag_every_rule_is_the_class_sampler(name, rule):
    learner = Learner(environment=environments[name])
    logits, curve = train(Lagged(learner=learner, rule=rule), (0, 5), 8)
    expected, success = sweep(learner, (0, 5), 8)
    np.testing.assert_allclose(logits[-1], expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(curve, success, rtol=0, atol=1e-13)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["arithmetic", "flaky_tools"])
def test_a_step_is_the_trainers_on_the_same_episodes(rule, name):
    environment = environments[name]
    learner = Learner(environment=environment, groups_per_update=2, group_size=24, learning_rate=0.7)
    lagged = Lagged(learner=learner, lag=3, rule=rule, threshold=1.5)
    generator = np.random.default_rng(4)
    before = 0.4 * generator.normal(size=environment.policy_shape)
    after = before + 0.5 * generator.normal(size=environment.policy_shape)
    law = lagged.law
    kinds = [generator.integers(0, len(law.kinds), 24) for _ in range(2)]
    families = list(environment.families)
    tasks = [Task(families[g], (3, 5)) for g in (0, 1) for _ in range(24)]
    paths = [law.kinds.paths[k] for group in kinds for k in group]
    denominator, unit = TRAINED[rule]
    correction = None if unit is None else RolloutCorrectionConfig(rollout_is=unit, rollout_is_threshold=1.5)
    step = StepConfig(estimator="grpo_population", loss_agg_mode="seq-mean-token-sum", correction=correction)
    config = TrainerConfig(step=step, groups_per_update=2, group_size=24, learning_rate=0.7, verl_metrics=False)
    start = Policy.of(environment, after)
    anchored = AsyncTrainer(environment, config, seed=1, denominator=denominator, policy=start).trainer
    anchored.number = 3
    mu = Policy(torch.from_numpy(before), 1.0, 0)
    anchored.update(pack(environment, tasks, paths, mu, [f"g{i // 24}" for i in range(48)]))
    counts = np.stack([np.bincount(group, minlength=len(law.kinds)) for group in kinds]).astype(float)
    reward = np.stack([law.kinds.reward[law.own[g][0]] for g in (0, 1)])
    centred = reward - (counts * reward).sum(1, keepdims=True) / 24
    spread = np.sqrt((counts * centred**2).sum(1, keepdims=True) / 24)
    assert (spread > 0).all()
    moved = gradient(lagged, counts, centred / spread, log_softmax(after), log_softmax(before), 3)
    np.testing.assert_allclose(anchored.logits.detach().numpy() - after, 0.7 * moved, rtol=0, atol=1e-12)


class TestExpected:
    @staticmethod
    def policies(name, scale=1.0):
        generator = np.random.default_rng(8)
        before = 0.7 * generator.normal(size=environments[name].policy_shape)
        return before, before + scale * generator.normal(size=before.shape)

    @pytest.mark.parametrize("name", ["arithmetic", "arithmetic3"])
    @pytest.mark.parametrize("rule", RULES)
    def test_on_policy_it_is_the_true_gradient(self, name, rule):
        learner = Learner(environment=environments[name], groups_per_update=6)
        logits, _ = self.policies(name)
        found = expected(Lagged(learner=learner, rule=rule), log_softmax(logits), log_softmax(logits), 0)
        known = truth(learner.environment, logits).objective.gradient
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("name", ["arithmetic", "flaky_tools"])
    @pytest.mark.parametrize("rule", ["none", "token", "sequence", "behaviour"])
    def test_off_policy_it_is_what_the_step_expects_over_all_rows(self, name, rule):
        environment = environments[name]
        lagged = Lagged(learner=Learner(environment=environment, groups_per_update=2), rule=rule)
        before, after = self.policies(name)
        unit = {"token": "token", "sequence": "sequence"}.get(rule)
        block = RolloutCorrectionConfig(rollout_is=unit, rollout_is_threshold=2.0, bypass_mode=rule == "behaviour")
        step = StepConfig(loss="bypass_mode" if block.bypass_mode else "vanilla", correction=block)
        current, behaviour = truth(environment, after), truth(environment, before)
        # b is one number there and a family's mean here, so that scores are compared family by family.
        found = expected(lagged, current.log_probs, behaviour.log_probs, 3)
        score = behaviour.kinds.probability(behaviour.log_probs)
        for f in range(2):
            mean = float(score[f] @ behaviour.kinds.reward[lagged.law.own[f][0]])
            there = Behind.of(current, current, behaviour, baseline=mean).estimate(step).mean
            np.testing.assert_allclose(found[f], there[f], rtol=0, atol=1e-12)

    def test_whole_weights_that_nothing_cuts_are_unbiased(self):
        learner = Learner(environment=environments["arithmetic3"], groups_per_update=3)
        before, after = self.policies("arithmetic3")
        lagged = Lagged(learner=learner, rule="sequence", threshold=1e9)
        found = expected(lagged, log_softmax(after), log_softmax(before), 5)
        known = truth(learner.environment, after).objective.gradient
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-12)


def test_data_is_as_old_as_it_says():
    # With the gradient of one update switched off by a tiny step, lag changes nothing; with a large one it does.
    slow, fast = (replace(LEARNER, learning_rate=rate) for rate in (1e-9, 5.0))
    for learner, same in ((slow, True), (fast, False)):
        one, two = (train(Lagged(learner=learner, lag=lag), (0, 1), 6)[0] for lag in (0, 2))
        assert np.allclose(one[:2], two[:2], rtol=0, atol=0)
        assert np.allclose(one, two, rtol=0, atol=1e-12) == same


def test_a_seed_does_not_depend_on_its_neighbours():
    lagged = Lagged(learner=LEARNER, lag=2, rule="token")
    assert train(lagged, (3, 8), 5)[0][:, 1].tobytes() == train(lagged, (8,), 5)[0][:, 0].tobytes()


class TestDrift:
    def test_the_target_changes_places_and_back(self):
        lagged = Lagged(learner=LEARNER, drift=5)
        right = np.full(LEARNER.environment.policy_shape, -20.0)
        for family, tool in ((0, 1), (1, 2)):
            right[family, [0, 1, 2], [0, tool, 3]] = 20.0
        found = [float(lagged.target(u).success(log_softmax(right))) for u in (-3, 0, 4, 5, 9, 10)]
        assert found == pytest.approx([1, 1, 1, 0, 0, 1], abs=1e-12)

    def test_old_rewards_teach_the_old_target_and_weights_do_not_repair_it(self):
        learner = replace(LEARNER, learning_rate=2.0, entropy_coefficient=0.4)

        def mean(**settings):
            return train(Lagged(learner=learner, drift=40, **settings), range(4), 120)[1].mean()

        fresh, actions, repaired = mean(), mean(lag=8), mean(lag=8, rule="sequence")
        rewards = mean(reward_lag=8)
        both, weighted = mean(lag=8, reward_lag=8), mean(lag=8, reward_lag=8, rule="sequence")
        assert fresh - actions > 0.05
        assert repaired - actions > 0.5 * (fresh - actions)
        assert fresh - rewards > 0.05
        assert fresh - max(both, weighted) > 0.1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rule": "nothing"}, "the rule is 'nothing'"),
        ({"lag": -1}, "lag is -1"),
        ({"reward_lag": -1}, "reward_lag -1"),
        ({"threshold": 0.0}, "threshold is 0.0"),
        ({"drift": 0}, "drift is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change, says):
    with pytest.raises(InputError, match=says):
        Lagged(learner=LEARNER, **change)
