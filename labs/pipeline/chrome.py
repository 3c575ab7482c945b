"""A run in Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Every pool of workers is a process with a thread per worker, the trainer a process of its own; the queue and the
version are counters. One simulated second is one second of the trace (the format counts microseconds).

Format: "Trace Event Format", Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
import math
from typing import Any

from labs.pipeline.accounting import Run

#: Perfetto's reserved colour names.
_COLORS = {"accepted": "thread_state_running", "rejected": "terrible", "cancelled": "terrible", "aborted": "bad"}


def events(run: Run, until: float = math.inf) -> list[dict[str, Any]]:
    """The trace events: metadata, a complete event per rollout and step, counters of queue and version.

    What starts after `until` simulated seconds is left out.
    """
    sizes = [size for size, _ in run.rules.pools] or [run.rules.workers]
    trainer = len(sizes) + 1
    found: list[dict[str, Any]] = []
    process: list[int] = []
    for pool, size in enumerate(sizes):
        found.append(_name("process_name", pool + 1, 0, "workers" if len(sizes) == 1 else f"workers, pool {pool}"))
        found += [_name("thread_name", pool + 1, i + 1, f"worker {len(process) + i + 1}") for i in range(size)]
        process += [pool + 1] * size
    found += [_name("process_name", trainer, 0, "trainer"), _name("thread_name", trainer, 1, "training")]
    for t in run.trajectories:
        if t.end is None or t.start > until:
            continue
        found.append(
            {
                "name": f"task {t.task}" + (f".{t.sample}" if run.rules.group_size > 1 else ""),
                "cat": "rollout",
                "ph": "X",
                "ts": _micro(t.start),
                "dur": _micro(t.end - t.start),
                "pid": process[t.worker],
                "tid": t.worker + 1 - process.index(process[t.worker]),
                "cname": _COLORS.get(t.status or "", "grey"),
                "args": t.row(),
            }
        )
    for i, step in enumerate(run.steps):
        if step.trained is not None and step.time <= until:
            found.append(
                {
                    "name": f"step {i}",
                    "cat": "training",
                    "ph": "X",
                    "ts": _micro(step.time),
                    "dur": _micro(step.trained - step.time),
                    "pid": trainer,
                    "tid": 1,
                    "args": {"trajectories": step.size, "version": step.version},
                }
            )
    waited = [(t.end, t.exit.time) for t in run.trajectories if t.end is not None and t.exit is not None]
    changes = [(end, 1) for end, left in waited if left > end] + [(left, -1) for end, left in waited if left > end]
    waiting = 0
    for time, change in sorted((c for c in changes if c[0] <= until), key=lambda c: (c[0], -c[1])):
        waiting += change
        found.append(_counter("waiting trajectories", time, trainer, waiting))
    published = [(0.0, 0), *(p for p in run.publications if p[0] <= until)]
    found += [_counter("published version", time, trainer, version) for time, version in published]
    return found


def dumps(run: Run, until: float = math.inf) -> bytes:
    """The trace as a JSON file."""
    document = {"traceEvents": events(run, until), "displayTimeUnit": "ms", "otherData": {"clock": "simulated seconds"}}
    return json.dumps(document, separators=(",", ":")).encode()


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _counter(name: str, time: float, process: int, value: int) -> dict[str, Any]:
    return {"name": name, "ph": "C", "ts": _micro(time), "pid": process, "args": {"value": value}}
