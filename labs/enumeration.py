"""What can be enumerated of a finite environment, in plain Python: task classes, trajectories, exact rates.

Rewards depend on the task and not only on the protocol, so that every exact quantity is an average over the task
distribution; `task_classes` says how that distribution splits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import eq
from typing import NamedTuple

from labs.environment import SUBMITTED, TIMEOUT, Environment, Table, Task, check_max_steps
from labs.errors import InputError


class TaskClass(NamedTuple):
    """Tasks that no policy can tell apart by reward.

    `family` is an index, `probability` the share of the task distribution, `right` the states in which submitting
    is right, `example` one task of the class.
    """

    family: int
    probability: float
    right: frozenset[int]
    example: Task


def task_classes(environment: Environment, operands: tuple[int, int]) -> list[TaskClass]:
    """Partition the task distribution (families equally likely, operands uniform and independent) by reward.

    Two tasks of a family are in one class when every action sequence earns them the same reward, which holds when
    the same states are right to submit in. A wrong tool may give the right number for some operands (2 + 2 and
    2 * 2), so a family can have several classes; probabilities sum to 1.
    """
    low, high = operands
    if low > high:
        raise InputError(f"operands are {low} to {high}; the first must not exceed the second")
    names = {s for s, _ in environment.submits}
    by_tool: dict[str, list[int]] = {}
    for i, state in enumerate(environment.states):
        if state.name in names and state.tool is not None:
            by_tool.setdefault(state.tool, []).append(i)
    # One column an operand, over all tasks in lexicographic order; one column of values for every different function.
    span, count = range(low, high + 1), environment.operand_count
    columns = [[v for v in span for _ in range(len(span) ** (count - 1 - i))] * len(span) ** i for i in range(count)]
    tasks = len(span) ** count
    functions = {*(environment.tools[name] for name in by_tool), *environment.families.values()}
    values = {function: list(map(function, *columns)) for function in functions}
    classes = []
    for family, (name, rule) in enumerate(environment.families.items()):
        # A tool is mostly right for all operands or for none, which two comparisons of whole columns find out.
        matches = [_matches(values[environment.tools[tool]], values[rule]) for tool in by_tool]
        if all(isinstance(match, bool) for match in matches):
            counts, keys = {tuple(matches): tasks}, [tuple(matches)]
        else:
            keys = list(zip(*([m] * tasks if isinstance(m, bool) else m for m in matches), strict=True))
            counts = Counter(keys)
        for key, found in sorted(counts.items(), reverse=True):
            states = frozenset(s for right, group in zip(key, by_tool.values(), strict=True) if right for s in group)
            share = found / tasks / len(environment.families)
            example = Task(name, tuple(column[keys.index(key)] for column in columns))
            classes.append(TaskClass(family, share, states, example))
    return classes


def _matches(column: list[int], answers: list[int]) -> bool | list[bool]:
    """Where two columns agree: True for everywhere, False for nowhere, otherwise a list."""
    if column == answers:
        return True
    return list(map(eq, column, answers)) if any(map(eq, column, answers)) else False


class Trajectory(NamedTuple):
    """One possible trajectory: states before each action, actions, last state, reason, probability of the outcomes."""

    states: tuple[int, ...]
    actions: tuple[int, ...]
    last: int
    end: str
    probability: float


def trajectories(environment: Environment, max_steps: int) -> list[Trajectory]:
    """Every trajectory within `max_steps`; `probability` is that of the random outcomes, given the actions."""
    check_max_steps(max_steps)

    def grow(state: int, states: tuple[int, ...], actions: tuple[int, ...], weight: float) -> Iterator[Trajectory]:
        for action, cell in enumerate(environment.outcomes[state]):
            for outcome in cell:
                past, taken, mass = (*states, state), (*actions, action), weight * outcome.probability
                if outcome.end is not None or len(taken) == max_steps:
                    yield Trajectory(past, taken, outcome.state, outcome.end or TIMEOUT, mass)
                else:
                    yield from grow(outcome.state, past, taken, mass)

    return list(grow(0, (), (), 1.0))


class OutcomeProbabilities(NamedTuple):
    """What a policy does, exactly.

    `success`, `invalid`, `timeout`: probability of a right submission, an invalid action, the step limit; `actions`:
    mean number of decisions; `score`: mean score (success minus mean costs).
    """

    success: float
    invalid: float
    timeout: float
    actions: float
    score: float


def outcome_probabilities(
    environment: Environment, probabilities: Table, classes: Sequence[TaskClass], max_steps: int
) -> OutcomeProbabilities:
    """Push the distribution over states forward step by step, family by family, and average over the task classes."""
    check_max_steps(max_steps)
    totals = [0.0] * 5
    cost = [environment.costs.get(a, 0.0) for a in environment.actions]
    for family in range(len(environment.families)):
        own = [c for c in classes if c.family == family]
        share = math.fsum(c.probability for c in own)
        mass, submitted = {0: 1.0}, dict.fromkeys(range(len(environment.states)), 0.0)
        invalid = decisions = paid = 0.0
        for _ in range(max_steps):
            after: dict[int, float] = {}
            for state, weight in mass.items():
                row = probabilities[family][environment.stage_of[state]]
                decisions += weight
                for action, cell in enumerate(environment.outcomes[state]):
                    paid += weight * row[action] * cost[action]
                    for p, target, end in cell:
                        moved = weight * row[action] * p
                        if end is None:
                            after[target] = after.get(target, 0.0) + moved
                        elif end == SUBMITTED:
                            submitted[target] += moved
                        else:
                            invalid += moved
            mass = after
        success = math.fsum(c.probability * submitted[s] for c in own for s in c.right)
        row = (success, share * invalid, share * math.fsum(mass.values()), share * decisions, success - share * paid)
        totals = [a + b for a, b in zip(totals, row, strict=True)]
    return OutcomeProbabilities(*totals)
