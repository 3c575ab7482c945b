"""Of which parts is the score made, and does the part that matters decide it?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, numbers, scores

CODE = "E2"
NEEDS = (("score", "parts/*"), ("rm_scores", "parts/*"))
UNLOCK = "return the parts of the reward (verl: keys of reward_extra_info; TRL: one function a part)"

#: Names of the part that says whether the task was done.
DONE = re.compile(r"(^|[/_])(acc|accuracy|correct|correctness|success|exact_match|em|answer)", re.IGNORECASE)
#: Rows from which shares are said; share of the variance at which the task does not decide, and at which all is one.
ROWS, LITTLE, ALL = 16, 0.5, 0.95
#: Rows that are kept.
MOST = 50_000


def shares(total: Array, parts: dict[str, Array]) -> tuple[dict[str, float], dict[str, float], float]:
    """Least-squares weight and share of the variance of each part, and the share that all explain together.

    The share of part k is weight_k cov(part_k, score) / var(score); shares sum to the explained share.
    """
    names, centred = list(parts), total - total.mean()
    table = np.stack([parts[n] - parts[n].mean() for n in names], axis=1)
    weight, *_ = np.linalg.lstsq(table, centred, rcond=None)
    power = float(centred @ centred)
    part = weight * (table.T @ centred) / power
    residue = centred - table @ weight
    return (
        dict(zip(names, weight.tolist(), strict=True)),
        dict(zip(names, part.tolist(), strict=True)),
        float(1 - residue @ residue / power),
    )


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Keep the rows; parts are judged over the whole file."""
    total = scores(step)
    found = {n: numbers(step, n) for n in step.columns if n.startswith("parts/")}
    kept = {n: c for n, c in found.items() if c is not None and c.ndim == 1}
    if total is None or not kept or step.facts.get("validation"):
        return
    memory.setdefault("where", step.at())
    memory.setdefault("score", []).append(total)
    memory.setdefault("parts", []).append(kept)
    memory["rows"] = memory.get("rows", 0) + len(total)
    while memory["rows"] > MOST and len(memory["score"]) > 1:  # the oldest go, so that memory stays bounded
        memory["rows"] -= len(memory["score"].pop(0))
        memory["parts"].pop(0)
    yield from ()


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Split the variance of the score."""
    if "score" not in memory:
        return
    names = sorted(set.intersection(*(set(one) for one in memory["parts"])))
    total = np.concatenate(memory["score"])
    columns = {n.removeprefix("parts/"): np.concatenate([one[n] for one in memory["parts"]]) for n in names}
    whole = np.isfinite(total) & np.all([np.isfinite(c) for c in columns.values()] or [np.isfinite(total)], axis=0)
    total, columns = total[whole], {n: c[whole] for n, c in columns.items()}
    moving = {n: c for n, c in columns.items() if len(c) and float(np.ptp(c)) > 1e-9}
    if len(total) < ROWS or float(np.ptp(total)) < 1e-9 or not moving:
        return
    weights, part, explained = shares(total, moving)
    real = {n: p for n, p in part.items() if abs(weights[n]) > 1e-6}
    said = ", ".join(f"{n} {100 * p:.0f} % (weight {weights[n]:.3g})" for n, p in part.items())
    done = [n for n in moving if DONE.search(n)]
    carried = sum(part[n] for n in done)
    values = {"explained": explained, "done": carried, **{f"share/{n}": p for n, p in part.items()}}
    if done and explained > 0.99 and carried < LITTLE:
        yield _finding(
            memory,
            f"of the variance of the score {', '.join(done)} explains {100 * carried:.0f} %: {said}",
            len(total),
            "the policy is paid for the other parts: form or length grows while the task does not",
            "lower the weight of the other parts, or give them only to rows that did the task",
            "certain",
            values,
        )
    elif not done and len(real) > 1 and explained > 0.99 and max(real.values()) > ALL:
        yield _finding(
            memory,
            f"one part carries the score: {said}",
            len(total),
            "the other parts hardly reach the gradient",
            "check that this is the part you mean",
            "possible",
            values,
            kind="note",
        )
    elif explained < 0.9:
        yield _finding(
            memory,
            f"the parts explain {100 * explained:.0f} % of the variance of the score: {said}",
            len(total),
            "the score has a part that is not logged, or is no weighted sum",
            "log the missing part",
            "certain",
            values,
            kind="note",
        )


def _finding(
    memory: dict[str, Any], what: str, rows: int, why: str, advice: str, sure: Any, values: dict[str, float],
    kind: Any = "fault",
) -> Finding:  # fmt: skip
    return Finding(
        what=what,
        where=memory["where"],
        share=f"{rows} rows",
        why=why,
        advice=advice,
        sure=sure,
        numbers=values,
        kind=kind,
    )


def _shaped(weight: float) -> list[Step]:
    """Success, and a price for every token of the response."""

    def length(step: Step) -> Array:
        return np.asarray(-step.columns["length"] / 9.0)

    made = planted.altered(
        run(skill=2.0, steps=2), {"parts/brevity": length}, drop=("parts/valid", "rm_scores", "token_level_scores")
    )
    return planted.altered(made, {"score": lambda s: s.columns["parts/success"] + weight * s.columns["parts/brevity"]})


BAD = {"brevity decides": lambda: _shaped(4.0)}
GOOD = {"a small price": lambda: _shaped(0.1), "one part": lambda: run(skill=2.0, steps=2)}
