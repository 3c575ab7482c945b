"""The battery over every registered environment: enumeration against sampling, determinism, what its file claims."""

import math
import random

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from labs.agent import policy_table, train
from labs.batched import sample_batch
from labs.enumeration import outcome_probabilities, task_classes, trajectories
from labs.environment import Environment, cumulative, sample_episodes
from labs.episodes import draw_tasks, exact_outcomes, play
from labs.policy import Policy
from labs.registry import environments
from labs.step import StepConfig
from labs.trainer import Trainer, TrainerConfig

NAMES = list(environments)
#: Probability that a right environment fails one chi-square test; the seeds are fixed, so a pass stays a pass.
ERROR = 1e-3


def some_policy(environment: Environment, seed: int = 0) -> list[list[list[float]]]:
    """Leans towards actions that lead on, so that long trajectories are common."""
    g = random.Random(seed)
    logits = [
        [[g.uniform(-0.5, 0.5) for _ in environment.actions] for _ in environment.stages] for _ in environment.families
    ]
    for state, stage in enumerate(environment.stage_of):
        for a, cell in enumerate(environment.outcomes[state]):
            if cell[0].end != "invalid_action":
                for family in logits:
                    family[stage][a] = 1.5 + family[stage][a] / 2
    return policy_table(logits)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_it_is_for(name: str) -> None:
    environment = environments[name]
    assert environment.name == name
    assert environment.purpose
    assert "Purpose:" in __import__(f"envs.{name}", fromlist=["_"]).__doc__


@pytest.mark.parametrize("name", NAMES)
def test_transition_rows_sum_to_one(name: str) -> None:
    for row in environments[name].P:
        for cell in row:
            assert math.isclose(math.fsum(p for p, _, _ in cell), 1.0, abs_tol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_sampling_follows_the_enumerated_distribution(name: str) -> None:
    environment = environments[name]
    table, count, steps = some_policy(environment), 40_000, environment.max_steps
    for family in range(len(environment.families)):
        rng = np.random.default_rng([1, family])
        draws = rng.random((2, count, steps))
        batch = sample_batch(environment, table, np.full(count, family), draws[0], draws[1])
        seen: dict[tuple, int] = {}
        for states, actions, last in zip(
            batch.states.tolist(), batch.actions.tolist(), batch.last.tolist(), strict=True
        ):
            n = sum(a >= 0 for a in actions)
            key = (tuple(states[:n]), tuple(actions[:n]), last)
            seen[key] = seen.get(key, 0) + 1
        expected: dict[tuple, float] = {}
        for t in trajectories(environment, steps):
            rows = [table[family][environment.stage_of[s]] for s in t.states]
            p = t.probability * math.prod(r[a] for r, a in zip(rows, t.actions, strict=True))
            key = (t.states, t.actions, t.last)
            expected[key] = expected.get(key, 0.0) + p * count
        assert math.isclose(sum(expected.values()), count)
        assert set(seen) <= set(expected), "a trajectory was sampled that the enumeration does not have"
        common = {k for k, e in expected.items() if e >= 5}
        rest = count - sum(expected[k] for k in common), count - sum(seen.get(k, 0) for k in common)
        cells = [(expected[k], seen.get(k, 0)) for k in common] + ([rest] if rest[0] > 1e-9 else [])
        statistic = sum((e - s) ** 2 / e for e, s in cells)
        assert len(cells) > 5
        assert statistic < chi2.isf(ERROR, len(cells) - 1), f"family {family}: chi-square {statistic:.1f}"


@pytest.mark.parametrize("name", NAMES)
def test_exact_rates_lie_where_sampled_ones_do(name: str) -> None:
    environment, policy = environments[name], None
    policy = Policy.of(environment, torch.tensor(some_policy(environment), dtype=torch.float64).log())
    classes = task_classes(environment, environment.train_operands)
    exact = outcome_probabilities(environment, policy.as_list(), classes, environment.max_steps)
    g = torch.Generator().manual_seed(1)
    seen = play(environment, policy, draw_tasks(environment, 20_000, g), generator=g)
    for sampled, p in (
        (seen.successes.mean(), exact.success),
        ((seen.paths.terminated & ~seen.paths.submitted).mean(), exact.invalid),
        (seen.paths.truncated.mean(), exact.timeout),
    ):
        # Four standard deviations: one right test in 16,000 fails.
        assert abs(sampled - p) <= 4 * math.sqrt(p * (1 - p) / 20_000) + 1e-12
    for values, mean in ((seen.decisions, exact.actions), (seen.scores, exact.score)):
        assert abs(values.mean() - mean) <= 4 * values.std() / math.sqrt(20_000)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_draws_give_the_same_episodes(name: str) -> None:
    environment = environments[name]

    def once() -> list:
        g = torch.Generator().manual_seed(9)
        return play(environment, Policy.uniform(environment), draw_tasks(environment, 50, g), 4, generator=g).paths

    for first, second in zip(once(), once(), strict=True):
        assert np.array_equal(first, second)
    plain = [sample_episodes(environment, cumulative(some_policy(environment))[0], random.Random(2).random, 3, 20)
             for _ in range(2)]  # fmt: skip
    assert plain[0] == plain[1]


def best_success(environment: Environment, steps: int) -> float:
    """Best success of a policy that sees states and steps, by dynamic programming: no table can do better."""
    total = 0.0
    for c in task_classes(environment, environment.evaluation_operands):
        value = [0.0] * len(environment.states)
        for _ in range(steps):
            value = [
                max(
                    math.fsum(
                        o.probability
                        * ((o.state in c.right) if o.end == "submitted" else 0.0 if o.end else value[o.state])
                        for o in cell
                    )
                    for cell in row
                )
                for row in environment.outcomes
            ]
        total += c.probability * value[0]
    return total


def uniform_success(environment: Environment) -> float:
    table = Policy.uniform(environment).as_list()
    classes = task_classes(environment, environment.evaluation_operands)
    return outcome_probabilities(environment, table, classes, environment.max_steps).success


@pytest.mark.parametrize(
    ("name", "uniform", "best"),
    [
        ("arithmetic", 1 / 64, 1.0),
        ("flaky_tools", 0.7 / 64 * (1 + 0.15 + 0.15**2 + 0.15**3), 1 - 0.3**4),
        ("long_protocol", 6**-5, 1.0),
        ("routes", 6**-3 + 6**-5, 1.0),
        ("long_observations", 1 / 64, 1.0),
    ],
)
def test_the_exact_truth_that_the_files_state(name: str, uniform: float, best: float) -> None:
    environment = environments[name]
    assert uniform_success(environment) == pytest.approx(uniform, rel=1e-12)
    assert best_success(environment, environment.max_steps) == pytest.approx(best, rel=1e-12)


def test_the_two_routes_cost_what_their_file_says_and_a_limit_of_four_forbids_the_cheap_one() -> None:
    environment = environments["routes"]
    classes = task_classes(environment, environment.evaluation_operands)
    names = environment.actions

    def follow(sum_way: list[str], difference_way: list[str], steps: int):
        table = [[[1.0 if a == choice else 0.0 for a in names] for choice in way] for way in (sum_way, difference_way)]
        return outcome_probabilities(environment, table, classes, steps)

    # One action for each stage: start, ready, counting, nearly, computed.
    short = follow(["read", "add", "submit", "submit", "submit"], ["read", "subtract", "submit", "submit", "submit"], 6)
    assert (short.success, short.actions, short.score) == pytest.approx((1.0, 3.0, 0.9))
    way = (["read", *["count_up"] * 3, "submit"], ["read", *["count_down"] * 3, "submit"])
    long = follow(*way, 6)
    assert (long.success, long.actions, long.score) == pytest.approx((1.0, 5.0, 0.97))
    cut = follow(*way, 4)
    assert (cut.success, cut.timeout, cut.score) == pytest.approx((0.0, 1.0, -0.03))


def test_page_lengths_vary_and_nothing_else_does() -> None:
    environment = environments["long_observations"]
    lengths = {s.name: s.tokens for s in environment.states if s.stage == "ready"}
    assert lengths == {"short": 4, "long": 32, "huge": 256}
    mean = math.fsum(o.probability * environment.states[o.state].tokens for o in environment.outcomes[0][0])
    assert mean == pytest.approx(62.8)
    table = some_policy(environment)
    plain = environments["arithmetic"]
    for c in (environment, plain):
        assert task_classes(c, (1, 5))[0].probability == 0.5
    ours, theirs = (outcome_probabilities(e, table, task_classes(e, (101, 200)), 4) for e in (environment, plain))
    assert ours == pytest.approx(theirs, abs=1e-12)


def test_the_plain_learner_learns_to_repeat_a_failed_call() -> None:
    environment = environments["flaky_tools"]
    *_, last = train(environment, seed=0, updates=300)
    table = policy_table(last.logits)
    classes = task_classes(environment, environment.evaluation_operands)
    assert outcome_probabilities(environment, table, classes, environment.max_steps).success > 0.95
    failed, right = environment.stages.index("failed"), {0: "add", 1: "subtract"}
    for family, action in right.items():
        assert table[family][failed][environment.actions.index(action)] > 0.9


@pytest.mark.parametrize(("estimator", "learns"), [("rloo", True), ("dr_grpo", True), ("grpo", False)])
def test_dividing_by_the_groups_spread_gives_up_where_actions_cost(estimator: str, learns: bool) -> None:
    environment = environments["routes"]
    trainer = Trainer(environment, TrainerConfig(step=StepConfig(estimator=estimator), learning_rate=20.0), seed=0)
    for _ in range(100):
        next(trainer)
    exact = exact_outcomes(environment, trainer.policy)
    if learns:
        assert exact.success > 0.95
        assert exact.score > 0.85
    else:
        assert exact.success < 1e-3
        assert exact.actions == pytest.approx(1.0, abs=0.01)


def test_the_first_success_of_the_long_protocol_is_rare() -> None:
    environment = environments["long_protocol"]
    record = list(train(environment, seed=0, updates=10))
    assert sum(u.success_rate for u in record) * 192 < 10
    silent = [u for u in record if u.zero_advantage_groups == u.groups]
    assert silent, "some updates must have seen no success at all"
    assert math.isclose(1 / (192 * uniform_success(environment)), 40.5, abs_tol=0.1)
