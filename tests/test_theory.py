"""The expected update against the exact moments of the trainer's own step."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from experiments import estimators
from experiments.estimators import Config as Estimators
from experiments.groups import Config as Groups
from experiments.groups import measures
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


def test_adams_line_follows_the_exact_gradient_where_the_estimator_is_unbiased_and_its_own_where_not():
    how = {"groups_per_update": 2, "group_size": 4, "learning_rate": 0.1, "row_entropy_coeff": 0.0}
    lines = {}
    for name in ("rloo", "grpo"):
        step = StepConfig(estimator=name, loss="reinforce", loss_agg_mode="seq-mean-token-sum")
        config = TrainerConfig(step=step, optimiser="adam", **how)
        logits = torch.zeros(ARITHMETIC.policy_shape, dtype=torch.float64)
        adam, by_hand = torch.optim.Adam([logits], lr=0.1), []
        for _ in range(5):
            by_hand.append(truth(ARITHMETIC, logits.numpy().copy()).success.value)
            logits.grad = -torch.from_numpy(moments(ARITHMETIC, Policy.of(ARITHMETIC, logits), step, group_size=4).mean)
            adam.step()
        lines[name] = theory.expected_success(ARITHMETIC, config, 4)
        np.testing.assert_allclose(lines[name], by_hand, rtol=2e-5)
    settings = asdict(Estimators(updates=5))
    np.testing.assert_allclose(lines["rloo"], estimators._noiseless(ARITHMETIC, Estimators(updates=5)), rtol=2e-5)
    assert estimators._expected(settings, "rloo") == ([], "")
    line, reason = estimators._expected({**settings, "group_size": 4}, "grpo")
    assert reason == ""
    np.testing.assert_allclose(line, lines["grpo"], rtol=1e-9)
    assert "looks beyond a group's scores" in estimators._expected(settings, "reinforce_plus_plus")[1]


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_one_penalised_update_is_adams_first_step_on_the_expected_gradient(kind):
    control = {"type": kind, "kl_coef": 0.3, "target_kl": 0.01, "horizon": 40.0}
    found = theory.penalised(ARITHMETIC, control, updates=3, learning_rate=0.2, rows=8)
    step = StepConfig(
        estimator="reward_to_go", loss="reinforce", loss_agg_mode="seq-mean-token-sum", use_kl_in_reward=True,
        kl_penalty="k1", kl_ctrl={"kl_coef": 1.0},
    )  # fmt: skip
    logits = torch.zeros(ARITHMETIC.policy_shape, dtype=torch.float64)
    adam, coefficient = torch.optim.Adam([logits], lr=0.2), 0.3
    for update in range(3):
        policy = Policy.of(ARITHMETIC, logits.clone())
        step = replace(step, kl_ctrl={"kl_coef": coefficient})
        logits.grad = -torch.from_numpy(
            moments(ARITHMETIC, policy, step, group_size=1, reference=Policy.uniform(ARITHMETIC)).mean
        )
        seen = theory.mean_k1(truth(ARITHMETIC, logits.numpy().copy()))
        adam.step()
        assert found["coefficient"][update] == pytest.approx(coefficient, rel=1e-9)
        now = theory.mean_k1(truth(ARITHMETIC, logits.numpy().copy()))
        assert found["trained_kl"][update] == pytest.approx(now, rel=1e-6)
        if kind == "adaptive":
            coefficient *= 1 + min(max(seen / 0.01 - 1, -0.2), 0.2) * 8 / 40
    assert len({round(v, 6) for v in found["trained_kl"]}) == 3


def test_a_line_may_start_elsewhere_and_groups_draws_it():
    config = Groups(updates=3)
    line, reason = measures.expected(asdict(config), config.large)
    assert reason == ""
    table = measures.skilled(config.start).logits.numpy()
    found = moments(
        ARITHMETIC, Policy.of(ARITHMETIC, table), measures.step(config), group_size=config.large,
        groups=config.budget // config.large,
    )  # fmt: skip
    moved = truth(ARITHMETIC, table + config.learning_rate * found.mean).success.value
    assert line[0] == pytest.approx(moved, rel=1e-3)
    assert measures.expected({**asdict(config), "estimator": "opo"}, config.large)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"estimator": "gae"}, {"loss": "geo_mean"}, {"loss_agg_mode": "token-sum"},
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
