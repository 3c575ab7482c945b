"""Do the steps come in order, each once, with batches of one size?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import duplicate, run
from labs.readings import Array, share

CODE = "E11"
NEEDS = (("output",), ("score",), ("response_mask",), ("actor/pg_loss",), ("loss",), ("critic/score/mean",))
UNLOCK = "log the step of each row or number"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Compare the number and the size of the step with those before; ranks and tasks may share a step."""
    if step.step is None or step.facts.get("validation"):
        return
    seen = memory.setdefault("steps", {})
    key = step.step, bool(step.rows)
    if key in seen and step.rows and step.source.rsplit("/", 1)[-1] == seen[key].rsplit("/", 1)[-1]:
        yield _finding(
            step,
            f"step {step.step} comes twice, first in {seen[key]}",
            "the step",
            "rows of two runs, or of a run that was resumed, are counted as one batch",
            "keep the later one, or diagnose the runs apart",
            "certain",
            {"step": float(step.step)},
        )
    highest = max((s for s, rows in seen if rows == key[1]), default=step.step)
    if not step.rows and step.step == memory.get("begun"):
        for one in [one for one in seen if not one[1]]:
            del seen[one]
        highest = step.step
    begun = memory.setdefault("begun", step.step)
    # A log of several runs starts again where it started; rows never do.
    if step.step < highest and (step.rows or step.step > begun):
        memory.setdefault("order", (replace(step, columns={}), highest))
    seen.setdefault(key, f"{step.source}")
    if step.rows:
        memory.setdefault("sizes", []).append(step.rows)
        memory.setdefault("size_at", []).append(replace(step, columns={}, scalars={}))


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Steps out of order or missing, and batches of another size."""
    if "order" in memory:
        step, highest = memory["order"]
        yield _finding(
            step,
            f"step {step.step} comes after step {highest}",
            "the file",
            "trends are read in the order of the file",
            "sort by step",
            "certain",
            {"step": float(step.step)},
        )
    steps = sorted({s for s, rows in memory.get("steps", {}) if rows})
    gaps = [b for a, b in pairwise(steps) if b - a > 1]
    stride = {b - a for a, b in pairwise(steps)}
    if gaps and len(stride) > 1 and len(steps) >= 4:
        at = memory["size_at"][0]
        yield _finding(
            at,
            f"{len(steps)} steps between {steps[0]} and {steps[-1]}, with {len(gaps)} gaps, the first before "
            f"step {gaps[0]}",
            share(len(gaps), len(steps), "steps"),
            "steps are missing: a run that was resumed, or files that were lost",
            "check the folder",
            "likely",
            {"gaps": float(len(gaps))},
            kind="note",
        )
    yield from _sizes(memory)


def _sizes(memory: dict[str, Any]) -> Iterator[Finding]:
    sizes = memory.get("sizes", [])
    if len(sizes) < 3:
        return
    usual, count = Counter(sizes).most_common(1)[0]
    odd = [i for i, size in enumerate(sizes) if size < 0.75 * usual]
    if count > 0.5 * len(sizes) and odd:
        yield _finding(
            memory["size_at"][odd[0]],
            f"{sizes[odd[0]]} rows where other steps have {usual}",
            share(len(odd), len(sizes), "steps"),
            "the file was cut, a rank did not write, or groups were filtered and not replaced: with a mean loss "
            "each row left weighs more",
            "compare with the size of the batch that was trained",
            "likely",
            {"rows": float(sizes[odd[0]]), "usual": float(usual)},
        )


def _finding(
    step: Step, what: str, part: str, why: str, advice: str, sure: Any, values: dict[str, float],
    kind: Any = "fault",
) -> Finding:  # fmt: skip
    return Finding(what=what, where=step.at(), share=part, why=why, advice=advice, sure=sure, numbers=values, kind=kind)


def _part(step: Step, rows: Array) -> Step:
    made = duplicate(step)
    made.columns = {name: column[rows] for name, column in made.columns.items()}
    made.rows = len(rows)
    return made


def _lost() -> list[Step]:
    """Every second group of the last step was not written."""
    steps = run(steps=4)
    rows = np.flatnonzero([int(str(uid)[-1]) % 2 == 0 for uid in steps[-1].columns["uid"]])
    return [*steps[:-1], _part(steps[-1], rows)]


BAD = {
    "shuffled steps": lambda: run(steps=4)[::-1],
    "a step that comes twice": lambda: [*run(steps=2), *run(steps=2, seed=8)],
    "half of a step is missing": _lost,
}
GOOD = {"four steps": lambda: run(steps=4), "sessions": lambda: run(multi_turn_rows=True, steps=3)}
