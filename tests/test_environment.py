"""The dynamics, three ways, over every action sequence; and every way to misuse them."""

import math
import random
from itertools import product

import numpy as np
import pytest

from envs.arithmetic import arithmetic
from envs.arithmetic3 import arithmetic3
from labs.agent import policy_table, uniform_logits
from labs.batched import sample_batch
from labs.enumeration import outcome_probabilities, task_classes, trajectories
from labs.environment import (
    INVALID,
    SUBMITTED,
    TIMEOUT,
    Environment,
    Episode,
    Path,
    State,
    Task,
    cumulative,
    pick,
    render,
    sample_episodes,
    score,
    succeeded,
)
from labs.errors import InputError
from labs.registry import environments
from tests.random_environments import random_environment

SHIPPED = {name: environments[name] for name in environments}
RANDOM = {f"random{seed}": random_environment(seed) for seed in range(12)}
EVERY = [pytest.param(e, id=name) for name, e in {**SHIPPED, **RANDOM}.items()]


def task_of(environment: Environment, family: int) -> Task:
    low, _ = environment.train_operands
    return Task(list(environment.families)[family], tuple(low + 2 + i for i in range(environment.operand_count)))


def forced(environment: Environment, sequences: list[tuple[int, ...]]) -> np.ndarray:
    """Draws that make the uniform policy take exactly these actions: the middle of each action's interval."""
    return (np.array(sequences) + 0.5) / len(environment.actions)


def middles(cell) -> list[float]:
    """One draw inside each outcome's interval."""
    sums = np.cumsum([o.probability for o in cell])
    return [float(high - o.probability / 2) for high, o in zip(sums, cell, strict=True)]


def outcome_draws(environment: Environment) -> list[float]:
    """A set of draws that reaches every outcome of every action."""
    found = {m for row in environment.outcomes for cell in row if len(cell) > 1 for m in middles(cell)}
    return sorted(found) or [0.0]


def batch_path(batch, row: int) -> Path:
    n = int((batch.actions[row] >= 0).sum())
    end = SUBMITTED if batch.submitted[row] else INVALID if batch.terminated[row] else TIMEOUT
    assert batch.terminated[row] != batch.truncated[row]
    assert (batch.actions[row, n:] == -1).all()
    assert (batch.states[row, n:] == -1).all()
    return Path(
        tuple(batch.states[row, :n].tolist()), tuple(batch.actions[row, :n].tolist()), int(batch.last[row]), end
    )


@pytest.mark.parametrize("environment", EVERY)
def test_one_episode_many_and_a_batch_agree_on_every_action_sequence(environment: Environment) -> None:
    steps = min(environment.max_steps, 4) if len(environment.actions) < 6 else 3
    sequences = list(product(range(len(environment.actions)), repeat=steps))
    table = policy_table(uniform_logits(environment))
    for draw in outcome_draws(environment):
        for family in range(len(environment.families)):
            task = task_of(environment, family)
            uniforms = forced(environment, sequences)
            batch = sample_batch(
                environment, table, np.full(len(sequences), family), uniforms, np.full(uniforms.shape, draw)
            )
            for row, sequence in enumerate(sequences):
                episode = Episode(environment, task, steps)
                states = []
                for action in sequence:
                    states.append(episode.state)
                    observation, terminated, truncated, info = episode.step(action, draw)
                    assert observation == (family, environment.stage_of[episode.state])
                    assert terminated == (episode.end in (SUBMITTED, INVALID))
                    assert truncated == (episode.end == TIMEOUT)
                    assert info["end"] == episode.end
                    assert info["state"] == environment.states[episode.state].name
                    if episode.end:
                        break
                single = Path(tuple(states), tuple(episode.actions), episode.state, episode.end)
                stream = iter(interleaved(environment, single, uniforms[row], draw))
                (many,) = sample_episodes(environment, cumulative(table)[family], lambda s=stream: next(s), steps, 1)
                assert many == single
                assert next(stream, None) is None, "sample_episodes must read each draw it was given and no other"
                assert batch_path(batch, row) == single


def interleaved(environment: Environment, path: Path, uniforms: np.ndarray, draw: float) -> list[float]:
    """The draws in the order of the single form: a decision, then an outcome where there is a choice."""
    draws: list[float] = []
    for step, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
        draws.append(float(uniforms[step]))
        if len(environment.outcomes[state][action]) > 1:
            draws.append(draw)
    return draws


@pytest.mark.parametrize("environment", EVERY)
def test_the_enumeration_is_every_sequence_cut_at_its_end(environment: Environment) -> None:
    steps = min(environment.max_steps, 3)
    found = trajectories(environment, steps)
    for sequence in product(range(len(environment.actions)), repeat=steps):
        agreeing = [t.probability for t in found if t.actions == sequence[: len(t.actions)]]
        assert math.isclose(math.fsum(agreeing), 1.0), "given the actions, what may happen has probability 1"
    assert all(len(t.actions) == steps for t in found if t.end == TIMEOUT)


@pytest.mark.parametrize("environment", EVERY)
def test_transition_rows_sum_to_one_and_hide_the_reward(environment: Environment) -> None:
    P = environment.P
    assert len(P) == len(environment.states)
    for row in P:
        assert len(row) == len(environment.actions)
        for cell in row:
            assert math.isclose(math.fsum(p for p, _, _ in cell), 1.0, abs_tol=1e-12)
            for entry in cell:
                p, state, terminated = entry
                assert 0 < p <= 1
                assert 0 <= state < len(environment.states)
                assert isinstance(terminated, bool)


@pytest.mark.parametrize("environment", EVERY)
def test_forward_recursion_equals_the_sum_over_trajectories(environment: Environment) -> None:
    g = random.Random(3)
    F, S, A = environment.policy_shape
    table = policy_table([[[g.uniform(-2, 2) for _ in range(A)] for _ in range(S)] for _ in range(F)])
    classes = task_classes(environment, environment.train_operands)
    assert math.isclose(math.fsum(c.probability for c in classes), 1.0)
    wins = invalid = timeout = actions = total = 0.0
    for c in classes:
        for t in trajectories(environment, environment.max_steps):
            rows = [table[c.family][environment.stage_of[s]] for s in t.states]
            p = c.probability * t.probability * math.prod(r[a] for r, a in zip(rows, t.actions, strict=True))
            wins += p * succeeded(environment, c.example, t.last, t.end)
            invalid += p * (t.end == INVALID)
            timeout += p * (t.end == TIMEOUT)
            actions += p * len(t.actions)
            total += p * score(environment, c.example, t.actions, t.last, t.end)
    found = outcome_probabilities(environment, table, classes, environment.max_steps)
    assert found == pytest.approx((wins, invalid, timeout, actions, total), abs=1e-12)


def test_a_resumed_batch_goes_on_where_it_stood() -> None:
    table = policy_table(uniform_logits(arithmetic))
    draws = forced(arithmetic, [(0, 1, 3), (0, 2, 3), (0, 0, 0)])
    whole = sample_batch(arithmetic, table, [0, 1, 0], draws)
    head = sample_batch(arithmetic, table, [0, 1, 0], draws[:, :1])
    assert head.truncated.all()
    tail = sample_batch(arithmetic, table, [0, 1, 0], draws[:, 1:], start=head.last)
    assert tail.actions.tolist() == whole.actions[:, 1:].tolist()
    assert tail.last.tolist() == whole.last.tolist()
    assert tail.submitted.tolist() == whole.submitted.tolist() == [True, True, False]


def test_a_wrong_tool_may_give_the_right_number_and_the_classes_say_how_often() -> None:
    classes = task_classes(arithmetic3, (1, 3))
    added, _, multiplied = (next(i for i, s in enumerate(arithmetic3.states) if s.tool == t) for t in arithmetic3.tools)
    by_family = {f: [c for c in classes if c.family == f] for f in range(3)}
    # 2 + 2 = 2 * 2 is the only coincidence among 9 pairs.
    assert {(c.right, round(c.probability * 27)) for c in by_family[0]} == {
        (frozenset({added}), 8),
        (frozenset({added, multiplied}), 1),
    }
    assert Task("sum", (2, 2)) in {c.example for c in by_family[0]}
    with pytest.raises(InputError, match=r"operands are 3 to 1"):
        task_classes(arithmetic3, (3, 1))


def test_the_verifier_recomputes_the_answer_and_subtracts_costs() -> None:
    added, subtracted = 2, 3
    task = Task("difference", (9, 4))
    assert score(arithmetic, task, (0, 2, 3), subtracted, SUBMITTED) == 1.0
    assert score(arithmetic, task, (0, 1, 3), added, SUBMITTED) == 0.0
    assert score(arithmetic, task, (0, 2), subtracted, TIMEOUT) == 0.0
    assert score(arithmetic, task, (0, 2, 0), subtracted, INVALID) == 0.0
    paid = environments["routes"]
    assert score(paid, Task("sum", (1, 1)), (0, 1), 0, INVALID) == pytest.approx(-0.1)


def test_rendering_shows_stage_action_reply_and_verdict() -> None:
    task = Task("sum", (3, 4))
    assert render(arithmetic, task, Path((0, 1, 2), (0, 1, 3), 2, SUBMITTED)).splitlines() == [
        "arithmetic: sum",
        "  start      read       left=3 right=4",
        "  ready      add        scratchpad=7",
        "  computed   submit",
        "  [submitted, submitted 7 (right)]",
    ]
    assert render(arithmetic, task, Path((0, 1), (0, 0), 1, INVALID)).endswith("  ready      read\n  [invalid_action]")
    assert "scratchpad=-1\n  [timeout]" in render(arithmetic, task, Path((0, 1), (0, 2), 3, TIMEOUT))
    wrong = render(arithmetic, task, Path((0, 1, 3), (0, 2, 3), 3, SUBMITTED))
    assert wrong.endswith("[submitted, submitted -1 (wrong)]")


def test_step_takes_names_and_tells_what_the_tool_said() -> None:
    episode = Episode(arithmetic, Task("sum", (3, 4)))
    assert episode.step("read") == (
        (0, 1), False, False, {"text": "left=3 right=4", "end": None, "state": "ready"},
    )  # fmt: skip
    assert episode.step("submit")[3] == {"text": "[invalid_action]", "end": INVALID, "state": "ready"}


def test_misuse_of_an_episode_is_refused_with_a_sentence() -> None:
    task = Task("sum", (3, 4))
    with pytest.raises(InputError, match="max_steps is 0"):
        Episode(arithmetic, task, 0)
    with pytest.raises(InputError, match=r"'sums'; allowed: sum, difference; did you mean sum\?"):
        Episode(arithmetic, Task("sums", (1, 2)))
    episode = Episode(arithmetic, task)
    with pytest.raises(InputError, match=r"'reed'.*did you mean read"):
        episode.step("reed")
    for action in (-1, 4):
        with pytest.raises(InputError, match=f"action is {action}; environment arithmetic has 0 to 3"):
            episode.step(action)
    assert episode.actions == []
    episode.step("submit")
    with pytest.raises(InputError, match=r"the episode is over \(invalid_action\)"):
        episode.step("read")


def test_misuse_of_a_batch_is_refused_with_a_sentence() -> None:
    table = policy_table(uniform_logits(arithmetic))
    for arguments, message in (
        ((table, [0, 1], np.zeros((3, 4))), r"uniforms has shape \(3, 4\), it must be \[2, max_steps\]"),
        ((table, [0], np.zeros((1, 0))), "max_steps is 0"),
        ((table, [2], np.zeros((1, 4))), r"families must be 0 to 1, they hold \[2\]"),
        ((table, [-1], np.zeros((1, 4))), r"families must be 0 to 1, they hold \[-1\]"),
        ((table[:1], [0], np.zeros((1, 4))), r"the policy has shape \(1, 3, 4\)"),
        ((table, [0], np.zeros((1, 4)), None, [9]), "start must hold one state from 0 to 3"),
    ):
        with pytest.raises(InputError, match=message):
            sample_batch(arithmetic, *arguments)
    flaky = environments["flaky_tools"]
    table = policy_table(uniform_logits(flaky))
    with pytest.raises(InputError, match="outcome_uniforms is needed"):
        sample_batch(flaky, table, [0], np.zeros((1, 4)))
    with pytest.raises(InputError, match=r"outcome_uniforms has shape \(1, 3\)"):
        sample_batch(flaky, table, [0], np.zeros((1, 4)), np.zeros((1, 3)))


def _tiny(**changes):
    data = {
        "name": "tiny",
        "purpose": "a test",
        "families": {"same": lambda x: x},
        "stages": ("a", "b"),
        "actions": ("go", "end"),
        "states": (State(name="one", stage="a"), State(name="two", stage="b", tool="copy")),
        "transitions": {("one", "go"): "two"},
        "submits": frozenset({("two", "end")}),
        "tools": {"copy": lambda x: x},
        "operand_count": 1,
    }
    return Environment(**{**data, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"transitions": {("one", "go"): ((0.5, "two"), (0.4, "one"))}},
            r"\[0.5, 0.4\]; they must be positive and sum",
        ),
        ({"transitions": {("one", "go"): ((1.5, "two"), (-0.5, "one"))}}, "must be positive and sum to 1"),
        ({"transitions": {("one", "go"): "too"}}, "state after go in one is 'too'.*did you mean two"),
        ({"transitions": {("one", "run"): "two"}}, "action of a transition is 'run'"),
        ({"transitions": {("won", "go"): "two"}}, "state of a transition is 'won'.*did you mean"),
        ({"transitions": {}}, "no way leads into two"),
        ({"transitions": {("one", "go"): "two", ("two", "end"): "one"}}, "both submits and leads on"),
        ({"states": (State(name="one", stage="c"),)}, "stage of a state is 'c'"),
        ({"states": (State(name="one", stage="a", tool="cp"),)}, "tool of a state is 'cp'"),
        (
            {"states": (State(name="one", stage="a"),) * 2, "transitions": {}, "submits": frozenset()},
            r"state names are \['one', 'one'\]",
        ),
        ({"actions": ("go", "end", "go")}, "action names are"),
        ({"families": {}}, r"family names are \[\]"),
        ({"costs": {"stop": 1.0}}, "action with a cost is 'stop'"),
        ({"costs": {"go": math.nan}}, "costs are .*; they must be finite"),
    ],
)
def test_data_that_makes_no_environment_is_refused(changes: dict, message: str) -> None:
    assert _tiny().policy_shape == (1, 2, 2)
    with pytest.raises(InputError, match=message):
        _tiny(**changes)


def test_pick_takes_the_last_outcome_when_rounding_leaves_a_gap() -> None:
    cell = _tiny(transitions={("one", "go"): tuple((0.1, n) for n in ["one", "two"] * 5)}).outcomes[0][0]
    assert pick(cell, 1.0 - 1e-17) is cell[-1]
    assert pick(cell, 0.0) is cell[0]
