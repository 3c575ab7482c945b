"""What is kept of every trajectory and of every training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: How a trajectory can leave the pipeline. It does so exactly once.
ACCEPTED, REJECTED = "accepted", "rejected"


@dataclass(slots=True, eq=False)
class Exit:
    """How and when trajectories left the pipeline; one record for all that left together.

    Attributes:
        status: `accepted` or `rejected`.
        time: simulated seconds.
        version: the trainer's version.
        size: how many left.
        trained: when the training step that used them ended; None for rejects.
        update: index of that step, from 0; None for rejects.
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
        start, end: simulated seconds at which it started and finished.
        start_version: the policy version that its worker held at the start.
        exit: None on its way.
    """

    __slots__ = ("end", "exit", "start", "start_version", "task", "worker")

    def __init__(self, task: int, worker: int, start: float, start_version: int) -> None:
        self.task = task
        self.worker = worker
        self.start = start
        self.start_version = start_version
        self.end: float | None = None
        self.exit: Exit | None = None

    @property
    def status(self) -> str | None:
        """None on its way, then `accepted` or `rejected`."""
        return None if self.exit is None else self.exit.status

    @property
    def ingested(self) -> float | None:
        """When it left the queue, for the trainer or as a reject."""
        return None if self.exit is None else self.exit.time

    @property
    def ingestion_version(self) -> int | None:
        """The trainer's version at that moment."""
        return None if self.exit is None else self.exit.version

    @property
    def lag(self) -> int | None:
        """`ingestion_version - start_version`."""
        return None if self.exit is None else self.exit.version - self.start_version

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


#: Called with how many trajectories have left the pipeline and how many tasks there are.
Progress = Callable[[int, int], None]
