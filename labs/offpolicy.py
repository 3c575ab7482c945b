r"""What a gradient made from another policy's episodes expects, and how noisy it is: exact, without sampling.

Four policies have a part in one step and are never the same thing: the *behaviour* mu sampled the tokens, the step
starts from the *old* one, the *current* pi is trained, the *reference* is held on to by a KL. Three ratios follow:
current / old is the loss's own, old / behaviour the correction's, current / behaviour the importance ratio, their
product. With S the score function of a trajectory, R its score and b a constant,

    truth       grad J = E_pi[(R - b) S] = E_mu[w (R - b) S]                 w = prod_t pi(a_t) / mu(a_t)
    a step      E_mu[sum_t c_t (R - b) grad log pi(a_t)]                     c_t: what the step makes of it
    no support  E_mu[w (R - b) S] = grad J - E_pi[(R - b) S 1(mu never does this)]
    selection   E_pi[(R - b) S | kept] = grad E_pi[R | kept]                 b = E_pi[R | kept]

`Ratios` are the laws of the first three; `Behind` sends every possible row through `labs.step` and averages; `support`
and `selection` are the last two lines. Families are equally many in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from labs.correction import RolloutCorrectionConfig
from labs.errors import InputError
from labs.exact import Array, Truth
from labs.exact_rows import Rows
from labs.policy import Policy
from labs.step import StepConfig, loss, stages


@dataclass(frozen=True)
class Ratios:
    """Law of a ratio under the behaviour policy.

    Attributes:
        value: `[M]` ascending, without doubles.
        chance: `[M]`, sums to 1.
    """

    value: Array
    chance: Array

    @classmethod
    def of(cls, value: Array, chance: Array) -> Ratios:
        """From any list of values with their chances; those that agree to 12 digits are one."""
        flat, weight = value.ravel(), chance.ravel()
        kept = weight > 0
        known, inverse = np.unique(np.round(flat[kept], 12), return_inverse=True)
        return cls(known, np.bincount(inverse.ravel(), weights=weight[kept]).astype(np.float64))

    @classmethod
    def sequence(cls, target: Truth, behaviour: Truth) -> Ratios:
        """Of whole trajectories: the product of the token ratios; its mean is 1."""
        mass = behaviour.family_weights[:, None] * behaviour.kinds.probability(behaviour.log_probs)
        apart = (target.log_probs - behaviour.log_probs).reshape(len(mass), -1)
        return cls.of(np.exp(apart @ behaviour.kinds.counts.reshape(mass.shape[1], -1).T), mass)

    @classmethod
    def token(cls, target: Truth, behaviour: Truth) -> Ratios:
        """Of single decisions, each as often as the behaviour policy takes it; the mean is 1."""
        visits = behaviour.family_weights[:, None] * behaviour.visits
        mass = visits[:, :, None] * behaviour.probabilities / visits.sum()
        return cls.of(np.exp(target.log_probs - behaviour.log_probs), mass)

    @property
    def mean(self) -> float:
        return float(self.chance @ self.value)

    @property
    def chi2(self) -> float:
        """`E[w^2] - 1`: the variance of the ratio, verl's `chi2_seq` and `chi2_token` without sampling error."""
        return float(self.chance @ self.value**2) - 1.0

    @property
    def effective(self) -> float:
        """`E[w]^2 / E[w^2]`: the share of the rows that still speak (Kish)."""
        return self.mean**2 / (self.chi2 + 1.0)

    @property
    def largest(self) -> float:
        return float(self.value[-1])

    def tail(self, x: float) -> float:
        """`P(w > x)`."""
        return float(self.chance[self.value > x].sum())

    def carried(self, x: float) -> float:
        """`E[w 1(w > x)]`: what share of the target's probability lies where the ratio exceeds x."""
        above = self.value > x
        return float(self.chance[above] @ self.value[above])

    def draw(self, generator: np.random.Generator, n: int) -> Array:
        """Independent ratios, n of them."""
        return generator.choice(self.value, size=n, p=self.chance / self.chance.sum())


class Estimate(NamedTuple):
    """A gradient `[families, stages, actions]` in expectation beside the true one.

    `variance` is the trace of the covariance of a batch with one episode of each family, `kept` the share of episodes
    with a weight other than 0.
    """

    mean: Array
    truth: Array
    variance: float = 0.0
    kept: float = 1.0

    @property
    def relative_bias(self) -> float:
        """`|mean - truth| / |truth|`."""
        return float(np.linalg.norm(self.mean - self.truth) / np.linalg.norm(self.truth))

    @property
    def cosine(self) -> float:
        """Between mean and truth; 0 where the mean is."""
        size = float(np.linalg.norm(self.mean) * np.linalg.norm(self.truth))
        return float((self.mean * self.truth).sum() / size) if size > 0 else 0.0

    @property
    def scale(self) -> float:
        """`<mean, truth> / |truth|^2`."""
        return float((self.mean * self.truth).sum() / (self.truth**2).sum())

    def error(self, batches: float) -> float:
        """Mean squared error of the mean of so many batches, over `|truth|^2`."""
        square = float(np.linalg.norm(self.mean - self.truth)) ** 2
        return (square + self.variance / batches) / float((self.truth**2).sum())


@dataclass(frozen=True, kw_only=True)
class Behind:
    """Every possible row of a step whose data another policy sampled; build with `Behind.of`.

    Attributes:
        rows: see `labs.exact_rows.Rows`; only their columns are used.
        baseline: b, a constant.
    """

    rows: Rows
    baseline: float

    @classmethod
    def of(cls, current: Truth, old: Truth, behaviour: Truth, baseline: float | None = None) -> Behind:
        """Write out the rows; `baseline` is what the behaviour policy scores on average when None.

        That is the expectation of a group's leave-one-out baseline, so that `Estimate.mean` is that of `rloo` for
        every correction that keeps the rows.
        """
        environment = current.environment
        step = StepConfig(correction=RolloutCorrectionConfig(rollout_is=None))
        new, start, past = (Policy.of(environment, t.log_probs) for t in (current, old, behaviour))
        rows = Rows.of(environment, new, step, old=start, behaviour=past, max_steps=current.max_steps)
        return cls(rows=rows, baseline=behaviour.objective.value if baseline is None else baseline)

    def estimate(self, step: StepConfig) -> Estimate:
        """One step's gradient under these settings; advantages are `score - baseline` on every token that is left.

        Args:
            step: its correction, masks, loss and clips count; the estimator is left out, and the rows are aggregated
                by `seq-mean-token-sum` whatever it says, in which no row depends on another.

        Raises:
            InputError: weights that are normalised over the batch; whatever the step refuses.
        """
        if step.correction is not None and step.correction.rollout_is_batch_normalize:
            raise InputError("rollout_is_batch_normalize ties rows together, so that they have no weights of their own")
        config = replace(step, loss_agg_mode="seq-mean-token-sum")
        weights = self._weights(config)
        rows, truth = self.rows, self.rows.truth
        families, shape = len(truth.family_weights), truth.environment.policy_shape
        where = np.maximum(rows.place, 0)
        chosen = np.where(rows.place >= 0, np.take_along_axis(weights, where, axis=1), 0.0)
        terms = np.einsum("rh,rhd->rd", chosen, rows.scores)
        mass = rows.chance * rows.shares[rows.task_class]
        mean, variance = np.zeros((families, terms.shape[1])), 0.0
        for f in range(families):
            own = rows.family == f
            mean[f] = mass[own] @ terms[own]
            variance += float(mass[own] @ (terms[own] ** 2).sum(axis=1) - mean[f] @ mean[f])
        kept = float(mass @ (chosen != 0).any(axis=1)) / families
        # Families weigh equally in the batch, whatever they do in the task distribution.
        scale = 1 / families / truth.family_weights
        target = truth.objective.gradient * scale[:, None, None]
        return Estimate(mean.reshape(shape) / families, target, variance / families**2, kept)

    def _weights(self, config: StepConfig) -> Array:
        """`[R, T]`: `-d loss / d log_prob` of every token in a batch of this row alone."""
        batch = next(b for name, b in stages(self.rows.batch, config) if name == "mask")
        mask = batch["response_mask"].to(torch.float64)
        advantages = (batch["scores"].to(torch.float64) - self.baseline)[:, None] * mask
        log_prob = batch["log_prob"].detach().clone().requires_grad_()
        value, _ = loss(batch.replace(advantages=advantages), log_prob, config)
        (gradient,) = torch.autograd.grad(value, log_prob)
        return np.asarray(-gradient.double().numpy()) * batch.rows


class _Term(NamedTuple):
    """All trajectories of one task class: its share and family, chances under the policy, scores, score functions."""

    share: float
    family: int
    chance: Array
    reward: Array
    scores: Array


def _terms(target: Truth) -> Iterator[_Term]:
    chance = target.kinds.probability(target.log_probs)
    for c, own in enumerate(target.classes):
        scores = target.kinds.scores(target.log_probs[own.family]) / target.temperature
        yield _Term(own.probability, own.family, chance[own.family], target.kinds.reward[c], scores)


@dataclass(frozen=True, kw_only=True)
class Support:
    """Data of a behaviour policy that never takes some actions.

    Attributes:
        missing: probability under the target of a trajectory that cannot occur.
        missing_score: what those contribute to J.
        weighted: `E_mu[w (R - b) S]` with exact weights.
        unweighted: `E_mu[(R - b) S]`, as if the target had sampled.
        unrepairable: `|grad P_pi(missing)| / 2 / |grad J|`. Let the missing trajectories all score 0, or all 1: the
            data are the same and the gradients are `grad P(missing)` apart, so that whatever is made of the data is
            wrong by half of that in one of the two worlds.
    """

    missing: float
    missing_score: float
    weighted: Estimate
    unweighted: Estimate
    unrepairable: float


def support(target: Truth, behaviour: Array, baseline: float = 0.0) -> Support:
    """Exact consequences of sampling with the probabilities `behaviour` `[families, stages, actions]`, zeros allowed.

    Raises:
        InputError: another shape, or rows that are no distribution.
    """
    table = np.asarray(behaviour, dtype=np.float64)
    if table.shape != target.log_probs.shape or (table < 0).any() or not np.allclose(table.sum(axis=-1), 1.0):
        raise InputError(f"behaviour has shape {table.shape}; it must be distributions {target.log_probs.shape}")
    counts = target.kinds.counts.reshape(len(target.kinds), -1)
    gone = ((counts > 0) @ (table == 0).reshape(len(table), -1).T.astype(np.float64) > 0).T
    safe = np.where(table > 0, table, 1.0)
    acting = np.where(gone, 0.0, target.kinds.probability(np.log(safe)))
    shape = target.environment.policy_shape
    weighted, plain, lost = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    missing = score = 0.0
    for term in _terms(target):
        f, out = term.family, gone[term.family]
        centred = term.reward - baseline
        weighted[f] += term.share * np.tensordot(term.chance * ~out * centred, term.scores, 1)
        plain[f] += term.share * np.tensordot(acting[f] * centred, term.scores, 1)
        lost[f] += term.share * np.tensordot(term.chance * out, term.scores, 1)
        missing += term.share * float(term.chance @ out)
        score += term.share * float((term.chance * out) @ term.reward)
    truth = target.objective.gradient
    return Support(
        missing=missing,
        missing_score=score,
        weighted=Estimate(weighted, truth),
        unweighted=Estimate(plain, truth),
        unrepairable=float(np.linalg.norm(lost) / np.linalg.norm(truth) / 2),
    )


def top_k(target: Truth, k: int) -> Array:
    """The policy's k likeliest actions of every row, renormalised; `[families, stages, actions]`.

    Ties go to the first action.
    """
    table = target.probabilities
    order = np.argsort(-table, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    return without(target, rank >= k)


def without(target: Truth, never: NDArray[np.bool_]) -> Array:
    """The policy with these actions at probability 0, renormalised; `never` broadcasts over the table."""
    table = np.where(never, 0.0, target.probabilities)
    return np.asarray(table / table.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Training on the episodes that a rule keeps.

    Attributes:
        kept: probability of being kept.
        kept_decisions, decisions: mean number of decisions of what is trained, and of what was played.
        kept_score, score: mean score likewise.
        dropped: dropped and replaced from the stream of tasks, baseline the mean score of what is trained: the
            gradient of `E[R | kept]`.
        failed: trained with score 0 instead: the gradient of `E[R 1(kept)]`.
    """

    kept: float
    kept_decisions: float
    decisions: float
    kept_score: float
    score: float
    dropped: Estimate
    failed: Estimate


def selection(target: Truth, keep: Array) -> Selection:
    """Exact shift of the training distribution by a probability `keep` `[K]` of keeping each trajectory.

    Raises:
        InputError: nothing is kept.
    """
    terms = list(_terms(target))
    kept = sum(t.share * float(t.chance @ keep) for t in terms)
    if not kept > 0:
        raise InputError("the rule keeps no trajectory that the policy takes")
    decisions = target.kinds.decisions
    trained = sum(t.share * float((t.chance * keep) @ t.reward) for t in terms) / kept
    dropped, failed = (np.zeros(target.environment.policy_shape) for _ in range(2))
    for t in terms:
        dropped[t.family] += t.share / kept * np.tensordot(t.chance * keep * (t.reward - trained), t.scores, 1)
        failed[t.family] += t.share * np.tensordot(t.chance * keep * t.reward, t.scores, 1)
    truth = target.objective.gradient
    return Selection(
        kept=kept,
        kept_decisions=sum(t.share * float((t.chance * keep) @ decisions) for t in terms) / kept,
        decisions=sum(t.share * float(t.chance @ decisions) for t in terms),
        kept_score=trained,
        score=target.objective.value,
        dropped=Estimate(dropped, truth),
        failed=Estimate(failed, truth),
    )
