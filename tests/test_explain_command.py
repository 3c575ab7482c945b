"""`explain RUN` computes the run again and says how a number of it came to be."""

import re
import subprocess
import sys

import pytest
import torch

from labs import agent
from labs.registry import environments
from tests.arithmetic import evaluate


def lab(*arguments):
    return subprocess.run([sys.executable, "-m", "labs", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    command = ["--experiment", "agent", "--seed", "7", "--results", str(results), "--no-figures", "--quiet"]
    done = lab("run", *command, "--set", "updates=30", "learning_rate=3")
    assert done.returncode == 0, done.stderr
    (folder,) = (results / "agent").iterdir()
    return str(folder)


def test_a_number_of_the_default_experiment(run):
    done = lab("explain", run, "advantages", "--update", "30", "--at", "12,0")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "update 30 of 30" in text
    assert "the policy chose this token" in text
    block = text.split("\nadvantage\n")[1].split("\n\n")[0]
    value = evaluate(block)
    environment = environments["arithmetic"]
    record: list[agent.Draws] = []
    updates = list(agent.train(environment, seed=7, updates=30, learning_rate=3.0, record=record))
    assert updates[-1].number == 30
    # The advantage of row 12, from the learner's own function on the rewards of its group.
    from labs.environment import cumulative, sample_episodes, score

    table = agent.policy_table(updates[-2].logits)
    rewards = []
    for row in range(16):
        draws = iter(record[-1].uniforms[row])
        (path,) = sample_episodes(environment, cumulative(table)[0], lambda d=draws: next(d), 4, 1)
        rewards.append(score(environment, record[-1].tasks[0], path.actions, path.last, path.end))
    assert value == pytest.approx(agent.group_advantages(rewards)[12], abs=1e-9)
    logits = re.findall(r"^    \w+ = .* = (-?[\d.e-]+)$", text.split("\nlogits\n")[1], re.M)
    assert sum(map(float, logits)) == pytest.approx(0, abs=1e-12), "a softmax row's gradient sums to zero"
    assert torch.tensor([float(x) for x in logits]).numel() == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["advantages", "--at", "999,0"], "outside the batch; it has rows 0 to 191"),
        (["advantages", "--at", "here"], "it must be row,position"),
        (["advantages", "--update", "31"], "the run has updates 1 to 30"),
        (["advantage"], "did you mean advantages"),
    ],
)
def test_wrong_questions_get_one_sentence(run, arguments, message):
    done = lab("explain", run, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_no_run(tmp_path):
    done = lab("explain", str(tmp_path))
    assert done.returncode == 2
    assert "no folder of a complete run" in done.stderr


@pytest.mark.slow
def test_without_a_place_it_takes_the_token_with_the_largest_advantage(run):
    done = lab("explain", run, "advantages", "--update", "30")
    assert done.returncode == 0, done.stderr
    place = re.search(r"^--at (\d+),(\d+): the token with the largest .advantage. of the batch$", done.stdout, re.M)
    again = lab("explain", run, "advantages", "--update", "30", "--at", f"{place[1]},{place[2]}")
    assert done.stdout.split("batch\n\n")[1] == again.stdout.split("30 of 30\n\n")[1]
    found = evaluate(again.stdout.split("\nadvantage\n")[1].split("\n\n")[0])
    other = lab("explain", run, "advantages", "--update", "30", "--at", "0,0").stdout
    assert abs(found) >= abs(evaluate(other.split("\nadvantage\n")[1].split("\n\n")[0]))
    assert abs(found) > 1


@pytest.mark.slow
def test_a_walkthrough_can_be_explained(tmp_path):
    lab(
        "run",
        "--experiment",
        "walkthrough",
        "--results",
        str(tmp_path),
        "--no-figures",
        "--quiet",
        "--set",
        "batches=20",
    )
    (folder,) = (tmp_path / "walkthrough").iterdir()
    done = lab("explain", str(folder), "advantages")
    assert done.returncode == 0, done.stderr
    assert "update 1 of 1" in done.stdout
    # Scores 1, 0, 0.5: mean 0.5, standard deviation 0.5 of the sample, epsilon 1e-6.
    found = evaluate(done.stdout.split("\nadvantage\n")[1].split("\n\n")[0])
    assert found == pytest.approx(0.5 / (0.5 + 1e-6), abs=1e-6)
    assert "the run has updates 1 to 1" in lab("explain", str(folder), "--update", "2").stderr
