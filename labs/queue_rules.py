"""The rules of verl's asynchronous trainers as plain functions: limits, pause, queue, switch threshold.

One item of the queue is one prompt with all its rollouts. Nothing here knows time or simulation; the pipeline model
calls these rules. Sources: `verl.experimental.fully_async_policy`, `verl.trainer.ppo.v1.trainer_separate_async`
(0.9.1).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty
from typing import Any

from labs.errors import InputError


@dataclass(frozen=True)
class Limits:
    """What `async_training` amounts to, in prompts (`total_train_steps` in weight synchronisations)."""

    max_required_samples: int
    total_train_steps: int
    max_concurrent_samples: int
    max_queue_size: int


def fully_async_limits(
    required_samples: int,
    staleness_threshold: float = 0.1,
    trigger_parameter_sync_step: int = 4,
    replicas: int = 1,
    total_rollout_steps: int = 0,
    concurrent_samples_per_replica: int = 16,
) -> Limits:
    """Limits of verl's fully asynchronous rollouter.

    - `max_required = int(required * (1 + staleness) * trigger)`, also the capacity of the queue;
    - `max_concurrent = min(replicas * concurrent_per_replica, max_required)`;
    - `train_steps = int(total_rollout_steps / (required * trigger))`.

    Args:
        required_samples: `ppo_mini_batch_size * require_batches`, what one local update consumes.
        staleness_threshold: prompts that may be submitted ahead, as a share of one synchronisation's need.
        trigger_parameter_sync_step: local updates between two weight synchronisations.
        replicas: active inference servers.
        total_rollout_steps: prompts of the whole run.
        concurrent_samples_per_replica: verl's default is 16.

    Raises:
        InputError: a size below 1, or a negative staleness.
    """
    sizes = {
        "required_samples": required_samples,
        "trigger_parameter_sync_step": trigger_parameter_sync_step,
        "replicas": replicas,
        "concurrent_samples_per_replica": concurrent_samples_per_replica,
    }
    for name, value in sizes.items():
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")
    if staleness_threshold < 0:
        raise InputError(f"staleness_threshold is {staleness_threshold}; it must be 0 or more")
    most = int(required_samples * (staleness_threshold + 1) * trigger_parameter_sync_step)
    return Limits(
        max_required_samples=most,
        total_train_steps=int(total_rollout_steps / (required_samples * trigger_parameter_sync_step)),
        max_concurrent_samples=min(replicas * concurrent_samples_per_replica, most),
        max_queue_size=most,
    )


def should_pause(queue_size: int, staleness_samples: int, max_queue_size: int, max_required_samples: int) -> bool:
    """Stop submitting: the queue is full, or enough prompts were submitted since the last synchronisation.

    `staleness_samples` counts *submissions*, the end marker included; running tasks go on while submission pauses.
    """
    return queue_size >= max_queue_size or staleness_samples >= max_required_samples


def staleness_after_sync(active_tasks: int, queue_size: int) -> int:
    """What the submission counter is reset to when weights are published: everything not yet trained on."""
    return active_tasks + queue_size


class MessageQueue:
    """verl's queue between rollouter and trainer: bounded, first in first out, a full one drops its *oldest* item.

    `put` then returns False **although the new item was stored**: the rollouter takes it for a loss, so that the new
    sample is not counted as generated while the dropped one was.
    """

    def __init__(self, max_queue_size: int = 1000) -> None:
        if max_queue_size is None or int(max_queue_size) < 1:
            raise InputError(f"max_queue_size is {max_queue_size}; it must be at least 1")
        self.max_queue_size = int(max_queue_size)
        self.running = True
        self.total_produced = 0
        self.total_consumed = 0
        self.dropped_samples = 0
        self._items: deque[Any] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> bool:
        """Store `item`; False when the oldest one had to go."""
        full = len(self._items) >= self.max_queue_size
        if full:
            self._items.popleft()
            self.dropped_samples += 1
        self._items.append(item)
        self.total_produced += 1
        return not full

    def get(self) -> tuple[Any, int] | None:
        """The oldest item and how many are left; None when the queue is shut down and empty.

        Raises:
            queue.Empty: nothing is there yet (verl would wait).
        """
        if not self._items:
            if self.running:
                raise Empty("the queue is empty and still open: wait for a put")
            return None
        self.total_consumed += 1
        return self._items.popleft(), len(self._items)

    def shutdown(self) -> None:
        """No more items will come; what is left can still be taken."""
        self.running = False

    def statistics(self) -> dict[str, int]:
        """The counters under verl's names. Conservation: produced = consumed + dropped + queue_size."""
        return {
            "queue_size": len(self._items),
            "total_produced": self.total_produced,
            "total_consumed": self.total_consumed,
            "dropped_samples": self.dropped_samples,
            "max_queue_size": self.max_queue_size,
        }


def rollout_utilization(history: Sequence[tuple[float, int, int]]) -> float:
    """`sum dt * capacity * min(1, active / capacity) / sum dt * capacity`, 0 where nothing can be integrated.

    Args:
        history: (time, active tasks, capacity) at each change, the last entry closing the window. Intervals without
            capacity do not count.
    """
    used = available = 0.0
    for (start, active, capacity), (end, _, _) in itertools.pairwise(history):
        span = end - start
        if span > 0 and capacity > 0:
            used += span * capacity * min(1.0, active / capacity)
            available += span * capacity
    return used / available if available > 0 else 0.0


def idle_ratio(step_start: float, idle_start: float, now: float) -> float:
    """Share of this weight version's time the rollouter was idle; 0 if it did not go idle in this version."""
    if idle_start <= step_start:
        return 0.0
    return 1 - (idle_start - step_start) / max(now - step_start, 1e-6)


class SwitchThreshold:
    """How many sampleable prompts verl's separate trainer wants before it stops lending its GPUs to rollout.

    `threshold = clamp(round(ratio * train_batch_size), train_batch_size // sync, train_batch_size)`. From the
    `release`-th idle step in a row on, every further idle step raises the ratio by `up` (at most to 1); from the
    `release`-th calm step in a row on, every further one lowers it by `down` (at least to 1/sync).
    """

    def __init__(
        self,
        train_batch_size: int,
        parameter_sync_step: int = 4,
        ratio: float = 0.4,
        release_steps: int = 2,
        step_up: float = 0.05,
        step_down: float = 0.03,
    ) -> None:
        if train_batch_size < parameter_sync_step or parameter_sync_step < 1:
            raise InputError(
                f"train_batch_size {train_batch_size} must be at least parameter_sync_step {parameter_sync_step} >= 1"
            )
        self.train_batch_size = train_batch_size
        self.parameter_sync_step = parameter_sync_step
        self.ratio = ratio
        self.release_steps = release_steps
        self.step_up = step_up
        self.step_down = step_down
        self._idle = 0
        self._calm = 0

    @property
    def threshold(self) -> int:
        """The number of prompts (Python's rounding: halves to even)."""
        target = round(self.ratio * self.train_batch_size)
        return min(max(target, self.train_batch_size // self.parameter_sync_step), self.train_batch_size)

    def observe(self, had_idle: bool) -> None:
        """Adapt after one step; `had_idle` means the trainer waited longer than one poll interval."""
        if had_idle:
            self._calm, self._idle = 0, self._idle + 1
            if self._idle >= self.release_steps:
                self.ratio = min(1.0, self.ratio + self.step_up)
        else:
            self._idle, self._calm = 0, self._calm + 1
            if self._calm >= self.release_steps:
                self.ratio = max(1.0 / self.parameter_sync_step, self.ratio - self.step_down)


def should_lend(
    threshold: int,
    sampleable: int,
    seconds_per_sample: float | None,
    switch_seconds: float | None,
    scaling_factor: float,
) -> bool:
    """Lend the trainer's GPUs to rollout for the next step: something is missing and waiting costs more than switching.

    `benefit = max(0, threshold - sampleable) * seconds_per_sample * (1 - 1/scaling_factor)`, where the scaling factor
    is all GPUs over the standalone rollout GPUs. An unknown time or cost counts as worth trying.
    """
    remaining = max(0, threshold - sampleable)
    if seconds_per_sample is None or switch_seconds is None:
        return remaining > 0
    return remaining > 0 and remaining * seconds_per_sample * (1.0 - 1.0 / scaling_factor) > switch_seconds
