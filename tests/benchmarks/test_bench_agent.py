"""The closed-form learner against the obvious loop in one interleaved run.

    python -m pytest tests/benchmarks/test_bench_agent.py -n0 -s

Same draws and the same logits, at least 3 times faster; CPU time, so that a busy machine does not matter.
"""

import math
import random
import time

import pytest

from envs.arithmetic import arithmetic
from labs.agent import Logits, draw_task, entropy, group_advantages, softmax, train, uniform_logits
from labs.environment import Environment, Episode, score

ROUNDS, WANTED = 3, 3.0


def obvious(environment: Environment, seed: int) -> Logits:
    """What one writes first: a softmax for every decision, sampled by a loop, and again for every gradient."""
    generator = random.Random(seed)
    logits = uniform_logits(environment)
    names = list(environment.families)
    F, S, A = environment.policy_shape
    for _ in range(100):
        gradient = uniform_logits(environment)
        for k in range(12):
            task = draw_task(environment, names[k % F], environment.train_operands, generator)
            group, rewards = [], []
            for _ in range(16):
                episode, steps = Episode(environment, task), []
                while episode.end is None:
                    family, stage = episode.observation
                    draw, total, action = generator.random(), 0.0, -1
                    for p in softmax(logits[family][stage]):
                        total, action = total + p, action + 1
                        if draw < total:
                            break
                    steps.append((family, stage, action))
                    episode.step(action)
                group.append(steps)
                rewards.append(score(environment, task, episode.actions, episode.state, episode.end))
            for advantage, steps in zip(group_advantages(rewards), group, strict=True):
                for family, stage, action in steps:
                    p = softmax(logits[family][stage])
                    for b in range(A):
                        gradient[family][stage][b] += advantage * ((b == action) - p[b]) / 192
        for family in range(F):
            for stage in range(S):
                p = softmax(logits[family][stage])
                h = entropy(p)
                for b in range(A):
                    bonus = -p[b] * (math.log(p[b]) + h) / (F * S)
                    logits[family][stage][b] += 0.8 * (gradient[family][stage][b] + 0.01 * bonus)
    return logits


def shipped(environment: Environment, seed: int) -> Logits:
    *_, last = train(environment, seed=seed)
    return last.logits


def seconds(learner, *arguments) -> float:
    start = time.process_time()
    learner(*arguments)
    return time.process_time() - start


def test_the_obvious_loop_learns_the_same_logits() -> None:
    ours, theirs = shipped(arithmetic, 7), obvious(arithmetic, 7)
    assert [x for f in ours for s in f for x in s] == pytest.approx([x for f in theirs for s in f for x in s], abs=1e-9)


def test_it_trains_at_least_three_times_faster() -> None:
    rounds = [(seconds(obvious, arithmetic, 7), seconds(shipped, arithmetic, 7)) for _ in range(ROUNDS)]
    slow, fast = min(s for s, _ in rounds), min(f for _, f in rounds)
    print(f"agent: obvious {slow * 1e3:.1f} ms, shipped {fast * 1e3:.1f} ms, ratio {slow / fast:.1f} (wanted {WANTED})")
    assert slow / fast >= WANTED
