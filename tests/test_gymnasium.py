"""The Gymnasium adapter: Gymnasium's own checker, and the same episodes and scores as the lab's own classes."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from labs.agent import policy_table, uniform_logits
from labs.environment import Episode, Task, score
from labs.errors import InputError
from labs.interop.gymnasium import LabEnv, one_hot, probabilities, register
from labs.registry import environments


@pytest.mark.parametrize("name", list(environments))
def test_gymnasiums_checker_accepts_every_environment(name: str) -> None:
    env = gymnasium.make(f"labs/{name}-v0", render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    vector = one_hot(env.unwrapped)
    observation, _ = vector.reset(seed=0)
    assert vector.observation_space.contains(observation)
    assert observation.sum() == 2.0


@pytest.mark.parametrize("name", list(environments))
def test_episodes_are_the_labs_own(name: str) -> None:
    env = LabEnv(name)
    environment, draws, choices = env.environment, np.random.default_rng(0), np.random.default_rng(1)
    stages = len(environment.stages)
    env.reset(seed=5)
    endings = set()
    for trial in range(300):
        family = list(environment.families)[trial % len(environment.families)]
        task = Task(family, tuple(draws.integers(1, 21, environment.operand_count).tolist()))
        own = Episode(environment, task)
        row, info = env.reset(options={"task": task})
        assert info["text"] == environment.text(task, 0)
        while own.end is None:
            # Mostly right actions, so that all ways to end are seen.
            legal = [a for a, cell in enumerate(environment.outcomes[own.state]) if cell[0].end != "invalid_action"]
            action = (
                int(choices.choice(legal))
                if choices.random() < 0.9
                else int(choices.integers(len(environment.actions)))
            )
            state = env.np_random.bit_generator.state
            draw = env.np_random.random() if environment.random else 0.0
            env.np_random.bit_generator.state = state
            observation, terminated, truncated, info = own.step(action, draw)
            row, reward, ended, cut, seen = env.step(np.int64(action))
            assert (divmod(int(row), stages), ended, cut) == (observation, terminated, truncated)
            assert seen["text"] == info["text"]
            assert reward == (score(environment, task, own.actions, own.state, own.end) if own.end else 0.0)
        endings.add(own.end)
        assert seen["success"] == (reward > 0)
    assert {"submitted", "invalid_action"} <= endings


def test_the_same_seed_gives_the_same_tasks_and_outcomes() -> None:
    def run() -> list:
        env = LabEnv("flaky_tools")
        rows = []
        for episode in range(20):
            rows.append(env.reset(seed=3 if episode == 0 else None)[1]["text"])
            for action in (0, 1, 1):
                row, reward, ended, cut, info = env.step(np.int64(action))
                rows.append((int(row), reward, info["text"]))
                if ended or cut:
                    break
        return rows

    assert run() == run()
    assert {row[2] for row in run() if isinstance(row, tuple)} > {"error: try again"}


def test_rendering_and_bad_use() -> None:
    env = LabEnv("arithmetic", render_mode="ansi", max_steps=2)
    with pytest.raises(InputError, match="step before reset"):
        env.step(np.int64(0))
    env.reset(options={"task": Task("sum", (3, 4))})
    env.step(np.int64(0))
    _, _, terminated, truncated, info = env.step(np.int64(1))
    assert (terminated, truncated, info["end"], info["success"]) == (False, True, "timeout", False)
    assert env.render().splitlines()[1] == "  start      read       left=3 right=4"
    with pytest.raises(InputError, match="the episode is over"):
        env.step(np.int64(3))
    assert LabEnv("arithmetic").render() is None
    with pytest.raises(InputError, match="render_mode is 'human'"):
        LabEnv("arithmetic", render_mode="human")
    register()
    assert gymnasium.spec("labs/arithmetic-v0").kwargs == {"environment": "arithmetic"}


def test_a_policy_function_becomes_the_table_it_is() -> None:
    environment = environments["arithmetic3"]
    F, S, A = environment.policy_shape
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(F, S, A))

    def policy(vectors: np.ndarray) -> np.ndarray:
        assert vectors.dtype == np.float32
        family, stage = vectors[:, :F].argmax(1), vectors[:, F:].argmax(1)
        exponentials = np.exp(logits[family, stage])
        return exponentials / exponentials.sum(1, keepdims=True)

    assert np.allclose(probabilities(environment, policy), policy_table(logits.tolist()), atol=1e-12)
    uniform = probabilities(environment, lambda v: np.full((len(v), A), 1 / A))
    assert np.allclose(uniform, policy_table(uniform_logits(environment)))
