"""Which finished groups a training step takes: group filter, refill credits, staleness (verl's V1 replay buffer).

A group is one prompt with all its rollouts. verl polls a store every two seconds until a step can be served; here
`sample` returns None when it would sleep, and keeps what it has counted so far for the next call.

Oldest groups go first; ties keep the order in which groups were added (in verl they depend on the hash seed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labs.errors import AssertedError, InputError, one_of
from labs.metrics import Metric

STATUSES = ("pending", "running", "finished", "failure")
STRATEGIES = ("drop", "wait")


class SamplingError(InputError, RuntimeError):
    """A step that can never be served: verl raises `RuntimeError` there."""


@dataclass(kw_only=True)
class Group:
    """One prompt and its rollouts.

    Attributes:
        uid: its name.
        step: the training step at which it was handed out; its version span at step s is `s - step + 1`.
        status: pending, running, finished (all sessions fine) or failure (at least one failed).
        scores: sum of `rm_scores` of each rollout, before KL.
        extra: further numbers a verifier reported, each one a rollout.
        payload: whatever the caller wants back.
    """

    uid: str
    step: int
    status: str = "finished"
    scores: Sequence[float] = ()
    extra: Mapping[str, Sequence[float]] = field(default_factory=dict)
    payload: Any = None


@dataclass(frozen=True)
class Sample:
    """One served step: groups in order of age, verl's metrics, and value -> number of filtered groups."""

    groups: tuple[Group, ...]
    metrics: dict[str, float]
    filtered: dict[float, int]


def shared_value(values: Sequence[float]) -> float | None:
    """The value all rollouts of a group share, or None where the group carries signal (or has one rollout).

    "Share" is `numpy.std(values) == 0.0` exactly: 0/1 rewards behave, but three scores of 0.1 have a standard
    deviation of 1.4e-17 and stay.
    """
    if len(values) > 1 and float(np.std(np.asarray(values, dtype=float))) == 0.0:
        return float(values[0])
    return None


def carries_signal(values: Any, index: Any) -> Any:
    """[B] bool numpy array: False on rows of a group whose values are all equal (see `shared_value`)."""
    numbers, labels = np.asarray(values, dtype=float), np.asarray(index)
    if numbers.shape != labels.shape or numbers.ndim != 1:
        raise InputError(f"values {numbers.shape} and index {labels.shape} must both be [B]")
    keep = np.ones(len(numbers), dtype=bool)
    for label in dict.fromkeys(labels.tolist()):
        rows = labels == label
        keep[rows] = shared_value(numbers[rows].tolist()) is None
    return keep


class ReplayBuffer:
    """Synchronous sampling: on policy, so nothing is ever stale.

    | what | rule |
    |---|---|
    | filter | with `filter_groups_metric`, k finished groups without signal are evicted, 2k refill credits |
    | refill | credits become prompts as slots (`max_inflight_gen_batches * train_batch_size`) are free |
    | enough | no more refills; requests in flight are waited for, then surplus groups are thrown away |
    | failed groups | sampled like any other, unless `sync_refill_failed_groups`: then replaced if they are empty |

    Args:
        refill: hands out exactly n fresh prompts (adds groups to this buffer).
        max_off_policy_threshold: 1 or more, or None; ignored here, as is the strategy (drop or wait).
        filter_groups_metric: None, "reward" (the sum of rm_scores) or a name in `Group.extra`.
        train_batch_size: prompts of one batch, for the slots; needed with a filter.
        gen_batch_size: refills are rounded down to a multiple of it.
        max_inflight_gen_batches: slots in batches.
        sync_refill_failed_groups: replace groups that failed without any rollout.

    Raises:
        AssertionError: bad threshold or strategy.
        ValueError: a filter or failure refill without `refill`, or sizes that do not fit.
    """

    def __init__(
        self,
        *,
        refill: Callable[[int], None] | None = None,
        max_off_policy_threshold: int | None = 8,
        max_off_policy_strategy: str = "drop",
        filter_groups_metric: str | None = None,
        train_batch_size: int | None = None,
        gen_batch_size: int = 1,
        max_inflight_gen_batches: int = 1,
        sync_refill_failed_groups: bool = False,
    ) -> None:
        threshold = max_off_policy_threshold
        if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1):
            raise AssertedError(f"max_off_policy_threshold is {threshold!r}; it takes an integer from 1, or None")
        if max_off_policy_strategy not in STRATEGIES:
            raise AssertedError(str(one_of("max_off_policy_strategy", max_off_policy_strategy, STRATEGIES)))
        if refill is None and (filter_groups_metric is not None or sync_refill_failed_groups):
            raise InputError(
                "filter_groups_metric and sync_refill_failed_groups need refill, to replace what they evict"
            )
        self.refill = refill
        self.max_off_policy_threshold = threshold
        self.max_off_policy_strategy = max_off_policy_strategy
        self.filter_groups_metric = filter_groups_metric
        self.train_batch_size = train_batch_size
        self.gen_batch_size = gen_batch_size
        self.max_inflight_gen_batches = max_inflight_gen_batches
        self.sync_refill_failed_groups = sync_refill_failed_groups
        self._check_mode()
        self.groups: dict[str, Group] = {}
        self._begin()

    def _check_mode(self) -> None:
        if self.filter_groups_metric is not None:
            if not isinstance(self.max_inflight_gen_batches, int) or self.max_inflight_gen_batches < 1:
                raise InputError(
                    f"max_inflight_gen_batches is {self.max_inflight_gen_batches!r}; it must be at least 1"
                )
            if self.train_batch_size is None or self.gen_batch_size < 1:
                raise InputError("a group filter needs train_batch_size, and gen_batch_size of at least 1")
        if self.sync_refill_failed_groups and self.gen_batch_size != 1:
            raise InputError(f"sync_refill_failed_groups needs gen_batch_size 1, not {self.gen_batch_size}")

    def _begin(self) -> None:
        """Forget what the last step counted."""
        self._credit = 0
        self._draining = False
        self._metrics: dict[str, float] = {}
        self._filtered: Counter[float] = Counter()

    def add(self, group: Group) -> None:
        """Put a group in, or replace the one of the same uid (its status has changed)."""
        if group.status not in STATUSES:
            raise one_of(f"status of group {group.uid}", group.status, STATUSES)
        self.groups[group.uid] = group

    def sample(self, global_steps: int, batch_size: int, training: bool = True) -> Sample | None:
        """The groups of one step, taken out of the buffer, or None when it must wait for rollouts.

        Args:
            global_steps: the step that trains on them.
            batch_size: number of groups.
            training: False takes any terminal group (validation).

        Raises:
            RuntimeError: the filter's metric is missing on a finished group, or only empty failures were selected.
            ValueError: a `batch_size` below 1.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; a step needs at least 1 group")
        while True:
            stale, dead, failed = self._evict(global_steps, training)
            ready = self._ready()
            enough = len(ready) >= batch_size and self._may_sample(global_steps)
            if self._again(enough, len(stale), len(dead), len(failed), training):
                continue
            if not enough or (self._drains(training) and self._inflight()):
                return None
            chosen = sorted(ready, key=lambda g: g.step)[:batch_size]
            if training and not any(g.scores for g in chosen):
                self._only_failures()
            self._take(chosen, ready, training)
            done = Sample(tuple(chosen), self._metrics, dict(self._filtered))
            self._begin()
            return done

    def sampleable(self, global_steps: int, training: bool = True) -> int:
        """How many terminal groups could be sampled now; evicts nothing."""
        out = {uid for reason in self._reasons(global_steps, training) for uid in reason}
        return sum(1 for g in self._ready() if g.uid not in out)

    def _ready(self) -> list[Group]:
        return [g for g in self.groups.values() if g.status in ("finished", "failure")]

    def _inflight(self) -> int:
        return sum(1 for g in self.groups.values() if g.status in ("pending", "running"))

    def _drains(self, training: bool) -> bool:
        return training and self.filter_groups_metric is not None

    def _may_sample(self, global_steps: int) -> bool:
        return True

    def _dead(self) -> dict[str, float]:
        """Finished groups without signal, with the value they share."""
        metric, dead, missing = self.filter_groups_metric, {}, []
        if metric is None:
            return {}
        for group in self.groups.values():
            if group.status != "finished":
                continue
            values = group.scores if metric == "reward" else group.extra.get(metric, ())
            if not values:
                missing.append(group.uid)
            elif (shared := shared_value(values)) is not None:
                dead[group.uid] = shared
        if missing:
            raise SamplingError(f"finished groups {missing[:5]} have no {metric!r} for the group filter to read")
        return dead

    def _reasons(self, global_steps: int, training: bool) -> tuple[set[str], dict[str, float], set[str]]:
        """Stale, dead and failed groups to evict; the three may overlap."""
        if not training:
            return set(), {}, set()
        failed = {g.uid for g in self.groups.values() if g.status == "failure" and not g.scores}
        return set(), self._dead(), failed if self.sync_refill_failed_groups else set()

    def _evict(self, global_steps: int, training: bool) -> tuple[set[str], dict[str, float], set[str]]:
        stale, dead, failed = self._reasons(global_steps, training)
        if stale:
            self._count_stale([global_steps - self.groups[uid].step + 1 for uid in stale])
        if dead:
            self._count("filter_groups/evicted_samples", len(dead))
            self._filtered.update(dead.values())
        if failed:
            self._count("rollout_failure/evicted_samples", len(failed))
        for uid in stale | set(dead) | failed:
            del self.groups[uid]
        return stale, dead, failed

    def _count(self, name: str, amount: int) -> None:
        key = f"training/{name}"
        self._metrics[key] = self._metrics.get(key, 0) + amount

    def _count_stale(self, spans: Sequence[int]) -> None:
        key = "training/off_policy/evicted_samples"
        before = self._metrics.get(key, 0)
        self._count("off_policy/evicted_samples", len(spans))
        mean, top, low = f"{key}_staleness/mean", f"{key}_staleness/max", f"{key}_staleness/min"
        total = self._metrics.get(mean, 0.0) * before + sum(spans)
        self._metrics[mean] = total / (before + len(spans))
        self._metrics[top] = max(self._metrics.get(top, max(spans)), max(spans))
        self._metrics[low] = min(self._metrics.get(low, min(spans)), min(spans))

    def _again(self, enough: bool, stale: int, dead: int, failed: int, training: bool) -> bool:
        """Hand out what this round owes; True when something was handed out and must be looked at."""
        if not self._drains(training):
            if failed and not enough:
                self._refill(failed)
                return True
            return False
        if enough:
            self._draining, self._credit = True, 0
        elif not self._draining:
            self._credit += 2 * dead + failed
        if self._draining or not self._credit:
            return False
        assert self.train_batch_size is not None
        free = max(0, self.max_inflight_gen_batches * self.train_batch_size - self._inflight())
        count = min(self._credit, free)
        count -= count % self.gen_batch_size
        if not count:
            return False
        self._credit -= count
        self._refill(count)
        return True

    def _refill(self, count: int) -> None:
        if self.refill is not None:
            self.refill(count)

    def _only_failures(self) -> None:
        raise SamplingError(
            "every selected group failed without a rollout; sync_refill_failed_groups=True would replace them"
        )

    def _take(self, chosen: Sequence[Group], ready: Sequence[Group], training: bool) -> None:
        for group in chosen:
            del self.groups[group.uid]
        if self._drains(training) and len(ready) > len(chosen):
            self._count("filter_groups/discarded_surplus_samples", len(ready) - len(chosen))
            for group in ready:
                self.groups.pop(group.uid, None)


class ReplayBufferAsync(ReplayBuffer):
    """Asynchronous sampling: every evicted group is replaced by exactly one prompt, surplus stays.

    `drop` evicts *finished* groups whose span `global_steps - step + 1` exceeds the threshold; `wait` drops nothing
    and blocks while any prompt in flight has a span of at least the threshold. A threshold of None switches both off.
    Failed groups are always evicted.
    """

    def _check_mode(self) -> None:
        """Slots and chunks do not exist here."""

    def _drains(self, training: bool) -> bool:
        return False

    def _may_sample(self, global_steps: int) -> bool:
        limit = self.max_off_policy_threshold
        if limit is None or self.max_off_policy_strategy != "wait":
            return True
        flying = [g for g in self.groups.values() if g.status in ("pending", "running")]
        return all(global_steps - g.step + 1 < limit for g in flying)

    def _reasons(self, global_steps: int, training: bool) -> tuple[set[str], dict[str, float], set[str]]:
        if not training:
            return set(), {}, set()
        limit = self.max_off_policy_threshold
        stale = set()
        if limit is not None and self.max_off_policy_strategy == "drop":
            stale = {
                g.uid for g in self.groups.values() if g.status == "finished" and global_steps - g.step + 1 > limit
            }
        return stale, self._dead(), {g.uid for g in self.groups.values() if g.status == "failure"}

    def _evict(self, global_steps: int, training: bool) -> tuple[set[str], dict[str, float], set[str]]:
        stale, dead, failed = super()._evict(global_steps, training)
        self._owed = len(stale | set(dead) | failed)
        return stale, dead, failed

    def _again(self, enough: bool, stale: int, dead: int, failed: int, training: bool) -> bool:
        if not self._owed:
            return False
        self._refill(self._owed)
        return True

    def _only_failures(self) -> None:
        """Failed groups never get this far."""


_PREFIX = "training/"

METRICS = (
    Metric(name=f"{_PREFIX}filter_groups/evicted_samples", unit="group", low=0, scope="update",
           formula="finished groups whose metric has standard deviation exactly 0",
           healthy="falls as tasks become neither trivial nor hopeless",
           text="Groups that cost a generation and taught nothing."),
    Metric(name=f"{_PREFIX}filter_groups/discarded_surplus_samples", unit="group", low=0, scope="update",
           formula="good groups beyond batch_size, thrown away by synchronous sampling"),
    Metric(name=f"{_PREFIX}rollout_failure/evicted_samples", unit="group", low=0, scope="update", healthy="0",
           formula="groups evicted because a session failed"),
    Metric(name=f"{_PREFIX}off_policy/evicted_samples", unit="group", low=0, scope="update", healthy="0",
           formula="finished groups whose span exceeds max_off_policy_threshold"),
    *(Metric(name=f"{_PREFIX}off_policy/evicted_samples_staleness/{what}", unit="version", low=1, scope="update",
             formula=f"{what} of global_steps - step + 1 over the groups evicted as stale")
      for what in ("mean", "max", "min")),
)  # fmt: skip
