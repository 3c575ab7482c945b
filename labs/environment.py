"""What a finite environment is, and the only implementation of its dynamics.

An environment is data: task families, observation stages, actions, states, transitions, whitelisted tools.
The agent sees the pair (family, stage) and nothing else, so a policy is a table `[families, stages, actions]`
and its shape follows from the data. Dynamics and reward are kept apart: no step ever sees or returns a reward;
`score` recomputes the answer from the task and judges what was submitted.

How an episode ends:

| reason | terminated | truncated | when |
|---|---|---|---|
| submitted | yes | no | a submitting action where it is allowed |
| invalid_action | yes | no | an action that the state does not allow |
| timeout | no | yes | `max_steps` decisions without either |

Top to bottom: the data, one episode step by step (`Episode`), episodes drawn from a policy (`sample_episodes`), many
at once in numpy (`labs/batched.py`). All three read the same table of outcomes. What can be enumerated of an
environment is in `labs/enumeration.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from labs.errors import InputError, one_of

SUBMITTED, INVALID, TIMEOUT = "submitted", "invalid_action", "timeout"

#: A table of probabilities or logits, `[families][stages][actions]`.
Table = Sequence[Sequence[Sequence[float]]]


class Task(NamedTuple):
    """One task: a family and its operands, which stay hidden until an action reveals them."""

    family: str
    operands: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class State:
    """One state of the protocol.

    Attributes:
        name: unique.
        stage: what the agent observes of it, one of the environment's stages.
        tool: the tool whose value is on the scratchpad here, None when it is empty.
        text: what the environment replies on entering the state; `{family}`, `{value}` and `{0}`, `{1}`, ...
            (the operands) are filled in.
        tokens: length of that reply in tokens, 0 for none.
    """

    name: str
    stage: str
    tool: str | None = None
    text: str = ""
    tokens: int = 0


class Outcome(NamedTuple):
    """One possible result of an action: probability, next state (index), why the episode ended if it did."""

    probability: float
    state: int
    end: str | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Environment:
    """A finite tool-using environment as data.

    Args:
        name: as its file is named.
        purpose: the one question this environment exists for.
        families: task families, each with the rule by which the verifier recomputes the right answer from the
            operands.
        stages: observation stages.
        actions: action names; the last axis of a policy.
        states: the states; the first one starts every episode.
        transitions: `(state, action) -> next state`, or `-> ((probability, next state), ...)`. A pair that is
            neither here nor in `submits` is an invalid action.
        submits: pairs `(state, action)` that submit the scratchpad and end the episode.
        tools: the whitelist: tool name -> function of the operands.
        operands: smallest and largest operand for training and evaluation, and how many a task has.
        costs: action -> cost that the verifier subtracts from the score, 0 where missing.
        max_steps: default limit on decisions.

    Raises:
        InputError: names that do not match or appear twice, probabilities that do not sum to 1, a pair that both
            submits and leads on, a cost that is not finite, or a state without a way in.
    """

    name: str
    purpose: str
    families: Mapping[str, Callable[..., int]]
    stages: tuple[str, ...]
    actions: tuple[str, ...]
    states: tuple[State, ...]
    transitions: Mapping[tuple[str, str], str | tuple[tuple[float, str], ...]]
    submits: frozenset[tuple[str, str]]
    tools: Mapping[str, Callable[..., int]]
    train_operands: tuple[int, int] = (1, 20)
    evaluation_operands: tuple[int, int] = (101, 200)
    operand_count: int = 2
    costs: Mapping[str, float] = field(default_factory=dict)
    max_steps: int = 4
    #: `outcomes[state][action]`: the tuple of `Outcome`s; built from the data above.
    outcomes: tuple[tuple[tuple[Outcome, ...], ...], ...] = field(init=False, repr=False)
    #: Observation stage (index) of every state.
    stage_of: tuple[int, ...] = field(init=False, repr=False)
    _trees: dict[int, Fork] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        names = [s.name for s in self.states]
        index = {name: i for i, name in enumerate(names)}
        for what, used, known in (
            ("stage of a state", {s.stage for s in self.states}, self.stages),
            ("tool of a state", {s.tool for s in self.states} - {None}, tuple(self.tools)),
            ("state of a transition", {s for s, _ in (*self.transitions, *self.submits)}, tuple(names)),
            ("action of a transition", {a for _, a in (*self.transitions, *self.submits)}, self.actions),
            ("action with a cost", set(self.costs), self.actions),
        ):
            for name in sorted(used - set(known), key=str):
                raise one_of(f"environment {self.name}: {what}", name, known)

        def row(state: str, action: str) -> tuple[Outcome, ...]:
            if (state, action) in self.submits:
                return (Outcome(1.0, index[state], SUBMITTED),)
            target = self.transitions.get((state, action))
            if target is None:
                return (Outcome(1.0, index[state], INVALID),)
            pairs = ((1.0, target),) if isinstance(target, str) else target
            for _, name in pairs:
                if name not in index:
                    raise one_of(f"environment {self.name}: state after {action} in {state}", name, tuple(names))
            if any(p <= 0 for p, _ in pairs) or abs(math.fsum(p for p, _ in pairs) - 1.0) > 1e-12:
                raise InputError(
                    f"environment {self.name}: the probabilities of {action} in {state} are "
                    f"{[p for p, _ in pairs]}; they must be positive and sum to 1"
                )
            return tuple(Outcome(p, index[name], None) for p, name in pairs)

        for what, listed in (
            ("family", self.families),
            ("stage", self.stages),
            ("action", self.actions),
            ("state", names),
        ):
            if not listed or len(set(listed)) < len(listed):
                raise InputError(f"environment {self.name}: {what} names are {list(listed)}; each once, at least one")
        both = sorted(self.submits & set(self.transitions))
        if both:
            raise InputError(f"environment {self.name}: {both[0]} both submits and leads on; it can only do one")
        if any(not math.isfinite(cost) for cost in self.costs.values()):
            raise InputError(f"environment {self.name}: costs are {dict(self.costs)}; they must be finite")
        table = tuple(tuple(row(state, action) for action in self.actions) for state in names)
        seen, todo = {0}, [0]
        while todo:
            ahead = {o.state for cell in table[todo.pop()] for o in cell} - seen
            seen |= ahead
            todo += sorted(ahead)
        if len(seen) < len(names):
            lost = [name for i, name in enumerate(names) if i not in seen]
            raise InputError(f"environment {self.name}: no way leads into {', '.join(lost)}")
        object.__setattr__(self, "outcomes", table)
        object.__setattr__(self, "stage_of", tuple(self.stages.index(s.stage) for s in self.states))

    @property
    def policy_shape(self) -> tuple[int, int, int]:
        """`(families, stages, actions)`."""
        return len(self.families), len(self.stages), len(self.actions)

    @property
    def random(self) -> bool:
        """True when some action has more than one outcome."""
        return any(len(cell) > 1 for row in self.outcomes for cell in row)

    @property
    def P(self) -> list[list[list[tuple[float, int, bool]]]]:  # noqa: N802 - the name textbooks and Gymnasium use
        """`P[state][action] -> [(probability, next_state, terminated)]`; no reward, the verifier is separate."""
        return [[[(o.probability, o.state, o.end is not None) for o in cell] for cell in row] for row in self.outcomes]

    def tree(self, max_steps: int) -> Fork:
        """The start of the tree of episodes of at most `max_steps` decisions."""
        if max_steps not in self._trees:
            check_max_steps(max_steps)
            self._trees[max_steps] = Fork(self, 0, (), (), max_steps)
        return self._trees[max_steps]

    def family_index(self, family: str) -> int:
        """Index of a family in the first axis of a policy; raises `InputError` for an unknown one."""
        if family not in self.families:
            raise one_of(f"family of environment {self.name}", family, tuple(self.families))
        return list(self.families).index(family)

    def value(self, task: Task, state: int) -> int | None:
        """What is on the scratchpad in `state`, None when it is empty."""
        tool = self.states[state].tool
        return None if tool is None else self.tools[tool](*task.operands)

    def text(self, task: Task, state: int) -> str:
        """What the environment replies on entering `state`."""
        return self.states[state].text.format(*task.operands, family=task.family, value=self.value(task, state))


def succeeded(environment: Environment, task: Task, state: int, end: str | None) -> bool:
    """True when the episode ended in `state` by submitting the right answer, which is recomputed from the task."""
    tool = environment.states[state].tool
    if end != SUBMITTED or tool is None:
        return False
    return environment.tools[tool](*task.operands) == environment.families[task.family](*task.operands)


def score(environment: Environment, task: Task, actions: Sequence[int], state: int, end: str | None) -> float:
    """The verifier: 1 for the right answer and 0 otherwise, minus the costs of the actions taken."""
    reward = 1.0 if end == SUBMITTED and succeeded(environment, task, state, end) else 0.0
    if environment.costs:
        reward -= math.fsum(environment.costs.get(environment.actions[a], 0.0) for a in actions)
    return reward


def check_max_steps(max_steps: int) -> None:
    """Refuse a step limit under which no decision can be taken."""
    if max_steps < 1:
        raise InputError(f"max_steps is {max_steps}; an episode needs at least 1 decision")


class Episode:
    """One episode, one decision at a time.

    Args:
        environment: the environment.
        task: the task; its family must be one of the environment's.
        max_steps: limit on decisions, the environment's own when None.

    Raises:
        InputError: an unknown family, or `max_steps` below 1.
    """

    def __init__(self, environment: Environment, task: Task, max_steps: int | None = None) -> None:
        self.environment = environment
        self.task = task
        self.max_steps = environment.max_steps if max_steps is None else max_steps
        check_max_steps(self.max_steps)
        self._family = environment.family_index(task.family)
        self.state = 0
        self.actions: list[int] = []
        self.end: str | None = None

    @property
    def observation(self) -> tuple[int, int]:
        """`(family, stage)`: all that the agent sees, the row of the policy that acts."""
        return self._family, self.environment.stage_of[self.state]

    def step(self, action: int | str, draw: float = 0.0) -> tuple[tuple[int, int], bool, bool, dict[str, Any]]:
        """Take one action.

        Args:
            action: index or name.
            draw: a number in [0, 1) that picks among random outcomes; without any it is not read.

        Returns:
            `(observation, terminated, truncated, info)`; `info` has `text` (the reply), `end` (why it ended, or
            None) and `state` (its name).

        Raises:
            InputError: the episode is over, or the action is unknown.
        """
        environment = self.environment
        if self.end is not None:
            raise InputError(f"the episode is over ({self.end}); start a new one instead of taking another step")
        if isinstance(action, str):
            if action not in environment.actions:
                raise one_of(f"action in environment {environment.name}", action, environment.actions)
            action = environment.actions.index(action)
        elif not 0 <= action < len(environment.actions):
            raise InputError(
                f"action is {action}; environment {environment.name} has 0 to {len(environment.actions) - 1}"
            )
        outcome = pick(environment.outcomes[self.state][action], draw)
        self.actions.append(action)
        self.state = outcome.state
        self.end = outcome.end
        if self.end is None and len(self.actions) == self.max_steps:
            self.end = TIMEOUT
        name = environment.states[self.state].name
        text = f"[{self.end}]" if outcome.end else environment.text(self.task, self.state)
        info = {"text": text, "end": self.end, "state": name}
        return self.observation, self.end in (SUBMITTED, INVALID), self.end == TIMEOUT, info


def pick(outcomes: tuple[Outcome, ...], draw: float) -> Outcome:
    """The first outcome whose cumulative probability exceeds `draw`; the last one on rounding."""
    total = 0.0
    for outcome in outcomes:
        total += outcome.probability
        if draw < total:
            return outcome
    return outcomes[-1]


def cumulative(probabilities: Table) -> list[list[list[float]]]:
    """Running sums along the last axis, with infinity last so that no draw falls off the end."""
    return [[[*accumulate(row[:-1]), math.inf] for row in family] for family in probabilities]


class Path(NamedTuple):
    """One episode as indices: the state *before* each action, the actions, the last state and the reason it ended."""

    states: tuple[int, ...]
    actions: tuple[int, ...]
    last: int
    end: str


class Fork:
    """A point in the tree of all episodes.

    `after[action]` is None until somebody goes there, then a `Fork` or the finished `Path`; where the outcome is
    random, a pair of the outcomes and what each leads to.
    """

    __slots__ = ("actions", "after", "room", "stage", "state", "states")

    def __init__(
        self, environment: Environment, state: int, states: tuple[int, ...], actions: tuple[int, ...], room: int
    ) -> None:
        self.stage = environment.stage_of[state]
        self.state = state
        self.states = (*states, state)
        self.actions = actions
        self.room = room
        self.after: list[Any] = [None] * len(environment.actions)

    def grow(self, environment: Environment, action: int) -> Any:
        """Look up what `action` leads to, once for all episodes that pass here."""
        actions = (*self.actions, action)
        cell = environment.outcomes[self.state][action]
        found = [
            Fork(environment, outcome.state, self.states, actions, self.room - 1)
            if outcome.end is None and self.room > 1
            else Path(self.states, actions, outcome.state, outcome.end or TIMEOUT)
            for outcome in cell
        ]
        self.after[action] = found[0] if len(cell) == 1 else (cell, found)
        return self.after[action]


def sample_episodes(
    environment: Environment, rows: Sequence[Sequence[float]], draw: Callable[[], float], max_steps: int, count: int
) -> list[Path]:
    """Draw `count` episodes of one family, one after the other.

    Few different episodes exist, so they are walked as a tree that remembers what it has seen.

    Args:
        environment: the environment.
        rows: the family's `cumulative` probabilities, `[stages][actions]`.
        draw: one number in [0, 1) a call: one for each decision and, after it, one where the action has several
            outcomes.
        max_steps: limit on decisions, at least 1.
        count: how many.
    """
    root = environment.tree(max_steps)
    paths = []
    for _ in range(count):
        node = root
        while True:
            action = bisect_right(rows[node.stage], draw())
            found = node.after[action]
            if found is None:
                found = node.grow(environment, action)
            if type(found) is tuple:
                cell, options = found
                found = options[cell.index(pick(cell, draw()))]
            if type(found) is Path:
                break
            node = found
        paths.append(found)
    return paths


def render(environment: Environment, task: Task, path: Path) -> str:
    """An episode as text, one line a decision: stage, action, reply."""
    lines = [f"{environment.name}: {task.family}"]
    after = [*path.states[1:], path.last]
    for i, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
        final = i == len(path.actions) - 1
        reply = "" if final and path.end != TIMEOUT else environment.text(task, after[i])
        lines.append(f"  {environment.states[state].stage:<10} {environment.actions[action]:<10} {reply}".rstrip())
    mark = "right" if succeeded(environment, task, path.last, path.end) else "wrong"
    answer = f", submitted {environment.value(task, path.last)} ({mark})" if path.end == SUBMITTED else ""
    lines.append(f"  [{path.end}{answer}]")
    return "\n".join(lines)
