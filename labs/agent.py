"""The learner, from top to bottom: group-normalised REINFORCE on a table of logits, in closed form.

Read this page first. An agent sees (family, stage) and picks an action with probability softmax(logits[family][stage]).
For each task it tries `group_size` times; a try that did better than its group gets a positive advantage, one that
did worse a negative one; every decision of the try is made likelier or less likely by that much:

    A_i      = (r_i - mean(r)) / std(r)                     std of the population; 0 in a group of equal rewards
    gradient = 1/N * sum_i A_i * sum_t (onehot(a_t) - p_t)  N = all trajectories of the update
             + c * gradient of the mean entropy of the policy's rows
    logits  += learning_rate * gradient

Only the standard library and `labs.environment`, which owns the dynamics. Randomness: `random.Random(seed)` for
training (per task its operands, left then right, then one draw per decision); a fresh `random.Random(seed + 10000)` for
each evaluation.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from labs.environment import INVALID, Environment, Path, Task, check_max_steps, cumulative, sample_episodes, score
from labs.errors import InputError

Logits = list[list[list[float]]]


def softmax(row: Sequence[float]) -> list[float]:
    """Probabilities of one row of logits."""
    top = max(row)
    exponentials = [math.exp(x - top) for x in row]
    total = sum(exponentials)
    return [e / total for e in exponentials]


def entropy(probabilities: Sequence[float]) -> float:
    """`-sum p log p` of one row, in nats."""
    return -sum(p * math.log(p) for p in probabilities if p > 0)


def group_advantages(rewards: Sequence[float]) -> list[float]:
    """`(r - mean) / std` within one group, with the population's standard deviation (divide by n, no epsilon).

    A group of equal rewards, and so a group of one, teaches nothing: zeros.

    Raises:
        InputError: an empty group, or a reward that is not finite.
    """
    if not rewards:
        raise InputError("group_advantages: the group is empty; it needs at least one reward")
    if not all(map(math.isfinite, rewards)):
        raise InputError(f"group_advantages: rewards are {list(rewards)}; every one must be finite")
    low, high = min(rewards), max(rewards)
    if low == high:
        return [0.0] * len(rewards)
    # Scaled first, so that squares neither overflow nor vanish: the advantages do not depend on the scale.
    span = high - low
    if not math.isfinite(span):
        low, span = low / 2, high / 2 - low / 2
        rewards = [r / 2 for r in rewards]
    scaled = [(r - low) / span for r in rewards]
    mean = sum(scaled) / len(scaled)
    deviations = [r - mean for r in scaled]
    std = math.sqrt(sum([d * d for d in deviations]) / len(scaled))
    return [d / std for d in deviations]


def uniform_logits(environment: Environment) -> Logits:
    """All zeros: every action equally likely everywhere."""
    families, stages, actions = environment.policy_shape
    return [[[0.0] * actions for _ in range(stages)] for _ in range(families)]


def policy_table(logits: Logits) -> Logits:
    """The probabilities `[families][stages][actions]`."""
    return [[softmax(row) for row in family] for family in logits]


class Update(NamedTuple):
    """What one update saw and did. The policy that sampled is version `number - 1`; `logits` is version `number`."""

    number: int
    trajectories: int
    success_rate: float
    invalid_rate: float
    mean_actions: float
    mean_entropy: float
    groups: int
    all_wrong: int
    all_right: int
    zero_advantage_groups: int
    logits: Logits


class Draws(NamedTuple):
    """The randomness of one update in the layout of `labs.batched.sample_batch`.

    `tasks` `[groups]`, `uniforms` and `outcome_uniforms` `[groups * group_size][max_steps]`; NaN where an episode
    had already ended, or an outcome was certain.
    """

    tasks: list[Task]
    uniforms: list[list[float]]
    outcome_uniforms: list[list[float]]


def draw_task(environment: Environment, family: str, operands: tuple[int, int], generator: random.Random) -> Task:
    """A task of `family` with operands drawn one after the other, uniform on the closed range `operands`."""
    return Task(family, tuple(generator.randint(*operands) for _ in range(environment.operand_count)))


def train(
    environment: Environment,
    *,
    seed: int,
    updates: int = 100,
    groups_per_update: int = 12,
    group_size: int = 16,
    max_steps: int | None = None,
    learning_rate: float = 0.8,
    entropy_coefficient: float = 0.01,
    operands: tuple[int, int] | None = None,
    record: list[Draws] | None = None,
) -> Iterator[Update]:
    """Train from uniform and yield an `Update` after each one.

    Args:
        environment: any finite environment.
        seed: of `random.Random`.
        updates, groups_per_update, group_size: tasks per update alternate through the families.
        max_steps, operands: the environment's own when None.
        learning_rate, entropy_coefficient: as in the formula above.
        record: gets the `Draws` of every update appended.
    """
    max_steps = environment.max_steps if max_steps is None else max_steps
    check_max_steps(max_steps)
    operands = environment.train_operands if operands is None else operands
    generator = random.Random(seed)
    names = list(environment.families)
    stage_of = environment.stage_of
    logits = uniform_logits(environment)
    for number in range(1, updates + 1):
        # The policy does not change within an update: its probabilities are computed once.
        table = policy_table(logits)
        sums = cumulative(table)
        push = uniform_logits(environment)  # sum of A * onehot(action); a row's sum is its sum of A
        wins = invalid = decisions = all_wrong = all_right = equal = 0
        draws = Draws([], [], [])
        for group in range(groups_per_update):
            family = group % len(names)
            own = push[family]
            task = draw_task(environment, names[family], operands, generator)
            if record is None:
                paths = sample_episodes(environment, sums[family], generator.random, max_steps, group_size)
            else:
                paths = [_recorded(environment, sums[family], generator, max_steps, draws) for _ in range(group_size)]
                draws.tasks.append(task)
            # Few different tries exist: what is the same for equal ones is worked out once.
            tries = Counter(paths)
            worth = {p: score(environment, task, p.actions, p.last, p.end) for p in tries}
            rewards = [worth[p] for p in paths]
            advantage = dict(zip(rewards, group_advantages(rewards), strict=True))
            all_wrong += max(rewards) <= 0
            all_right += min(rewards) > 0
            equal += len(advantage) == 1
            for path, times in tries.items():
                wins += times * (worth[path] > 0)
                invalid += times * (path.end == INVALID)
                decisions += times * len(path.actions)
                credit = times * advantage[worth[path]]
                for state, action in zip(path.states, path.actions, strict=True):
                    own[stage_of[state]][action] += credit
        count = groups_per_update * group_size
        entropies = [[entropy(row) for row in family_rows] for family_rows in table]
        rows = len(names) * len(environment.stages)
        for f, family_rows in enumerate(table):
            for s, row in enumerate(family_rows):
                weight = sum(push[f][s])
                for a, p in enumerate(row):
                    policy_gradient = (push[f][s][a] - weight * p) / count
                    entropy_gradient = -p * (math.log(p) + entropies[f][s]) / rows if p > 0 else 0.0
                    logits[f][s][a] += learning_rate * (policy_gradient + entropy_coefficient * entropy_gradient)
        if record is not None:
            record.append(draws)
        yield Update(
            number,
            count,
            wins / count,
            invalid / count,
            decisions / count,
            sum(map(sum, entropies)) / rows,
            groups_per_update,
            all_wrong,
            all_right,
            equal,
            [[list(row) for row in family_rows] for family_rows in logits],
        )


def _recorded(
    environment: Environment, rows: Sequence[Sequence[float]], generator: random.Random, max_steps: int, draws: Draws
) -> Path:
    """Sample one episode and note which draw decided and which picked an outcome."""
    raw: list[float] = []

    def draw() -> float:
        raw.append(generator.random())
        return raw[-1]

    (path,) = sample_episodes(environment, rows, draw, max_steps, 1)
    decided, picked = [math.nan] * max_steps, [math.nan] * max_steps
    rest = iter(raw)
    for step, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
        decided[step] = next(rest)
        if len(environment.outcomes[state][action]) > 1:
            picked[step] = next(rest)
    draws.uniforms.append(decided)
    draws.outcome_uniforms.append(picked)
    return path


class Evaluation(NamedTuple):
    """Sampled performance on held-out tasks: rates over `episodes`, and every episode as `(task, path)`."""

    success_rate: float
    invalid_rate: float
    mean_actions: float
    mean_score: float
    episodes: list[tuple[Task, Path]]


def evaluate(
    environment: Environment,
    logits: Logits,
    *,
    seed: int,
    episodes: int = 400,
    max_steps: int | None = None,
    operands: tuple[int, int] | None = None,
) -> Evaluation:
    """Sample `episodes` held-out tasks, families alternating, with `random.Random(seed + 10000)`."""
    max_steps = environment.max_steps if max_steps is None else max_steps
    check_max_steps(max_steps)
    if episodes < 1:
        raise InputError(f"evaluation episodes is {episodes}; it must be at least 1")
    operands = environment.evaluation_operands if operands is None else operands
    generator = random.Random(seed + 10000)
    names = list(environment.families)
    sums = cumulative(policy_table(logits))
    seen: list[tuple[Task, Path]] = []
    scores: list[float] = []
    wins = 0
    for i in range(episodes):
        family = i % len(names)
        task = draw_task(environment, names[family], operands, generator)
        (path,) = sample_episodes(environment, sums[family], generator.random, max_steps, 1)
        seen.append((task, path))
        scores.append(score(environment, task, path.actions, path.last, path.end))
        wins += scores[-1] > 0
    return Evaluation(
        wins / episodes,
        sum(path.end == INVALID for _, path in seen) / episodes,
        sum(len(path.actions) for _, path in seen) / episodes,
        sum(scores) / episodes,
        seen,
    )


def trajectory_steps(
    environment: Environment, logits: Logits, task: Task, path: Path, version: int
) -> list[dict[str, Any]]:
    """One episode as rows: observation, action, its log-probability and the policy version that chose it."""
    family = environment.family_index(task.family)
    table = policy_table(logits)
    return [
        {
            "observation": {"operation": task.family, "stage": environment.states[state].stage},
            "action": environment.actions[action],
            "log_probability": math.log(table[family][environment.stage_of[state]][action]),
            "policy_version": version,
        }
        for state, action in zip(path.states, path.actions, strict=True)
    ]
