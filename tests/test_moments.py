"""Exact moments against brute force, sampling, and what the literature says must come out."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.correction import RolloutCorrectionConfig
from labs.errors import InputError
from labs.exact import multisets, probability
from labs.moments import how, method, moments
from labs.policy import Policy
from labs.registry import environments, estimators
from labs.step import StepConfig
from tests.brute_moments import TINY, brute

REINFORCE = {"loss": "reinforce", "loss_agg_mode": "seq-mean-token-sum"}
VERL = {"loss": "vanilla", "loss_agg_mode": "token-mean"}


#: Tried by default, one of each kind: per group, whitened over the batch; the slow tests try every estimator.
QUICK = ("rloo", "grpo", "reinforce_plus_plus")


def some(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def policy_for(environment, seed=0):
    return Policy.of(environment, np.random.default_rng(seed).normal(size=environment.policy_shape))


def flat(found):
    return found.mean.ravel(), found.covariance


def check(environment, policy, config, *, group_size, groups=2, **policies):
    found = moments(environment, policy, config, group_size=group_size, groups=groups, force="exact", **policies)
    mean, covariance = brute(environment, policy, config, group_size=group_size, groups=groups, **policies)
    size = np.abs(mean).max() + np.sqrt(np.abs(covariance).max())
    size *= 20 if config.estimator == "gdpo" else 1  # float32 throughout, whatever its input is
    np.testing.assert_allclose(flat(found)[0], mean, atol=2e-7 * size)
    np.testing.assert_allclose(found.covariance, covariance, atol=4e-7 * size**2)
    return found


@pytest.mark.parametrize("name", some(estimators))
def test_every_estimator_is_brute_force_at_two(name):
    check(TINY, policy_for(TINY), StepConfig(estimator=name, **VERL), group_size=2)


@pytest.mark.parametrize("name", ["rloo", "gae", "grpo_passk"])
def test_fixed_denominators_by_brute_force(name):
    check(TINY, policy_for(TINY), StepConfig(estimator=name, **REINFORCE), group_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rloo", "grpo", "opo", "gpg", "reinforce_plus_plus", "optimal_token_baseline"])
def test_three_of_a_group_by_brute_force(name):
    check(TINY, policy_for(TINY, 1), StepConfig(estimator=name, **VERL), group_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "reinforce_plus_plus_baseline"])
def test_three_groups_of_two_families_by_brute_force(name):
    found = check(TINY, policy_for(TINY, 2), StepConfig(estimator=name, **VERL), group_size=2, groups=3)
    # Two of the three groups are of the first family, and the truth weighs them so.
    whole = moments(TINY, policy_for(TINY, 2), StepConfig(estimator=name, **VERL), group_size=2)
    np.testing.assert_allclose(found.truth[0], whole.truth[0] * 4 / 3)
    np.testing.assert_allclose(found.truth[1], whole.truth[1] * 2 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_other_aggregations_by_brute_force(mode):
    check(TINY, policy_for(TINY), StepConfig(estimator="rloo", loss="vanilla", loss_agg_mode=mode), group_size=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "policies"),
    [
        ({"loss": "vanilla"}, {"old": 5}),
        ({"loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"}, {"old": 5}),
        ({"loss": "sapo"}, {"old": 5}),
        ({"loss": "kl_cov", "loss_options": {"kl_cov_ratio": 0.3}}, {}),
        ({"use_kl_loss": True, "kl_loss_coef": 0.5}, {}),
        ({"use_kl_in_reward": True, "kl_ctrl": {"type": "fixed", "kl_coef": 0.3}}, {}),
        ({"correction": RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.2)}, {"behaviour": 6}),
        (
            {
                "correction": RolloutCorrectionConfig(
                    rollout_is=None, rollout_rs="seq_sum_k1", rollout_rs_threshold="0.6_1.5"
                ),
                "denominators": "response_mask",
            },
            {"behaviour": 6},
        ),
    ],
    ids=["stale", "gspo", "sapo", "kl_cov", "kl-loss", "kl-reward", "is", "rs"],
)
def test_losses_kl_and_corrections_by_brute_force(change, policies):
    config = StepConfig(**{"estimator": "grpo", **VERL, **change})
    near = {k: Policy.of(TINY, policy_for(TINY).logits + 0.3 * policy_for(TINY, v).logits) for k, v in policies.items()}
    check(TINY, policy_for(TINY), config, group_size=2, **near)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["zero", "mask", "drop"])
def test_truncation_by_brute_force(rule):
    environment = replace(environments["arithmetic"], families={"sum": environments["arithmetic"].families["sum"]})
    config = StepConfig(estimator="reward_to_go", truncation=rule, rewards=(("stop_properly", {}),), **REINFORCE)
    if rule == "drop":
        # A batch of truncated rows alone has nothing left, and the step says so.
        with pytest.raises(InputError, match="every row of the batch is truncated"):
            brute(environment, policy_for(environment), config, group_size=1, groups=1, max_steps=2)
    else:
        check(environment, policy_for(environment), config, group_size=2, groups=1, max_steps=2)


@pytest.mark.slow
def test_arithmetic_by_brute_force():
    one = replace(environments["arithmetic"], families={"sum": environments["arithmetic"].families["sum"]})
    check(one, policy_for(one), StepConfig(estimator="grpo", **VERL), group_size=2, groups=1)


#: Scale and cosine of the expected gradient on `arithmetic`, logits normal(seed 0), two groups of 4, REINFORCE loss.
BIAS = {
    "dr_grpo": (0.7500, 1.0000),
    "gae": (4.9027, 0.8482),
    "gdpo": (3.2823, 0.7493),
    "gpg": (5.8543, 1.0000),
    "grpo": (1.4934, 1.0000),
    "grpo_passk": (1.9017, 1.0000),
    "grpo_population": (1.7244, 1.0000),
    "grpo_vectorized": (1.4934, 1.0000),
    "opo": (0.5854, 0.9985),
    "optimal_token_baseline": (0.7912, 0.9974),
    "reinforce_plus_plus": (1.5999, 0.9999),
    "reinforce_plus_plus_baseline": (1.5594, 0.9998),
    "reinforce_plus_plus_reset": (0.3669, 0.2694),
    "standardize_by_group": (1.4934, 1.0000),
    "tir_optimal_token_baseline": (0.7533, 0.9978),
    "trl_grpo": (1.4931, 1.0000),
    "vtrace": (1.0000, 1.0000),
}


@pytest.mark.parametrize("name", some(estimators))
def test_declared_unbiased_is_proven_and_every_bias_recorded(name):
    declared = estimators[name].meta["properties"]
    for environment in (environments["arithmetic"], environments["arithmetic3"]):
        found = moments(environment, policy_for(environment), StepConfig(estimator=name, **REINFORCE), group_size=3)
        assert found.exact
        if declared.unbiased:
            assert found.relative_bias < 1e-9
    if not declared.unbiased:
        found = moments(
            environments["arithmetic"], policy_for(environments["arithmetic"]),
            StepConfig(estimator=name, **REINFORCE), group_size=4,
        )  # fmt: skip
        assert (round(found.scale, 4), round(found.cosine, 4)) == BIAS[name]


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 5, 16]), st.floats(0.1, 2.5))
def test_leave_one_out_is_unbiased_and_the_mean_with_self_scales(seed, n, spread):
    environment = environments["arithmetic"]
    table = spread * np.random.default_rng(seed).normal(size=environment.policy_shape)
    policy = Policy.of(environment, table)
    rloo = moments(environment, policy, StepConfig(estimator="rloo", **REINFORCE), group_size=n)
    assert f"{rloo.scale:.6f} {rloo.cosine:.6f}" == "1.000000 1.000000"
    centred = moments(environment, policy, StepConfig(estimator="dr_grpo", **REINFORCE), group_size=n)
    np.testing.assert_allclose(centred.mean, (n - 1) / n * rloo.mean, atol=1e-12)
    np.testing.assert_allclose(centred.covariance, ((n - 1) / n) ** 2 * rloo.covariance, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings_", "n"),
    [("grpo", VERL, 4), ("gae", REINFORCE, 4), ("reinforce_plus_plus", VERL, 6), ("gpg", VERL, 5)],
)
def test_sampling_agrees(name, settings_, n):
    """24 logits, each within 4.5 standard errors: error probability under 2e-4 for a normal mean."""
    environment = environments["arithmetic"]
    policy, config = policy_for(environment), StepConfig(estimator=name, **settings_)
    exact = moments(environment, policy, config, group_size=n)
    sampled = moments(environment, policy, config, group_size=n, force="sampled", draws=20_000)
    assert (exact.method, sampled.method) == ("exact", "sampled")
    gap = np.abs(sampled.mean - exact.mean)
    assert (gap <= 4.5 * sampled.standard_error + 1e-12).all()
    assert sampled.trace == pytest.approx(exact.trace, rel=0.1)
    low, high = sampled.interval(4.5)
    assert ((low <= exact.mean + 1e-12) & (exact.mean <= high + 1e-12)).all()
    assert (exact.interval()[0] == exact.mean).all()


def test_random_tools_are_in_the_expectation():
    environment = environments["flaky_tools"]
    policy = policy_for(environment)
    found = moments(environment, policy, StepConfig(estimator="rloo", **REINFORCE), group_size=4)
    assert found.exact
    assert found.relative_bias < 1e-12
    with pytest.raises(InputError, match="greedy baseline"):
        moments(environment, policy, StepConfig(estimator="remax", **REINFORCE), group_size=4)


@pytest.mark.parametrize("name", some(n for n in estimators if "optimal_token_baseline" not in n))
def test_sixteen_of_a_group_are_exact(name):
    environment = environments["arithmetic"]
    words = how(environment, policy_for(environment), StepConfig(estimator=name, **REINFORCE))
    assert words.startswith("exact at n = 16")
    assert int(words.partition("(")[2].partition(" ")[0]) <= 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "gae", "gdpo", "reinforce_plus_plus_baseline"])
def test_sixteen_of_a_group_in_five_seconds(name):
    environment = environments["arithmetic"]
    start = time.process_time()
    found = moments(environment, policy_for(environment), StepConfig(estimator=name, **VERL), group_size=16)
    assert time.process_time() - start < 5
    assert found.exact


@pytest.mark.slow
def test_twelve_groups_of_sixteen_under_whitening_in_five_seconds():
    environment = environments["arithmetic"]
    policy, config = policy_for(environment), StepConfig(estimator="reinforce_plus_plus", **REINFORCE)
    moments(environment, policy, config, group_size=2)
    start = time.process_time()
    found = moments(environment, policy, config, group_size=16, groups=12)
    assert time.process_time() - start < 5
    assert found.exact
    assert found.coupling == "mean and spread of all advantages (whitening)"
    sampled = moments(environment, policy, config, group_size=16, groups=12, force="sampled", draws=400)
    assert (np.abs(sampled.mean - found.mean) <= 4.5 * sampled.standard_error).all()
    # More groups estimate mean and spread better: what is left of the bias in direction falls.
    few = moments(environment, policy, config, group_size=16, groups=2)
    assert 1 - found.cosine < 1 - few.cosine


@pytest.mark.slow
def test_too_many_batches_are_sampled_and_say_so():
    environment = environments["arithmetic"]
    policy, config = policy_for(environment), StepConfig(estimator="optimal_token_baseline", **REINFORCE)
    assert moments(environment, policy, config, group_size=4).exact
    found = moments(environment, policy, config, group_size=16, draws=200)
    assert found.method == "sampled"
    assert found.standard_error.max() > 0
    with pytest.raises(InputError, match="too many different batches"):
        moments(environment, policy, config, group_size=16, force="exact")
    words = how(environment, policy, config)
    assert words.startswith("exact up to n = ")
    assert "13 coupling classes" in words


@pytest.mark.slow
def test_a_batch_that_is_tied_as_a_whole():
    environment = environments["arithmetic"]
    policy, behaviour = policy_for(environment), policy_for(environment, 1)
    normalised = RolloutCorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True)
    config = StepConfig(estimator="grpo", correction=normalised, **VERL)
    found = moments(environment, policy, config, group_size=4, draws=30, behaviour=behaviour)
    assert (found.method, found.coupling) == ("sampled", "the batch as a whole")
    assert how(environment, policy, config, behaviour=behaviour).startswith("exact for at most")
    # Small enough to be taken whole: every batch by itself.
    check(TINY, policy_for(TINY), config, group_size=2, behaviour=policy_for(TINY, 6))


def test_a_step_that_draws_is_sampled():
    environment = environments["arithmetic"]
    config = StepConfig(estimator="gae", pf_ppo={"reweight_method": "pow", "weight_pow": 1.0}, **REINFORCE)
    found = moments(environment, policy_for(environment), config, group_size=2, draws=50)
    assert found.method == "sampled"
    assert "draws random numbers" in how(environment, policy_for(environment), config)


def test_numbers_of_a_result():
    environment = environments["arithmetic"]
    found = moments(environment, policy_for(environment), StepConfig(estimator="grpo", **REINFORCE), group_size=4)
    np.testing.assert_allclose(found.bias, found.mean - found.truth)
    assert found.relative_bias**2 == pytest.approx(
        (found.scale - 1) ** 2 + found.scale**2 * (1 / found.cosine**2 - 1), rel=1e-9
    )
    assert found.variance.sum() == pytest.approx(found.trace)
    assert found.signal_to_noise == pytest.approx(np.linalg.norm(found.mean) / np.sqrt(found.trace))
    assert found.signal_to_noise_per_logit.shape == environment.policy_shape
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-12
    assert "exact at n = 16" in how(environment, policy_for(environment), StepConfig(estimator="grpo", **REINFORCE))


def test_gradients_are_those_of_the_logits_at_a_temperature():
    environment = environments["arithmetic"]
    policy = Policy(policy_for(environment).logits, temperature=2.0)
    found = moments(environment, policy, StepConfig(estimator="rloo", **REINFORCE), group_size=3)
    assert found.relative_bias < 1e-12


@pytest.mark.parametrize(
    ("config", "options", "match"),
    [
        ({"entropy_coeff": 0.1}, {}, "entropy_coeff"),
        ({}, {"group_size": 0}, "group_size is 0"),
        ({}, {"groups": 0}, "groups is 0"),
        ({}, {"force": "maybe"}, "force"),
        ({}, {"max_steps": 0}, "max_steps"),
    ],
)
def test_refusals(config, options, match):
    environment = environments["arithmetic"]
    with pytest.raises(InputError, match=match):
        moments(environment, policy_for(environment), StepConfig(**config), **{"group_size": 2, **options})


def test_multisets_and_their_probabilities():
    counts = multisets(3, 4)
    assert len(counts) == 15
    assert (counts.sum(axis=1) == 4).all()
    chances = probability(counts, np.array([0.5, 0.5, 0.0]))
    assert chances.sum() == pytest.approx(1.0)
    assert chances[(counts == [2, 2, 0]).all(axis=1)] == pytest.approx(6 / 16)
    assert (chances[counts[:, 2] > 0] == 0).all()


def test_what_show_says():
    assert method("estimator", "rloo").startswith("exact at n = 16 (2 coupling classes a task, groups tied by nothing)")
    assert method("estimator", "reinforce_plus_plus").endswith("(whitening))")
    # It picks tokens out of the whole batch; off policy that shows.
    assert method("loss", "kl_cov").startswith("exact for at most")
    assert method("loss", "clip_cov").startswith("sampled with an interval: the step itself draws")
    assert method("loss", "dro").startswith("exact at n = 16")
    assert method("reward", "dapo") == ""
