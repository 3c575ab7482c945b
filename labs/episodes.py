"""Tasks and a policy in, episodes out: what was decided, by which policy version, with what probability.

`Episodes` holds decisions, `[rows, steps]`; `Episodes.tokens` (see `labs.tokens`) writes them out as a `TokenBatch`.
Rows of one task share a `uid`. Episodes that the step limit cut can be resumed under a newer policy, so that log-
probability and version belong to a decision and not to a row.

The dynamics are `labs.batched.sample_batch`; on the draws that `labs.agent` records, the episodes are its own, one
for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from labs.batched import PathBatch, sample_batch
from labs.enumeration import OutcomeProbabilities, outcome_probabilities, task_classes
from labs.environment import (
    INVALID,
    SUBMITTED,
    TIMEOUT,
    Environment,
    Path,
    Task,
    check_max_steps,
    score,
    succeeded,
)
from labs.errors import InputError
from labs.policy import Policy

if TYPE_CHECKING:
    from labs.batch import TokenBatch


#: The numbers of `Episodes.summary`; `labs.trainer.METRICS` says what each is.
SUMMARY = (
    "trajectories", "train_success_rate", "train_invalid_rate", "train_timeout_rate", "train_mean_actions",
    "train_mean_score", "groups", "all_wrong_groups", "all_right_groups", "zero_advantage_groups",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Finished or cut episodes.

    Attributes:
        environment: where they were played.
        tasks: one a row.
        uid: group label of every row, `[B]` str.
        paths: states, actions and how each row ended; positions after the end hold -1.
        log_probs: `[B, steps]` log-probability of each decision under the policy that took it, 0 after the end.
        versions: `[B, steps]` version of that policy, -1 after the end.
    """

    environment: Environment
    tasks: tuple[Task, ...]
    uid: NDArray[Any]
    paths: PathBatch
    log_probs: NDArray[np.float64]
    versions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tasks)

    @cached_property
    def families(self) -> NDArray[np.int64]:
        """Family index of every row."""
        return _families(self.environment, self.tasks)

    @cached_property
    def decisions(self) -> NDArray[np.int64]:
        """Number of decisions of every row."""
        return np.asarray((self.paths.actions >= 0).sum(axis=1), dtype=np.int64)

    @cached_property
    def ends(self) -> list[str]:
        """Why each row ended: submitted, invalid_action or timeout."""
        return [
            SUBMITTED if submitted else INVALID if terminated else TIMEOUT
            for submitted, terminated in zip(self.paths.submitted, self.paths.terminated, strict=True)
        ]

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """The verifier's score of every row: 1 or 0, minus the costs of the actions."""
        actions = self.paths.actions.tolist()
        rows = zip(self.tasks, actions, self.decisions.tolist(), self.paths.last.tolist(), self.ends, strict=True)
        return np.array([score(self.environment, task, taken[:n], last, end) for task, taken, n, last, end in rows])

    @cached_property
    def successes(self) -> NDArray[np.bool_]:
        """Whether each row submitted the right answer."""
        rows = zip(self.tasks, self.paths.last.tolist(), self.ends, strict=True)
        return np.array([succeeded(self.environment, task, last, end) for task, last, end in rows])

    def summary(self) -> dict[str, float]:
        """The numbers of `SUMMARY`: how the rows ended and what the groups can teach, before any shaping."""
        scores = [self.scores[self.uid == uid] for uid in dict.fromkeys(self.uid.tolist())]
        numbers = (
            len(self),
            float(self.successes.mean()),
            float((self.paths.terminated & ~self.paths.submitted).mean()),
            float(self.paths.truncated.mean()),
            float(self.decisions.mean()),
            float(self.scores.mean()),
            len(scores),
            sum(bool(group.max() <= 0) for group in scores),
            sum(bool(group.min() > 0) for group in scores),
            sum(bool(group.min() == group.max()) for group in scores),
        )
        return dict(zip(SUMMARY, numbers, strict=True))

    def path(self, row: int) -> Path:
        """One row as the plain `Path` of the standard-library code."""
        n = int(self.decisions[row])
        states, actions = self.paths.states[row, :n].tolist(), self.paths.actions[row, :n].tolist()
        return Path(tuple(states), tuple(actions), int(self.paths.last[row]), self.ends[row])

    def select(self, rows: Any) -> Episodes:
        """The episodes of these rows (indices or bool mask)."""
        index = np.arange(len(self))[rows]
        return Episodes(
            environment=self.environment,
            tasks=tuple(self.tasks[i] for i in index),
            uid=self.uid[index],
            paths=PathBatch(*(column[index] for column in self.paths)),
            log_probs=self.log_probs[index],
            versions=self.versions[index],
        )

    def tokens(self, **options: Any) -> TokenBatch:
        """The episodes as a `TokenBatch`; options as in `labs.tokens.encode`."""
        from labs.tokens import encode

        return encode(self, **options)


def draw_tasks(
    environment: Environment,
    count: int,
    generator: torch.Generator,
    operands: tuple[int, int] | None = None,
    first: int = 0,
) -> list[Task]:
    """`count` tasks, operands uniform on the closed range (the training one when None).

    Families alternate, starting with number `first` (modulo their number).
    """
    low, high = environment.train_operands if operands is None else operands
    if low > high:
        raise InputError(f"operands are {low} to {high}; the first must not exceed the second")
    names = list(environment.families)
    numbers = torch.randint(low, high + 1, (count, environment.operand_count), generator=generator).tolist()
    return [Task(names[(first + i) % len(names)], tuple(row)) for i, row in enumerate(numbers)]


def play(
    environment: Environment,
    policy: Policy,
    tasks: Sequence[Task],
    group_size: int = 1,
    *,
    generator: torch.Generator | None = None,
    uniforms: Any = None,
    outcome_uniforms: Any = None,
    max_steps: int | None = None,
    mode: str = "sampled",
    prefix: str = "g",
) -> Episodes:
    """`group_size` episodes of every task, task by task.

    Args:
        environment: the environment.
        policy: who acts, at its own temperature.
        tasks: one a group.
        group_size: rows of each group, which share the uid `prefix` + number of the task.
        generator: source of the draws; or
        uniforms, outcome_uniforms: `[B, max_steps]` draws to use (see `sample_batch`); NaN where none is read.
        max_steps: limit on decisions, the environment's own when None.
        mode: `sampled` or `greedy` (which still reads outcome draws in a random environment).
        prefix: of the group labels; never all digits, or labels such as 7 and 07 would merge in some estimators.

    Raises:
        InputError: no tasks, neither generator nor draws, or a policy of another shape.
    """
    if not tasks or group_size < 1:
        raise InputError(f"there are {len(tasks)} tasks and the group size is {group_size}; both must be at least 1")
    rows = tuple(task for task in tasks for _ in range(group_size))
    steps = environment.max_steps if max_steps is None else max_steps
    check_max_steps(steps)
    if uniforms is None:
        uniforms, outcome_uniforms = draw_uniforms(environment, len(rows), steps, generator)
    table = policy.acting(mode).detach()
    families = _families(environment, rows)
    paths = sample_batch(environment, table.double().numpy(), families, uniforms, outcome_uniforms)
    uid = np.array([f"{prefix}{g}" for g in range(len(tasks)) for _ in range(group_size)])
    return _episodes(environment, rows, uid, paths, policy, mode)


def resume(
    episodes: Episodes,
    policy: Policy,
    *,
    generator: torch.Generator | None = None,
    uniforms: Any = None,
    outcome_uniforms: Any = None,
    max_steps: int | None = None,
) -> Episodes:
    """Go on with episodes that the step limit cut, for `max_steps` more decisions under `policy`.

    What was decided before keeps its log-probabilities and versions; `continue` of `labs.truncation` is this.

    Raises:
        InputError: a row that has ended.
    """
    environment, before = episodes.environment, episodes.paths
    if not before.truncated.all():
        raise InputError(f"row {int(np.argmin(before.truncated))} has ended; only truncated rows can be resumed")
    steps = environment.max_steps if max_steps is None else max_steps
    if uniforms is None:
        uniforms, outcome_uniforms = draw_uniforms(environment, len(episodes), steps, generator)
    table = policy.probabilities.detach().double().numpy()
    paths = sample_batch(environment, table, episodes.families, uniforms, outcome_uniforms, start=before.last)
    after = _episodes(environment, episodes.tasks, episodes.uid, paths, policy, "sampled")
    # Every row has used all of its steps so far, unless it waited in a wider table: close the gap row by row.
    counts, width = episodes.decisions, int(episodes.decisions.max()) + steps
    columns: list[Any] = []
    for old, new, fill in (
        (before.states, paths.states, -1),
        (before.actions, paths.actions, -1),
        (episodes.log_probs, after.log_probs, 0),
        (episodes.versions, after.versions, -1),
    ):
        column = np.full((len(episodes), width), fill, dtype=new.dtype)
        for row, n in enumerate(counts.tolist()):
            column[row, :n], column[row, n : n + steps] = old[row, :n], new[row]
        columns.append(column)
    states, actions, log_probs, versions = columns
    return Episodes(
        environment=environment,
        tasks=episodes.tasks,
        uid=episodes.uid,
        paths=PathBatch(states, actions, *paths[2:]),
        log_probs=log_probs,
        versions=versions,
    )


def join(parts: Sequence[Episodes]) -> Episodes:
    """Several `Episodes` of one environment as one, in order, padded to the longest."""
    if not parts:
        raise InputError("join: there are no episodes to join")
    width = max(p.paths.actions.shape[1] for p in parts)

    def wide(columns: list[Any], fill: int) -> Any:
        padded = [
            np.pad(c, ((0, 0), (0, width - c.shape[1])), constant_values=fill) if c.ndim == 2 else c for c in columns
        ]
        return np.concatenate(padded)

    return Episodes(
        environment=parts[0].environment,
        tasks=tuple(task for p in parts for task in p.tasks),
        uid=np.concatenate([p.uid for p in parts]),
        paths=PathBatch(*(wide([p.paths[i] for p in parts], -1) for i in range(len(PathBatch._fields)))),
        log_probs=wide([p.log_probs for p in parts], 0),
        versions=wide([p.versions for p in parts], -1),
    )


def pack(
    environment: Environment, tasks: Sequence[Task], paths: Sequence[Any], policy: Policy, uid: Sequence[str]
) -> Episodes:
    """Given paths (`Path`, or `Trajectory` of an enumeration) as `Episodes`, as if `policy` had decided them."""
    width = max(len(p.actions) for p in paths)

    def wide(rows: list[Any]) -> NDArray[np.int64]:
        return np.array([[*row, *[-1] * (width - len(row))] for row in rows])

    ends = np.array([p.end for p in paths])
    packed = PathBatch(
        wide([p.states for p in paths]),
        wide([p.actions for p in paths]),
        np.array([p.last for p in paths]),
        ends != TIMEOUT,
        ends == TIMEOUT,
        ends == SUBMITTED,
    )
    return _episodes(environment, tuple(tasks), np.array(uid), packed, policy, "sampled")


def draw_uniforms(
    environment: Environment, rows: int, steps: int, generator: torch.Generator | None
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Draws for `rows` episodes: one for each decision, and one for each outcome in a random environment."""
    if generator is None:
        raise InputError("episodes need a generator, or the draws themselves")
    uniforms = torch.rand(rows, steps, generator=generator, dtype=torch.float64).numpy()
    if not environment.random:
        return uniforms, None
    return uniforms, torch.rand(rows, steps, generator=generator, dtype=torch.float64).numpy()


def _families(environment: Environment, tasks: Sequence[Task]) -> NDArray[np.int64]:
    index = {name: environment.family_index(name) for name in {task.family for task in tasks}}
    return np.array([index[task.family] for task in tasks], dtype=np.int64)


def _episodes(
    environment: Environment, tasks: tuple[Task, ...], uid: NDArray[Any], paths: PathBatch, policy: Policy, mode: str
) -> Episodes:
    taken = paths.actions >= 0
    stages = np.array(environment.stage_of)[np.where(taken, paths.states, 0)]
    rows = _families(environment, tasks)[:, None]
    table = (policy.log_probs if mode == "sampled" else policy.greedy().log()).detach().double().numpy()
    log_probs = np.where(taken, table[rows, stages, np.where(taken, paths.actions, 0)], 0.0)
    versions = np.where(taken, policy.version, -1)
    return Episodes(environment=environment, tasks=tasks, uid=uid, paths=paths, log_probs=log_probs, versions=versions)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How a policy does on held-out tasks.

    `success_rate`, `invalid_rate`, `timeout_rate`, `mean_actions`, `mean_score` are sampled over `episodes`; `exact`
    holds the same five without sampling error.
    """

    success_rate: float
    invalid_rate: float
    timeout_rate: float
    mean_actions: float
    mean_score: float
    exact: OutcomeProbabilities
    episodes: Episodes


def exact_outcomes(
    environment: Environment,
    policy: Policy,
    *,
    operands: tuple[int, int] | None = None,
    mode: str = "sampled",
    max_steps: int | None = None,
) -> OutcomeProbabilities:
    """What the policy does, without sampling error, on the tasks of `operands` (the evaluation ones when None)."""
    chosen = environment.evaluation_operands if operands is None else operands
    steps = environment.max_steps if max_steps is None else max_steps
    table = policy.acting(mode).detach().tolist()
    return outcome_probabilities(environment, table, task_classes(environment, chosen), steps)


def evaluate(
    environment: Environment,
    policy: Policy,
    *,
    generator: torch.Generator,
    episodes: int = 400,
    operands: tuple[int, int] | None = None,
    mode: str = "sampled",
    max_steps: int | None = None,
) -> Evaluation:
    """Play `episodes` tasks, families alternating, and say what the exact rates are.

    Args:
        environment: the environment.
        policy: who acts, at its own temperature (`policy.at(0.5)` for another).
        generator: source of tasks and draws.
        episodes: how many.
        operands: smallest and largest operand; the environment's evaluation range when None.
        mode: `sampled` or `greedy`.
        max_steps: limit on decisions, the environment's own when None.
    """
    chosen = environment.evaluation_operands if operands is None else operands
    tasks = draw_tasks(environment, episodes, generator, chosen)
    seen = play(environment, policy, tasks, generator=generator, mode=mode, max_steps=max_steps)
    return Evaluation(
        success_rate=float(seen.successes.mean()),
        invalid_rate=float((seen.paths.terminated & ~seen.paths.submitted).mean()),
        timeout_rate=float(seen.paths.truncated.mean()),
        mean_actions=float(seen.decisions.mean()),
        mean_score=float(seen.scores.mean()),
        exact=exact_outcomes(environment, policy, operands=chosen, mode=mode, max_steps=max_steps),
        episodes=seen,
    )
