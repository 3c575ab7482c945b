"""The lanes of a simulated pipeline, read from the rows of its trajectories.

Rows are those of `labs.pipeline.records.Trajectory.row`, wherever a result keeps them: in its data under the name of a
schedule, or as its trajectories. Training steps are read off the trajectories that they used.

An experiment that trains inside the pipeline stores no rows but defines `simulated(config, seed)`, which gives its
pipelines by name as `labs.pipeline.model.simulate` does; their rows then also hold the decisions of each trajectory
under `steps`, each with the version that took it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labs.experiment import Result
from labs.registry import experiments

_NEEDED = ("worker", "start", "end", "ingested", "trained", "status", "lag")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One way in which the same work was done.

    Attributes:
        name: of the schedule.
        rows: its trajectories, in the order of their start.
        steps: (start, end, trajectories) of every training step.
        workers: how many lanes.
        seconds: until the last thing that happened.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    steps: Sequence[tuple[float, float, int]]
    workers: int
    seconds: float


def schedules(result: Result, again: bool = True) -> list[Schedule]:
    """Every pipeline of a result of one seed; none where it simulated none.

    Args:
        result: the run.
        again: compute what it does not store again, where its experiment can.
    """
    held = {
        name: value["trajectories"]
        for name, value in result.data.items()
        if isinstance(value, Mapping) and _is_pipeline(value.get("trajectories"))
    }
    if not held and _is_pipeline(result.trajectories):
        held = {result.experiment: result.trajectories}
    if not held and again and result.experiment in experiments:
        module = experiments[result.experiment]
        if hasattr(module, "simulated"):
            from labs.settings import build

            runs = module.simulated(build(module.Config, result.config), result.seed)
            held = {name: [_lived(each) for each in run.trajectories] for name, run in runs.items()}
    return [_schedule(name, rows) for name, rows in held.items()]


def _lived(trajectory: Any) -> dict[str, Any]:
    """The row of a trajectory, with the decisions of the episode that its learner sampled."""
    row: dict[str, Any] = trajectory.row()
    episodes = getattr(trajectory.payload, "episodes", None)
    if episodes is None:
        return row
    environment, at = episodes.environment, trajectory.payload.row
    task, path = episodes.tasks[at], episodes.path(at)
    after = [*path.states[1:], path.last]
    row["steps"] = [
        {
            "stage": environment.states[state].stage,
            "action": environment.actions[action],
            "log_probability": float(episodes.log_probs[at, i]),
            "policy_version": int(episodes.versions[at, i]),
            "reply": f"[{path.end}]" if i == len(path.actions) - 1 else environment.text(task, after[i]),
        }
        for i, (state, action) in enumerate(zip(path.states, path.actions, strict=True))
    ]
    return row


def _is_pipeline(rows: Any) -> bool:
    return (
        isinstance(rows, Sequence)
        and len(rows) > 0
        and all(isinstance(row, Mapping) and all(key in row for key in _NEEDED) for row in rows[:1])
    )


def _schedule(name: str, rows: Sequence[Mapping[str, Any]]) -> Schedule:
    done = [row for row in rows if row["end"] is not None]
    steps: dict[tuple[float, float], int] = {}
    for row in done:
        if row["trained"] is not None:
            key = (float(row["ingested"]), float(row["trained"]))
            steps[key] = steps.get(key, 0) + 1
    times = [float(row[key]) for row in done for key in ("end", "ingested", "trained") if row[key] is not None]
    return Schedule(
        name=name,
        rows=sorted(done, key=lambda row: (row["start"], row["worker"])),
        steps=[(start, end, size) for (start, end), size in sorted(steps.items())],
        workers=1 + max((int(row["worker"]) for row in done), default=0),
        seconds=max(times, default=0.0),
    )
