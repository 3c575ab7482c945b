"""The learner: its reference figures to every digit, its advantages for any rewards, and what it may import."""

import ast
import json
import math
import random
import subprocess
import sys
from pathlib import Path as File

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.arithmetic import arithmetic
from envs.arithmetic3 import arithmetic3
from labs import agent
from labs.agent import evaluate, group_advantages, policy_table, train, uniform_logits
from labs.batched import sample_batch
from labs.enumeration import outcome_probabilities, task_classes
from labs.environment import Environment, Episode, score
from labs.errors import InputError
from labs.registry import environments


@pytest.fixture(scope="module")
def seed_seven() -> list[agent.Update]:
    return list(train(arithmetic, seed=7))


def test_training_success_and_silent_groups_of_seed_7(seed_seven: list[agent.Update]) -> None:
    shown = [u for u in seed_seven if u.number % 10 == 1 or u.number == 100]
    assert [u.number for u in shown] == [1, 11, 21, 31, 41, 51, 61, 71, 81, 91, 100]
    wins = [1, 4, 13, 53, 123, 142, 168, 180, 182, 183, 185]
    assert [u.success_rate for u in shown] == [w / 192 for w in wins]
    assert [u.zero_advantage_groups for u in shown] == [11, 9, 4, 0, 0, 0, 2, 4, 7, 7, 6]
    assert {u.groups for u in seed_seven} == {12}
    assert sum(u.trajectories for u in seed_seven) == 19_200
    assert seed_seven[0].mean_entropy == pytest.approx(math.log(4))
    for u in seed_seven:
        assert u.zero_advantage_groups == u.all_wrong + u.all_right


def test_held_out_success_before_and_after(seed_seven: list[agent.Update]) -> None:
    before = evaluate(arithmetic, uniform_logits(arithmetic), seed=7)
    after = evaluate(arithmetic, seed_seven[-1].logits, seed=7)
    assert (before.success_rate, before.invalid_rate) == (0.020, 0.9525)
    assert (after.success_rate, after.invalid_rate) == (0.975, 0.0225)
    assert len(after.episodes) == 400
    assert after.mean_score == after.success_rate
    families = [task.family for task, _ in after.episodes[:4]]
    assert families == ["sum", "difference", "sum", "difference"]
    assert all(101 <= x <= 200 for task, _ in after.episodes for x in task.operands)


def test_the_final_policy_of_seed_7(seed_seven: list[agent.Update]) -> None:
    table = policy_table(seed_seven[-1].logits)
    right = {"sum": (0, 1, 3), "difference": (0, 2, 3)}
    found = [[f"{table[f][s][a]:.4f}" for s, a in enumerate(actions)] for f, actions in enumerate(right.values())]
    assert found == [["0.9874", "0.9877", "0.9888"], ["0.9886", "0.9881", "0.9870"]]


def test_mean_success_over_twenty_seeds() -> None:
    finals = []
    exact = []
    classes = task_classes(arithmetic, (101, 200))
    for seed in range(20):
        *_, last = train(arithmetic, seed=seed)
        finals.append(evaluate(arithmetic, last.logits, seed=seed).success_rate)
        exact.append(outcome_probabilities(arithmetic, policy_table(last.logits), classes, 4).success)
    assert round(sum(finals) / 20, 5) == 0.96675
    # The exact success varies far less than the sampled one: 400 tasks have a standard deviation of 0.009.
    assert 0.963 < sum(exact) / 20 < 0.968
    assert np.std(exact) < 0.004 < np.std(finals)


REWARDS = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=24)


@given(REWARDS, st.integers(-8, 8), st.sampled_from([0.25, 0.5, 3.0, 1e6, 1e-6]))
def test_advantages_ignore_shift_and_positive_scale(rewards: list[float], shift: int, factor: float) -> None:
    moved = [r * factor + shift * factor for r in rewards]
    assert group_advantages(moved) == pytest.approx(group_advantages(rewards), abs=1e-9)


@given(REWARDS)
def test_advantages_sum_to_zero_with_unit_population_variance(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    if len(set(rewards)) == 1:
        assert advantages == [0.0] * len(rewards)
    else:
        assert sum(a * a for a in advantages) / len(advantages) == pytest.approx(1.0)


@given(REWARDS, st.randoms(use_true_random=False))
def test_advantages_follow_a_permutation(rewards: list[float], shuffler: random.Random) -> None:
    order = list(range(len(rewards)))
    shuffler.shuffle(order)
    expected = group_advantages(rewards)
    assert group_advantages([rewards[i] for i in order]) == pytest.approx([expected[i] for i in order], abs=1e-12)


def test_advantages_of_the_worked_examples() -> None:
    third = math.sqrt(2.0)
    assert group_advantages([0, 0, 1]) == pytest.approx([-1 / third, -1 / third, third])
    assert group_advantages([1.0, 0.0, 0.5]) == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5), 0.0])
    assert group_advantages([0.3]) == [0.0]
    # Three times 0.1 has a standard deviation of 1.4e-17, not 0: an equal group is told by equality.
    assert group_advantages([0.1, 0.1, 0.1]) == [0.0, 0.0, 0.0]
    assert group_advantages([1e308, -1e308]) == pytest.approx([1.0, -1.0])
    assert group_advantages([5e-324, 0.0]) == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("rewards", [[], [1.0, math.nan], [math.inf, 0.0], [-math.inf]])
def test_advantages_refuse_what_has_no_mean(rewards: list[float]) -> None:
    with pytest.raises(InputError, match="the group is empty" if not rewards else "every one must be finite"):
        group_advantages(rewards)


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic3", "flaky_tools", "long_observations"])
def test_recorded_draws_replay_the_same_episodes_in_the_batched_form(name: str) -> None:
    environment = environments[name]
    record: list[agent.Draws] = []
    plain = list(train(environment, seed=3, updates=6))
    updates = list(train(environment, seed=3, updates=6, record=record))
    assert updates == plain, "recording must not change what is drawn"
    logits = uniform_logits(environment)
    for update, draws in zip(updates, record, strict=True):
        tasks = [task for task in draws.tasks for _ in range(16)]
        families = [environment.family_index(task.family) for task in tasks]
        batch = sample_batch(environment, policy_table(logits), families, draws.uniforms, draws.outcome_uniforms)
        assert np.isnan(draws.uniforms).tolist() == (batch.actions < 0).tolist()
        wins = sum(
            score(environment, task, row[row >= 0].tolist(), int(last), "submitted") > 0
            for task, row, last, ok in zip(tasks, batch.actions, batch.last, batch.submitted, strict=True)
            if ok
        )
        assert wins / 192 == update.success_rate
        assert (batch.terminated & ~batch.submitted).mean() == update.invalid_rate
        assert (batch.actions >= 0).sum() / 192 == update.mean_actions
        logits = update.logits


def test_a_third_family_and_a_fifth_action_need_no_other_learner() -> None:
    *_, last = train(arithmetic3, seed=1, updates=250)
    assert (len(last.logits), len(last.logits[0]), len(last.logits[0][0])) == arithmetic3.policy_shape == (3, 3, 5)
    classes = task_classes(arithmetic3, arithmetic3.evaluation_operands)
    assert outcome_probabilities(arithmetic3, policy_table(last.logits), classes, 4).success > 0.95


def test_the_update_is_the_formula_of_the_module() -> None:
    """One update in 40 lines of another kind: every decision stepped singly, every gradient written out."""
    record: list[agent.Draws] = []
    update = next(train(arithmetic, seed=11, record=record, entropy_coefficient=0.3, learning_rate=1.7))
    F, S, A = arithmetic.policy_shape
    gradient = np.zeros((F, S, A))
    (draws,) = record
    for group, task in enumerate(draws.tasks):
        rows, rewards = [], []
        for uniforms in draws.uniforms[group * 16 : group * 16 + 16]:
            episode, seen = Episode(arithmetic, task), []
            for u in uniforms:
                if episode.end is None:
                    seen.append((*episode.observation, int(u * A)))
                    episode.step(int(u * A))
            rows.append(seen)
            rewards.append(score(arithmetic, task, episode.actions, episode.state, episode.end))
        mean, std = np.mean(rewards), np.std(rewards)
        for reward, seen in zip(rewards, rows, strict=True):
            for f, s, a in seen:
                gradient[f, s] += (reward - mean) / (std or 1.0) * (np.eye(A)[a] - 1 / A) / 192
    # The entropy of a uniform row is at its maximum, so its gradient is 0 here.
    assert np.allclose(np.array(update.logits), 1.7 * gradient, atol=1e-12)
    again = list(train(arithmetic, seed=11, updates=2, entropy_coefficient=0.3, learning_rate=1.7))[1]
    without = list(train(arithmetic, seed=11, updates=2, entropy_coefficient=0.0, learning_rate=1.7))[1]
    p = np.array(policy_table(update.logits))
    H = -(p * np.log(p)).sum(-1, keepdims=True)
    pull = 1.7 * 0.3 * -p * (np.log(p) + H) / (F * S)
    assert np.allclose(np.array(again.logits) - np.array(without.logits), pull, atol=1e-12)


def test_an_evaluation_row_names_what_was_seen_and_who_chose() -> None:
    seen = evaluate(arithmetic, uniform_logits(arithmetic), seed=7, episodes=3)
    task, path = seen.episodes[0]
    rows = agent.trajectory_steps(arithmetic, uniform_logits(arithmetic), task, path, 5)
    assert len(rows) == len(path.actions)
    assert rows[0]["observation"] == {"operation": "sum", "stage": "start"}
    assert rows[0]["policy_version"] == 5
    assert rows[0]["log_probability"] == pytest.approx(math.log(0.25))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="max_steps is 0"):
        next(train(arithmetic, seed=0, max_steps=0))
    with pytest.raises(InputError, match="evaluation episodes is 0"):
        evaluate(arithmetic, uniform_logits(arithmetic), seed=0, episodes=0)


def test_another_process_and_another_hash_seed_give_the_same_logits() -> None:
    code = (
        "import json; from labs.agent import train; from envs.arithmetic import arithmetic\n"
        "*_, last = train(arithmetic, seed=5, updates=20)\n"
        "print(json.dumps(last.logits))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True,
            cwd=File(agent.__file__).parent.parent,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    *_, here = train(arithmetic, seed=5, updates=20)
    assert {json.dumps(json.loads(t)) for t in texts} == {json.dumps(here.logits)}


def test_the_page_a_student_reads_first_imports_the_environment_and_the_standard_library_only() -> None:
    tree = ast.parse(File(agent.__file__).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    own = {n for n in names if n.split(".")[0] not in sys.stdlib_module_names}
    assert own == {"labs.environment", "labs.errors"}
    heavy = "import sys, labs.agent; print([m for m in ('numpy', 'torch', 'matplotlib', 'scipy') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", heavy], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


def test_the_dynamics_are_not_copied_into_the_learner() -> None:
    calls: list[str] = []

    class Watched(Environment):
        def tree(self, max_steps: int):
            calls.append("tree")
            return super().tree(max_steps)

    fields = {n: getattr(arithmetic, n) for n in Environment.__dataclass_fields__ if n not in
              ("outcomes", "stage_of", "_trees")}  # fmt: skip
    next(train(Watched(**fields), seed=0))
    assert calls == ["tree"] * 12
