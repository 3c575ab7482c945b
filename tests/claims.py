"""Tables and estimators of the published claims.

One family of `arithmetic`: 13 trajectories of 1 to 3 decisions, reward 0 or 1. Tables: uniform; W; and "trained", with
one number k on the right action of every stage and 0 elsewhere. Every value was computed once elsewhere, from the
formula of the paper and not with this code; a digit that differs is a fault of one of the two.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import comb

import numpy as np
import pytest
import torch

from labs.environment import Environment, State
from labs.exact import truth
from labs.moments import moments
from labs.policy import Policy
from labs.properties import Properties
from labs.registry import environments, estimators
from labs.step import StepConfig

ONE = replace(environments["arithmetic"], families={"sum": environments["arithmetic"].families["sum"]})


W = 0.9 * np.sin(1.7 * np.arange(12) + 0.3).reshape(1, 3, 4)


UNIFORM = np.zeros((1, 3, 4))


#: Success probability of W, and its gradient's size is what every relative number below is relative to.
P_W = 0.022234142


WIDE = {"clip_ratio_low": 1 - 1e-9, "clip_ratio_high": 1e9}


UNCLIPPED = {**WIDE, "clip_ratio_c": 1e9}


def trained(k):
    table = np.zeros((1, 3, 4))
    for stage, action in enumerate((0, 1, 3)):
        table[0, stage, action] = k
    return table


def digits(value, printed):
    """`value` rounds to the printed number, to its last digit."""
    text = f"{printed:.8g}" if isinstance(printed, float) else str(printed)
    return pytest.approx(printed, rel=6e-8 if len(text) > 7 else 5e-6, abs=1e-12) == value


def expected(table, n=1, groups=None, **settings):
    policies = {k: Policy.of(ONE, settings.pop(k)) for k in ("old", "behaviour", "reference") if k in settings}
    config = StepConfig(**{"estimator": "rloo", "loss": "reinforce", "loss_agg_mode": "seq-mean-token-sum", **settings})
    return moments(ONE, Policy.of(ONE, table), config, group_size=n, groups=groups, force="exact", **policies)


def broadcast(rule):
    """An estimator of a user's own: a rule from the scores `[groups, n]` to the advantages of the rows."""

    def estimator(token_level_rewards, response_mask, index, **_):
        scores = token_level_rewards.sum(dim=-1)
        rows = torch.as_tensor(index)
        n = int((rows == rows[0]).sum())
        return (rule(scores.reshape(-1, n)).reshape(-1, 1) * response_mask,) * 2

    return estimator


J_W = truth(ONE, W).objective.value


OWN = {
    "minus_j": lambda r: r - J_W,
    "positive": lambda r: r,
    "negative": lambda r: r - 1,
    "success_mean": lambda r: r / r.mean(1, keepdim=True).clamp(min=1e-9),
    "zero_if_none": lambda r: (r - r.mean(1, keepdim=True)) / r.mean(1, keepdim=True).clamp(min=1e-9),
    "always_centred": lambda r: r / r.mean(1, keepdim=True).clamp(min=1e-9) - 1,
}


@contextmanager
def own_estimator(name, rule):
    function = broadcast(rule)
    function.__name__ = name
    estimators.add(name, estimators.entry(needs=("index",), properties=Properties(credit="trajectory"))(function))
    try:
        yield
    finally:
        estimators.remove(name)


@contextmanager
def own_estimators():
    """Every estimator of `OWN` registered for a while."""
    torch.set_num_threads(1)
    with ExitStack() as stack:
        for name, rule in OWN.items():
            stack.enter_context(own_estimator(name, rule))
        yield


def by_successes(name, n):
    """Advantages of a right and a wrong row in groups with 1, ..., n - 1 successes, `[n - 1]` each."""
    scores = torch.tensor([[float(i < k) for i in range(n)] for k in range(1, n)], dtype=torch.float64)
    index = np.repeat(np.arange(n - 1), n)
    rewards_, mask = scores.reshape(-1, 1), torch.ones(n * (n - 1), 1)
    found = estimators[name](rewards_, mask, index=index)[0].reshape(n - 1, n).numpy()
    return found[:, 0], found[:, -1]


def binomial(n, p):
    return np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(1, n)])


def weight(name, n, p):
    """Scale of grad p in the expected update of one prompt with success probability p."""
    right, wrong = by_successes(name, n)
    k = np.arange(1, n)
    return float(binomial(n, p) @ (k * right / p - (n - k) * wrong / (1 - p)) / n)


def arms(*probabilities, costs=()):
    """A bandit: one decision; the first arm pays, or with costs every arm does."""
    environment = Environment(
        name="arms", purpose="one decision", families={"f": lambda x: x}, stages=("choose",),
        actions=tuple(f"arm{i}" for i in range(len(probabilities))),
        states=(State(name="choose", stage="choose", tool="same"),), transitions={},
        submits=frozenset(("choose", f"arm{i}") for i in range(max(len(costs), 1))), tools={"same": lambda x: x},
        operand_count=1, costs={f"arm{i}": cost for i, cost in enumerate(costs)},
    )  # fmt: skip
    return environment, np.log([[probabilities]])
