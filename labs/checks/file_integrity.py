"""Is every row there once: none from two ranks, no batch under two steps, padding apart?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import duplicate, planted, run
from labs.readings import Array, scores, share

CODE = "E11"
NEEDS = (("output",), ("score",), ("uid",), ("responses",))
UNLOCK = "log an id of each row (verl V1: uid, session and index)"

#: Rows from which two equal batches are no accident; share of rows in the rarer half of the scores.
ROWS, MIXED = 16, 0.1


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Keys within the step, and content against the steps before."""
    yield from _twice(step)
    yield from _padding(step, memory)
    yield from _copied(step, memory)


def _twice(step: Step) -> Iterator[Finding]:
    names: list[str] = [n for n in ("uid", "session", "index") if n in step.columns]
    if len(names) < 3:
        names = ["request_id"] if "request_id" in step.columns else []
    if not names:
        return
    keys = list(zip(*(map(str, step.columns[n].tolist()) for n in names), strict=True))
    more = [key for key, count in Counter(keys).items() if count > 1]
    if more:
        row = len(keys) - 1 - keys[::-1].index(more[0])
        extra = len(keys) - len(set(keys))
        yield _finding(
            step,
            f"{extra} rows come twice: {'_'.join(more[0])} is in row {keys.index(more[0])} and row {row}",
            share(extra, step.rows, "rows"),
            "they count double in groups, means and the loss",
            "look for a file that was appended to, or ranks that wrote the same rows",
            "certain",
            {"rows": float(extra)},
            row,
        )


def _padding(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    if "uid" not in step.columns or "padding" in memory:
        return
    rows = [i for i, label in enumerate(step.columns["uid"].tolist()) if str(label).startswith("pad")]
    if rows:
        memory["padding"] = True
        yield _finding(
            step,
            f"{len(rows)} rows are padding (uid {step.columns['uid'][rows[0]]}); no check counts them",
            share(len(rows), step.rows, "rows"),
            "verl adds them to make the batch divisible",
            "nothing",
            "certain",
            {"rows": float(len(rows))},
            rows[0],
            "note",
        )


def _copied(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """The same rows under two step numbers; solved batches look alike, so that only mixed ones are compared."""
    total = scores(step)
    if total is None or step.rows < ROWS or not np.isfinite(total).all():
        return
    high = float((total >= total.max()).mean())
    if not MIXED <= high <= 1 - MIXED:
        return
    text = next((step.columns[n] for n in ("output", "responses") if n in step.columns), None)
    if text is None:
        return
    digest = hashlib.sha256(total.tobytes() + repr(text.tolist()).encode()).hexdigest()
    before = memory.setdefault("digests", {}).setdefault(digest, (step.step, step.source))
    if before != (step.step, step.source):
        yield _finding(
            step,
            f"the {step.rows} rows of step {step.step} are those of step {before[0]} ({before[1]}), one for one",
            share(step.rows, step.rows, "rows"),
            "a file was copied or overwritten, or the same batch was trained twice",
            "look at the names that files are written under: ranks and evaluations share one",
            "certain",
            {"rows": float(step.rows)},
        )


def _finding(
    step: Step, what: str, part: str, why: str, advice: str, sure: Any, values: dict[str, float],
    row: int | None = None, kind: Any = "fault",
) -> Finding:  # fmt: skip
    return Finding(
        what=what, where=step.at(row), share=part, why=why, advice=advice, sure=sure, numbers=values, kind=kind
    )


def _part(step: Step, rows: Array) -> Step:
    made = duplicate(step)
    made.columns = {name: column[rows] for name, column in made.columns.items()}
    made.rows = len(rows)
    return made


def _appended() -> list[Step]:
    """Some rows of sessions were written by two ranks."""
    (step,) = run(multi_turn_rows=True)
    return [_part(step, np.r_[np.arange(step.rows), np.arange(7)])]


def _renamed() -> list[Step]:
    (step,) = planted.plain()
    again = duplicate(step)
    again.step, again.source = 2, "2.npz"
    return [step, again]


BAD = {
    "two ranks wrote the same rows": _appended,
    "one batch under two names": _renamed,
}
GOOD = {
    "four steps": lambda: run(steps=4),
    "sessions": lambda: run(multi_turn_rows=True, steps=3),
    "a converged run": lambda: run(skill=6.0, steps=4),
}
