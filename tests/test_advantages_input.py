"""Advantage estimators: what is refused and how it is said, and where settings are read from."""

import inspect

import numpy as np
import pytest
import torch

from labs.errors import InputError
from labs.registry import estimators
from tests.advantages import CONFIG

torch.set_num_threads(1)


# Bad input.
GOOD = {
    "token_level_rewards": torch.ones(4, 3), "response_mask": torch.ones(4, 3, dtype=torch.int64),
    "index": ["a", "a", "b", "b"], "values": torch.ones(4, 3), "reward_baselines": torch.ones(4), "config": CONFIG,
    "old_log_probs": torch.zeros(4, 3), "rollout_log_probs": torch.zeros(4, 3), "sum_pi_squared": torch.ones(4, 3),
    "truncated": torch.zeros(4, dtype=torch.bool), "bootstrap_values": torch.zeros(4), "batch": None,
    "non_tensor_batch": None,
}  # fmt: skip


def call_with(name, **bad):
    function = estimators[name]
    names = ["token_level_rewards", "response_mask", "config", *function.needs]
    return function(**{n: bad.get(n, GOOD[n]) for n in names})


@pytest.mark.parametrize("name", sorted(estimators))
def test_bad_input_is_named(name):
    call_with(name)
    wrong = {
        "token_level_rewards": [torch.ones(4, 2), torch.ones(4, 3, dtype=torch.int64)],
        "response_mask": [torch.ones(0, 3), torch.ones(4, 0), torch.ones(4)],
        "values": [torch.ones(4, 2)], "old_log_probs": [torch.ones(3, 3)], "sum_pi_squared": [torch.ones(4, 1)],
        "rollout_log_probs": [torch.ones(4)], "reward_baselines": [torch.ones(3)], "index": [["a", "b"]],
        "truncated": [torch.zeros(3, dtype=torch.bool)], "bootstrap_values": [torch.zeros(4, 3)],
    }  # fmt: skip
    used = {"token_level_rewards", "response_mask", *estimators[name].needs}
    for column in sorted(used & set(wrong)):
        for bad in wrong[column]:
            with pytest.raises(InputError) as raised:
                call_with(name, **{column: bad})
            assert isinstance(raised.value, RuntimeError)
            assert column in str(raised.value) or "response_mask" in str(raised.value)


def test_gae_refuses_a_bool_mask():
    with pytest.raises(RuntimeError, match="bool"):
        call_with("gae", response_mask=torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="bool"):
        call_with("reinforce_plus_plus", response_mask=torch.ones(4, 3, dtype=torch.bool))


def test_gdpo_names_what_is_missing():
    batch = {"prompts": torch.ones(4, 1), "attention_mask": torch.ones(4, 4, dtype=torch.int64)}
    parts = {"acc": np.ones(4)}
    with pytest.raises(AssertionError, match="gdpo_reward_keys"):
        call_with("gdpo", config={}, batch=batch, non_tensor_batch=parts)
    with pytest.raises(AssertionError, match="'nope'"):
        call_with("gdpo", config={"gdpo_reward_keys": ["nope"]}, batch=batch, non_tensor_batch=parts)
    few = {"gdpo_reward_keys": ["acc", "acc"], "gdpo_reward_weights": [1.0]}
    with pytest.raises(IndexError, match="1 numbers for 2"):
        call_with("gdpo", config=few, batch=batch, non_tensor_batch=parts)


def test_truncation_without_a_value_is_refused():
    with pytest.raises(InputError, match="bootstrap_values is None"):
        estimators["gae_truncated"](torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2), torch.tensor([True, False]))


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_reset"])
def test_returns_need_a_config_or_gamma(name):
    with pytest.raises(AssertionError, match="config"):
        estimators[name](torch.ones(2, 2), torch.ones(2, 2))
    a = estimators[name](torch.ones(2, 2), torch.ones(2, 2), gamma=0.5)
    b = estimators[name](torch.ones(2, 2), torch.ones(2, 2), {"gamma": 0.5})
    assert torch.equal(a[1], b[1])


@pytest.mark.parametrize("name", ["gae", "gae_step", "gae_ignore", "gae_truncated", "td_lambda", "vtrace"])
def test_gamma_and_lambda_are_read_from_the_config_where_no_argument_says(name):
    config = {"gamma": 0.5, "lam": 0.25}
    by_config = call_with(name, config=config)
    function = estimators[name]
    explicit = {k: v for k, v in config.items() if k in inspect.signature(function).parameters}
    by_argument = function(
        **{n: GOOD[n] for n in ("token_level_rewards", "response_mask", *function.needs)}, **explicit
    )
    assert torch.equal(by_config[1], by_argument[1])
    assert not torch.equal(by_config[1], call_with(name)[1])
