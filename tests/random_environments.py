"""Small environments drawn at random, for tests that must hold for any data and not only for the ones shipped."""

from __future__ import annotations

import random
from itertools import pairwise

from labs.environment import Environment, State


def random_environment(seed: int) -> Environment:
    """Up to 4 states, 3 stages, 3 actions, 2 families; some actions have several outcomes, some cost something."""
    g = random.Random(seed)
    names = [f"s{i}" for i in range(g.randint(2, 4))]
    stages = tuple(f"stage{i}" for i in range(g.randint(1, 3)))
    actions = tuple(f"a{i}" for i in range(g.randint(2, 3)))
    tools = {"first": lambda x: x, "twice": lambda x: 2 * x, "five": lambda x: 5}
    states = tuple(
        State(
            name=name,
            stage=g.choice(stages),
            tool=g.choice([None, *tools]),
            text="{family} {0} {value}",
            tokens=g.randint(0, 3),
        )
        for name in names
    )
    submits = frozenset((g.choice(names), g.choice(actions)) for _ in range(2))
    transitions: dict = {}
    # A chain through all states comes first, so that each has a way in.
    for before, after in pairwise(names):
        free = [a for a in actions if (before, a) not in submits]
        if not free:
            return random_environment(seed + 1000)
        transitions[before, g.choice(free)] = after
    for name in names:
        for action in actions:
            if (name, action) in submits or (name, action) in transitions or g.random() < 0.4:
                continue
            weights = [g.randint(1, 4) for _ in range(g.randint(1, 3))]
            transitions[name, action] = tuple((w / sum(weights), g.choice(names)) for w in weights)
    return Environment(
        name=f"random{seed}",
        purpose="for tests",
        families={"same": lambda x: x, "double": lambda x: 2 * x},
        stages=stages,
        actions=actions,
        states=states,
        transitions=transitions,
        submits=submits,
        tools=tools,
        train_operands=(1, 6),
        evaluation_operands=(3, 9),
        operand_count=1,
        costs={actions[0]: 0.25} if g.random() < 0.5 else {},
        max_steps=3,
    )
