"""Dispatcher, sessions of several rows, PF-PPO: what reaches an estimator and what gets lost on the way."""

import numpy as np
import pytest
import torch

from labs.batch import TokenBatch
from labs.dispatch import compute_advantage, compute_advantage_for_multi_trajectories
from labs.errors import InputError
from labs.pf_ppo import compute_pf_ppo_reweight_data, pf_ppo_rows, pf_ppo_weights
from labs.registry import estimators


def batch(rows=4, width=3, **more):
    generator = torch.Generator().manual_seed(rows)
    columns = {
        "responses": torch.zeros(rows, width, dtype=torch.int64),
        "response_mask": torch.ones(rows, width, dtype=torch.int64),
        "token_level_rewards": torch.randn((rows, width), generator=generator),
        "uid": np.array([f"t{row // 2}" for row in range(rows)], dtype=object),
        "values": torch.randn((rows, width), generator=generator),
    }
    return TokenBatch(columns | more)


def direct(name, data, **more):
    return estimators[name](
        token_level_rewards=data["token_level_rewards"], response_mask=data["response_mask"], index=data["uid"],
        values=data["values"], **more,
    )  # fmt: skip


def test_gae_takes_arguments_and_nothing_from_the_config():
    data = batch()
    out = compute_advantage(data, "gae", gamma=0.9, lam=0.8, config={"gamma": 0.1, "lam": 0.1})
    assert torch.equal(out["advantages"], direct("gae", data, gamma=0.9, lam=0.8)[0])
    assert torch.equal(out["returns"], direct("gae", data, gamma=0.9, lam=0.8)[1])


def test_gae_without_config_works_where_verl_stops():
    data = batch()
    assert torch.equal(
        compute_advantage(data, "gae")["advantages"], compute_advantage(data, "gae", config={})["advantages"]
    )


def test_the_std_flag_reaches_grpo_as_an_argument_and_passk_through_the_config_and_nothing_else():
    data, off = batch(), {"norm_adv_by_std_in_grpo": False, "gamma": 1.0}
    settings = {"norm_adv_by_std_in_grpo": False, "config": off}
    for name, honoured in (("grpo", True), ("grpo_passk", True), ("grpo_vectorized", False)):
        with_flag = compute_advantage(data, name, **settings)["advantages"]
        without = compute_advantage(data, name, config={"gamma": 1.0})["advantages"]
        assert torch.equal(with_flag, without) != honoured
    assert torch.equal(
        compute_advantage(data, "grpo", config=off)["advantages"], compute_advantage(data, "grpo")["advantages"]
    )


def test_verls_names_read_gamma_from_the_config_and_the_labs_own_take_the_argument():
    data = batch()
    by_config = compute_advantage(data, "reinforce_plus_plus", gamma=0.1, config={"gamma": 0.5})
    assert torch.equal(by_config["returns"], direct("reinforce_plus_plus", data, gamma=0.5)[1])
    own = compute_advantage(data, "reward_to_go", gamma=0.1, config={"gamma": 0.5})
    assert torch.equal(own["returns"], direct("reward_to_go", data, gamma=0.1)[1])
    own = compute_advantage(data, "td_lambda", gamma=0.5, lam=0.3)
    assert torch.equal(own["returns"], direct("td_lambda", data, gamma=0.5, lam=0.3)[1])
    with pytest.raises(AssertionError, match="config"):
        compute_advantage(data, "reinforce_plus_plus")


def test_every_estimator_can_be_dispatched():
    logs = torch.full((4, 3), -1.0)
    data = batch(
        reward_baselines=torch.zeros(4), old_log_probs=logs, rollout_log_probs=logs, sum_pi_squared=0 * logs + 0.5,
        truncated=torch.zeros(4, dtype=torch.bool), bootstrap_values=torch.zeros(4), prompts=torch.zeros(4, 2).long(),
        attention_mask=torch.ones(4, 5, dtype=torch.int64), score=np.arange(4.0),
    )  # fmt: skip
    for name in estimators:
        out = compute_advantage(data, name, config={"gamma": 1.0, "gdpo_reward_keys": ["score"]})
        assert out["advantages"].shape == (4, 3)
        assert out["advantages"].isfinite().all()


def test_importance_weights_reach_the_optimal_baseline():
    logs = torch.full((4, 3), -1.0)
    data = batch(old_log_probs=logs, sum_pi_squared=0 * logs + 0.5)
    weights = torch.tensor([[1.0], [2.0], [0.5], [1.0]]).expand(4, 3)
    plain = compute_advantage(data, "optimal_token_baseline")["advantages"]
    weighted = compute_advantage(data.replace(rollout_is_weights=weights), "optimal_token_baseline")["advantages"]
    assert not torch.allclose(plain, weighted)


@pytest.mark.parametrize(
    ("name", "column"),
    [("gae", "values"), ("grpo", "uid"), ("rloo", "uid"), ("remax", "reward_baselines"),
     ("optimal_token_baseline", "sum_pi_squared"), ("vtrace", "rollout_log_probs")],
)  # fmt: skip
def test_a_missing_column_is_named(name, column):
    data = batch(
        old_log_probs=torch.zeros(4, 3), sum_pi_squared=torch.ones(4, 3), reward_baselines=torch.zeros(4),
        rollout_log_probs=torch.zeros(4, 3),
    ).replace(**{column: None})  # fmt: skip
    with pytest.raises(AssertionError, match=f"{name} needs the column {column}"):
        compute_advantage(data, name)


def test_an_unknown_estimator_is_answered_with_close_names():
    with pytest.raises(ValueError, match="did you mean grpo"):
        compute_advantage(batch(), "gprpo")


def test_nan_is_refused_except_where_it_means_that_a_row_could_not_be_scored():
    rewards = torch.tensor([[0.0, 0, 1], [0, float("nan"), 0], [0, 0, 0], [0, 0, 1]])
    data = batch(token_level_rewards=rewards)
    with pytest.raises(InputError, match="token_level_rewards is NaN at row 1, position 1"):
        compute_advantage(data, "grpo")
    with pytest.raises(InputError, match="values is NaN at row 1, position 1"):
        compute_advantage(batch(values=rewards), "gae")
    assert compute_advantage(data, "trl_grpo")["advantages"][:2].abs().max() == 0


def test_without_a_response_mask_the_attention_mask_stands_in():
    attention = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    data = batch(prompts=torch.zeros(4, 2).long(), attention_mask=attention)
    out = compute_advantage(data.replace(response_mask=None), "rloo")
    assert torch.equal(out["response_mask"], attention[:, 2:])
    same = compute_advantage(data.replace(response_mask=attention[:, 2:]), "rloo")
    assert torch.equal(out["advantages"], same["advantages"])


# Sessions.

KEYS = ["a_b_0_2", "a_b_0_10", "a_b_1_0", "a_b_0_1"]


def session_batch(**more):
    uid = np.array(["a_b"] * 4, dtype=object)
    rewards = torch.tensor([[5.0, 0, 0], [1.0, 0, 0], [0, 0, 0], [7.0, 0, 0]])
    return batch(uid=uid, token_level_rewards=rewards, **more)


def test_the_largest_index_speaks_for_its_session():
    out = compute_advantage_for_multi_trajectories(session_batch(), KEYS, "grpo")
    scalar = 1 / np.sqrt(2)
    for row, sign in ((0, 1), (1, 1), (3, 1), (2, -1)):
        assert out["advantages"][row].tolist() == pytest.approx([sign * scalar] * 3, rel=1e-5)
    assert out["returns"] is out["advantages"]
    plain = compute_advantage_for_multi_trajectories(session_batch(), KEYS, "grpo", norm_adv_by_std_in_grpo=False)
    assert plain["advantages"][0].tolist() == [0.5] * 3


def test_a_session_whose_final_row_is_masked_gets_nothing_and_each_row_keeps_its_mask():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 1]])
    out = compute_advantage_for_multi_trajectories(session_batch(response_mask=mask), KEYS, "grpo")
    assert (out["advantages"][[0, 1, 3]] == 0).all()
    assert (out["advantages"][2] != 0).tolist() == [False, True, True]


def test_other_estimators_see_every_row():
    data = session_batch()
    out = compute_advantage_for_multi_trajectories(data, KEYS, "rloo")
    assert torch.equal(out["advantages"], compute_advantage(data, "rloo")["advantages"])


@pytest.mark.parametrize("key", ["plain", "a_0", "a_0_x", "_", "a_0_"])
def test_a_key_of_another_form_is_refused(key):
    with pytest.raises(AssertionError, match="uid_session_index"):
        compute_advantage_for_multi_trajectories(session_batch(), [key, *KEYS[1:]], "grpo")


def test_one_key_a_row():
    with pytest.raises(InputError, match="3 keys, the batch has 4"):
        compute_advantage_for_multi_trajectories(session_batch(), KEYS[:3], "grpo")


# PF-PPO.


def test_weights_by_hand():
    scores = torch.tensor([3.0, -2.0, 0.0, 3.0])
    assert pf_ppo_weights(scores, "pow", 2.0).tolist() == pytest.approx([9, 4, 1e-8, 9], abs=1e-7)
    assert pf_ppo_weights(scores, "pow", 1.0).tolist() == pytest.approx([3, 2, 1e-8, 3], abs=1e-7)
    assert pf_ppo_weights(scores, "max_min").tolist() == pytest.approx([1, 1, 1e-8, 1], abs=1e-7)
    assert pf_ppo_weights(scores, "max_random").tolist() == pytest.approx([0.4, 0.1, 0.1, 0.4])
    with pytest.raises(ValueError, match="'nope'"):
        pf_ppo_weights(scores, "nope")


def test_rows_are_resampled_whole_and_by_weight():
    scores = torch.zeros(4, 3)
    scores[2, 1] = 1.0
    data = batch(token_level_scores=scores, responses=torch.arange(4)[:, None].expand(4, 3))
    out = compute_pf_ppo_reweight_data(data, "pow", 1.0, torch.Generator().manual_seed(0))
    assert (out["responses"] == 2).all()
    assert out["uid"].tolist() == ["t1"] * 4
    generator = torch.Generator().manual_seed(3)
    drawn = torch.cat([pf_ppo_rows(torch.tensor([1.0, 3.0]), generator) for _ in range(2000)])
    assert drawn.float().mean().item() == pytest.approx(0.75, abs=0.03)


def test_pf_ppo_runs_behind_gae_alone_and_with_the_global_generator_by_default():
    config = {"use_pf_ppo": True, "pf_ppo": {"reweight_method": "pow", "weight_pow": 1.0}, "gamma": 1.0}
    scores = torch.rand((4, 3), generator=torch.Generator().manual_seed(5))
    data = batch(token_level_scores=scores, responses=torch.arange(4)[:, None].expand(4, 3))
    torch.manual_seed(5)
    first = compute_advantage(data, "gae", config=config)
    torch.manual_seed(5)
    again = pf_ppo_rows(pf_ppo_weights(scores.sum(dim=-1), "pow", 1.0))
    assert first["responses"][:, 0].tolist() == again.tolist()
    assert torch.equal(first["advantages"], compute_advantage(data, "gae")["advantages"][again])
    other = compute_advantage(data, "reinforce_plus_plus", config=config)
    assert other["responses"][:, 0].tolist() == [0, 1, 2, 3]
    mine = compute_advantage(data, "gae", config=config, generator=torch.Generator().manual_seed(1))
    twin = compute_advantage(data, "gae", config=config, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mine["responses"], twin["responses"])
