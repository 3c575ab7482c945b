"""What a system does: one frozen configuration, checked before anything runs.

Two schedules that look like two programs differ in one rule. With `submission="budget"` a task may start only while
fewer than `(version + submission_batches) * batch_size` have been started, so with one batch the workers collect a
batch, wait for the trainer, and go on with the next: the synchronous schedule. With `submission="open"` a free
worker takes the next task at once: the asynchronous one.

Work passes four separate gates: submission (may another task start?), concurrency (may another rollout run?), the
queue (is there room for what is finished?), ingestion (may this still be trained?). What a gate counts is a group: the
`group_size` samples of one task; with groups of one a group is a trajectory.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from labs.errors import InputError, one_of

#: The allowed words of every rule that has words.
CHOICES: dict[str, tuple[str, ...]] = {
    "submission": ("open", "budget", "quota"),
    "submission_clock": ("version", "taken"),
    "on_full": ("block", "drop_oldest", "drop_stalest"),
    "ingestion": ("reject", "wait", "train"),
    "order": ("fifo", "oldest_version", "freshest"),
    "in_flight": ("finish", "drain", "abort_restart", "abort_resume", "mixed"),
    "version_unit": ("sync", "step", "sample"),
    "requeue": ("none", "same", "new"),
    "filter": ("none", "zero_variance"),
}
#: Ways to leave without training that can give a place in the submission budget back.
RETURNABLE = ("rejected", "dropped", "filtered", "cancelled", "lost")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A system, its machines and its rules.

    Attributes:
        workers: rollouts that can run at once.
        pools: `(workers, speed)` of every pool where they differ; a rollout takes its duration over the speed. Empty:
            one pool of speed 1.
        batch_size: groups per training step.
        group_size: samples per task; they train together or not at all.
        training_seconds: simulated seconds of one training step.
        submission: `open`, a free worker takes the next task; `budget`, a task starts only while fewer than
            `(clock + submission_batches) * batch_size` have been started (AReaL's rule; one batch is synchronous);
            `quota`, only while fewer than `submission_batches * batch_size` have been started since the last sync,
            what ran or waited then included (verl's rule).
        submission_batches: batches that may be started ahead.
        submission_clock: what the budget counts: `version`, the steps in the published weights; `taken`, the batches
            that the trainer has taken.
        returns: ways to leave untrained that give a group's place in the budget back.
        concurrency_batches: rollouts that may run at once, in batches of samples; None leaves it to the workers.
        queue_batches: groups that fit between workers and trainer, in batches; None is unbounded.
        on_full: `block`, a worker keeps its finished group, and itself, until there is room; `drop_oldest`, what
            arrived first leaves; `drop_stalest`, what has the oldest start version leaves.
        ingestion: `reject`, what is older than `max_policy_lag` when the trainer is free leaves unused; `wait`, no
            step starts while it would leave a group that is still being generated above the bound; `train`, the bound
            is only counted.
        max_policy_lag: versions between a trajectory's start and its training that are still allowed.
        sweep: groups that become too old while they are generated are cancelled at once.
        order: what the trainer takes first: `fifo`, `oldest_version`, `freshest`; ties by arrival.
        in_flight: what happens to running rollouts when weights are published: `finish` on the old weights; `drain`,
            the update waits for them; `abort_restart`, they start from scratch; `abort_resume`, they keep their tokens
            and go on with the new weights; `mixed`, they go on without a pause and get the new weights under way.
        steps_per_sync: training steps between two publications.
        version_unit: what a version counts: publications (`sync`), training `step`s, trained `sample`s.
        sync_seconds: simulated seconds of a publication; the trainer waits, and so do rollouts that drain or abort.
        resume_seconds: simulated seconds to compute a resumed rollout's prefix again.
        requeue: what replaces a group that left untrained: nothing (`none`), the `same` task again, a `new` one.
        filter: `zero_variance` takes out a finished group whose rewards are all equal.
        mean_time_to_failure: mean of a worker's exponential lifetime, in simulated seconds; None never dies.
        restart_seconds: until a dead worker is back; None never.
        evaluation_every: an evaluation every that many publications; 0 never.
        evaluation_seconds: for which the trainer waits.
    """

    workers: int = 4
    pools: tuple[tuple[int, float], ...] = ()
    batch_size: int = 8
    group_size: int = 1
    training_seconds: float = 2.0
    submission: str = "open"
    submission_batches: float = 1.0
    submission_clock: str = "version"
    returns: tuple[str, ...] = RETURNABLE
    concurrency_batches: float | None = None
    queue_batches: float | None = None
    on_full: str = "block"
    ingestion: str = "reject"
    max_policy_lag: int = 1
    sweep: bool = False
    order: str = "fifo"
    in_flight: str = "finish"
    steps_per_sync: int = 1
    version_unit: str = "sync"
    sync_seconds: float = 0.0
    resume_seconds: float = 0.0
    requeue: str = "none"
    filter: str = "none"
    mean_time_to_failure: float | None = None
    restart_seconds: float | None = 0.0
    evaluation_every: int = 0
    evaluation_seconds: float = 0.0

    def __post_init__(self) -> None:
        from labs.pipeline.hazards import refuse

        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise one_of(f"the rule {name}", getattr(self, name), allowed)
        for way in self.returns:
            if way not in RETURNABLE:
                raise one_of("returns", way, RETURNABLE)
        for name, low in _WHOLE.items():
            _check(name, getattr(self, name), low, whole=True)
        for name, none in _NUMBERS.items():
            if not (none and getattr(self, name) is None):
                _check(name, getattr(self, name), 0)
        for size, speed in self.pools:
            _check("the size of a pool", size, 1, whole=True)
            if not 0 < speed < math.inf:
                raise InputError(f"the speed of a pool is {speed!r}; allowed: a positive number")
        if self.pools and sum(size for size, _ in self.pools) != self.workers:
            raise InputError(f"workers is {self.workers}, but the pools have {sum(size for size, _ in self.pools)}")
        if self.mean_time_to_failure == 0:
            raise InputError("mean_time_to_failure is 0; allowed: a positive number of seconds, or none")
        refuse(self)

    def whole(self, batches: float) -> int:
        """How many groups `batches` are, rounded down (a part in a billion forgives 0.1 + 0.2)."""
        return math.floor(batches * self.batch_size + 1e-9)

    @property
    def capacity(self) -> int | None:
        """Groups that fit into the queue, None for any number."""
        return None if self.queue_batches is None else self.whole(self.queue_batches)

    @property
    def concurrency(self) -> int | None:
        """Rollouts that may run at once, None for as many as there are workers."""
        return None if self.concurrency_batches is None else self.whole(self.concurrency_batches * self.group_size)

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


_WHOLE = {
    "workers": 1, "batch_size": 1, "group_size": 1, "max_policy_lag": 0, "steps_per_sync": 1, "evaluation_every": 0,
}  # fmt: skip
#: Numbers of at least 0, and whether None is allowed as well.
_NUMBERS = {
    "training_seconds": False,
    "submission_batches": False,
    "concurrency_batches": True,
    "queue_batches": True,
    "sync_seconds": False,
    "resume_seconds": False,
    "mean_time_to_failure": True,
    "restart_seconds": True,
    "evaluation_seconds": False,
}


def _check(name: str, value: object, low: int, *, whole: bool = False) -> None:
    kind = int if whole else int | float
    if not isinstance(value, kind) or isinstance(value, bool) or not math.isfinite(value) or value < low:
        raise InputError(
            f"{name} is {value!r}; allowed: {'an integer' if whole else 'a finite number'} of at least {low}"
        )
