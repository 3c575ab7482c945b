r"""Exact objects of one policy in a finite environment, in float64 numpy: no sampling, no torch.

With pi a softmax table `[families, stages, actions]`, c a task class (`labs.enumeration.task_classes`), t a decision
number and s a state, one backward and one forward pass give

    Q_c(t, s, a) = r_c(s, a) + sum_s' P(s' | s, a) V_c(t + 1, s')        V_c(t, s) = sum_a pi(a | s) Q_c(t, s, a)
    d_f(t, s)    = probability that decision t is taken in state s       A = Q - V
    J            = sum_c P(c) V_c(0, start)
    dJ/dz[f, o, a] = sum_c P(c) sum_{t, s seen as o} d_f(t, s) pi(a | s) A_c(t, s, a)

The reward of a decision is the verifier's, split up: 1 on a right submission, minus the cost of the action. Any other
reward that adds up over decisions goes through the same two passes, which is how the entropy and the KL of whole
trajectories get their values and gradients. The random outcomes of tools are in P and the task distribution in P(c).

`Kinds` lists every possible trajectory once, as arrays: what `labs.classes` samples from and `labs.moments` merges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb, lgamma
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labs.enumeration import TaskClass, Trajectory, task_classes, trajectories
from labs.environment import SUBMITTED, Environment, check_max_steps
from labs.errors import InputError

Array = NDArray[np.float64]


def log_softmax(logits: Any, temperature: float = 1.0) -> Array:
    """`log softmax(logits / temperature)` along the last axis."""
    z = np.asarray(logits, dtype=np.float64) / temperature
    z = z - z.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


class Value(NamedTuple):
    """A function of the policy, and its gradient with respect to the logits `[families, stages, actions]`."""

    value: float
    gradient: Array


class Passes(NamedTuple):
    """One backward pass: `q` and `advantage` `[classes, steps, states, actions]`, `v` `[classes, steps, states]`."""

    q: Array
    v: Array
    advantage: Array


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What can be known of one policy; see `truth`.

    Attributes:
        environment, max_steps, classes: where; the task distribution as task classes.
        log_probs: `[families, stages, actions]` of the policy.
        temperature: that `log_probs` were taken at; gradients are with respect to the logits before division by it.
    """

    environment: Environment
    max_steps: int
    classes: tuple[TaskClass, ...]
    log_probs: Array
    temperature: float = 1.0

    @property
    def probabilities(self) -> Array:
        """`[families, stages, actions]`."""
        return np.exp(self.log_probs)

    @cached_property
    def family_weights(self) -> Array:
        """Share of each family in the task distribution, `[families]`."""
        return _family_weights(self.classes, len(self.environment.families))

    @cached_property
    def occupancy(self) -> Array:
        """`[families, steps, states]`: probability that decision t is taken in this state, in a task of this family."""
        environment, stage_of = self.environment, list(self.environment.stage_of)
        out = np.zeros((len(environment.families), self.max_steps, len(environment.states)))
        out[:, 0, 0] = 1.0
        move = _moves(environment)
        acting = self.probabilities[:, stage_of]
        for t in range(1, self.max_steps):
            out[:, t] = np.einsum("fs,fsa,sau->fu", out[:, t - 1], acting, move)
        return out

    @property
    def visits(self) -> Array:
        """`[families, stages]`: expected number of decisions at each row of the table in one episode of the family."""
        out = np.zeros(self.environment.policy_shape[:2])
        for s, stage in enumerate(self.environment.stage_of):
            out[:, stage] += self.occupancy[:, :, s].sum(axis=1)
        return out

    @cached_property
    def decisions(self) -> Passes:
        """Q, V and advantage of every decision under the score, per task class."""
        return self._backward(self._score_reward())

    @cached_property
    def objective(self) -> Value:
        """J, the expected score of a task, and its gradient."""
        return self._value(self.decisions)

    @cached_property
    def success(self) -> Value:
        """Probability of a right submission, and its gradient; equal to J where no action has a cost."""
        return self._value(self._backward(self._score_reward(costs=False)))

    @cached_property
    def row_values(self) -> Array:
        """`[families, stages]`: expected score still to come, given that the agent sees this row; 0 where it never is.

        The best table of values that a critic over (family, stage) can have: V averaged over the states, decision
        numbers and task classes that look the same.
        """
        total = np.zeros(self.environment.policy_shape[:2])
        for c, own in enumerate(self.classes):
            share = own.probability / self.family_weights[own.family]
            ahead = share * (self.occupancy[own.family] * self.decisions.v[c]).sum(axis=0)
            np.add.at(total[own.family], list(self.environment.stage_of), ahead)
        return np.divide(total, self.visits, out=np.zeros_like(total), where=self.visits > 0)

    @property
    def entropy(self) -> Array:
        """Entropy of every row in nats, `[families, stages]`."""
        return np.asarray(-(self.probabilities * self.log_probs).sum(axis=-1))

    @cached_property
    def trajectory_entropy(self) -> Value:
        """Expected sum of the entropies of the rows that an episode visits, and its gradient (visitation included).

        The policy's own reward -log pi is held fixed in the gradient: its derivative has expectation 0.
        """
        return self.additive(-self.log_probs)

    def kl(self, other: Any) -> Array:
        """`KL(this, other)` of every row in nats, `[families, stages]`; `other` is a `Truth` or a table of logits."""
        return np.asarray((self.probabilities * (self.log_probs - _log_probs(other))).sum(axis=-1))

    def trajectory_kl(self, other: Any) -> Value:
        """`KL` between the distributions of whole episodes under this and the other policy, and its gradient.

        Tasks and tools are the same on both sides, so it is the expected sum of the rows' KL. The gradient is that of
        the first argument (reverse KL, the one that a reward of -log(pi / other) descends).
        """
        return self.additive(self.log_probs - _log_probs(other))

    def additive(self, reward: Any) -> Value:
        """Expected sum over an episode of `reward[family, stage, action]`, and its gradient at fixed `reward`."""
        table = np.asarray(reward, dtype=np.float64)
        if table.shape != self.environment.policy_shape:
            raise InputError(f"the reward has shape {table.shape}, it must be {self.environment.policy_shape}")
        seen = table[:, list(self.environment.stage_of)]
        return self._value(self._backward(np.stack([seen[c.family] for c in self.classes])))

    @cached_property
    def kinds(self) -> Kinds:
        """Every trajectory, see `Kinds`."""
        return kinds(self.environment, self.classes, self.max_steps)

    @cached_property
    def optimal_baseline(self) -> Array:
        """`[families]`: the constant b that minimises the variance of `(R - b) grad log pi(trajectory)`.

        `b = E[|S|^2 R] / E[|S|^2]` with S the score function of the whole trajectory (Weaver and Tao 2001).
        """
        found = []
        for f in range(len(self.environment.families)):
            weight, reward, scores = self._family(f)
            squares = weight * (scores**2).sum(axis=1)
            found.append(squares @ reward / squares.sum())
        return np.array(found)

    def reinforce(self, family: int, baseline: float = 0.0) -> tuple[Array, Array]:
        """Mean `[D]` and covariance `[D, D]` of `(R - baseline) S` for one episode, D = stages * actions."""
        weight, reward, scores = self._family(family)
        terms = (reward - baseline)[:, None] * scores
        mean = weight @ terms
        return mean, (terms.T * weight) @ terms - np.outer(mean, mean)

    def equal_groups(self, n: int) -> Array:
        """`[classes]`: probability that all n rewards of a group are equal, so that it carries no contrast."""
        shares = []
        for c, own in enumerate(self.classes):
            weight = self.kinds.probability(self.log_probs)[own.family]
            _, inverse = np.unique(self.kinds.reward[c], return_inverse=True)
            shares.append((np.bincount(inverse, weights=weight) ** n).sum())
        return np.array(shares)

    def _family(self, family: int) -> tuple[Array, Array, Array]:
        """Weights, rewards and score functions of every (task class, trajectory) of a family."""
        weight = self.kinds.probability(self.log_probs)[family]
        scores = self.kinds.scores(self.log_probs[family]).reshape(len(weight), -1) / self.temperature
        own = [(i, c.probability) for i, c in enumerate(self.classes) if c.family == family]
        shares = np.array([p for _, p in own]) / self.family_weights[family]
        rewards = np.concatenate([self.kinds.reward[i] for i, _ in own])
        return np.concatenate([p * weight for p in shares]), rewards, np.concatenate([scores for _ in own])

    def _score_reward(self, costs: bool = True) -> Array:
        environment = self.environment
        cost = np.array([environment.costs.get(a, 0.0) for a in environment.actions]) * costs
        out = np.tile(-cost, (len(self.classes), len(environment.states), 1))
        for c, own in enumerate(self.classes):
            for s, row in enumerate(environment.outcomes):
                for a, cell in enumerate(row):
                    out[c, s, a] += sum(o.probability for o in cell if o.end == SUBMITTED and o.state in own.right)
        return out

    def _backward(self, reward: Array) -> Passes:
        """`reward` `[classes, states, actions]`."""
        acting = self.probabilities[:, list(self.environment.stage_of)][[c.family for c in self.classes]]
        move = _moves(self.environment)
        q = np.empty((len(self.classes), self.max_steps, *reward.shape[1:]))
        v = np.zeros((len(self.classes), self.max_steps + 1, reward.shape[1]))
        for t in reversed(range(self.max_steps)):
            q[:, t] = reward + np.einsum("sau,cu->csa", move, v[:, t + 1])
            v[:, t] = (acting * q[:, t]).sum(axis=-1)
        return Passes(q, v[:, :-1], q - v[:, :-1, :, None])

    def _value(self, passes: Passes) -> Value:
        stage_of = list(self.environment.stage_of)
        gradient = np.zeros(self.environment.policy_shape)
        total = 0.0
        for c, own in enumerate(self.classes):
            total += own.probability * float(passes.v[c, 0, 0])
            flow = np.einsum("ts,tsa->sa", self.occupancy[own.family], passes.advantage[c])
            flow *= self.probabilities[own.family, stage_of]
            np.add.at(gradient[own.family], stage_of, own.probability * flow)
        return Value(total, gradient / self.temperature)


def truth(
    environment: Environment,
    logits: Any,
    *,
    operands: tuple[int, int] | None = None,
    max_steps: int | None = None,
    temperature: float = 1.0,
) -> Truth:
    """Exact objects of the policy `softmax(logits / temperature)`.

    Args:
        environment: where it acts.
        logits: `[families, stages, actions]`, anything that numpy can read.
        operands: range of the task distribution, the training one when None.
        max_steps: the environment's own when None.
        temperature: above 0.

    Raises:
        InputError: another shape, a logit that is not finite, `max_steps` below 1, a temperature not above 0.
    """
    table = np.asarray(logits, dtype=np.float64)
    if table.shape != environment.policy_shape:
        raise InputError(
            f"the policy has shape {table.shape}, environment {environment.name} needs {environment.policy_shape}"
        )
    if not np.isfinite(table).all():
        raise InputError("the policy has a logit that is not finite")
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}; it must be above 0")
    steps = environment.max_steps if max_steps is None else max_steps
    check_max_steps(steps)
    low_high = environment.train_operands if operands is None else operands
    return Truth(
        environment=environment,
        max_steps=steps,
        classes=tuple(task_classes(environment, low_high)),
        log_probs=log_softmax(table, temperature),
        temperature=temperature,
    )


def ascend(environment: Environment, success: float, *, step: float = 0.1, limit: int = 2000, **where: Any) -> Truth:
    """The first policy on the path of steepest ascent from the uniform one that succeeds with this probability.

    Every step goes `step` along the gradient of the success probability: training without noise, at a speed that does
    not depend on how flat it is. `where` is `operands` and `max_steps` of `truth`.

    Raises:
        InputError: the path does not get there within `limit` steps.
    """
    logits = np.zeros(environment.policy_shape)
    for _ in range(limit + 1):
        found = truth(environment, logits, **where)
        size = float(np.linalg.norm(found.success.gradient))
        if found.success.value >= success:
            return found
        logits = logits + step * found.success.gradient / max(size, 1e-300)
    raise InputError(
        f"steepest ascent in environment {environment.name} does not reach success {success} in {limit} steps of {step}"
    )


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """Every possible trajectory within the step limit, once; K of them, none of which depends on a policy.

    Attributes:
        paths: as `labs.enumeration.trajectories` lists them.
        counts: `[K, stages, actions]`, how often the trajectory chose this action at this row.
        outcome: `[K]`, probability of the random outcomes given the actions.
        decisions: `[K]`, how many there were.
        reward: `[classes, K]`, the score in a task of each class.
    """

    paths: tuple[Trajectory, ...]
    counts: Array
    outcome: Array
    decisions: NDArray[np.int64]
    reward: Array

    def __len__(self) -> int:
        return len(self.paths)

    def probability(self, log_probs: Any) -> Array:
        """`[..., K]` for a policy, or a stack of them, with log-probabilities `[..., stages, actions]`."""
        flat = np.asarray(log_probs, dtype=np.float64).reshape(*np.shape(log_probs)[:-2], -1)
        return np.asarray(np.exp(flat @ self.counts.reshape(len(self), -1).T) * self.outcome)

    def scores(self, log_probs: Any) -> Array:
        """`[K, stages, actions]`: gradient of the trajectory's log-probability at one family's table."""
        return np.asarray(self.counts - self.counts.sum(axis=-1, keepdims=True) * np.exp(log_probs))


def kinds(environment: Environment, classes: Sequence[TaskClass], max_steps: int) -> Kinds:
    """Enumerate the trajectories of an environment, with their scores in every task class."""
    paths = tuple(trajectories(environment, max_steps))
    counts = np.zeros((len(paths), *environment.policy_shape[1:]))
    cost = [environment.costs.get(a, 0.0) for a in environment.actions]
    reward = np.empty((len(classes), len(paths)))
    for k, path in enumerate(paths):
        for state, action in zip(path.states, path.actions, strict=True):
            counts[k, environment.stage_of[state], action] += 1
        paid = sum(cost[a] for a in path.actions)
        for c, own in enumerate(classes):
            reward[c, k] = float(path.end == SUBMITTED and path.last in own.right) - paid
    return Kinds(
        paths=paths,
        counts=counts,
        outcome=np.array([p.probability for p in paths]),
        decisions=np.array([len(p.actions) for p in paths]),
        reward=reward,
    )


def multisets(count: int, n: int) -> NDArray[np.int64]:
    """All ways to take n things of `count` kinds, as counts `[comb(n + count - 1, n), count]`."""
    total = comb(n + count - 1, n)
    picks = np.fromiter(
        (x for pick in combinations_with_replacement(range(count), n) for x in pick), dtype=np.int64, count=total * n
    ).reshape(total, n)
    out = np.zeros((total, count), dtype=np.int64)
    np.add.at(out, (np.arange(total)[:, None], picks), 1)
    return out


def probability(counts: NDArray[np.int64], chances: Array) -> Array:
    """Multinomial probability of counts `[M, C]`."""
    factorial = np.array([lgamma(k + 1) for k in range(int(counts.sum(axis=1).max()) + 1)])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(counts > 0, counts * np.log(chances), 0.0)
    n = counts.sum(axis=1)
    return np.asarray(np.exp(factorial[n] - factorial[counts].sum(axis=1) + logs.sum(axis=1)))


def _moves(environment: Environment) -> Array:
    """`[states, actions, states]`: probability of going on in the next state."""
    move = np.zeros((len(environment.states), len(environment.actions), len(environment.states)))
    for s, row in enumerate(environment.outcomes):
        for a, cell in enumerate(row):
            for outcome in cell:
                if outcome.end is None:
                    move[s, a, outcome.state] += outcome.probability
    return move


def _family_weights(classes: Sequence[TaskClass], families: int) -> Array:
    out = np.zeros(families)
    np.add.at(out, [c.family for c in classes], [c.probability for c in classes])
    return out


def _log_probs(other: Any) -> Array:
    return other.log_probs if isinstance(other, Truth) else log_softmax(other)
