"""What is kept of every trajectory, group and training step, and what a learner is to the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

#: How a trajectory can leave the pipeline. It does so exactly once.
ACCEPTED = "accepted"  # trained
REJECTED = "rejected"  # too old when the trainer was free
DROPPED = "dropped"  # pushed out of a full queue
FILTERED = "filtered"  # its group's rewards are all equal
CANCELLED = "cancelled"  # stopped while it ran, because it had become too old
ABORTED = "aborted"  # stopped at an update; the same sample starts from scratch as another attempt
LOST = "lost"  # its worker died, or a sibling's did and the group is not made again
STATUSES = (ACCEPTED, REJECTED, DROPPED, FILTERED, CANCELLED, ABORTED, LOST)


@dataclass(slots=True, eq=False)
class Exit:
    """How and when trajectories left the pipeline; one record for all that left together.

    Attributes:
        status: one of `STATUSES`.
        time: simulated seconds.
        version: the trainer's version.
        size: how many trajectories left.
        trained: when the training step that used them ended; None if none did.
        update: index of that step, from 0; None if none did.
    """

    status: str
    time: float
    version: int
    size: int
    trained: float | None = None
    update: int | None = None


class Trajectory:
    """One rollout, from its start on a worker to the moment it leaves the pipeline.

    Attributes:
        task: index of the task it answers.
        worker: index of the worker that ran it.
        start, end: simulated seconds at which it started and finished (or was stopped).
        start_version: the policy version that its worker held at the start.
        exit: None on its way.
    """

    __slots__ = ("end", "exit", "start", "start_version", "task", "worker")

    # What only some rules need is held by `Rollout`; these are its values where no rule needs them.
    sample: int = 0
    attempt: int = 0
    spans: list[tuple[int, float]] | None = None
    reward: float | None = None
    payload: Any = None

    def __init__(self, task: int, worker: int, start: float, start_version: int) -> None:
        self.task = task
        self.worker = worker
        self.start = start
        self.start_version = start_version
        self.end: float | None = None
        self.exit: Exit | None = None

    @property
    def status(self) -> str | None:
        """None on its way, then one of `STATUSES`."""
        return None if self.exit is None else self.exit.status

    @property
    def ingested(self) -> float | None:
        """When it left the pipeline, into a training step or out of use."""
        return None if self.exit is None else self.exit.time

    @property
    def ingestion_version(self) -> int | None:
        """The trainer's version at that moment."""
        return None if self.exit is None else self.exit.version

    @property
    def lag(self) -> int | None:
        """`ingestion_version - start_version`: how many versions behind its oldest token is."""
        return None if self.exit is None else self.exit.version - self.start_version

    @property
    def seconds(self) -> float:
        """Simulated seconds of generation, without pauses and without what had to be computed again."""
        if self.spans is not None:
            return sum(seconds for _, seconds in self.spans)
        return 0.0 if self.end is None else self.end - self.start

    @property
    def token_lag(self) -> float | None:
        """Mean over its tokens, spread evenly over its seconds, of `ingestion_version - version of the token`."""
        if self.exit is None:
            return None
        total = self.seconds
        if self.spans is None or not total:
            return float(self.exit.version - self.start_version)
        return sum((self.exit.version - version) * seconds for version, seconds in self.spans) / total

    def version_at(self, fraction: float) -> int:
        """The version that made the token at `fraction` (0 to 1) of the trajectory."""
        if self.spans is None:
            return self.start_version
        left = fraction * self.seconds
        for version, seconds in self.spans:
            left -= seconds
            if left < 0:
                return version
        return self.spans[-1][0]

    def row(self) -> dict[str, Any]:
        """Its fields as JSON types, in the order in which they came to be."""
        return {
            "task": self.task,
            "worker": self.worker,
            "start": self.start,
            "end": self.end,
            "ingested": self.ingested,
            "trained": None if self.exit is None else self.exit.trained,
            "start_version": self.start_version,
            "ingestion_version": self.ingestion_version,
            "lag": self.lag,
            "update": None if self.exit is None else self.exit.update,
            "status": self.status,
        }


class Flight(Trajectory):
    """A trajectory that is the SimPy event of its own end: what a `Timeout` for it would hold, without a second object.

    Args:
        task, worker, start, start_version: of the trajectory.
        callbacks: called with it when its time has come.
    """

    __slots__ = ("_ok", "callbacks")

    def __init__(
        self, task: int, worker: int, start: float, start_version: int, callbacks: list[Callable[[Any], None]]
    ) -> None:
        # Not through super(): this runs once per rollout and the call would cost a tenth of the run.
        self.task = task
        self.worker = worker
        self.start = start
        self.start_version = start_version
        self.end: float | None = None
        self.exit: Exit | None = None
        self.callbacks: list[Callable[[Any], None]] | None = callbacks
        self._ok = True


class Rollout(Trajectory):
    """A trajectory under rules that need more: groups, several attempts, several versions, a reward.

    Attributes:
        sample: its number within the group.
        attempt: how often the sample was started before.
        group: the group it belongs to.
        spans: `(version, seconds of generation)` in order, None while one version made all of it.
        reward: None without a learner or success rates.
        payload: what the learner's `sample` returned.
    """

    __slots__ = ("attempt", "group", "payload", "prefill", "resumed", "reward", "sample", "spans", "total")

    def __init__(self, ticket: Ticket, group: Group, worker: int, start: float, version: int, total: float) -> None:
        super().__init__(ticket.task, worker, start, version)
        self.sample = ticket.sample
        self.attempt = ticket.attempt
        self.group = group
        self.spans = None
        self.reward = None
        self.payload = None
        # The present segment: when it began, its seconds of computing again, the seconds of generation still to come.
        self.resumed = start
        self.prefill = 0.0
        self.total = total

    def row(self) -> dict[str, Any]:
        """The fields of `Trajectory.row` and its own."""
        spans = self.spans or [(self.start_version, self.seconds)]
        own = {"sample": self.sample, "attempt": self.attempt, "reward": self.reward, "spans": [list(s) for s in spans]}
        return {**super().row(), **own}


class Group:
    """All samples of one task that train together: they enter the queue together and leave it together.

    Attributes:
        task: index of the task.
        attempt: how often the task was started before.
        start_version: the oldest start version of its samples.
        opened: samples handed to workers so far.
        members: its finished samples, in order of their end.
        void: it will not train any more; what is still running leaves when it ends.
        exit: None on its way.
    """

    __slots__ = ("attempt", "exit", "members", "opened", "start_version", "task", "void")

    def __init__(self, task: int, attempt: int) -> None:
        self.task = task
        self.attempt = attempt
        self.start_version = -1
        self.opened = 0
        self.members: list[Rollout] = []
        self.void = False
        self.exit: Exit | None = None


class Ticket(NamedTuple):
    """Which rollout: the task, the sample within its group, and how often that was started before."""

    task: int
    sample: int
    attempt: int


class Learner(Protocol):
    """What learns inside the pipeline, which itself knows nothing about learning.

    A learner may also define `seconds(task: Ticket, version: int) -> float`, the duration of a rollout that starts
    now; without it durations come from the workload. And `publish(version: int)`, called when the workers get the
    present weights: what a version counts is a rule, and only so does a learner know which weights carry which number.
    """

    def sample(self, task: Ticket, version: Callable[[float], int]) -> Any:
        """The episode of a finished rollout; its attribute `reward` is read if there is one.

        Args:
            task: which one; drawing from a generator keyed by it makes runs with other rules comparable.
            version: `version(f)` is the policy version that made the token at fraction f in [0, 1) of the episode; a
                constant unless the rules mix versions. Version 0 is the initial policy.
        """

    def train(self, batch: Sequence[Trajectory]) -> Any:
        """One training step, at its end; the trajectories in order of consumption, with what `sample` returned as
        `payload`, groups together. The policy after the n-th call is the one that the next version publishes.
        """


#: Called with how many tasks have left the pipeline and how many there are.
Progress = Callable[[int, int], None]
