"""What does a system of asynchronous training do with its machines, its samples and their age?

One of the systems of `labs/pipeline/systems/` meets a workload: where its time goes, what it throws away, how old the
policy is that made what it trains, which limit binds, and what theory says. Every rule of the system can be changed,
and `vary` runs other values beside it: `vary=max_policy_lag=0,1,3`, several at once as
`vary=in_flight=drain,mixed/sigma=0.5,1.4` (every combination) or `vary=workers+training_seconds=48+2,56+4` (together).
`python -m labs simulate SYSTEM` is the same with the whole report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.pipeline.drawing import figures
from experiments.pipeline.running import run
from labs.config import field
from labs.metrics import Metric
from labs.pipeline import catalogue
from labs.pipeline.measures import METRICS as MEASURES
from labs.pipeline.rules import CHOICES, RETURNABLE

__all__ = ["CHANGES", "METRICS", "TINY", "Config", "figures", "run"]

_FILE = "; none: as in the system's file"
#: Seconds far beyond any cluster, within which times can still be added and told apart.
_SECONDS: Any = {"unit": "s", "low": 0, "high": 1e9}
_SOME_SECONDS: Any = {"unit": "s", "low": 1e-9, "high": 1e9}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A system, its machines, its work, and rules to change."""

    system: str = field("course-asynchronous", help="the system", choices=catalogue.names())
    tasks: int = field(3200, help="tasks to run, each a group of rollouts", low=1, high=1_000_000)
    workers: int = field(64, help="rollouts that run at once", unit="worker", low=1, high=100_000)
    pools: tuple[str, ...] = field((), help="pools of unequal workers, each NUMBERxSPEED, such as 48x1,16x2.5")
    batch_size: int = field(32, help="groups per training step", unit="group", low=1)
    group_size: int = field(1, help="samples per task, which train together", unit="trajectory", low=1, high=1024)
    training_seconds: float = field(1.0, help="time of one training step", **_SECONDS)
    sync_seconds: float = field(0.0, help="time of one publication of weights", **_SECONDS)
    resume_seconds: float = field(0.0, help="time to compute a resumed rollout's prefix again", **_SECONDS)
    duration_mean: float = field(6.0, help="mean time of a rollout before stragglers and the cut", **_SOME_SECONDS)
    sigma: float = field(1.0, help="log-standard deviation of a rollout's time: how heavy the tail is", low=0, high=10)
    within: float = field(0.0, help="correlation of log times within a group", low=0, high=1)
    straggler_every: int = field(13, help="one task in that many is a straggler", low=1)
    straggler_factor: float = field(1.0, help="a straggler takes that many times as long", low=0, high=1e6)
    cap: float | None = field(None, help="the longest a rollout can take; none: any length", **_SOME_SECONDS)
    success: tuple[float, ...] = field(
        (), help="lowest and highest success rate, the longest task the hardest; empty: no rewards", low=0, high=1
    )
    vary: str = field("", help="other values to run beside: key=a,b/key=c,d or key+key=a+b,c+d")
    frontier: bool = field(True, help="run other bounds beside it, for throughput against staleness")
    submission: str | None = field(None, help="who may start a task" + _FILE, choices=CHOICES["submission"])
    submission_batches: float | None = field(None, help="batches that may be started ahead" + _FILE, low=0)
    submission_clock: str | None = field(
        None, help="what the budget counts" + _FILE, choices=CHOICES["submission_clock"]
    )
    returns: tuple[str, ...] | None = field(
        None, help="ways to leave untrained that give the place in the budget back" + _FILE, choices=RETURNABLE
    )
    concurrency_batches: float | None = field(
        None, help="rollouts at once, in batches; 0: as many as workers" + _FILE, low=0
    )
    queue_batches: float | None = field(None, help="room in the queue, in batches; 0: any number" + _FILE, low=0)
    on_full: str | None = field(None, help="what a full queue does" + _FILE, choices=CHOICES["on_full"])
    ingestion: str | None = field(None, help="what may train" + _FILE, choices=CHOICES["ingestion"])
    max_policy_lag: int | None = field(None, help="versions that work may be behind" + _FILE, unit="version", low=0)
    sweep: bool | None = field(None, help="cancel what becomes too old while it runs" + _FILE)
    order: str | None = field(None, help="what trains first" + _FILE, choices=CHOICES["order"])
    in_flight: str | None = field(
        None, help="what happens to running rollouts at an update" + _FILE, choices=CHOICES["in_flight"]
    )
    steps_per_sync: int | None = field(None, help="training steps between publications" + _FILE, low=1)
    version_unit: str | None = field(None, help="what a version counts" + _FILE, choices=CHOICES["version_unit"])
    requeue: str | None = field(None, help="what replaces what left untrained" + _FILE, choices=CHOICES["requeue"])
    filter: str | None = field(None, help="groups that are taken out" + _FILE, choices=CHOICES["filter"])
    mean_time_to_failure: float | None = field(None, help="mean life of a worker; none: for ever", **_SOME_SECONDS)
    restart_seconds: float | None = field(0.0, help="until a dead worker is back; none: never", **_SECONDS)
    evaluation_every: int = field(0, help="an evaluation every that many publications; 0: never", low=0)
    evaluation_seconds: float = field(0.0, help="for which the trainer waits", **_SECONDS)

    def check(self) -> None:
        """Refuse what cannot run, before anything does."""
        from experiments.pipeline.setup import prepare

        prepare(self)


METRICS = (
    *MEASURES,
    Metric(name="update", unit="1", formula="index of the training step", low=0.0, scope="update"),
    Metric(name="start", unit="s", formula="simulated time at which the step started", low=0.0, scope="update"),
    Metric(name="end", unit="s", formula="simulated time at which the step ended", low=0.0, scope="update"),
    Metric(name="size", unit="trajectory", formula="trajectories in the step", low=1.0, scope="update"),
    Metric(name="version", unit="1", formula="trainer's version as the step started", low=0.0, scope="update"),
    Metric(name="mean_lag", unit="1", formula="mean of version - start_version in the batch", low=0.0, scope="update"),
    Metric(name="largest_lag", unit="1", formula="largest of them", low=0.0, scope="update"),
    Metric(
        name="mean_queue_seconds", unit="s", formula="mean time from end to step in the batch", low=0, scope="update"
    ),
)

TINY = {"tasks": 80, "workers": 8, "batch_size": 4, "duration_mean": 3.0}
_GROUPS = {"group_size": 2, "within": 0.0}
_BUDGET = {"submission": "budget", "submission_batches": 2.0, "submission_clock": "taken"}
_DYING = {"mean_time_to_failure": 20.0, "restart_seconds": 5.0, "requeue": "same"}
CHANGES = {
    "system": "trl",
    "tasks": 90,
    "workers": 5,
    "pools": ("3x1", "5x2"),
    "batch_size": 6,
    "group_size": 2,
    "training_seconds": 3.0,
    "sync_seconds": 0.5,
    "resume_seconds": {"resume_seconds": 0.5, "in_flight": "abort_resume"},
    "duration_mean": 2.0,
    "sigma": 0.4,
    "within": {"group_size": 2, "within": 0.5},
    "straggler_every": {"straggler_every": 5, "straggler_factor": 4.0},
    "straggler_factor": 5.0,
    "cap": 4.0,
    "success": (0.1, 0.9),
    "vary": "max_policy_lag=0,3",
    "frontier": False,
    "submission": {"system": "verl-fully-async", "submission": "budget"},
    "submission_batches": {**_BUDGET, "submission_batches": 1.5},
    "submission_clock": {**_BUDGET, "submission_batches": 1.0, "submission_clock": "taken"},
    "returns": {**_BUDGET, "submission_clock": "version", "returns": ()},
    "concurrency_batches": 1.0,
    "queue_batches": {"queue_batches": 1.0, "training_seconds": 4.0},
    "on_full": {"queue_batches": 1.0, "training_seconds": 4.0, "on_full": "drop_oldest"},
    "ingestion": "train",
    "max_policy_lag": 2,
    "sweep": True,
    "order": {"order": "freshest", "training_seconds": 4.0},
    "in_flight": "mixed",
    "steps_per_sync": 2,
    "version_unit": {"version_unit": "step", "steps_per_sync": 2, "max_policy_lag": 3},
    "requeue": "new",
    "filter": {"filter": "zero_variance", "group_size": 2, "success": (0.1, 0.9)},
    "mean_time_to_failure": _DYING,
    "restart_seconds": _DYING,
    "evaluation_every": {"evaluation_every": 2, "evaluation_seconds": 3.0},
    "evaluation_seconds": {"evaluation_every": 2, "evaluation_seconds": 3.0},
}
