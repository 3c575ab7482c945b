r"""The learner of `labs.agent` for thousands of seeds at once, and the curve that their mean scatters around.

An episode is one of few possible trajectories (13 in `arithmetic`), so instead of playing it step by step its kind is
drawn at once: one uniform number an episode, inverted through the cumulative probabilities of `labs.exact.Kinds`. That
is exact in distribution; the random stream is another one than the step-by-step learner's, so that seed 7 here and
there are two different runs of the same experiment.

`sweep` runs seeds as the leading axis of numpy arrays. `mean_field` follows the expected update instead of a sampled
one: the line that theory draws under every sampled learning curve. It is not the mean of the curves (noise in a step
bends them a little), but their limit for many groups an update.

    A_i      = (r_i - mean(r)) / std(r)      std of the population; 0 in a group of equal rewards
    gradient = 1/N sum_i A_i * sum_t (onehot(a_t) - p_t) + c * gradient of the mean entropy of the policy's rows
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labs.enumeration import task_classes
from labs.environment import Environment, check_max_steps
from labs.errors import InputError
from labs.exact import Array, Kinds, kinds, log_softmax, multisets, probability

#: Seeds in one chunk, which is a matter of cache alone: every seed has its own generator.
_CHUNK = 250

#: Most groups of rewards that `theory` tells apart.
GROUPS = 5000


@dataclass(frozen=True, kw_only=True)
class Learner:
    """What is learnt and how: `labs.agent.train`'s settings.

    Attributes:
        environment: any finite environment whose trajectories can be listed.
        groups_per_update, group_size: tasks an update (families alternate) and episodes of each.
        learning_rate, entropy_coefficient: as in the module's formula.
        normalise: divide by the standard deviation; False leaves `r - mean`.
        max_steps, operands: the environment's own when None.

    Raises:
        InputError: a count below 1.
    """

    environment: Environment
    groups_per_update: int = 12
    group_size: int = 16
    learning_rate: float = 0.8
    entropy_coefficient: float = 0.01
    normalise: bool = True
    max_steps: int | None = None
    operands: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.groups_per_update < 1 or self.group_size < 1:
            raise InputError(
                f"groups_per_update is {self.groups_per_update} and group_size {self.group_size}; both must be at "
                "least 1"
            )
        check_max_steps(self.steps)

    @property
    def steps(self) -> int:
        """Limit on decisions."""
        return self.environment.max_steps if self.max_steps is None else self.max_steps

    @property
    def families(self) -> list[int]:
        """Family of every group of an update."""
        return [g % len(self.environment.families) for g in range(self.groups_per_update)]


class Law:
    """Trajectories and task classes of a learner's environment, ready for many policies at once.

    Attributes:
        classes, kinds: task classes, and every trajectory.
        counts: `[K, stages * actions]`, how often each trajectory chose each action.
        own, shares: for each family its task classes, and their shares within it.
    """

    def __init__(self, learner: Learner) -> None:
        environment = learner.environment
        chosen = environment.train_operands if learner.operands is None else learner.operands
        self.classes = task_classes(environment, chosen)
        self.kinds: Kinds = kinds(environment, self.classes, learner.steps)
        self.counts = self.kinds.counts.reshape(len(self.kinds), -1)
        families = len(environment.families)
        self.own = [[i for i, c in enumerate(self.classes) if c.family == f] for f in range(families)]
        weights = [np.array([self.classes[i].probability for i in own]) for own in self.own]
        self.shares = [w / w.sum() for w in weights]

        self._groups: dict[int, tuple[Any, Any, Array]] = {}

    @property
    def levels(self) -> int:
        """Most rewards that a task can have."""
        return max(len(np.unique(row)) for row in self.kinds.reward)

    def groups(self, learner: Learner, c: int) -> tuple[Any, Any, Array]:
        """Reward level of every kind in task class c, all groups as counts of levels, and counts times advantages."""
        if c not in self._groups:
            values, level = np.unique(self.kinds.reward[c], return_inverse=True)
            counts = multisets(len(values), learner.group_size)
            reward = np.broadcast_to(values, counts.shape)
            contrast = counts * advantages(counts.astype(np.float64), reward, learner.normalise)
            self._groups[c] = level, counts, contrast
        return self._groups[c]

    def probabilities(self, log_probs: Array) -> Array:
        """`[..., families, K]` of policies `[..., families, stages, actions]`."""
        return self.kinds.probability(log_probs)

    def success(self, log_probs: Array) -> Array:
        """Exact probability of a reward above 0 for policies `[..., families, stages, actions]`."""
        table = self.probabilities(log_probs)
        return np.asarray(
            sum(
                c.probability * table[..., c.family, :] @ (self.kinds.reward[i] > 0) for i, c in enumerate(self.classes)
            )
        )


def advantages(counts: Array, reward: Array, normalise: bool = True) -> Array:
    """`[..., K]` advantage of a row of each kind in groups with `counts` `[..., K]` and rewards `[..., K]`."""
    n = counts.sum(axis=-1, keepdims=True)
    centred = reward - (counts * reward).sum(axis=-1, keepdims=True) / n
    variance = (counts * centred**2).sum(axis=-1, keepdims=True) / n
    # A group of equal rewards leaves a rounding residue, never a contrast.
    mixed = variance > 1e-18 * np.maximum((reward**2).max(axis=-1, keepdims=True), 1e-30)
    scale = np.sqrt(variance) if normalise else 1.0
    found: Array = np.zeros(np.broadcast_shapes(centred.shape, counts.shape))
    np.divide(centred, scale, out=found, where=mixed)
    return found


def _gradient(learner: Learner, law: Law, push: Array, log_probs: Array) -> Array:
    """Update direction of policies `[..., F, S, A]` from the summed advantage of every kind `[..., F, K]`."""
    return direction(learner, (push @ law.counts).reshape(log_probs.shape), log_probs)


def direction(learner: Learner, chosen: Array, log_probs: Array) -> Array:
    """Update direction of policies `[..., F, S, A]` from the summed advantage of every chosen action of that shape."""
    probabilities = np.exp(log_probs)
    count = learner.groups_per_update * learner.group_size
    policy = (chosen - chosen.sum(axis=-1, keepdims=True) * probabilities) / count
    entropy = -(probabilities * log_probs).sum(axis=-1, keepdims=True)
    rows = log_probs.shape[-3] * log_probs.shape[-2]
    return np.asarray(policy - learner.entropy_coefficient / rows * probabilities * (log_probs + entropy))


def sweep(learner: Learner, seeds: Sequence[int], updates: int = 100) -> tuple[Array, Array]:
    """Train one policy a seed from uniform.

    Args:
        learner: what and how.
        seeds: each with a numpy generator of its own, so that a seed's run does not depend on its neighbours.
        updates: how many.

    Returns:
        Final logits `[seeds, families, stages, actions]` and the exact success probability before every update and
        after the last, `[seeds, updates + 1]`.
    """
    law = Law(learner)
    parts = [_chunk(learner, law, seeds[i : i + _CHUNK], updates) for i in range(0, len(seeds), _CHUNK)]
    if not parts:
        raise InputError("sweep: there are no seeds")
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _chunk(learner: Learner, law: Law, seeds: Sequence[int], updates: int) -> tuple[Array, Array]:
    families = np.array(learner.families)
    generators = [np.random.default_rng(seed) for seed in seeds]
    logits = np.zeros((len(seeds), *learner.environment.policy_shape))
    curve = np.empty((len(seeds), updates + 1))
    size = len(families) * learner.group_size
    tasks = np.zeros((len(seeds), len(families)), dtype=np.int64)
    several = [
        (g, np.array(law.own[f]), np.cumsum(law.shares[f])[:-1]) for g, f in enumerate(families) if len(law.own[f]) > 1
    ]
    # Of every seed: one number an episode, then one a group whose family has several task classes.
    uniforms = np.empty((len(seeds), size + len(several)))
    draws = uniforms[:, :size].reshape(len(seeds), len(families), -1)
    for g, f in enumerate(families):
        tasks[:, g] = law.own[f][0]
    for update in range(updates):
        log_probs = log_softmax(logits)
        curve[:, update] = law.success(log_probs)
        for s, generator in enumerate(generators):
            generator.random(out=uniforms[s])
        for k, (g, own, edges) in enumerate(several):
            tasks[:, g] = own[(uniforms[:, size + k, None] >= edges).sum(axis=1)]
        chance = law.probabilities(log_probs)[:, families]
        counts = count_kinds(chance, draws)
        advantage = advantages(counts, law.kinds.reward[tasks], learner.normalise)
        push = np.zeros((len(seeds), len(law.own), counts.shape[-1]))
        for g, f in enumerate(families):
            push[:, f] += counts[:, g] * advantage[:, g]
        logits += learner.learning_rate * _gradient(learner, law, push, log_probs)
    curve[:, -1] = law.success(log_softmax(logits))
    return logits, curve


def count_kinds(chance: Array, draws: Array) -> Array:
    """How many of the draws `[..., n]` in [0, 1) fall on each kind `[..., K]` of these probabilities."""
    # Edge by edge, draws first: sums along a short last axis take twice as long.
    edges = np.moveaxis(np.cumsum(chance, axis=-1)[..., :-1], -1, 0)
    each = np.ascontiguousarray(np.moveaxis(draws, -1, 0))
    below = np.zeros((len(edges) + 2, *edges.shape[1:]))
    below[-1] = len(each)
    for k, edge in enumerate(edges, 1):
        below[k] = (each < edge).sum(axis=0, dtype=np.int16 if len(each) < 1 << 15 else np.int64)
    return np.moveaxis(below[1:] - below[:-1], 0, -1)


def expected_push(learner: Learner, law: Law, log_probs: Array) -> Array:
    """Expected summed advantage of every kind in one update, `[families, K]`, over tasks and groups.

    Rewards take few values, so a group is a multinomial over those values; given its own reward a row's kind is
    independent of the rest.
    """
    chance = law.probabilities(log_probs)
    push = np.zeros(chance.shape)
    groups = np.bincount(learner.families, minlength=len(law.own))
    for f, own in enumerate(law.own):
        for share, c in zip(law.shares[f], own, strict=True):
            level, counts, contrast = law.groups(learner, c)
            of_value = np.bincount(level, weights=chance[f], minlength=counts.shape[1]).astype(np.float64)
            total = probability(counts, of_value) @ contrast
            each = np.divide(total, of_value, out=np.zeros_like(total), where=of_value > 0)
            push[f] += groups[f] * share * chance[f] * each[level]
    return push


def mean_field(learner: Learner, updates: int = 100, logits: NDArray[np.float64] | None = None) -> Iterator[Array]:
    """Logits `[families, stages, actions]` before every expected update and after the last: `updates + 1` tables."""
    law = Law(learner)
    table = np.zeros(learner.environment.policy_shape) if logits is None else np.array(logits, dtype=np.float64)
    if table.shape != learner.environment.policy_shape:
        raise InputError(f"logits have shape {table.shape}, they must be {learner.environment.policy_shape}")
    yield table.copy()
    for _ in range(updates):
        log_probs = log_softmax(table)
        table += learner.learning_rate * _gradient(learner, law, expected_push(learner, law, log_probs), log_probs)
        yield table.copy()


def theory(learner: Learner, updates: int = 100) -> Array:
    """`[updates + 1]` success probability along `mean_field`: the dashed line.

    Raises:
        InputError: more than `GROUPS` groups of rewards to tell apart.
    """
    law = Law(learner)
    if comb(learner.group_size + law.levels - 1, law.levels - 1) > GROUPS:
        raise InputError(f"groups of {law.levels} scores are too many to count")
    return np.array([float(law.success(log_softmax(table))) for table in mean_field(learner, updates)])


def expected_line(environment: Environment, settings: Mapping[str, Any]) -> tuple[list[float], str]:
    """`theory` before every update for the settings of experiment `agent`, or why it is not known."""
    ends = settings["train_operands"]
    learner = Learner(
        environment=environment, operands=None if ends is None else (ends[0], ends[1]),
        **{key: settings[key] for key in
           ("groups_per_update", "group_size", "max_steps", "learning_rate", "entropy_coefficient")},
    )  # fmt: skip
    try:
        return theory(learner, settings["updates"])[:-1].tolist(), ""
    except InputError as reason:
        return [], str(reason)
