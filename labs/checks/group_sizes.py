"""Is a group the n rollouts of one prompt: no singletons, no mixed prompts, no uneven sizes, the right order?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, groups, repeated, rollouts, share

CODE = "C4"
NEEDS = (("uid",), ("n",))
UNLOCK = "log the group id of each row (verl V1 writes uid), or state the group size with --n"

_BASELINE = "the baseline of a row is then not the mean over rollouts of its own prompt"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Count the rows of every group and the prompts in it."""
    if step.facts.get("validation") or not step.rows:
        return
    found, n = groups(step), int(step.facts.get("n") or 0)
    if not found:
        if n > 1 and step.rows % n:
            yield _finding(
                step,
                f"{step.rows} rows are no multiple of the group size {n}",
                0,
                step.rows,
                step.rows,
                "rows",
                _BASELINE,
                "keep aborted rollouts as rows, or group by an id and not by position",
                n,
            )
        return
    sizes = {label: len(rows) for label, rows in found.items()}
    mode = n or Counter(sizes.values()).most_common(1)[0][0]
    yield from _prompts(step, found)
    single = [label for label, size in sizes.items() if size == 1]
    if len(single) == len(sizes) and len(single) > 1:
        yield from _singletons(step, found, n)
        return
    wrong = [label for label, size in sizes.items() if size != mode]
    if wrong and mode > 0:
        odd = sizes if len(sizes) <= 6 else {label: sizes[label] for label in wrong}
        shown = " ".join(f"{label}:{size}" for label, size in list(odd.items())[:6])
        yield _finding(
            step,
            f"group sizes {shown}{' ...' if len(odd) > 6 else ''} (n={mode}): {len(wrong)} of {len(sizes)} "
            f"groups are not {mode} rows, {len(single)} have a single one",
            int(found[wrong[0]][0]),
            len(wrong),
            len(sizes),
            "groups",
            _BASELINE + " of the same weight; code that reshapes to [-1, n] mixes prompts",
            "group by an id and not by position; play aborted rollouts again, or drop the whole group",
            mode,
        )
    yield from _outputs(step, found, memory)


def _prompts(step: Step, found: dict[str, Array]) -> Iterator[Finding]:
    if "prompt" not in step.columns:
        return
    text = step.columns["prompt"]
    mixed = [rows for rows in found.values() if len({str(x) for x in text[rows].tolist()}) > 1]
    if mixed:
        what = "blocks" if "uid" not in step.columns else "groups"
        kinds = len({str(x) for x in text[mixed[0]].tolist()})
        yield _finding(
            step,
            f"{len(mixed)} of {len(found)} {what} are mixed: the first one holds {len(mixed[0])} rows with "
            f"{kinds} distinct prompts",
            int(mixed[0][0]),
            len(mixed),
            len(found),
            what,
            "difficulty is compared across prompts instead of answers to one prompt",
            "make the group id before prompts are repeated; gather devices in rank order",
            len(mixed[0]),
        )


def _singletons(step: Step, found: dict[str, Array], n: int) -> Iterator[Finding]:
    repeated = 0
    if "prompt" in step.columns:
        rows = np.concatenate(list(found.values()))
        repeated = max(Counter(str(x) for x in step.columns["prompt"][rows].tolist()).values())
    if n == 1 or (n == 0 and repeated < 2):
        return
    says = f", n is {n}" if n else ""
    says += f"; {repeated} rows share one prompt text" if repeated > 1 else ""
    yield _finding(
        step,
        f"{len(found)} groups of size 1{says}",
        0,
        len(found),
        len(found),
        "groups",
        "a group of one has no baseline: its advantage is its raw score, and with scores of 0 and 1 nothing is ever "
        "pushed down",
        "group by the id of the task, not of the trajectory",
        n,
    )


def _outputs(step: Step, found: dict[str, Array], memory: dict[str, Any]) -> Iterator[Finding]:
    rows = len(rollouts(step))
    if "session" not in step.columns or rows == step.rows - len(repeated(step)) or "said" in memory:
        return
    memory["said"] = True
    yield _finding(
        step,
        f"multi-output sessions: {rows} sessions in {step.rows} rows; groups are counted in sessions",
        0,
        rows,
        step.rows,
        "rows",
        "every output of a session gets the advantage of its last one",
        "nothing",
        0,
        kind="note",
    )


def _finding(
    step: Step, what: str, row: int, part: int, whole: int, noun: str, why: str, advice: str, n: int,
    kind: Any = "fault",
) -> Finding:  # fmt: skip
    return Finding(
        what=what,
        where=step.at(row),
        share=share(part, whole, noun),
        why=why,
        advice=advice,
        sure="certain",
        numbers={"groups": float(part), "n": float(n)},
        kind=kind,
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """What wrong group ids do to the estimator, against the exact gradient."""
    return {"experiment": "groups", "set": {"estimator": "grpo"}}


def _aborted() -> list[Step]:
    """A quarter of the rollouts is lost."""
    return run(change=lambda batch: batch.select([i for i in range(batch.rows) if i % 5 or i % 7]))


BAD = {
    "a uid for every row": lambda: run(change=planted.uid_per_row),
    "one uid for the batch": lambda: run(change=planted.one_uid),
    "aborted rollouts are lost": _aborted,
    "devices gathered in turns": lambda: planted.altered(
        planted.plain(), {"prompt": lambda s: s.columns["prompt"].reshape(2, -1).T.ravel()}, drop=("uid",)
    ),
}
GOOD = {
    "eight of each": planted.plain,
    "sessions of several outputs": lambda: run(multi_turn_rows=True),
    "blocks of n": lambda: planted.altered(planted.plain(), drop=("uid",)),
}
