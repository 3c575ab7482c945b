"""Does the queue between rollouts and trainer work: nobody idle, little thrown away, never empty?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.readings import share

CODE = "E9"
_ASYNC = "fully_async"
NEEDS = (
    (f"{_ASYNC}/trainer/idle_ratio",),
    (f"{_ASYNC}/rollouter/idle_ratio",),
    (f"{_ASYNC}/count/dropped_stale_samples",),
    ("training/off_policy/evicted_samples",),
    ("training/filter_groups/evicted_samples",),
    ("training/rollout_failure/evicted_samples",),
)
UNLOCK = "log the counters of the queue (verl: fully_async/*, training/off_policy/evicted_samples)"

#: Shares over the file from which they are said: time the trainer waits, time rollouts wait, samples thrown away.
WAITS, PAUSED, WASTED = 0.5, 0.5, 0.2


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Keep the counters; they are judged over the file."""
    for name, value in step.scalars.items():
        if name.startswith(_ASYNC) or name.endswith("/evicted_samples") or name == "training/trajectories":
            memory.setdefault(name, []).append(value)
            memory.setdefault("where", step.at())
    yield from ()


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Waiting on either side, and what was thrown away."""
    rollouts = "the trainer is too slow for them, or the bound on staleness stops them"
    for side, limit, who, why, advice in (
        ("trainer", WAITS, "the trainer waits", "rollouts are too slow for it", "give more devices to rollouts"),
        ("rollouter", PAUSED, "rollouts wait", rollouts, "give more devices to the trainer, or synchronise more often"),
    ):
        name = f"{_ASYNC}/{side}/idle_ratio"
        values = np.array(memory.get(name, []))
        if len(values) and values.mean() > limit:
            yield _finding(
                memory,
                f"{who} {100 * values.mean():.0f} % of the time",
                int((values > limit).sum()),
                len(values),
                why,
                advice,
                float(values.mean()),
            )
    made = np.array(memory.get(f"{_ASYNC}/count/total_generated_samples", []))
    dropped = np.array(memory.get(f"{_ASYNC}/count/dropped_stale_samples", []))
    # Both counters run from the start, so the last ones say it all.
    if len(made) and len(dropped) and dropped[-1] > WASTED * max(made[-1], 1):
        yield _finding(
            memory,
            f"{dropped[-1]:g} samples dropped for {made[-1]:g} generated",
            int((np.diff(dropped, prepend=0) > 0).sum()),
            len(dropped),
            "the queue is full or work is stale when it arrives; the oldest, which are the slowest, go first",
            "lower the rollouts in flight, or raise the size of the queue with the bound on staleness",
            float(dropped[-1] / max(made[-1], 1)),
        )
    # How many a step are too many is not in the log, so that dropping old work is mentioned; a failure is a fault.
    old, failed = "bound what is started, not what has arrived", "read the logs of the environment"
    for name, what, advice, kind in (
        ("training/off_policy/evicted_samples", "evicted as too old", old, "note"),
        ("training/rollout_failure/evicted_samples", "lost to failed rollouts", failed, "fault"),
    ):
        values = np.array(memory.get(name, []))
        if len(values) >= 3 and (values > 0).mean() > 0.5:
            yield _finding(
                memory,
                f"{values.mean():.3g} samples a step {what}, in {int((values > 0).sum())} of {len(values)} steps",
                int((values > 0).sum()),
                len(values),
                "their cost is paid and they teach nothing; slow tasks go first",
                advice,
                float(values.mean()),
                kind,
            )


def _finding(
    memory: dict[str, Any], what: str, part: int, whole: int, why: str, advice: str, value: float, kind: Any = "fault"
) -> Finding:
    return Finding(
        what=what,
        where=memory["where"],
        share=share(part, whole, "steps"),
        why=why,
        advice=advice,
        sure="likely",
        numbers={"value": value},
        kind=kind,
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """Rollouts, a trainer, and a bound that rejects."""
    return {"experiment": "rollout", "set": {"max_policy_lag": 0, "training_seconds": 10.0}}


def _steps(**names: Any) -> list[Step]:
    values = {name.replace("__", "/"): value for name, value in names.items()}
    return [
        Step(source="log.jsonl", format="verl", step=k, scalars={n: v(k) for n, v in values.items()})
        for k in range(1, 7)
    ]


BAD = {
    "the trainer waits": lambda: _steps(fully_async__trainer__idle_ratio=lambda k: 0.7),
    "rollouts wait": lambda: _steps(fully_async__rollouter__idle_ratio=lambda k: 0.6 + 0.02 * k),
    "a third is dropped": lambda: _steps(
        fully_async__count__total_generated_samples=lambda k: 60.0 * k,
        fully_async__count__dropped_stale_samples=lambda k: 20.0 * k,
    ),
    "rollouts fail step after step": lambda: _steps(training__rollout_failure__evicted_samples=lambda k: float(k > 1)),
}
GOOD = {
    "busy": lambda: _steps(
        fully_async__trainer__idle_ratio=lambda k: 0.1,
        fully_async__rollouter__idle_ratio=lambda k: 0.2,
        fully_async__count__total_generated_samples=lambda k: 60.0 * k,
        fully_async__count__dropped_stale_samples=lambda k: 1.0,
        training__off_policy__evicted_samples=lambda k: float(k == 2),
    )
}
