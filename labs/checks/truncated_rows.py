"""How many rows were cut, were they really, and what is a cut row worth?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, mask, numbers, share

CODE = "E7"
NEEDS = (
    ("finish_reason",),
    ("truncated",),
    ("length", "max_response_length"),
    ("overlong_buffer", "max_response_length"),
)
UNLOCK = "log the finish reason of each row, or its length in tokens with data.max_response_length"

#: Share of cut rows from which it matters.
MUCH = 0.2


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Flags against lengths, settings against each other, returns against what comes after the cut."""
    cap = step.facts.get("max_response_length")
    buffer = step.facts.get("overlong_buffer")
    if cap and buffer and buffer > cap and "buffer" not in memory:
        memory["buffer"] = True
        yield _finding(
            step,
            None,
            f"the overlong buffer {buffer:g} > cap {cap:g}: every response is penalised, a length of "
            f"1 already "
            f"by {(1 - (cap - buffer)) / buffer:.3f}",
            "every row",
            "the penalty starts at cap minus buffer, which is below 0",
            "make the buffer a small part of the cap",
            "certain",
            {"buffer": float(buffer), "cap": float(cap)},
        )
    cut, length = _cut(step, cap), numbers(step, "length")
    if cut is not None:
        yield from _rows(step, cut, length, cap)
        yield from _worth(step, cut)


def _cut(step: Step, cap: Any) -> Array | None:
    truncated, length = numbers(step, "truncated"), numbers(step, "length")
    if truncated is not None:
        return truncated > 0
    if "finish_reason" in step.columns:
        return np.array([str(one) in ("length", "truncated") for one in step.columns["finish_reason"].tolist()])
    if length is not None and cap:
        return np.asarray(length >= cap)
    return None


def _rows(step: Step, cut: Array, length: Array | None, cap: Any) -> Iterator[Finding]:
    count = int(cut.sum())
    if not count:
        return
    row = int(cut.argmax())
    kept = mask(step)
    nothing = int((~kept[cut].any(axis=1)).sum()) if kept is not None and len(kept) == len(cut) else 0
    if length is not None and cap and length[cut].max() < 0.5 * cap:
        ids, last = step.columns.get("responses"), ""
        if ids is not None:
            ends = [int(ids[i, int(length[i]) - 1]) for i in np.flatnonzero(cut) if 0 < length[i] <= ids.shape[1]]
            last = f" (most frequent last id {Counter(ends).most_common(1)[0][0]})" if ends else ""
        yield _finding(
            step,
            row,
            f"{count} rows flagged truncated have length {length[cut].max():g} << cap {cap:g}: the end "
            f"token is not "
            f"recognised{last}",
            share(count, len(cut), "rows"),
            "finished answers are masked, or punished as cut",
            "give the trainer every end token of the model",
            "certain",
            {"truncated": count / len(cut), "longest": float(length[cut].max())},
        )
    elif count >= MUCH * len(cut):
        yield _finding(
            step,
            row,
            f"{count} of {len(cut)} rows are cut" + (f", {nothing} of them have no trained token" if nothing else ""),
            share(count, len(cut), "rows"),
            "a cut row is scored as a failure whatever it was worth: the policy learns to be short",
            "raise the limit, mask cut rows, or bootstrap their value",
            "likely",
            {"truncated": count / len(cut)},
        )


def _worth(step: Step, cut: Array) -> Iterator[Finding]:
    """With a critic, the return of the last token of a cut row is its reward alone: the end of the world."""
    returns, rewards, kept = numbers(step, "returns"), numbers(step, "token_level_rewards"), mask(step)
    behind = numbers(step, "bootstrap_values")
    if "values" not in step.columns or returns is None or rewards is None or kept is None or behind is None:
        return
    rows = np.flatnonzero(cut & kept.any(axis=1) & (np.abs(behind) > 1e-6))
    if not len(rows):
        return
    last = kept.shape[1] - 1 - kept[rows][:, ::-1].argmax(axis=1)
    gap = np.abs(returns[rows, last] - rewards[rows, last])
    if gap.max() < 1e-6:
        row = int(rows[np.abs(behind[rows]).argmax()])
        yield _finding(
            step,
            row,
            f"{len(rows)} of {len(cut)} rows end by limit and are valued as ended: bootstrapping "
            f"changes the "
            f"last advantage of row {row} by {behind[row]:.3g}",
            share(len(rows), len(cut), "rows"),
            "the critic is told that nothing comes after the cut, good or bad",
            "add gamma V of the state at the cut",
            "certain",
            {"truncated": len(rows) / len(cut), "value": float(behind[row])},
        )


def _finding(
    step: Step, row: int | None, what: str, part: str, why: str, advice: str, sure: Any, values: dict[str, float]
) -> Finding:
    return Finding(what=what, where=step.at(row), share=part, why=why, advice=advice, sure=sure, numbers=values)


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """Every rule for cut rows, and where each leads."""
    return {"experiment": "truncation", "set": {"limit": 4}} if "truncated" in finding.numbers else None


def _cut_early(**settings: Any) -> list[Step]:
    return run(max_steps=2, skill=4.0, **settings)


def _as_ended() -> list[Step]:
    """Cut rows whose state is worth something, valued as ended."""
    made = _cut_early(step={"estimator": "gae", "lam": 0.95}, warmup=3)
    return planted.altered(made, {"bootstrap_values": lambda s: np.where(s.columns["truncated"], 0.6, 0.0)})


BAD = {
    "a limit of two decisions": _cut_early,
    "valued as ended": _as_ended,
    "an end token that is not recognised": lambda: planted.altered(
        planted.plain(), {"truncated": lambda s: s.columns["length"] > 5}, max_response_length=64
    ),
    "a buffer longer than the cap": lambda: planted.altered(
        planted.plain(), max_response_length=20, overlong_buffer=24
    ),
}
GOOD = {
    "none is cut": lambda: planted.plain(steps=3),
    "bootstrapped": lambda: run(
        skill=3.0, max_steps=4, step={"estimator": "gae", "lam": 0.95, "truncation": "bootstrap"}, warmup=3
    ),
}
