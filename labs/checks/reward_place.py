"""Does the score sit on a token that the policy chose, or on a tool's text, behind the end, in an empty row?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, first, mask, numbers, share

CODE = "C3"
NEEDS = (("rm_scores", "response_mask"), ("token_level_scores", "response_mask"))
UNLOCK = "save rm_scores with response_mask (and loss_mask, attention_mask)"

_WHY = "GAE and REINFORCE++ do not see a reward where the mask is 0 (a won row counts as lost); GRPO and RLOO do"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Sort every placed score by the token it lies on."""
    placed = numbers(step, "rm_scores" if "rm_scores" in step.columns else "token_level_scores")
    kept = mask(step)
    if placed is None or kept is None or placed.shape != kept.shape:
        return
    chosen, seen = mask(step, "loss_mask"), mask(step, "attention_mask")
    written = kept if chosen is None else chosen
    placed = np.where(np.isfinite(placed), placed, 0.0)
    there = placed != 0
    empty = there & ~written.any(axis=1, keepdims=True)
    if empty.any():
        row, token = first(empty)
        yield _finding(
            step,
            empty,
            f"row {row}: mask sum 0 but reward {placed[row, token]:.4g} at column {token}",
            "an index of -1 wraps to the last cell: the empty row still ranks its group, and equal rows get a push",
            "leave rows without a response out of the batch, or give them no score",
        )
    end = written.shape[1] - written[:, ::-1].argmax(axis=1) if seen is None else seen.sum(axis=1)
    behind = there & ~empty & (np.arange(written.shape[1]) >= end[:, None]) & ~written
    if seen is None:  # a reply at the end of a row looks the same as padding
        behind &= False
    if behind.any():
        padded = int((written.any(axis=1) & (end < written.shape[1])).sum())
        percent = 100 * int(behind.any(axis=1).sum()) / max(padded, 1)
        yield _finding(
            step,
            behind,
            f"the reward lies behind the end of the response in {percent:.0f} % of padded rows",
            _WHY,
            "write it to the last token of the response: its index is length - 1",
        )
    reply = there & ~written & ~behind & ~empty
    if reply.any():
        row, _ = first(reply)
        part = np.abs(placed[row][reply[row]]).sum() / np.abs(placed[row]).sum()
        yield _finding(
            step,
            reply,
            f"{100 * part:.0f} % of the reward of row {row} sits on mask-0 positions",
            _WHY,
            "write the score to the last token that the policy chose",
        )
    lost = there & written & ~kept
    if lost.any():
        yield _finding(
            step,
            lost,
            f"{int(lost.any(axis=1).sum())} rows have their reward on a rejected token",
            "estimators that sum first still count it (verl's rule); GAE, REINFORCE++ and ReMax lose it",
            "decide which of the two you mean",
            kind="note",
        )


def _finding(step: Step, wrong: Array, what: str, why: str, advice: str, kind: Any = "fault") -> Finding:
    rows = int(wrong.any(axis=1).sum())
    return Finding(
        what=what,
        where=step.at(*first(wrong)),
        share=share(rows, step.rows, "rows"),
        why=why,
        advice=advice,
        sure="certain",
        numbers={"rows": float(rows)},
        kind=kind,
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The experiment counts the estimators to which a score on a tool's token is no score."""
    return {"experiment": "masks", "set": {}}


def _empty_rows() -> list[Step]:
    def change(batch: Any) -> Any:
        rows = (batch["scores"] == batch["scores"].max())[:, None]
        nothing = {n: batch[n] * ~rows for n in ("response_mask", "loss_mask")}
        tail = batch["attention_mask"].clone()
        tail[:, -batch.width :] *= ~rows
        return batch.replace(**nothing, attention_mask=tail)

    return run(change=change)


BAD = {
    "on the tool's reply": lambda: [planted.score_on_reply(s) for s in planted.plain()],
    "one behind the end": lambda: [planted.score_behind_end(s) for s in run(change=planted.paid_by_turn)],
    "in an empty row": _empty_rows,
}
GOOD = {
    "on the last token": planted.plain,
    "on a format token": lambda: run(format_tokens=1),
}
