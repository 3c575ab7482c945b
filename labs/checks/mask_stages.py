"""Do the masks say the same: chosen tokens train, tool text and padding do not, and a stop token is not lost?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, first, mask, numbers, share

CODE = "C3"
NEEDS = (("response_mask",), ("completion_mask", "tool_mask"))
UNLOCK = "save response_mask with loss_mask, attention_mask, responses or versions (one policy version a token)"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Compare the mask that trains with every other sign of who wrote a token."""
    yield from _disagree(step)
    yield from _widths(step)
    kept = mask(step)
    if kept is None:
        return
    seen, chosen = mask(step, "attention_mask"), mask(step, "loss_mask")
    if seen is None and "responses" in step.columns:
        seen = _guessed(step)
    padding = kept & ~seen if seen is not None and seen.shape == kept.shape else np.zeros_like(kept)
    if padding.any():
        yield _counted(
            step, kept, padding, "padding tokens", "possible" if "attention_mask" not in step.columns else "certain"
        )
    versions = numbers(step, "versions")
    written = chosen if chosen is not None else (versions >= 0 if versions is not None else None)
    if written is not None and written.shape == kept.shape and (extra := kept & ~written & ~padding).any():
        yield _counted(step, kept, extra, "tokens that no policy chose (tool text)", "certain")
    yield from _stop(step, kept, seen)


def _counted(step: Step, kept: Array, wrong: Array, what: str, sure: Any) -> Finding:
    return Finding(
        what=f"{int(wrong.sum())} {what} have response_mask 1" + (", the mask is all ones" if kept.all() else ""),
        where=step.at(*first(wrong)),
        share=share(int(wrong.sum()), int(kept.sum()), "trained tokens"),
        why="they get a gradient, count in the denominator and move the mean of the advantages",
        advice="make the mask from who wrote each token, while the episode is played, not from ids afterwards",
        sure=sure,
        numbers={"tokens": float(wrong.sum()), "share": float(wrong.sum() / kept.sum())},
    )


def _guessed(step: Step) -> Array:
    """Attention guessed from ids: the run of one id, the same in every row that has it, at the end of rows."""
    ids = step.columns["responses"]
    same = np.cumprod((ids == ids[:, -1:])[:, ::-1], axis=1)[:, ::-1].astype(bool)
    ends = ids[same.sum(axis=1) > 1, -1]
    pad = step.facts.get("pad", ends[0] if len(ends) and (ends == ends[0]).all() else None)
    if pad is None or pad == step.facts.get("eos"):
        return np.ones(ids.shape, dtype=bool)
    return np.asarray(~(same & (ids == pad) & (same.sum(axis=1) > 1)[:, None]))


def _stop(step: Step, kept: Array, seen: Array | None) -> Iterator[Finding]:
    ids, eos = step.columns.get("responses"), step.facts.get("eos")
    if ids is None or eos is None:
        return
    rows = np.flatnonzero((ids == eos).any(axis=1) & kept.any(axis=1))
    if not len(rows):
        return
    places = (ids[rows] == eos).argmax(axis=1)
    if not kept[rows, places].any():
        yield Finding(
            what=f"no row trains its stop token (0 of {len(rows)} rows have mask 1 on the first id {eos})",
            where=step.at(int(rows[0]), int(places[0])),
            share=share(len(rows), step.rows, "rows"),
            why="the decision to stop gets no gradient, so answers grow until they are cut",
            advice="do not guess padding from the token id where pad and end of text are the same id",
            sure="certain",
            numbers={"rows": float(len(rows))},
        )


def _widths(step: Step) -> Iterator[Finding]:
    names = ("response_mask", "responses", "loss_mask", "rollout_log_probs", "old_log_probs", "advantages", "rm_scores")
    width = {n: step.columns[n].shape[1] for n in names if n in step.columns and step.columns[n].ndim == 2}
    if len(set(width.values())) > 1:
        yield Finding(
            what=f"columns of one batch have different widths: {', '.join(f'{n} {w}' for n, w in width.items())}",
            where=step.at(0),
            share=share(step.rows, step.rows, "rows"),
            why="mask and log-probabilities belong to other tokens than the ids; checks leave such columns out",
            advice="extend all of them together at every turn; cut at the first turn that was tokenised again",
            sure="certain",
            numbers={n: float(w) for n, w in width.items()},
        )


def _disagree(step: Step) -> Iterator[Finding]:
    left, right = mask(step, "completion_mask"), mask(step, "tool_mask")
    if left is None or right is None or left.shape != right.shape:
        return
    # A tool mask of 0 where the completion mask is 1 is what it is for; a row that only one of them drops is not.
    wrong = right & ~left & ~left.any(axis=1, keepdims=True)
    if wrong.any():
        kept = int((left & right).sum())
        yield Finding(
            what=f"masks disagree on {int(wrong.sum())} positions of {int(wrong.any(axis=1).sum())} row: the product "
            f"trains {kept} tokens, the length metric says {int(right.sum())}",
            where=step.at(*first(wrong)),
            share=share(int(wrong.any(axis=1).sum()), step.rows, "rows"),
            why="lengths, denominators and the loss speak of different tokens",
            advice="mask a dropped row in both masks",
            sure="certain",
            numbers={"positions": float(wrong.sum())},
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """Tool text counted by mistake, with its exact share."""
    return {"experiment": "masks", "set": {}}


BAD = {
    "tool text counted": lambda: run(change=planted.tool_text_counted),
    "a mask of ones": lambda: run(change=planted.everything_counted),
    "a mask of ones, and only ids to tell": lambda: planted.altered(
        run(change=planted.everything_counted), drop=("loss_mask", "attention_mask", "versions", "rollout_log_probs")
    ),
    "a mask longer than the ids": lambda: planted.altered(
        planted.plain(), {"responses": lambda s: s.columns["responses"][:, :-1]}
    ),
    "the stop token left out": lambda: planted.altered(
        planted.plain(), {"response_mask": lambda s: s.columns["response_mask"] * (s.columns["responses"] != 5)}, eos=5
    ),
}
GOOD = {
    "replies of tools": planted.plain,
    "format tokens": lambda: run(format_tokens=2),
    "rejected tokens": lambda: run(skill=1.0, rollout_lag=1, warmup=2, step={"masks": (("rejection", {}),)}),
}
