"""What a system does: one frozen configuration, checked before anything runs.

Two schedules that look like two programs differ in one rule. With `submission="budget"` a task may start only while
fewer than `(version + submission_batches) * batch_size` have been started, so with one batch the workers collect a
batch, wait for the trainer, and go on with the next: the synchronous schedule. With `submission="open"` a free
worker takes the next task at once: the asynchronous one.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from labs.errors import InputError, one_of

#: The allowed words of every rule that has words.
CHOICES: dict[str, tuple[str, ...]] = {
    "submission": ("open", "budget"),
    "on_full": ("block",),
    "ingestion": ("reject", "train"),
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A system, its machines and its rules.

    Attributes:
        workers: rollouts that can run at once.
        batch_size: trajectories per training step.
        training_seconds: simulated seconds of one training step.
        submission: `open`, a free worker takes the next task; `budget`, a task starts only while fewer than
            `(version + submission_batches) * batch_size` have been started (AReaL's rule; one batch is synchronous).
        submission_batches: batches that may be started ahead of the trainer.
        queue_capacity: trajectories that fit between workers and trainer; None is unbounded.
        on_full: `block`, a worker keeps its finished trajectory, and itself, until there is room.
        ingestion: `reject`, what is older than `max_policy_lag` when the trainer is free leaves unused; `train`, the
            bound is not enforced.
        max_policy_lag: versions between a trajectory's start and its training that are still allowed.
    """

    workers: int = 4
    batch_size: int = 8
    training_seconds: float = 2.0
    submission: str = "open"
    submission_batches: float = 1.0
    queue_capacity: int | None = None
    on_full: str = "block"
    ingestion: str = "reject"
    max_policy_lag: int = 1

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise one_of(f"the rule {name}", getattr(self, name), allowed)
        _integer(self, "workers", 1)
        _integer(self, "batch_size", 1)
        _integer(self, "max_policy_lag", 0)
        if self.queue_capacity is not None:
            _integer(self, "queue_capacity", 1)
        _seconds(self, "training_seconds")
        _seconds(self, "submission_batches")
        self._feasible()

    def _feasible(self) -> None:
        """Refuse what can never train: a batch larger than what the gates can ever hold."""
        if self.submission == "budget" and self.submission_batches < 1:
            raise InputError(
                f"submission_batches is {self.submission_batches:g}: the budget never lets one batch of "
                f"{self.batch_size} start; allowed: at least 1"
            )
        if self.queue_capacity is not None and self.queue_capacity < self.batch_size:
            raise InputError(
                f"batch_size is {self.batch_size}, but the queue holds at most {self.queue_capacity} and a batch is "
                f"taken from the queue; allowed: queue_capacity at least batch_size"
            )

    def but(self, **changes: Any) -> Rules:
        """The same system with some rules changed.

        Raises:
            InputError: an unknown rule, or a combination that cannot work.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in names:
                raise one_of("the name of a rule", name, names)
        return dataclasses.replace(self, **changes)


def _integer(rules: Rules, name: str, low: int) -> None:
    value = getattr(rules, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} is {value!r}; allowed: an integer of at least {low}")


def _seconds(rules: Rules, name: str) -> None:
    value = getattr(rules, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise InputError(f"{name} is {value!r}; allowed: a finite number of at least 0")
