"""Small inputs made after reports on groups, advantages and masks, each with the words a finding must hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.made_steps import one, rows_of, said, step

# --- groups ---


def test_a_group_id_for_every_row() -> None:
    made = step(
        score=[1, 0, 0, 1], uid=list("abcd"), prompt=["p"] * 4, facts={"n": 4}, advantage=[0.999999, 0, 0, 0.999999]
    )
    assert "4 groups of size 1, n is 4; 4 rows share one prompt text" in one("group_sizes", made)
    assert ">= 0 (mean 0.5)" in one("advantage_size", made)
    assert "nothing is ever pushed down" in one("advantage_size", made)


def test_one_group_id_for_two_prompts() -> None:
    made = step(score=[1, 0, 0, 1, 1, 1, 1, 0], uid=["x"] * 8, prompt=list("ppppqqqq"))
    assert "holds 8 rows with 2 distinct prompts" in one("group_sizes", made)
    assert (
        said("group_sizes", step(score=[1, 0, 0, 1, 1, 1, 1, 0], uid=list("aaaabbbb"), prompt=list("ppppqqqq"))) == []
    )


def test_uneven_groups_become_one() -> None:
    made = rows_of([1, 0, 1, 1, 1, 0], [0.333, -0.667, 0.333, 0.333, 0.333, -0.667], "aaabbc", facts={"n": 3})
    assert "a:3 b:2 c:1 (n=3)" in one("group_sizes", made)
    third = 2 / 3
    made = rows_of([1, 0, 1, 1, 1, 0], [1 - third, -third, 1 - third, 1 - third, 1 - third, -third], "aaabbc")
    assert "largest 0.3333: the baseline is not the group mean" in one("equal_groups", made)


def test_difficulty_is_trained() -> None:
    scores = [2, 2, 2, 4, 0, 4, 0, 8, 8, 8, 8]
    made = rows_of(scores, [r - 46 / 11 for r in scores], "aaabbbbcccc")
    (fault,) = said("equal_groups", made)
    assert "2 of 2 groups with equal scores have an advantage, the largest 3.818" in fault.what
    assert fault.share == "2 of 3 groups (67 %)"
    assert said("equal_groups", rows_of(scores, [0, 0, 0, 2, -2, 2, -2, 0, 0, 0, 0], "aaabbbbcccc")) == []


def test_division_by_the_deviation_of_the_others() -> None:
    made = rows_of([1, 0, 0, 0, 0], [1e6, *[-0.57735] * 4], "aaaaa")
    assert "max |A| is 1e+06: 1 of 5 values hold 100 % of the weight" in one("advantage_size", made)
    made = rows_of([0.0] + [0.35] * 7, [-2341.0] + [0.14] * 7, "aaaaaaaa")
    assert "compare max - min with 0" in one("advantage_size", made)


def test_two_rollouts_a_prompt() -> None:
    scores = [1, 0, 0, 1, 1, 1, *[0] * 14]
    found = one("equal_groups", step(score=scores, uid=[f"g{i // 2}" for i in range(20)]), kind="note")
    rate = 0.2
    assert "80 % of groups have equal scores" in found
    assert f"n=2 would give {100 * (rate**2 + (1 - rate) ** 2):.0f} %, n=8 17 %" in found


def test_prompts_that_are_polarised() -> None:
    scores = [1] * 40 + [0] * 40 + [1, 0, 0, 0, 0, 0, 0, 0]
    found = one("equal_groups", step(score=scores, uid=[f"g{i // 8}" for i in range(88)]), kind="note")
    assert "polarised" in found


def test_all_variance_lies_between_prompts() -> None:
    made = step(score=[6, 6, -6, -6], uid=list("aabb"))
    assert "variance: 100 % between prompts, 0 % within groups" in one("variance_split", made)
    assert "6.928" in one("variance_split", made)
    logged = step(scalars={"reward_std": 5.08, "frac_reward_zero_std": 1.0, "loss": 0.0})
    assert "5.08" in one("variance_split", logged)


def test_blocks_that_are_no_groups() -> None:
    made = step(score=[1, 0, 1, 0], prompt=list("pqrs"), facts={"n": 4})
    assert "1 of 1 blocks are mixed: the first one holds 4 rows with 4 distinct prompts" in one("group_sizes", made)


@pytest.mark.parametrize(("order", "mixed"), [("ppqqrrss", 0), ("prprqsqs", 4)])
def test_order_of_devices(order: str, mixed: int) -> None:
    found = said("group_sizes", step(score=[0] * 8, prompt=list(order), facts={"n": 2}))
    assert [f"{mixed} of 4 blocks are mixed" in f.what for f in found] == [True] * bool(mixed)


# --- conventions ---


@pytest.mark.parametrize(
    ("n", "value", "says"),
    [
        (8, 2.474867, "(n - 1) / sqrt(n) for n = 8: one of 8, Bessel"),
        (8, 2.645743, "sqrt(n - 1) for n = 8: one of 8, population"),
        (4, 1.5, "for n = 4: one of 4, Bessel"),
        (16, 3.75, "for n = 16: one of 16, Bessel"),
        (16, 3.873, "for n = 16: one of 16, population"),
    ],
)
def test_the_largest_advantage_names_the_convention(n: int, value: float, says: str) -> None:
    made = step(scalars={"critic/advantages/max": value, "critic/advantages/min": -0.5}, facts={"n": n})
    assert says in one("largest_advantage", made, kind="note")
    assert said("largest_advantage", made) == []


@pytest.mark.parametrize(
    ("advantages", "rule"),
    [
        ([2.474867] + [-0.353552] * 7, "mean and Bessel deviation (GRPO)"),
        ([2.645743] + [-0.377963] * 7, "mean and population deviation"),
        ([0.875] + [-0.125] * 7, "mean alone (Dr. GRPO)"),
        ([1.0] + [-1 / 7] * 7, "leave-one-out (RLOO)"),
    ],
)
def test_advantages_name_their_formula(advantages: list[float], rule: str) -> None:
    made = rows_of([1] + [0] * 7, advantages, "aaaaaaaa")
    assert rule in one("convention", made, kind="note")
    wrong = rows_of([1] + [0] * 7, advantages, "aaaaaaaa", facts={"estimator": "grpo"})
    assert bool(said("convention", wrong)) == ("GRPO)" not in rule or "Dr" in rule)


def test_loss_over_kl_is_beta() -> None:
    log = [step(k, scalars={"loss": 0.04 * kl, "kl": kl}) for k, kl in enumerate((0.4795, 0.3, 0.2, 0.25))]
    assert "loss / kl is 0.04 in all 4 steps: that is beta" in one("loss_over_kl", *log, kind="note")


# --- normalisation ---


def test_whitened_twice() -> None:
    scores, uid = [1, 0, 0, 0, 1, 1, 0, 0], list("aaaabbbb")
    kept = np.zeros((8, 4), dtype=int)
    kept[:, 0], kept[0] = 1, 1
    row = [1.0445, *[-0.8704] * 3, 0.4375, 0.4375, -1.2208, -1.2208]
    made = step(score=scores, uid=uid, response_mask=kept, advantages=np.array(row)[:, None] * kept)
    assert "whitened twice; the sums of groups are -1.567, -1.567 instead of 0" in one("advantage_whitening", made)


def test_whitening_counts_long_rows() -> None:
    kept = np.array([[1, 1, 1], [1, 0, 0]])
    made = step(response_mask=kept, advantages=np.array([[0.5], [-1.5]]) * kept)
    found = one("advantage_whitening", made, kind="note")
    assert "the mean over rows is -0.5; rows above 0 hold 75 % of the tokens" in found


def test_the_mean_over_padding() -> None:
    advantages = np.array([[2, 2, 0, 0], [1, 1, 1, 0]]) - 0.875
    made = step(response_mask=[[1, 1, 0, 0], [1, 1, 1, 0]], advantages=advantages / math.sqrt(0.5156))
    found = one("advantage_whitening", made)
    assert "masked mean 0.731 (should be 0), 100 % positive" in found
    assert "over all 8 cells, padding included, the mean is 0" in found


def test_normalised_along_the_wrong_axis() -> None:
    made = step(response_mask=[[1, 1, 1, 1]], advantages=[[0.0] * 4], returns=[[3, 1, -1, -3]])
    assert "all 4 advantages are 0 while returns vary" in one("advantage_size", made)


# --- masks and the place of the reward ---


def test_returns_cut_at_tool_text() -> None:
    rewards, kept = [[0, 0, 0, 0, 1], [0] * 5], [[1, 1, 0, 1, 1]] * 2
    cut = step(response_mask=kept, rm_scores=rewards, returns=[[0, 0, 1, 1, 1], [0] * 5])
    assert "2 of 4 action tokens of row 0 get no return" in one("credit_cut", cut)
    assert said("credit_cut", step(response_mask=kept, rm_scores=rewards, returns=[[1, 1, 0, 1, 1], [0] * 5])) == []
    white = [[-0.540, -0.540, 0, 1.620, 1.620], [-0.540, -0.540, 0, -0.540, -0.540]]
    assert "verl below 0.9.0" in one("credit_cut", step(response_mask=kept, rm_scores=rewards, advantages=white))


def test_reward_on_a_tool_token() -> None:
    made = step(response_mask=[[1, 1, 0]], attention_mask=[[1, 1, 1]], rm_scores=[[0, 0, 1.0]])
    assert "100 % of the reward of row 0 sits on mask-0 positions" in one("reward_place", made)


def test_values_of_masked_positions_leak() -> None:
    base: dict[str, Any] = {
        "response_mask": [[1, 1, 0]],
        "token_level_rewards": [[0, 1.0, 0]],
        "values": [[0.5, 0.5, 10]],
    }
    leak = step(**base, returns=[[1.45, 1.5, 0]], facts={"gamma": 1.0, "lam": 0.95})
    assert "row 0, token 0 has 0.95 instead of 0.475" in one("value_leak", leak)
    assert said("value_leak", step(**base, returns=[[0.975, 1.0, 10]], facts={"gamma": 1.0, "lam": 0.95})) == []


def test_reward_of_a_rejected_token() -> None:
    made = step(response_mask=[[1, 0], [1, 1]], loss_mask=[[1, 1], [1, 1]], rm_scores=[[0, 1.0], [0, 0]])
    assert "1 rows have their reward on a rejected token" in one("reward_place", made, kind="note")


def test_an_empty_response_is_paid() -> None:
    made = step(response_mask=[[0, 0, 0], [1, 1, 0], [1, 0, 0]], rm_scores=[[0, 0, 5.0], [0, 1, 0], [1, 0, 0]])
    assert "row 0: mask sum 0 but reward 5 at column 2" in one("reward_place", made)


def test_pad_tokens_are_trained() -> None:
    made = step(response_mask=[[1, 1, 1, 1]], responses=[[5, 6, 0, 0]])
    found = one("mask_stages", made)
    assert "2 padding tokens have response_mask 1, the mask is all ones" in found
    assert "2 of 4 trained tokens" in found


def test_a_cut_row_is_masked_in_one_mask() -> None:
    made = step(completion_mask=[[0, 0, 0, 0]], tool_mask=[[1, 1, 0, 1]])
    found = one("mask_stages", made)
    assert "masks disagree on 3 positions of 1 row: the product trains 0 tokens, the length metric says 3" in found


def test_the_stop_token_is_never_trained() -> None:
    made = step(response_mask=[[1, 1, 0, 0, 0]] * 4, responses=[[5, 6, 2, 2, 2]] * 4, facts={"eos": 2})
    assert "no row trains its stop token (0 of 4 rows have mask 1 on the first id 2)" in one("mask_stages", made)
    good = step(response_mask=[[1, 1, 1, 0, 0]] * 4, responses=[[5, 6, 2, 2, 2]] * 4, facts={"eos": 2})
    assert said("mask_stages", good) == []


def test_a_mask_longer_than_the_ids() -> None:
    made = step(responses=[[1] * 5], response_mask=[[1] * 6], rollout_log_probs=[[-0.1] * 6])
    assert "response_mask 6, responses 5, rollout_log_probs 6" in one("mask_stages", made)


def test_score_behind_the_end_token() -> None:
    made = step(response_mask=[[1, 1, 1, 0, 0]], attention_mask=[[1, 1, 1, 0, 0]], rm_scores=[[0, 0, 0, 1.0, 0]])
    assert "behind the end of the response in 100 % of padded rows" in one("reward_place", made)
