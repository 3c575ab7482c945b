"""Is the file whole: one batch a step, steps in order, nothing twice, nothing from elsewhere?"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import duplicate, planted, run
from labs.readings import Array, scores, share

CODE = "E11"
NEEDS = (("output",), ("score",), ("response_mask",), ("uid",), ("actor/pg_loss",), ("loss",), ("critic/score/mean",))
UNLOCK = "log the step and an id of each row (verl V1: uid, session and index)"

#: Rows from which two equal batches are no accident; share of rows in the rarer half of the scores.
ROWS, MIXED = 16, 0.1


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Keys within the step; order, size and content against the steps before."""
    if step.rows:
        yield from _twice(step)
        yield from _padding(step, memory)
        yield from _copied(step, memory)
    if step.step is None or step.facts.get("validation"):
        return
    seen = memory.setdefault("steps", {})
    key = step.step, bool(step.rows)
    if key in seen and step.rows:
        yield _finding(
            step, f"step {step.step} comes twice, first in "
                  f"{seen[key]}", "the step", "rows of two runs, or of a run that was "
            "resumed, are counted as one batch", "keep the later one, or diagnose the runs "
                                                 "apart", "certain", {"step": step.step},
        )  # fmt: skip
    highest = max((s for s, rows in seen if rows == key[1]), default=step.step)
    if step.step < highest:
        memory.setdefault("order", (replace(step, columns={}), highest))
    seen.setdefault(key, f"{step.source}")
    if step.rows:
        memory.setdefault("sizes", []).append(step.rows)
        memory.setdefault("size_at", []).append(replace(step, columns={}, scalars={}))


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
            step, f"{extra} rows come twice: {'_'.join(more[0])} is in row {keys.index(more[0])} and row {row}",
            share(extra, step.rows, "rows"), "they count double in groups, means and the loss",
            "look for a file that was appended to, or ranks that wrote the same "
            "rows", "certain", {"rows": float(extra)}, row,
        )  # fmt: skip


def _padding(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    if "uid" not in step.columns or "padding" in memory:
        return
    rows = [i for i, label in enumerate(step.columns["uid"].tolist()) if str(label).startswith("pad")]
    if rows:
        memory["padding"] = True
        yield _finding(
            step, f"{len(rows)} rows are padding (uid {step.columns['uid'][rows[0]]}); no check counts them",
            share(len(rows), step.rows, "rows"), "verl adds them to make the batch divisible", "nothing", "certain",
            {"rows": float(len(rows))}, rows[0], "note",
        )  # fmt: skip


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
            step, f"the {step.rows} rows of step {step.step} are those of step {before[0]} ({before[1]}), one for one",
            share(step.rows, step.rows, "rows"), "a file was copied or overwritten, or the same batch was "
                                                 "trained twice",
            "look at the names that files are written under: ranks and evaluations share one", "certain",
            {"rows": float(step.rows)},
        )  # fmt: skip


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Steps out of order or missing, and batches of another size."""
    if "order" in memory:
        step, highest = memory["order"]
        yield _finding(
            step, f"step {step.step} comes after step {highest}", "the file",
            "trends are read in the order of the file", "sort by step", "certain", {"step": float(step.step)},
        )  # fmt: skip
    steps = sorted({s for s, rows in memory.get("steps", {}) if rows})
    gaps = [b for a, b in pairwise(steps) if b - a > 1]
    stride = {b - a for a, b in pairwise(steps)}
    if gaps and len(stride) > 1 and len(steps) >= 4:
        at = memory["size_at"][0]
        yield _finding(
            at, f"{len(steps)} steps between {steps[0]} and {steps[-1]}, with {len(gaps)} gaps, the first before "
                f"step {gaps[0]}",
            share(len(gaps), len(steps), "steps"), "steps are missing: a run that was resumed, or files that were lost",
            "check the folder", "likely", {"gaps": float(len(gaps))}, kind="note",
        )  # fmt: skip
    yield from _sizes(memory)


def _sizes(memory: dict[str, Any]) -> Iterator[Finding]:
    sizes = memory.get("sizes", [])
    if len(sizes) < 3:
        return
    usual, count = Counter(sizes).most_common(1)[0]
    odd = [i for i, size in enumerate(sizes) if size < 0.75 * usual]
    if count > 0.5 * len(sizes) and odd:
        yield _finding(
            memory["size_at"][odd[0]], f"{sizes[odd[0]]} rows where other steps have "
                                       f"{usual}", share(len(odd), len(sizes), "steps"),
            "the file was cut, a rank did not write, or groups were filtered and not replaced: with a mean loss "
            "each row left weighs more", "compare with the size of the batch that was trained", "likely",
            {"rows": float(sizes[odd[0]]), "usual": float(usual)},
        )  # fmt: skip


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


def _lost() -> list[Step]:
    """Every second group of the last step was not written."""
    steps = run(steps=4)
    rows = np.flatnonzero([int(str(uid)[-1]) % 2 == 0 for uid in steps[-1].columns["uid"]])
    return [*steps[:-1], _part(steps[-1], rows)]


BAD = {
    "two ranks wrote the same rows": _appended,
    "one batch under two names": _renamed,
    "shuffled steps": lambda: run(steps=4)[::-1],
    "a step that comes twice": lambda: [*run(steps=2), *run(steps=2, seed=8)],
    "half of a step is missing": _lost,
}
GOOD = {
    "four steps": lambda: run(steps=4),
    "sessions": lambda: run(multi_turn_rows=True, steps=3),
    "a converged run": lambda: run(skill=6.0, steps=4),
}
