"""A user's own function is recognised, or told apart on a small batch; a broken one is told what it breaks."""

import subprocess
import sys

import pytest
import torch

from labs.errors import InputError
from labs.registry import estimators, losses
from labs.verify import TRIALS, find, verify

GROUPED = """
import numpy as np
import torch


@torch.no_grad()
def {name}(token_level_rewards, response_mask, index, **_):
    scores = token_level_rewards.sum(-1)
    out = torch.zeros_like(scores)
    for label in set(index.tolist()):
        rows = torch.from_numpy(np.flatnonzero(index == label))
        group = scores[rows]
        {rule}
    advantages = out[:, None] * response_mask
    return advantages, advantages


{name}.needs = ("index",)
"""
POPULATION = "out[rows] = (group - group.mean()) / s if (s := group.std(unbiased=False)) > 0 else group * 0"
LEAVE_ONE_OUT = "out[rows] = group - (group.sum() - group) / (len(group) - 1) if len(group) > 1 else group"
CENTRED_SINGLE_ZERO = "out[rows] = group - group.mean()"
HALF_ALONE = "out[rows] = group - group.mean() if len(group) > 1 else 0.5 * group"


@pytest.fixture
def written(tmp_path):
    def write(name, text):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("rule", "known"),
    [(POPULATION, "grpo_population"), (LEAVE_ONE_OUT, "rloo"), (CENTRED_SINGLE_ZERO, None)],
)
def test_a_known_variant_is_named(written, rule, known):
    report = verify(written("mine", GROUPED.format(name="mine", rule=rule)))
    assert report.good, report
    if known:
        assert known in report.equals
    if known == "rloo":
        assert report.golden["compute_rloo_outcome_advantage"] == (7, 7), "the rows of what it equals"
    assert report.measured["groups"] is True
    assert report.measured["credit"] == "trajectory"


def test_a_new_estimator_is_told_from_the_nearest_on_a_small_batch(written):
    report = verify(written("mine", GROUPED.format(name="mine", rule=HALF_ALONE)))
    assert report.equals == []
    assert report.nearest is not None
    assert report.nearest.batch["response_mask"].numel() <= 24
    assert not torch.equal(report.nearest.mine[0], report.nearest.theirs[0])
    assert 0 < report.nearest.share < 1


def test_a_wrong_function_reads_what_is_wrong(written):
    text = GROUPED.format(name="mine", rule=POPULATION).replace("@torch.no_grad()\n", "").replace(
        "out[:, None] * response_mask", "out[:, None].expand(-1, 2)"
    )  # fmt: skip
    report = verify(written("mine", text))
    assert not report.good
    assert any("shape" in f.what for f in report.findings)


FORGETS = """
import torch


@torch.no_grad()
def {name}(token_level_rewards, response_mask, index, **_):
    scores = token_level_rewards.sum(-1, keepdim=True)
    advantages = (scores - scores.mean()).expand(response_mask.shape)
    return advantages, advantages
"""


def test_what_is_seldom_meant_is_said_and_the_nearest_named_even_when_none_agrees(written):
    path = written("mine", FORGETS.format(name="mine"))
    report = verify(path)
    assert report.good, "nothing that every estimator must keep is broken"
    assert len(report.doubts) == 2
    assert "not 0 on masked positions" in report.doubts[0]
    assert "which rows form a group is all the same" in report.doubts[1]
    assert (report.nearest.other, report.nearest.share) == ("dr_grpo", 0.0)
    done = subprocess.run([sys.executable, "-m", "labs", "verify", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "doubtful: it takes index" in done.stdout
    assert "nearest is dr_grpo, equal on none of the batches" in done.stdout
    assert "all good" not in done.stdout


CRITIC = """
import torch
from labs.registry import estimators


def {name}(token_level_rewards, values, response_mask, **_):
    return estimators["gae"](token_level_rewards, values, response_mask, 1.0, 1.0)
"""


def test_a_file_without_declared_needs_gets_the_columns_it_names(written):
    report = verify(written("mine", CRITIC.format(name="mine")))
    assert report.equals == ["gae"]
    assert report.measured["critic"] is True


def test_nan_for_a_lone_row_is_found(written):
    rule = "out[rows] = (group - group.mean()) / (group.std() + 1e-6 if len(group) > 1 else 0)"
    report = verify(written("mine", GROUPED.format(name="mine", rule=rule)))
    assert [(f.what, f.text) for f in report.findings] == [("a group of one", "gives NaN or inf")]
    assert report.nearest.other == "grpo"


def test_another_file_that_cannot_be_imported_is_passed_over(monkeypatch):
    real = type(estimators).__getitem__

    def broken(self, name):
        if name == "opo":
            raise InputError("opo.py, line 3: SyntaxError")
        return real(self, name)

    monkeypatch.setattr(type(estimators), "__getitem__", broken)
    report = verify("dr_grpo")
    assert report.good
    assert report.passed_over == ["opo.py, line 3: SyntaxError"]


def test_a_false_declaration_is_found(written):
    text = GROUPED.format(name="mine", rule=POPULATION) + (
        "\nfrom labs.properties import Properties\n"
        'mine.meta = {"properties": Properties(credit="trajectory", groups=True, group_shift=False, scale="invariant",'
        ' group_of_one="zero", equal_group="zero", reward_on_masked=True)}\n'
    )
    report = verify(written("mine", text))
    assert [f.what for f in report.findings] == ["group_shift"]


def test_a_loss_is_recognised_by_value_and_gradient(written):
    text = (
        "from labs.masked import agg_loss\n"
        'def mine(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,'
        " rollout_is_weights=None):\n"
        "    losses = -advantages * log_prob\n"
        "    if rollout_is_weights is not None:\n"
        "        losses = losses * rollout_is_weights\n"
        "    return agg_loss(losses, response_mask, loss_agg_mode), {}\n"
    )
    report = verify(written("mine", text))
    assert "gpg" in report.equals


def test_a_registered_estimator_reproduces_its_rows():
    report = verify("gae")
    assert report.good, report.mismatches
    ((_, (ran, matched)),) = report.golden.items()
    assert ran == matched > 0


def test_registered_loss_reproduces_its_rows():
    report = verify("losses/vanilla")
    assert report.good
    assert report.golden["compute_policy_loss_vanilla"] == (17, 17)


def test_find():
    assert find("rloo") == (estimators["rloo"], "rloo", estimators)
    assert find("losses/gpg") == (losses["gpg"], "gpg", losses)
    assert TRIALS >= 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "no function with the parameters"),
        (None, "is no file"),
        ("def bad(:\n", r"bad\.py, line 1: SyntaxError: invalid syntax"),
    ],
)
def test_bad_files(written, tmp_path, text, message):
    target = str(tmp_path / "none.py") if text is None else written("bad", text)
    with pytest.raises(InputError, match=message):
        find(target)


def test_unknown_name():
    with pytest.raises(InputError, match="did you mean rloo"):
        find("rlo")


@pytest.mark.slow
def test_the_command(written):
    path = written("mine", GROUPED.format(name="mine", rule=POPULATION))
    done = subprocess.run([sys.executable, "-m", "labs", "verify", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "equals grpo_population: GRPO with the population standard deviation" in done.stdout
    done = subprocess.run([sys.executable, "-m", "labs", "verify", "nope"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
