"""A function that is a known one with a common mistake in it is told which one and which mistake."""

import subprocess
import sys

import pytest

from labs.mistakes import recognise
from labs.registry import estimators, load_file, losses
from labs.verify import agree, estimator_pairs, loss_pairs, verify

LOSS = """
import torch


def mine(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
         rollout_is_weights=None):
    ratio = (log_prob - old_log_prob).exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)
    mean = lambda x: (x * response_mask).sum() / response_mask.sum()
    return {rule}, {{}}
"""
ESTIMATOR = """
import numpy as np
import torch


@torch.no_grad()
def mine(token_level_rewards, response_mask, index, **_):
    scores = token_level_rewards.sum(-1)
    out = torch.zeros_like(scores)
    for label in set(index.tolist()):
        rows = torch.from_numpy(np.flatnonzero(index == label))
        group = scores[rows]
        {rule}
    advantages = out[:, None] * {mask}
    return advantages, advantages
"""


def written(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return load_file(path).mine


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("mean(torch.min(plain, clipped))", "vanilla) with min in place of max, without the dual clip"),
        ("mean(plain)", "vanilla) without its clip"),
        ("mean(clipped)", "vanilla) with the clipped side alone"),
        ("-mean(torch.max(plain, clipped))", "with the sign flipped"),
        ("mean(torch.max(-advantages / ratio, -advantages * (1 / ratio).clamp(0.8, 1.2)))", "upside down"),
        ("torch.max(plain, clipped).mean()", "without the mask"),
        ("(torch.max(plain, clipped) * response_mask).mean()", "the mean over all positions"),
        ("(torch.max(plain, clipped) * response_mask).sum()", "token-sum, whatever loss_agg_mode says"),
        ("3 * mean(-advantages * log_prob)", "3 times gpg"),
        ("mean(-advantages * (log_prob - old_log_prob))", "the gradient of gpg, with another value"),
    ],
)
def test_a_loss_with_a_mistake(tmp_path, rule, said):
    mine = written(tmp_path, LOSS.format(rule=rule))
    (sentence,) = recognise(mine, {n: losses[n] for n in ("gpg", "torchrl_grpo", "vanilla")}, loss_pairs(0), agree)
    assert said in sentence


@pytest.mark.parametrize(
    ("rule", "mask", "said"),
    [
        ("out[rows] = (group - group.mean()) / (group.std(unbiased=False) + 1e-6)", "response_mask", "population"),
        (
            "out[rows] = ((group - group.mean()) / group.std()).nan_to_num(0, 0, 0) if len(rows) > 1 else group",
            "response_mask",
            "grpo without epsilon",
        ),
        (
            "out[rows] = group.mean() - group if len(rows) > 1 else -group",
            "response_mask",
            "dr_grpo with the sign flipped",
        ),
        ("out[rows] = group - scores.mean()", "response_mask", "over the whole batch as one group"),
        (
            "out[rows] = group - group.mean() if len(rows) > 1 else group",
            "torch.ones_like(response_mask)",
            "dr_grpo, but not 0 on masked",
        ),
        ("out[rows] = 2 * (group - group.mean() if len(rows) > 1 else group)", "response_mask", "2 times dr_grpo"),
    ],
)
def test_an_estimator_with_a_mistake(tmp_path, rule, mask, said):
    mine = written(tmp_path, ESTIMATOR.format(rule=rule, mask=mask))
    entries = {n: estimators[n] for n in ("dr_grpo", "gae", "grpo", "opo")}
    (sentence,) = recognise(mine, entries, estimator_pairs(0), agree, masked=mask == "response_mask")
    assert said in sentence


@pytest.mark.slow
def test_the_command_says_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(LOSS.format(rule="mean(torch.min(plain, clipped))"))
    done = subprocess.run(
        [sys.executable, "-m", "labs", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert "equals the clipped loss (vanilla) with min in place of max, without the dual clip\n" in done.stdout
    assert "all good" not in done.stdout


@pytest.mark.slow
def test_something_new_resembles_nothing(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ESTIMATOR.format(rule="out[rows] = group.sin() * len(rows)", mask="response_mask"))
    report = verify(str(path))
    assert (report.equals, report.resembles) == ([], [])
    assert report.nearest is not None
