"""Each truncation rule acts at its stage and climbs what it says, by exact enumeration."""

import pytest
import torch

from labs import truncation
from labs.batch import TokenBatch
from labs.errors import InputError

f64 = torch.float64


def batch(**columns):
    base = {
        "response_mask": torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
        "loss_mask": torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
        "token_level_scores": torch.tensor([[0, 0, 1, 0], [0, 0, 0, 2], [3, 0, 0, 0]], dtype=f64),
        "token_level_rewards": torch.tensor([[0, 0, 1, 0], [0, 0, 0, 2], [3, 0, 0, 0]], dtype=f64),
        "truncated": torch.tensor([False, True, False]),
        "terminated": torch.tensor([True, False, True]),
    }
    return TokenBatch({**base, **columns})


STAGES = ("episodes", "score", "kl", "correction", "mask", "advantage", "loss")


@pytest.mark.parametrize("rule", sorted(truncation.RULES))
def test_a_rule_acts_at_one_stage_only(rule):
    start = batch(bootstrap_values=torch.tensor([5.0, 5.0, 5.0], dtype=f64))
    for stage in STAGES:
        after = truncation.at_stage(stage, start, rule)
        assert (after is start) == (stage != truncation.RULES[rule].stage)
        if after is not start:
            assert (after.rows == 3) == (rule in ("zero", "mask", "bootstrap"))
            if after.rows == 3:
                assert torch.equal(after["loss_mask"], start["loss_mask"])


def test_what_each_rule_changes():
    zeroed = truncation.at_stage("score", batch(), "zero")
    assert zeroed["token_level_scores"].sum(1).tolist() == [1, 0, 3]
    masked = truncation.at_stage("mask", batch(), "mask")
    assert masked["response_mask"].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert masked["token_level_scores"].sum(1).tolist() == [1, 2, 3]
    assert truncation.at_stage("score", batch(), "drop")["token_level_scores"].sum(1).tolist() == [1, 3]
    kept = truncation.at_stage("episodes", batch(), "continue")
    assert kept.rows == 2
    assert truncation.unfinished(batch()) == [1]
    boot = truncation.at_stage("advantage", batch(bootstrap_values=torch.tensor([9.0, 4.0, 9.0])), "bootstrap", 0.5)
    assert boot["token_level_rewards"].tolist() == [[0, 0, 1, 0], [0, 0, 0, 4], [3, 0, 0, 0]]


def test_bootstrap_is_gamma_v_after_the_last_step():
    """Undiscounted sums of rewards: the truncated return gains gamma * V, at the last chosen token."""
    mask = torch.tensor([[1, 1, 0, 0]])
    row = TokenBatch(
        {"response_mask": mask, "loss_mask": mask, "token_level_rewards": torch.zeros(1, 4, dtype=f64),
         "truncated": torch.tensor([True]), "bootstrap_values": torch.tensor([2.0], dtype=f64)}
    )  # fmt: skip
    assert truncation.at_stage("advantage", row, "bootstrap", 0.9)["token_level_rewards"].tolist() == [[0, 1.8, 0, 0]]


# One decision: arm 0 terminates with score 1, arm 1 terminates with score 0, arm 2 runs into the limit, where the
# verifier would have given 0.6 had it been allowed to go on.
SCORE = torch.tensor([1.0, 0.0, 0.6], dtype=f64)
CUT = torch.tensor([False, False, True])


def _gradient(function):
    logits = torch.tensor([0.2, -0.4, 0.5], dtype=f64, requires_grad=True)
    p = torch.softmax(logits, 0)
    return torch.autograd.grad(function(p), logits)[0], p.detach()


def _update(rule):
    """Expected REINFORCE update of the rule, each arm weighted by its probability, leave-one-out baseline."""
    _, p = _gradient(lambda p: p.sum() * 0 + p[0])
    rows = TokenBatch(
        {
            "response_mask": torch.ones(3, 1).long(),
            "loss_mask": torch.ones(3, 1).long(),
            "token_level_scores": SCORE[:, None],
            "truncated": CUT,
            "probability": p,
            "arm": torch.arange(3),
            "bootstrap_values": torch.tensor([0.0, 0.0, 0.6], dtype=f64),
        }
    )
    if rule == "bootstrap":
        # before the cut the verifier has said nothing about arm 2
        rows = rows.replace(token_level_scores=torch.where(CUT, 0.0, SCORE)[:, None])
    rows = truncation.at_stage("score", rows, rule)
    rows = rows.replace(token_level_rewards=rows["token_level_scores"])
    rows = truncation.at_stage("mask", rows, rule)
    rows = truncation.at_stage("advantage", rows, rule)
    weight = rows["probability"] / rows["probability"].sum()
    reward = rows["token_level_rewards"][:, 0]
    advantage = (reward - (weight * reward).sum()) * rows["response_mask"][:, 0]
    score_function = torch.eye(3, dtype=f64)[rows["arm"]] - p
    return (weight[:, None] * advantage[:, None] * score_function).sum(0)


def test_zero_climbs_success_within_the_limit():
    want, _ = _gradient(lambda p: (p * SCORE * ~CUT).sum())
    torch.testing.assert_close(_update("zero"), want)


def test_drop_climbs_the_conditional_score():
    want, _ = _gradient(lambda p: (p * SCORE * ~CUT).sum() / (p * ~CUT).sum())
    got = _update("drop")
    torch.testing.assert_close(got, want)
    assert got[2] == pytest.approx(0, abs=1e-15)


def test_bootstrap_climbs_the_unlimited_score():
    want, _ = _gradient(lambda p: (p * SCORE).sum())
    torch.testing.assert_close(_update("bootstrap"), want)


def test_mask_is_the_unlimited_gradient_without_the_truncated_terms():
    full, p = _gradient(lambda p: (p * SCORE).sum())
    term = p[2] * (SCORE[2] - (p * SCORE).sum()) * (torch.eye(3, dtype=f64)[2] - p)
    torch.testing.assert_close(_update("mask"), full - term)
    assert not torch.allclose(_update("mask"), full, atol=1e-3)


@pytest.mark.parametrize("rule", ["zero", "drop", "mask"])
def test_in_baseline_says_whether_the_row_reaches_the_estimator(rule):
    reaching = truncation.at_stage("mask", truncation.at_stage("score", batch(), rule), rule)
    assert (reaching.rows == 3) == truncation.RULES[rule].in_baseline


def test_refusals():
    with pytest.raises(InputError, match="zero, drop, mask, continue, bootstrap"):
        truncation.at_stage("score", batch(), "zeros")
    with pytest.raises(InputError, match="bootstrap_values"):
        truncation.at_stage("advantage", batch(), "bootstrap")
    with pytest.raises(InputError, match="needs truncated"):
        truncation.at_stage("score", batch().replace(truncated=None), "zero")
    with pytest.raises(InputError, match="both terminated and truncated"):
        truncation.at_stage("mask", batch(terminated=torch.tensor([True, True, True])), "mask")
    with pytest.raises(InputError, match="nothing is left"):
        truncation.at_stage("score", batch(truncated=torch.ones(3).bool(), terminated=torch.zeros(3).bool()), "drop")
    with pytest.raises(InputError, match="has neither"):
        truncation.at_stage("score", batch().replace(token_level_scores=None), "zero")
