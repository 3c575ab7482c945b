r"""Training on data that is a fixed number of updates old, for many seeds at once.

The learner of `labs.classes` with one thing changed: update u is made from episodes of the policy after update
`max(0, u - lag)`. Whole episodes are drawn by kind, seeds are the leading axis, and one gradient step is taken on every
batch, so that what a rule for the denominator does is a factor c on every token:

    gradient = 1/N sum_i A_i sum_t c_it grad log pi(a_it)          r = pi / mu, the current over the behaviour policy

| rule | c | in `labs.async_trainer` |
|---|---|---|
| none | 1 | denominator `none` or `recomputed`, no correction |
| token | min(C, r_t) | `proximal` with truncated weights by token |
| sequence | min(C, prod_t r_t) | `proximal` with truncated weights by sequence |
| behaviour | r_t, 0 where PPO clips around mu | `behaviour` |
| log_linear | min(C, r_t^a) r_t^(1-a), 0 where PPO clips around mu^(1-a) pi^a | `log_linear` |

At lag d, a is d / (d + 1). With one step on a batch the proximal policy is the current one, so that decoupled PPO is
its weight alone.

Actions and rewards age apart: `reward_lag` scores the episodes with the target of that many updates ago, where the
target drifts: every `drift` updates the right answers of the families change places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from labs.classes import Law, Learner, advantages, count_kinds, direction
from labs.errors import InputError, one_of
from labs.exact import Array, log_softmax

RULES = ("none", "token", "sequence", "behaviour", "log_linear")


@dataclass(frozen=True, kw_only=True)
class Lagged:
    """What is learnt, how old the data is, and what is done about it.

    Attributes:
        learner: of `labs.classes`.
        lag: updates between the policy that samples and the one that is updated.
        rule: one of `RULES`.
        threshold: C, where weights are truncated.
        clip: PPO's bound on both sides; dual clip at 3 for negative advantages, as in verl.
        drift: the target changes every that many updates; None never.
        reward_lag: updates by which the scores' target is old.

    Raises:
        InputError: an unknown rule, a negative lag, a threshold or clip that is not positive, a drift below 1, or a
            drift in an environment with one family.
    """

    learner: Learner
    lag: int = 0
    rule: str = "none"
    threshold: float = 2.0
    clip: float = 0.2
    drift: int | None = None
    reward_lag: int = 0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise one_of("the rule", self.rule, RULES)
        if self.lag < 0 or self.reward_lag < 0:
            raise InputError(f"lag is {self.lag} and reward_lag {self.reward_lag}; both must be at least 0")
        if not self.threshold > 0 or not self.clip > 0:
            raise InputError(f"threshold is {self.threshold} and clip {self.clip}; both must be above 0")
        if self.drift is not None and (self.drift < 1 or len(self.learner.environment.families) < 2):
            raise InputError(f"drift is {self.drift}; it must be at least 1, in an environment with several families")

    @cached_property
    def law(self) -> Law:
        return Law(self.learner)

    @cached_property
    def turned(self) -> Law:
        """The same trajectories under the other target: every family has the right answer of the next one."""
        environment = self.learner.environment
        names, rights = list(environment.families), list(environment.families.values())
        other = dict(zip(names, rights[1:] + rights[:1], strict=True))
        return Law(replace(self.learner, environment=replace(environment, families=other)))

    def target(self, update: int) -> Law:
        """The law that holds at this update; before the first one it is the first one's."""
        if self.drift is None or (max(0, update) // self.drift) % 2 == 0:
            return self.law
        return self.turned


def factors(lagged: Lagged, current: Array, behaviour: Array, age: int) -> tuple[Array, Array]:
    """The factor c of every token for advantages of at least 0, and below 0: `[..., F, 1 or K, S, A]` each.

    Args:
        lagged: its rule.
        current, behaviour: log-probabilities `[..., F, S, A]`.
        age: updates between the two.
    """
    apart = (current - behaviour)[..., None, :, :]
    if lagged.rule == "none":
        return np.ones_like(apart), np.ones_like(apart)
    if lagged.rule == "token":
        weight = np.minimum(np.exp(apart), lagged.threshold)
        return weight, weight
    if lagged.rule == "sequence":
        flat = (current - behaviour).reshape(*current.shape[:-2], -1)
        weight = np.minimum(np.exp(flat @ lagged.law.counts.T), lagged.threshold)[..., None, None]
        return weight, weight
    share = age / (age + 1) if lagged.rule == "log_linear" else 0.0
    weight = np.minimum(np.exp(share * apart), lagged.threshold) if share else np.ones_like(apart)
    ratio = np.exp((1 - share) * apart)
    full = weight * ratio
    return (
        np.where(ratio > 1 + lagged.clip, 0.0, full),
        np.where((ratio < 1 - lagged.clip) | (ratio > 3.0), 0.0, full),
    )


def gradient(lagged: Lagged, counts: Array, advantage: Array, current: Array, behaviour: Array, age: int) -> Array:
    """Update direction `[..., F, S, A]` of one batch, the entropy bonus of the rows included.

    Args:
        lagged: the rule.
        counts: `[..., G, K]`, episodes of every kind in every group.
        advantage: `[..., G, K]`.
        current, behaviour: log-probabilities `[..., F, S, A]`.
        age: updates between the two.
    """
    law, families = lagged.law, lagged.learner.families
    shape = (*current.shape[:-2], counts.shape[-1])
    pushes = []
    for signed in (np.maximum(advantage, 0.0), np.minimum(advantage, 0.0)):
        push = np.zeros(shape)
        for g, f in enumerate(families):
            push[..., f, :] += counts[..., g, :] * signed[..., g, :]
        pushes.append(push)
    chosen = np.zeros(current.shape)
    for push, factor in zip(pushes, factors(lagged, current, behaviour, age), strict=True):
        # A factor that does not depend on the kind is taken out of the sum over kinds.
        if factor.shape[-3] == 1:
            chosen += (push @ law.counts).reshape(current.shape) * factor[..., 0, :, :]
        else:
            chosen += ((push * factor[..., 0, 0]) @ law.counts).reshape(current.shape)
    return direction(lagged.learner, chosen, current)


def expected(lagged: Lagged, current: Array, behaviour: Array, age: int) -> Array:
    """Exact expectation `[F, S, A]` of a batch's direction with advantages R - b, without the entropy bonus.

    b is what the behaviour policy scores on average in the family, the expectation of a leave-one-out baseline. With
    `current` for both policies it is the true gradient of the mean score over families, whatever b is.

    Args:
        lagged: the rule.
        current, behaviour: log-probabilities `[F, S, A]`.
        age: updates between the two.
    """
    law, learner = lagged.law, replace(lagged.learner, entropy_coefficient=0.0)
    plain = replace(lagged, learner=learner)
    chance = law.probabilities(behaviour)[learner.families] * learner.group_size
    total = np.zeros(current.shape)
    means = [sum(s * (chance[g] @ law.kinds.reward[c]) for s, c in zip(law.shares[f], law.own[f], strict=True))
             / learner.group_size for g, f in enumerate(learner.families)]  # fmt: skip
    # The direction is linear in the advantages of either sign, so that task classes can be added up one by one.
    for rank in range(max(map(len, law.own))):
        advantage, counts = np.zeros(chance.shape), np.zeros(chance.shape)
        for g, f in enumerate(learner.families):
            if rank < len(law.own[f]):
                counts[g] = chance[g] * law.shares[f][rank]
                advantage[g] = law.kinds.reward[law.own[f][rank]] - means[g]
        total += gradient(plain, counts, advantage, current, behaviour, age)
    return total


def train(lagged: Lagged, seeds: Sequence[int], updates: int = 100) -> tuple[Array, Array]:
    """One policy a seed, from uniform.

    Args:
        lagged: what, how old, which rule.
        seeds: each with a generator of its own; the same seed draws the same numbers whatever lag and rule are, so
            that two settings can be compared seed by seed.
        updates: how many.

    Returns:
        Logits before every update and after the last, `[updates + 1, seeds, F, S, A]`, and the exact success
        probability under the target of that update, `[seeds, updates + 1]`.
    """
    learner = lagged.learner
    families, generators = np.array(learner.families), [np.random.default_rng(seed) for seed in seeds]
    shape = (len(seeds), *learner.environment.policy_shape)
    logits = np.zeros((updates + 1, *shape))
    curve = np.empty((len(seeds), updates + 1))
    draws = np.empty((len(seeds), len(families), learner.group_size))
    past = deque([log_softmax(logits[0])], maxlen=lagged.lag + 1)
    for update in range(updates):
        current, behaviour = past[-1], past[0]
        target = lagged.target(update - lagged.reward_lag)
        curve[:, update] = lagged.target(update).success(current)
        tasks = np.array([[target.own[f][0] for f in families]] * len(seeds))
        several = [(g, target.own[f], np.cumsum(target.shares[f])[:-1]) for g, f in enumerate(families)]
        for s, generator in enumerate(generators):
            generator.random(out=draws[s])
            for g, own, edges in several:
                if len(own) > 1:
                    tasks[s, g] = own[int((generator.random() >= edges).sum())]
        counts = count_kinds(target.probabilities(behaviour)[:, families], draws)
        advantage = advantages(counts, target.kinds.reward[tasks], learner.normalise)
        step = gradient(lagged, counts, advantage, current, behaviour, min(update, lagged.lag))
        logits[update + 1] = logits[update] + learner.learning_rate * step
        past.append(log_softmax(logits[update + 1]))
    curve[:, -1] = lagged.target(updates).success(past[-1])
    return logits, curve
