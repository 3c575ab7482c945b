"""A finished run: what happened, its sums, and the conservation laws it was checked against.

The laws hold pathwise, for every policy and every duration law, so a run that breaks one is a bug of the model and
raises:

- trajectories: started = accepted + rejected + running + waiting, at every new version and at the end;
- lag: the sum of ingestion lags = the sum over version bumps of (running + waiting), because a bump makes exactly
  the trajectories that are running or waiting one version older;
- Little: the time integral of the number running (waiting) = the sum of the single running (waiting) times;
- worker time: busy + every named wait = workers x simulated seconds; the same for the trainer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labs.pipeline.records import ACCEPTED, REJECTED, Exit, Trajectory
from labs.pipeline.rules import Rules


class ConservationError(AssertionError):
    """A run broke a law that holds for every configuration: a bug of the model, not of its input."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one simulation did.

    Attributes:
        rules: of the system.
        seconds: simulated seconds from the first start to the end of the last step or rejection.
        trajectories: in the order in which they started.
        steps: the training steps, each as the exit of its batch.
        worker_seconds: simulated worker seconds by what the workers did (`busy`, or the name of the wait).
        trainer_seconds: simulated seconds of the trainer, likewise.
        lag_at_bumps: sum over version bumps of (running + waiting).
        running_area, waiting_area: time integrals of how many ran and waited.
    """

    rules: Rules
    seconds: float
    trajectories: Sequence[Trajectory]
    steps: Sequence[Exit]
    worker_seconds: dict[str, float]
    trainer_seconds: dict[str, float]
    lag_at_bumps: int
    running_area: float
    waiting_area: float

    def lags(self, *statuses: str) -> Counter[int]:
        """Ingestion lags of the trajectories that left with one of `statuses` (all without argument)."""
        return Counter(t.lag for t in self.trajectories if t.lag is not None and (not statuses or t.status in statuses))

    def summary(self) -> dict[str, Any]:
        """The numbers that course scripts read, JSON types only; rates of an empty run are 0."""
        accepted = self.lags(ACCEPTED)
        taken = sum(accepted.values())
        span = self.seconds or math.inf
        return {
            "simulated_seconds": self.seconds,
            "completed_trajectories": len(self.trajectories),
            "accepted_trajectories": taken,
            "rejected_stale_trajectories": sum(self.lags(REJECTED).values()),
            "accepted_per_simulated_second": taken / span,
            "environment_worker_busy_fraction": self.worker_seconds["busy"] / (self.rules.workers * span),
            "trainer_busy_fraction": self.trainer_seconds["busy"] / span,
            "policy_updates": len(self.steps),
            "accepted_max_lag": max(accepted, default=0),
            "all_ingest_lag_histogram": {str(lag): n for lag, n in sorted(self.lags().items())},
        }

    def check(self) -> Run:
        """Hold the run to the conservation laws; returns it.

        Raises:
            ConservationError: names the law and both sides.
        """
        lag = accepted = rejected = 0
        ran: list[float] = []
        waited: list[float] = []
        for t in self.trajectories:
            left, end = t.exit, t.end
            if left is None or end is None:
                continue
            lag += left.version - t.start_version
            accepted += left.status == ACCEPTED
            rejected += left.status == REJECTED
            ran.append(end - t.start)
            waited.append(left.time - end)
        _equal("lag", "sum of ingestion lags", lag, "sum over bumps of running + waiting", self.lag_at_bumps)
        _equal("trajectories", "started", len(self.trajectories), "left", accepted + rejected)
        _equal("training", "accepted", accepted, "used by steps", sum(step.size for step in self.steps))
        _close("Little, running", "sum of times", math.fsum(ran), "integral", self.running_area)
        _close("Little, waiting", "sum of times", math.fsum(waited), "integral", self.waiting_area)
        workers = math.fsum(self.worker_seconds.values())
        _close("worker time", "busy + waits", workers, "workers x seconds", self.rules.workers * self.seconds)
        trainer = math.fsum(self.trainer_seconds.values())
        _close("trainer time", "busy + waits", trainer, "seconds", self.seconds)
        return self


def _equal(law: str, left: str, a: int, right: str, b: int) -> None:
    if a != b:
        raise ConservationError(f"conservation of {law}: {left} is {a}, {right} is {b}")


def _close(law: str, left: str, a: float, right: str, b: float) -> None:
    # The two sides add the same seconds in another order; 1e-9 is far above rounding and far below one event.
    if not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6):
        raise ConservationError(f"conservation of {law}: {left} is {a!r}, {right} is {b!r}")
