"""Moments by brute force: every batch by itself, its gradient by autograd through the loss to the logits."""

from __future__ import annotations

from collections import Counter
from itertools import combinations_with_replacement, product
from math import factorial, prod

import numpy as np
import torch

from labs.columns import complete
from labs.critic import ValueTable
from labs.enumeration import task_classes, trajectories
from labs.environment import Environment, State
from labs.episodes import pack
from labs.exact import truth
from labs.policy import Policy
from labs.step import StepConfig, loss, required, stages

#: Two families, three trajectories each: wrong at once, go and wrong, go and hand in what `go` wrote.
TINY = Environment(
    name="tiny",
    purpose="small enough for brute force",
    families={"same": lambda x: x, "twice": lambda x: 2 * x},
    stages=("start", "there"),
    actions=("go", "hand_in"),
    states=(
        State(name="start", stage="start"),
        State(name="there", stage="there", tool="same", text="{value}", tokens=1),
    ),
    transitions={("start", "go"): "there"},
    submits=frozenset({("there", "hand_in")}),
    tools={"same": lambda x: x},
    train_operands=(0, 2),
    operand_count=1,
)


def brute(
    environment: Environment,
    policy: Policy,
    config: StepConfig,
    *,
    group_size: int,
    groups: int,
    old: Policy | None = None,
    behaviour: Policy | None = None,
    max_steps: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the gradient, flat."""
    old = policy if old is None else old
    behaviour = old if behaviour is None else behaviour
    steps = environment.max_steps if max_steps is None else max_steps
    names = list(environment.families)
    options = []
    for g in range(groups):
        family = g % len(names)
        own = [c for c in task_classes(environment, environment.train_operands) if c.family == family]
        total = sum(c.probability for c in own)
        paths = trajectories(environment, steps)
        chances = [chance(environment, behaviour, family, path) for path in paths]
        found = []
        for c in own:
            for pick in combinations_with_replacement(range(len(paths)), group_size):
                orders = factorial(group_size) // prod(factorial(k) for k in Counter(pick).values())
                weight = c.probability / total * orders * prod(chances[k] for k in pick)
                found.append((weight, c.example, [paths[k] for k in pick]))
        options.append(found)
    widest = len(max(trajectories(environment, steps), key=lambda p: len(p.actions)).actions)
    mean = second = 0.0
    for chosen in product(*options):
        weight = prod(w for w, _, _ in chosen)
        gradient = one(environment, policy, config, chosen, old, behaviour, steps, widest)
        mean = mean + weight * gradient
        second = second + weight * np.outer(gradient, gradient)
    return mean, second - np.outer(mean, mean)


def one(environment, policy, config, chosen, old, behaviour, steps, widest):
    """The gradient of one batch."""
    tasks = [task for _, task, paths in chosen for _ in paths]
    uid = [f"g{g}" for g, (_, _, paths) in enumerate(chosen) for _ in paths]
    batch = pack(environment, tasks, [p for _, _, paths in chosen for p in paths], behaviour, uid).tokens()
    critic = ValueTable(torch.from_numpy(truth(environment, old.logits, max_steps=steps).row_values))
    batch = complete(
        batch, required(config), old=old, reference=Policy.uniform(environment), critic=critic,
        environment=environment, tasks=dict(zip(uid, tasks, strict=True)), max_steps=steps,
    )  # fmt: skip
    batch = batch.replace(log_prob=policy.token_log_probs(batch["table_index"]))
    *_, (_, done) = stages(batch, config)
    logits = policy.logits.clone().requires_grad_()
    value, _ = loss(done, Policy(logits).token_log_probs(done["table_index"]), config)
    value.backward()
    return -logits.grad.numpy().ravel()


def chance(environment, policy, family, path):
    """Probability of a trajectory under a policy."""
    table = policy.probabilities[family]
    steps = zip(path.states, path.actions, strict=True)
    return path.probability * prod(float(table[environment.stage_of[s], a]) for s, a in steps)
