"""Does group-normalised REINFORCE teach a tabular agent a tool protocol, from nothing but right or wrong at the end?

The learner is `labs/agent.py`, the environment any file of `envs/`. The sampled success rate on held-out tasks stands
beside the exact success probability of the same policy: the first is one draw with an interval, the second has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labs.agent import Logits, evaluate, policy_table, train, trajectory_steps, uniform_logits
from labs.config import field, spelled
from labs.enumeration import OutcomeProbabilities, outcome_probabilities, task_classes
from labs.environment import Environment, score, succeeded
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments
from labs.stats import wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How many episodes of the last evaluation the result shows.
SHOWN = 8

#: The most operands whose tasks are enumerated for the exact values.
WIDEST = 1000


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the learner and its tasks."""

    environment: str = field("arithmetic", help="the environment", choices=environments)
    updates: int = field(100, help="policy updates", low=1)
    groups_per_update: int = field(12, help="tasks an update; families alternate", low=1)
    group_size: int = field(16, help="trajectories a task", unit="trajectory", low=1)
    max_steps: int | None = field(None, help="most decisions in an episode; none is the environment's own", low=1)
    learning_rate: float = field(0.8, help="step size of gradient ascent", low=0, high=1000)
    entropy_coefficient: float = field(0.01, help="weight of the mean entropy of the policy's rows", low=0, high=1000)
    evaluation_episodes: int = field(400, help="held-out tasks, before and after", unit="episode", low=1)
    train_operands: tuple[int, ...] | None = field(
        None,
        help="two numbers, smallest,largest operand in training; none is the environment's own",
        low=-(10**6),
        high=10**6,
    )
    evaluation_operands: tuple[int, ...] | None = field(
        None,
        help="two numbers, smallest,largest held-out operand; none is the environment's own",
        low=-(10**6),
        high=10**6,
    )

    def check(self) -> None:
        """A range of operands has two ends, in order, and is small enough to enumerate."""
        for name in ("train_operands", "evaluation_operands"):
            ends = getattr(self, name)
            if ends is not None and not (len(ends) == 2 and 0 <= ends[1] - ends[0] < WIDEST):
                raise InputError(f"{name} is {list(ends)}; allowed: smallest,largest with at most {WIDEST} numbers")


TINY = {"updates": 12, "groups_per_update": 4, "group_size": 8, "evaluation_episodes": 20, "learning_rate": 20.0}
CHANGES = {
    "environment": "arithmetic3",
    "updates": 13,
    "groups_per_update": 6,
    "group_size": 9,
    "max_steps": 2,
    "learning_rate": 10.0,
    "entropy_coefficient": 0.5,
    "evaluation_episodes": 24,
    "train_operands": [1, 7],
    "evaluation_operands": [101, 105],
}

_RATE: Any = {"unit": "1", "low": 0.0, "high": 1.0}
METRICS = (
    Metric(name="update", unit="1", formula="number of the policy update", low=1, scope="run"),
    Metric(
        name="train_success_rate",
        **_RATE,
        formula="right / trajectories of the update",
        scope="batch",
        verl="critic/score/mean",
    ),
    Metric(name="train_invalid_rate", **_RATE, formula="ended by an invalid action / trajectories", scope="batch"),
    Metric(name="train_mean_actions", unit="1", formula="decisions / trajectories", low=1, scope="batch"),
    Metric(
        name="mean_state_entropy", unit="nat", formula="mean over (family, stage) of -sum p log p", low=0,
        scope="batch", text="How undecided the policy is; log(actions) when uniform, 0 when it always does the same.",
    ),
    Metric(name="groups", unit="group", formula="tasks of the update", low=1, scope="batch"),
    Metric(name="all_wrong_groups", unit="group", formula="groups without a right trajectory", low=0, scope="batch"),
    Metric(name="all_right_groups", unit="group", formula="groups without a wrong trajectory", low=0, scope="batch"),
    Metric(
        name="zero_advantage_groups", unit="group", formula="groups of equal rewards", low=0, scope="batch",
        text="They teach nothing: every advantage in them is 0.",
    ),
    Metric(
        name="exact_train_success_rate", **_RATE, scope="batch",
        formula="probability of success of the policy that sampled, by enumeration",
        text="What train_success_rate estimates; families equally likely, operands uniform.",
    ),
    Metric(
        name="success_rate",
        **_RATE,
        better="higher",
        formula="right / held-out episodes, after training",
        scope="run",
        text="One draw: with 400 episodes its standard deviation is 0.009.",
    ),
    Metric(
        name="exact_success_rate",
        **_RATE,
        better="higher",
        formula="probability of success of the trained policy on the held-out tasks, by enumeration",
        scope="run",
        text="What success_rate estimates; families equally likely, operands uniform.",
    ),
    Metric(
        name="invalid_rate",
        **_RATE,
        formula="ended by an invalid action / held-out episodes",
        scope="run",
        better="lower",
    ),
    Metric(name="mean_actions", unit="1", formula="decisions / held-out episodes", low=1, scope="run"),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Evaluate the uniform policy, train, evaluate again; see `labs.agent` for what is drawn when."""
    environment: Environment = environments[config.environment]
    max_steps = environment.max_steps if config.max_steps is None else config.max_steps
    operands = _ends(config.train_operands, environment.train_operands)
    held_out = _ends(config.evaluation_operands, environment.evaluation_operands)
    classes = task_classes(environment, operands)
    final_classes = classes if held_out == operands else task_classes(environment, held_out)

    def exact(logits: Logits, over: Any) -> OutcomeProbabilities:
        return outcome_probabilities(environment, policy_table(logits), over, max_steps)

    def judge(logits: Logits) -> tuple[dict[str, Any], list[Any]]:
        seen = evaluate(
            environment,
            logits,
            seed=seed,
            episodes=config.evaluation_episodes,
            max_steps=max_steps,
            operands=held_out,
        )
        truth = exact(logits, final_classes)
        interval = wilson(round(seen.success_rate * config.evaluation_episodes), config.evaluation_episodes)
        return {
            "success_rate": seen.success_rate,
            "success_interval": [interval.low, interval.high],
            "success_interval_kind": interval.name,
            "exact_success_rate": truth.success,
            "episodes": config.evaluation_episodes,
            "mean_actions": seen.mean_actions,
            "exact_mean_actions": truth.actions,
            "invalid_rate": seen.invalid_rate,
            "exact_invalid_rate": truth.invalid,
        }, seen.episodes

    logits = uniform_logits(environment)
    before, _ = judge(logits)
    policy_before = _policy(environment, logits)
    rows = []
    for update in train(
        environment,
        seed=seed,
        updates=config.updates,
        groups_per_update=config.groups_per_update,
        group_size=config.group_size,
        max_steps=max_steps,
        learning_rate=config.learning_rate,
        entropy_coefficient=config.entropy_coefficient,
        operands=operands,
    ):
        rows.append(
            {
                "update": update.number,
                "train_success_rate": update.success_rate,
                "exact_train_success_rate": exact(logits, classes).success,
                "train_invalid_rate": update.invalid_rate,
                "train_mean_actions": update.mean_actions,
                "mean_state_entropy": update.mean_entropy,
                "groups": update.groups,
                "zero_advantage_groups": update.zero_advantage_groups,
                "all_wrong_groups": update.all_wrong,
                "all_right_groups": update.all_right,
            }
        )
        logits = update.logits
        if progress is not None:
            progress(update.number, config.updates)
    after, episodes = judge(logits)
    shown = [
        {
            "episode": i,
            "operation": task.family,
            "operands": list(task.operands),
            "steps": trajectory_steps(environment, logits, task, path, config.updates),
            "end": path.end,
            "success": succeeded(environment, task, path.last, path.end),
            "reward": score(environment, task, path.actions, path.last, path.end),
        }
        for i, (task, path) in enumerate(episodes[:SHOWN])
    ]
    trajectories = config.groups_per_update * config.group_size * config.updates
    kept = ("update", "train_success_rate", "mean_state_entropy", "zero_advantage_groups", "groups")
    data = {
        "before": before,
        "after": after,
        "train_episodes": trajectories,
        "policy_versions": config.updates + 1,
        "history": [{k: row[k] for k in kept} for row in rows if row["update"] % 10 == 1 or row is rows[-1]],
        "policy": _policy(environment, logits),
        "policy_before": policy_before,
        "trajectories": shown,
    }
    last = rows[-1]
    return Result(
        data=data,
        metrics=rows,
        trajectories=shown,
        headline={
            "success_rate": after["success_rate"],
            "exact_success_rate": after["exact_success_rate"],
            "invalid_rate": after["invalid_rate"],
            "mean_actions": after["mean_actions"],
            "mean_state_entropy": last["mean_state_entropy"],
        },
        summary=_summary(config, before, after, rows[-1]),
        conclusion=_conclusion(before["exact_success_rate"], after["exact_success_rate"]),
        next=(
            f"python -m labs.run --experiment agent{spelled(config)} --seeds 0-31",
            "python -m labs show agent",
        ),
    )


def explained(config: Config, seed: int, number: int) -> Any:
    """Update `number` of this run, for `python -m labs explain`."""
    from labs.explain import of_learner

    environment: Environment = environments[config.environment]
    return of_learner(
        environment,
        number,
        seed=seed,
        groups_per_update=config.groups_per_update,
        group_size=config.group_size,
        max_steps=environment.max_steps if config.max_steps is None else config.max_steps,
        learning_rate=config.learning_rate,
        entropy_coefficient=config.entropy_coefficient,
        operands=_ends(config.train_operands, environment.train_operands),
    )


def _ends(given: tuple[int, ...] | None, own: tuple[int, int]) -> tuple[int, int]:
    return own if given is None else (given[0], given[1])


def _policy(environment: Environment, logits: Logits) -> list[dict[str, Any]]:
    """The policy as rows: operation, stage and the probability of every action."""
    return [
        {"operation": family, "stage": stage, "action_probabilities": dict(zip(environment.actions, row, strict=True))}
        for family, rows in zip(environment.families, policy_table(logits), strict=True)
        for stage, row in zip(environment.stages, rows, strict=True)
    ]


def _summary(config: Config, before: Any, after: Any, last: Any) -> list[str]:
    """The five lines a person reads."""
    low, high = after["success_interval"]
    equal = last["all_wrong_groups"] + last["all_right_groups"]
    costs = " (equal answers can differ in cost)" if last["zero_advantage_groups"] < equal else ""
    share = f"{config.updates} updates, {last['train_success_rate']:.4f} right in the last"

    def change(key: str) -> str:
        return f"{before[key]:.4f} -> {after[key]:.4f}"

    return [
        f"success  {change('success_rate')} of {after['episodes']} held-out tasks "
        f"({after['success_interval_kind']} {low:.4f} to {high:.4f})",
        f"exact    {change('exact_success_rate')} probability of success of the same policies, by enumeration",
        f"invalid  {change('invalid_rate')} of the episodes (exact {change('exact_invalid_rate')})",
        f"trained  {config.groups_per_update * config.group_size * config.updates:,} trajectories in {share}",
        f"groups   of the last {last['groups']}: {last['all_wrong_groups']} all wrong, "
        f"{last['all_right_groups']} all right, {last['zero_advantage_groups']} teach nothing{costs}",
    ]


def _conclusion(before: float, after: float) -> str:
    """One sentence from the exact values, which no luck of the evaluation can change."""
    change = f"exact success went from {before:.4f} to {after:.4f}"
    if after >= 0.9:
        return f"The agent learned the protocol: {change}."
    if after > before + 0.05:
        return f"The agent learned a part of the protocol: {change}."
    return f"The agent did not learn the protocol: {change}."


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`learning` (success, invalid rate, groups, entropy over updates) and `policy` (before and after)."""
    from experiments.agent import drawing

    return {"learning": drawing.learning(results), "policy": drawing.heat(results)}
