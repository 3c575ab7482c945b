"""Advantage estimators: worked examples, and verl's surprises where a group is lone or a mask is 0."""

import math

import numpy as np
import pytest
import torch

from labs.registry import estimators
from tests.advantages import CONFIG, close

torch.set_num_threads(1)


# The worked examples of the course.
def test_gae_worked_example():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.3, 0.4]])
    _, returns = estimators["gae"](rewards, values, torch.ones(1, 3), 1.0, 0.95)
    close((returns - values)[0], [0.7365, 0.6700, 0.6000])
    close(returns[0], [0.9365, 0.97, 1.0])
    advantages, _ = estimators["gae_truncated"](rewards, values, torch.ones(1, 3), gamma=1.0, lam=0.95)
    close(advantages[0], [0.7365, 0.6700, 0.6000])


def test_grpo_and_rloo_worked_examples():
    columns = (torch.tensor([[1.0], [0.0], [0.5]]), torch.ones(3, 1), ["g"] * 3)
    assert [f"{x:.6f}" for x in estimators["grpo"](*columns)[0][:, 0]] == ["0.999998", "-0.999998", "0.000000"]
    close(estimators["rloo"](*columns)[0][:, 0], [0.75, -0.75, 0.0])


def test_reinforce_plus_plus_changed_what_a_tool_reply_does():
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1, 0, 1]])
    both = (rewards, mask, CONFIG)
    carried = estimators["reinforce_plus_plus"](rewards.repeat(2, 1), mask.repeat(2, 1), CONFIG)[1]
    assert carried.tolist() == [[1.0, 0.0, 1.0]] * 2
    assert estimators["reinforce_plus_plus_reset"](*both)[1].tolist() == [[0.0, 1.0, 1.0]]


# verl's surprises, each said in a docstring.
def test_equal_scores_that_a_float_cannot_average_get_a_signal():
    rewards = torch.full((15, 1), 2.3)
    advantages, _ = estimators["grpo"](rewards, torch.ones(15, 1, dtype=torch.int64), ["g"] * 15)
    assert (advantages > 0.18).all()
    assert (advantages < 0.20).all()
    assert (estimators["grpo_population"](rewards, torch.ones(15, 1), ["g"] * 15)[0] == 0).all()
    halves = estimators["grpo"](torch.full((15, 1), 0.5), torch.ones(15, 1), ["g"] * 15)[0]
    assert (halves == 0).all()


@pytest.mark.parametrize(
    ("name", "worth"),
    [("grpo", 3.0), ("gpg", 3.0), ("opo", 3.0), ("rloo", 3.0), ("dr_grpo", 3.0),
     ("rloo_vectorized", 0.0), ("trl_grpo", 0.0), ("trl_rloo", 0.0), ("grpo_population", 0.0)],
)  # fmt: skip
def test_a_lone_row_is_worth_its_score_or_nothing(name, worth):
    advantages, _ = estimators[name](
        token_level_rewards=torch.tensor([[3.0], [5.0], [1.0]]), response_mask=torch.ones(3, 1), index=["a", "b", "b"]
    )
    close(advantages[0, 0], worth, 1e-5)


def test_a_lone_row_stops_passk():
    with pytest.raises(ValueError, match="group 'a' has 1 row"):
        estimators["grpo_passk"](torch.ones(3, 1), torch.ones(3, 1), ["a", "b", "b"], config={})


def test_float64_lone_row_is_divided_by_a_float32_number():
    advantages, _ = estimators["grpo"](torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1), ["a"])
    assert advantages.item() == 1.0 / np.float64(np.float32(1) + np.float32(1e-6))


def test_gae_leaves_whitened_values_on_masked_positions_and_remax_leaves_returns():
    mask = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1]])
    rewards = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    advantages, _ = estimators["gae"](rewards, torch.zeros(2, 4), mask, 1.0, 1.0)
    assert advantages[0, 1] == advantages[0, 2]
    assert advantages[0, 3] < 0  # padding holds whitened 0
    left, _ = estimators["remax"](rewards, torch.tensor([0.5, 0.5]), mask)
    assert left[0].tolist() == [0.5, 1.0, 0.5, 0.0]


def test_gae_spreads_a_nan_from_a_masked_position():
    values = torch.tensor([[0.1, math.nan, 0.2], [0.1, 0.2, 0.3]])
    advantages, returns = estimators["gae"](torch.ones(2, 3), values, torch.tensor([[1, 0, 1], [1, 1, 1]]), 1.0, 1.0)
    assert advantages.isnan().all()
    assert not returns[1].isnan().any()


def test_a_group_without_any_token_is_nan_in_opo_and_zero_elsewhere():
    rewards, mask, index = torch.ones(4, 2), torch.tensor([[0, 0], [0, 0], [1, 1], [1, 0]]), ["a", "a", "b", "b"]
    assert estimators["opo"](rewards, mask, index)[0][:2].isnan().all()
    for name in ("grpo", "rloo", "gpg", "reinforce_plus_plus_baseline"):
        assert (estimators[name](rewards, mask, index)[0][:2] == 0).all()


def test_numeric_labels_merge_in_the_vectorised_form_alone():
    columns = (torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), np.array(["7", "07"], dtype=object))
    close(estimators["grpo"](*columns)[0][:, 0], [1.0, 0.0], 1e-5)
    close(estimators["grpo_vectorized"](*columns)[0][:, 0], [math.sqrt(0.5), -math.sqrt(0.5)], 1e-5)


def test_negative_labels_raise_in_the_vectorised_form():
    with pytest.raises(IndexError):
        estimators["grpo_vectorized"](torch.ones(2, 1), torch.ones(2, 1), np.array([-1, 0]))


def test_passk_reads_the_flag_from_the_config_and_overwrites_the_argument():
    columns = (torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), ["g", "g"])
    raw, _ = estimators["grpo_passk"](*columns, norm_adv_by_std_in_grpo=True, config={"norm_adv_by_std_in_grpo": False})
    assert raw[:, 0].tolist() == [1.0, 0.0]
    with pytest.raises(AssertionError):
        estimators["grpo_passk"](*columns)


def test_gpg_overwrites_alpha_and_counts_zero_scores():
    columns = (torch.tensor([[1.0], [0.0], [0.0], [0.0]]), torch.ones(4, 1), ["a", "a", "b", "b"])
    advantages, _ = estimators["gpg"](*columns, alpha=100.0, f_norm=2.0)
    close(advantages[:, 0], [1.0, -1.0, 0.0, 0.0])  # 4 rows / 1 non-zero * 0.5 / f_norm


def test_rewards_on_masked_positions_count_in_sums_and_are_lost_in_recursions():
    mask, moved = torch.tensor([[1, 0], [1, 0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    assert estimators["rloo"](moved, mask, ["g", "g"])[0][:, 0].tolist() == [4.0, -4.0]
    assert (estimators["reinforce_plus_plus"](moved, mask, CONFIG)[1] == 0).all()
    assert (estimators["remax"](moved, torch.zeros(2), mask)[1] == 0).all()


def test_reinforce_plus_plus_weighs_long_rows_more():
    rewards, mask = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    advantages, _ = estimators["reinforce_plus_plus_baseline"](rewards, mask, ["g", "g"])
    close((advantages * mask).sum(), 0.0, 1e-5)
    assert advantages[0, 0].abs() < advantages[1, 0].abs()


def test_the_zero_tail_of_otb_is_a_token_count_taken_as_a_column():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1]])
    columns = (torch.tensor([[0.0, 1.0, 0, 0], [0, 0, 0, 1.0]]), mask, ["g", "g"])
    more = {"old_log_probs": torch.full((2, 4), -1.0), "sum_pi_squared": torch.full((2, 4), 0.5)}
    tail, returns = estimators["optimal_token_baseline"](*columns, **more)
    whole, _ = estimators["optimal_token_baseline"](*columns, **more, handle_zero_tail=False)
    # The second row has 3 tokens against 2: from column 2 on its baseline is gone, though that is its second token.
    assert tail[1].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert whole[1, 2:].abs().max() < 1e-6
    by_token, _ = estimators["tir_optimal_token_baseline"](*columns, **more)
    assert by_token[1, 3] == returns[1, 3]
    assert abs(by_token[1, 2]) < 1e-6


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_reset", "gdpo"])
def test_one_token_in_the_batch_cannot_be_whitened(name):
    more = {"values": torch.zeros(2, 2)} if name == "gae" else {}
    with pytest.raises(ValueError, match="at least 2"):
        estimators[name](
            token_level_rewards=torch.ones(2, 2), response_mask=torch.tensor([[1, 0], [0, 0]]), index=["a", "a"],
            config=CONFIG if "plus" in name else None, **more,
        )  # fmt: skip


def test_float16_stays_float16():
    rewards = torch.tensor([[1.0], [0.0], [0.5]], dtype=torch.float16)
    for name in ("grpo", "rloo", "opo", "gpg"):
        assert estimators[name](rewards, torch.ones(3, 1, dtype=torch.int64), ["g"] * 3)[0].dtype == torch.float16


@pytest.mark.parametrize("name", ["gae_step", "gae_ignore", "gae_truncated"])
def test_whitening_on_request_is_verls(name):
    from labs.masked import masked_whiten

    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4, 3, generator=generator)
    mask = torch.tensor([[1, 0, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    columns = {"token_level_rewards": values * 2, "values": values, "response_mask": mask}
    raw, _ = estimators[name](**columns)
    white, _ = estimators[name](**columns, whiten=True)
    assert torch.equal((white * mask), masked_whiten(raw, mask) * mask)


def test_gae_ignore_counts_a_reward_between_choices_and_loses_one_behind_the_last():
    mask, values = torch.tensor([[1, 0, 1, 0]]), torch.zeros(1, 4)
    for place, expected in ((1, [1.0, 0.0]), (2, [1.0, 1.0]), (3, [0.0, 0.0])):
        rewards = torch.zeros(1, 4)
        rewards[0, place] = 1.0
        advantages, _ = estimators["gae_ignore"](
            token_level_rewards=rewards, values=values, response_mask=mask, gamma=1.0, lam=1.0
        )
        assert advantages[0, [0, 2]].tolist() == expected
    assert estimators["gae_ignore"].meta["properties"].reward_on_masked == "between choices"
