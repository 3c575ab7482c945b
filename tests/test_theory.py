"""The expected update against the exact moments of the trainer's own step."""

import numpy as np
import pytest

from experiments.train import Config
from experiments.train.running import trainer_config
from labs import theory
from labs.classes import Learner
from labs.classes import theory as of_learner
from labs.errors import InputError
from labs.exact import truth
from labs.moments import moments
from labs.policy import Policy
from labs.registry import environments
from labs.settings import build
from labs.step import StepConfig
from labs.trainer import TrainerConfig

ARITHMETIC = environments["arithmetic"]


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "dr_grpo"])
@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_one_expected_update_is_the_exact_mean(estimator, temperature):
    step = StepConfig(estimator=estimator, loss="vanilla", loss_agg_mode="seq-mean-token-sum")
    config = TrainerConfig(
        step=step, groups_per_update=2, group_size=4, learning_rate=30.0, row_entropy_coeff=0.0, temperature=temperature
    )
    start = Policy.uniform(ARITHMETIC).at(temperature)
    found = moments(ARITHMETIC, start, step, group_size=4)
    moved = truth(ARITHMETIC, 30.0 * found.mean, temperature=temperature).success.value
    curve = theory.expected_success(ARITHMETIC, config, 1)
    assert curve[1] == pytest.approx(moved, rel=1e-6)
    assert curve[1] > 1.15 * curve[0]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_denominators_of_tokens_in_the_limit_of_many_groups(mode):
    step = StepConfig(estimator="rloo_vectorized", loss="reinforce", loss_agg_mode=mode)
    config = TrainerConfig(step=step, groups_per_update=2, group_size=2, learning_rate=30.0, row_entropy_coeff=0.0)
    moved = [
        truth(ARITHMETIC, 30.0 * moments(ARITHMETIC, Policy.uniform(ARITHMETIC), step, group_size=2, groups=n).mean)
        for n in (2, 12)
    ]
    line = theory.expected_success(ARITHMETIC, config, 1)[1]
    gaps = [abs(found.success.value - line) for found in moved]
    assert gaps[1] < 1e-9 if mode == "seq-mean-token-mean" else gaps[1] < 0.4 * gaps[0]


def test_it_is_the_closed_form_learners_line():
    step = StepConfig(estimator="grpo_population", loss="reinforce", loss_agg_mode="seq-mean-token-sum")
    config = TrainerConfig(step=step, learning_rate=0.8, row_entropy_coeff=0.01)
    for name in ("arithmetic", "arithmetic3", "flaky_tools"):
        environment = environments[name]
        expected = of_learner(Learner(environment=environment), 40)
        np.testing.assert_allclose(theory.expected_success(environment, config, 40), expected, atol=2e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"estimator": "gae"}, {"loss": "geo_mean"}, {"loss_agg_mode": "token-sum"}, {"optimiser": "adam"},
        {"epochs": 2}, {"rollout_lag": 1}, {"use_kl_loss": True}, {"masks": ["high_entropy"]}, {"truncation": "drop"},
        {"rewards": ["naive", "tool_sum"]}, {"entropy_coeff": 0.1}, {"filter_groups": True}, {"max_grad_norm": 1.0},
        {"gamma": 0.9}, {"environment": "routes"},
    ],
)  # fmt: skip
def test_where_it_is_not_known_it_says_why_and_so_does_the_figure(change):
    config = build(Config, change)
    environment, how = environments[config.environment], trainer_config(config)
    assert theory.refusal(environment, trainer_config(Config())) == "" or config.environment == "routes"
    reason = theory.refusal(environment, how)
    assert reason
    with pytest.raises(InputError, match="not known here"):
        theory.expected_success(environment, how, 1)
