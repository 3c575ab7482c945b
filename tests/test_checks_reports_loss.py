"""Small inputs made after reports on the loss, the queue and the rest, each with the words a finding must hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.made_steps import one, said, step

# --- denominators ---


def test_dead_tokens_in_the_denominator() -> None:
    kept = np.array([[1] * k + [0] * (6 - k) for k in (3, 1, 6, 6)])
    made = step(response_mask=kept, advantages=np.array([[0.7071], [-0.7071], [0], [0]]) * kept)
    found = one("denominators", made, kind="note")
    assert "75 % of the tokens in the denominator have A = 0: the gradient is scaled by 0.25" in found


def test_micro_batches_are_weighted_by_rows() -> None:
    loss = np.array([[0.25] * 6] * 3 + [[1.0] * 6])
    kept = np.array([[1] * 6] * 3 + [[1, 1, 0, 0, 0, 0]])
    for logged, says in ((0.4375, "local token means weighted by rows"), (0.625, "plain mean of local token means")):
        made = step(
            token_loss=loss, response_mask=kept, micro_batch=[0, 0, 0, 1],
            scalars={"actor/pg_loss": logged}, facts={"loss_agg_mode": "token-mean"},
        )  # fmt: skip
        assert f"the logged loss is {logged}, token-mean is 0.325: it is {says}" in one("denominators", made)


def test_local_means_are_summed() -> None:
    kept = np.array([[1] * 8, [1, 1, 0, 0, 0, 0, 0, 0]])
    made = step(
        token_loss=np.array([[0.25] * 8, [1.0] * 8]), response_mask=kept, micro_batch=[0, 1],
        scalars={"actor/pg_loss": 1.25}, facts={"loss_agg_mode": "token-mean"},
    )  # fmt: skip
    (finding,) = said("denominators", made)
    assert "sum of local token means" in finding.what
    assert finding.numbers["factor"] == pytest.approx(3.125)


def test_sum_over_width_without_rows() -> None:
    made = step(
        token_loss=[[1, 1, 1, 0], [2, 2, 0, 0]], response_mask=[[1, 1, 1, 0], [1, 1, 0, 0]],
        scalars={"actor/pg_loss": 1.75}, facts={"loss_agg_mode": "seq-mean-token-sum-norm"},
    )  # fmt: skip
    found = one("denominators", made)
    assert "the logged loss is 1.75, seq-mean-token-sum-norm is 0.875: it is sum over rows / width" in found


def test_the_number_of_devices_is_missing() -> None:
    loss, kept = np.zeros((4, 3)), np.zeros((4, 3), dtype=int)
    kept[0], kept[1], kept[2, 0], kept[3, 0] = 1, 1, 1, 1
    loss[:2], loss[2:, 0] = 0.5, 2.0
    made = step(
        token_loss=loss, response_mask=kept, scalars={"actor/pg_loss": 0.4375}, facts={"loss_agg_mode": "token-mean"}
    )
    assert "the logged loss is 0.4375, token-mean is 0.875: a factor of 0.5 (dp_size?)" in one("denominators", made)


def test_the_filter_is_ignored() -> None:
    made = step(
        token_loss=[[1, 1, 5, 1]], response_mask=[[1, 1, 0, 1]], loss_mask=[[1, 1, 1, 1]],
        scalars={"actor/pg_loss": 2.0}, facts={"loss_agg_mode": "token-mean"},
    )  # fmt: skip
    assert "the mask after rejection ignored" in one("denominators", made)


def test_long_wrong_answers_cost_less() -> None:
    kept = np.zeros((2, 100), dtype=int)
    kept[0, :10], kept[1] = 1, 1
    made = step(response_mask=kept, advantages=-1.0 * kept, facts={"loss_agg_mode": "seq-mean-token-mean"})
    assert "the penalty per token is 10 times smaller for the longest losing row" in one(
        "denominators", made, kind="note"
    )


def test_half_of_the_tokens_are_rejected() -> None:
    made = step(response_mask=[[1, 1], [0, 0]], loss_mask=[[1, 1], [1, 1]], advantages=[[1.0, 1.0], [1.0, 1.0]])
    assert "50 % of the chosen tokens are rejected" in one("denominators", made, kind="note")


# --- KL, ratio, mismatch ---


def test_k1_in_the_loss() -> None:
    made = step(facts={"kl_loss_type": "k1"}, scalars={"actor/kl_loss": 0.1})
    assert "use k2 or k3+ in the loss, k1 in the reward" in one("kl_sign", made)
    assert said("kl_sign", step(facts={"kl_loss_type": "low_var_kl"}, scalars={"actor/kl_loss": 0.1})) == []


@pytest.mark.parametrize("sampled", ["policy", "reference"])
def test_k1_of_tokens_that_another_policy_sampled(sampled: str) -> None:
    logits = np.array([1.0, 0, 0, 0])
    policy, uniform = logits - np.log(np.exp(logits).sum()), np.log(np.full(4, 0.25))
    weights = np.exp(policy if sampled == "policy" else uniform)
    ids = np.random.default_rng(0).choice(4, size=(100, 4), p=weights / weights.sum())
    made = step(old_log_probs=policy[ids], ref_log_prob=uniform[ids], response_mask=np.ones_like(ids))
    found = said("kl_sign", made)
    assert bool(found) == (sampled == "reference")
    if found:
        assert "standard errors below 0" in found[0].what
        assert found[0].numbers["k1"] == pytest.approx(-0.1074, abs=0.05)


def test_a_coefficient_below_0() -> None:
    assert "coefficient is -0.02" in one("kl_sign", step(scalars={"actor/reward_kl_penalty_coeff": -0.02}))


def test_the_temperature_is_missing_on_one_side() -> None:
    logits = np.array([2.0, 1, 0, 0])

    def log_probs(temperature: float) -> Any:
        scaled = logits / temperature
        return scaled - np.log(np.exp(scaled).sum())

    ids = np.array([[0, 1, 2, 3]])
    made = step(old_log_probs=log_probs(1.0)[ids], log_prob=log_probs(0.7)[ids], response_mask=np.ones_like(ids))
    # log-ratio old - new = 0.7 new - new: seen from the other side the slope of new - old is +0.30.
    (finding,) = said("first_ratio", made)
    assert abs(finding.numbers["slope"]) == pytest.approx(0.3)
    assert "temperature mismatch, not noise" in finding.what
    noise = np.random.default_rng(1).normal(0, 0.01, (1, 4))
    made = step(
        old_log_probs=log_probs(1.0)[ids], log_prob=log_probs(1.0)[ids] + noise, response_mask=np.ones_like(ids)
    )
    assert said("first_ratio", made) == []


def test_the_sign_of_the_advantage_is_ignored() -> None:
    ratio = np.log([[1.5, 0.5, 1.5, 0.5]])
    made = step(
        old_log_probs=0 * ratio - 2, log_prob=ratio - 2, advantages=[[1.0, 1, -1, -1]], response_mask=[[1] * 4],
        scalars={"actor/pg_clipfrac": 1.0},
    )  # fmt: skip
    found = said("clip_fraction", made)
    assert "clipped 0.5 (high 0.25, low 0.25); outside band 1" in found[0].what
    assert "ignores the sign of A" in found[0].what


def test_the_dual_clip() -> None:
    made = step(old_log_probs=[[-3.0]], log_prob=[[-3.0 + math.log(8)]], advantages=[[-2.0]], response_mask=[[1]])
    assert "dual clip: 1 token, gradient 0 there, A=-2 at ratio 8 costs 6 instead of 16" in one("clip_fraction", made)


def test_one_update_a_batch() -> None:
    log = [step(k, scalars={"actor/pg_clipfrac": 0.0, "actor/ppo_kl": 0.0}) for k in range(5)]
    assert "ratio 1 and clip fraction 0 in all 5 steps" in one("clip_fraction", *log, kind="note")


def test_sequence_ratios_explode() -> None:
    length = 1000
    made = step(
        rollout_log_probs=np.full((2, length), -1.0), old_log_probs=np.full((2, length), -0.988),
        response_mask=np.ones((2, length), dtype=int),
    )  # fmt: skip
    found = one("rollout_mismatch", made)
    assert (
        "token ratio fine (1.012), sequence ratio unusable: 1.628e+05 after 1000 tokens, above about 92 tokens" in found
    )
    logged = step(scalars={"rollout_corr/kl": 2.8e-4, "rollout_corr/chi2_seq": 6.7, "rollout_corr/chi2_token": 5e-4})
    assert "chi2 of sequence weights is 6.7" in one("rollout_mismatch", logged)


def test_tokenised_again() -> None:
    old = np.full((4, 6), -0.5)
    rollout = old.copy()
    rollout[1, 4:] = -3.0
    made = step(rollout_log_probs=rollout, old_log_probs=old, response_mask=np.ones((4, 6), dtype=int))
    assert "row 1 agree up to token 3 and differ from token 4 on" in one("rollout_mismatch", made)


# --- truncation, entropy, staleness ---


def test_an_end_token_that_is_not_recognised() -> None:
    made = step(truncated=[1] * 4, length=[12] * 4, responses=np.full((4, 12), 106), facts={"max_response_length": 64})
    found = one("truncated_rows", made)
    assert "have length 12 << cap 64: the end token is not recognised (most frequent last id 106)" in found


def test_a_buffer_longer_than_the_cap() -> None:
    made = step(length=[1, 2], facts={"max_response_length": 20, "overlong_buffer": 24})
    found = one("truncated_rows", made)
    assert "the overlong buffer 24 > cap 20: every response is penalised" in found
    assert "0.208" in found


def test_cut_off_treated_as_the_end() -> None:
    made = step(
        truncated=[1], values=[[-5.0, -4, -3]], token_level_rewards=[[-1.0, -1, -1]], returns=[[-3.0, -2, -1]],
        bootstrap_values=[-2.0], response_mask=[[1, 1, 1]],
    )  # fmt: skip
    assert any(
        "bootstrapping changes the last advantage of row 0 by -2" in f.what for f in said("truncated_rows", made)
    )


def test_one_row_always_equals_the_longest() -> None:
    log = [step(k, scalars={"response_length/clip_ratio": 0.0078125, "response_length/max": 900 + k}) for k in range(4)]
    found = one("clip_ratio", *log, kind="note")
    assert "1/128 in every step" in found
    assert said("clip_ratio", *log) == []
    cut = [
        step(k, scalars={"response_length/clip_ratio": 0.3 + 0.01 * k, "response_length/max": 2048}) for k in range(4)
    ]
    assert "have the length 2048 of all steps" in one("clip_ratio", *cut)


def test_nothing_is_left_after_truncation() -> None:
    made = step(finish_reason=["length"] * 3, response_mask=np.zeros((3, 4), dtype=int))
    assert "3 of 3 rows are cut, 3 of them have no trained token" in one("truncated_rows", made)


def test_entropy_rises_while_the_score_falls() -> None:
    log = [step(k, scalars={"actor/entropy": 0.5 + 0.1 * k, "critic/score/mean": 0.6 - 0.03 * k}) for k in range(12)]
    assert "entropy rises in 5 of the last 5 windows while the score falls" in one("entropy", *log)


def test_sampling_collapse() -> None:
    made = step(
        score=[0] * 32 + [1] * 8, uid=[f"g{i // 8}" for i in range(40)],
        output=[f"copy of {i // 8}" for i in range(40)],
    )  # fmt: skip
    assert "4 of 4 groups without a best score hold the same output" in "".join(
        f.what for f in said("equal_groups", made)
    )


def test_dropping_old_work_drops_the_slow() -> None:
    duration = np.tile([1.0, 4.0], 10)
    made = step(duration=duration, accepted=(duration < 2).astype(int))
    assert "fast 100 %, slow 0 %; 80 % of the rollout time is thrown away" in one("staleness", made)


def test_nothing_within_the_bound() -> None:
    made = step(version=[3.0, 3, 2, 0], facts={"current_version": 12, "max_lag": 8})
    assert "0 of 4 rows within lag 8, the oldest is 12 behind; the step would train on nothing" in one(
        "staleness", made
    )


def test_mixed_versions_in_a_row() -> None:
    made = step(7, versions=[[3, 3, 5, 6]], facts={"max_lag": 2})
    assert "would keep 50 % of their tokens" in one("staleness", made, kind="note")


# --- rewards, numbers, the file ---


def test_a_missing_right_answer_is_paid() -> None:
    made = step(output=["a", "b", "c", "d"], score=[1, 1, 0, 1], gts=np.array([None, None, "7", "8"], dtype=object))
    assert "2 rows whose right answer is missing have the best score 1" in one("reward_verifier", made)


def test_gold_in_the_text_scores_0() -> None:
    made = step(output=["so it is 42"] * 4 + ["#### 42"], score=[0, 0, 0, 0, 1], gts=["42"] * 5)
    assert "4 rows score 0 and end with the right answer, such as '42' in row 0" in one("reward_verifier", made)
    other = step(output=["so it is 142, not -42 or 42.5"] * 4 + ["#### 42"], score=[0, 0, 0, 0, 1], gts=["42"] * 5)
    assert said("reward_verifier", other) == []


def test_naming_all_answers_wins() -> None:
    every = "cat or dog or bird"
    made = step(output=[every] * 3 + ["bird"] * 3, score=[1, 1, 1, 0, 0, 1], gts=["cat", "dog", "bird"] * 2)
    assert "3 outputs name all 3 right answers of the batch and have the best score" in one("reward_verifier", made)


def test_form_decides_the_score() -> None:
    rng = np.random.default_rng(0)
    done, form = rng.integers(0, 2, 64), rng.normal(size=64)
    made = step(score=0.2 * done + 1.0 * form, parts__accuracy=done, parts__format=form)
    (finding,) = said("reward_parts", made)
    assert "weight 0.2" in finding.what
    assert finding.numbers["done"] < 0.1
    assert said("reward_parts", step(score=done + 0.05 * form, parts__accuracy=done, parts__format=form)) == []


def test_nan_outside_the_mask() -> None:
    made = step(old_log_probs=[[0, np.nan]], token_level_rewards=[[1.0, np.nan]], response_mask=[[1, 0]])
    found = one("non_finite", made)
    assert "old_log_probs[0][1] is NaN, mask 0; also in token_level_rewards" in found
    assert "do not multiply" in found


def test_the_gradient_is_nan() -> None:
    assert "actor/grad_norm is NaN" in one("non_finite", step(scalars={"actor/grad_norm": math.nan}))


def test_rows_of_two_ranks() -> None:
    made = step(score=[1, 0, 1], uid=["a", "a", "a"], session=["0", "1", "0"], index=[0, 0, 0])
    assert "1 rows come twice: a_0_0 is in row 0 and row 2" in one("file_integrity", made)
