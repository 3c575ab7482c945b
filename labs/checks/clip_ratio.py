"""How many responses reach the limit by the logged ratio, and is it a ratio to the limit at all?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted
from labs.readings import share

CODE = "E7"
NEEDS = (("response_length/clip_ratio",), ("completions/clipped_ratio",))
UNLOCK = "log response_length/clip_ratio with response_length/max, or completions/clipped_ratio"

#: Share of cut rows from which it matters; steps over which a ratio must repeat; a limit that somebody set.
MUCH, STEPS, LIMIT = 0.2, 3, 64


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Keep the ratios."""
    ratio = step.scalars.get("response_length/clip_ratio")
    if ratio is not None:
        memory.setdefault("ratio", []).append(ratio)
        memory.setdefault("longest", []).append(step.scalars.get("response_length/max", np.nan))
        memory.setdefault("where", step.at())
    clipped = step.scalars.get("completions/clipped_ratio")
    if clipped is not None:
        memory.setdefault("clipped", []).append(clipped)
        memory.setdefault("where", step.at())
    yield from ()


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Ratios that were logged."""
    clipped, ratio, longest = (np.array(memory.get(n, [])) for n in ("clipped", "ratio", "longest"))
    if len(clipped) and clipped.mean() >= MUCH:
        yield _logged(memory, f"{100 * clipped.mean():.0f} % of completions are cut", clipped.mean())
    if len(ratio) < STEPS:
        return
    # verl compares with the longest row of the batch: only a maximum that never moves is the limit itself.
    if ratio.mean() >= MUCH and longest.min() >= LIMIT and longest.min() == longest.max():
        yield _logged(
            memory,
            f"{100 * ratio.mean():.0f} % of responses have the length {longest.max():g} of all steps",
            ratio.mean(),
        )
    rows = 1 / ratio[0] if ratio[0] > 0 else 0.5
    if np.ptp(ratio) < 1e-9 and abs(rows - round(rows)) < 1e-3 * rows and rows >= 4:
        yield Finding(
            what=f"response_length/clip_ratio is 1/{rows:.0f} in every step: one row always equals the longest row",
            where=memory["where"],
            share=share(len(ratio), len(ratio), "steps"),
            why="it compares with the longest response of the batch, so this is no truncation",
            advice="compare response_length/max with data.max_response_length",
            sure="likely",
            numbers={"ratio": float(ratio[0])},
            kind="note",
        )


def _logged(memory: dict[str, Any], what: str, part: float) -> Finding:
    return Finding(
        what=what,
        where=memory["where"],
        share=f"{100 * part:.0f} % of rows",
        why="a cut row is scored as a failure whatever it was worth: the policy learns to be short",
        advice="raise the limit, mask cut rows, or bootstrap their value",
        sure="likely",
        numbers={"truncated": float(part)},
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """Every rule for cut rows, and where each leads."""
    return {"experiment": "truncation", "set": {"limit": 4}} if "truncated" in finding.numbers else None


BAD = {
    "half is cut": lambda: planted.logged(planted.plain(steps=3), completions__clipped_ratio=0.5),
    "a third has the same length in all steps": lambda: planted.logged(
        planted.plain(steps=3), response_length__clip_ratio=lambda i: 0.3 + 0.02 * i, response_length__max=1024
    ),
}
GOOD = {
    "a ratio to the longest row": lambda: planted.plain(steps=4),
    "one row of 48": lambda: planted.logged(planted.plain(steps=4), response_length__clip_ratio=1 / 48),
}
