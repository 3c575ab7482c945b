"""Steps made by hand, and what one check says of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.registry import checks


def step(number: int = 1, *, scalars: Any = None, facts: Any = None, **columns: Any) -> Step:
    """A step whose columns are lists; text becomes an object column."""
    made = {}
    for name, values in columns.items():
        array = np.array(values)
        made[name.replace("__", "/")] = array.astype(object) if array.dtype.kind in "US" else array
    rows = len(next(iter(made.values()))) if made else 0
    return Step(
        source="made.jsonl",
        format="made",
        step=number,
        rows=rows,
        columns=made,
        scalars=scalars or {},
        facts=facts or {},
    )


def said(name: str, *steps: Step, kind: str = "fault") -> list[Finding]:
    module, memory = checks[name], {}
    found = [f for s in steps if any(s.has(*needs) for needs in module.NEEDS) for f in module.check(s, memory)]
    found += module.finish(memory) if hasattr(module, "finish") else []
    return [f for f in found if f.kind == kind]


def one(name: str, *steps: Step, kind: str = "fault") -> str:
    (finding,) = said(name, *steps, kind=kind)
    return f"{finding.what} | {finding.share} | {finding.why} | {finding.advice}"


def rows_of(scores: list[float], advantages: list[float], uid: str, **more: Any) -> Step:
    return step(score=scores, advantage=advantages, uid=list(uid), **more)
