"""Is there a number that is none: NaN, infinity, or a huge sentinel, inside the mask or outside?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import first, mask, share

CODE = "E10"
NEEDS = (
    ("score",),
    ("advantages",),
    ("response_mask",),
    ("actor/grad_norm",),
    ("actor/pg_loss",),
    ("grad_norm",),
    ("loss",),
)
UNLOCK = "save any tensor, or log the loss and the gradient norm"

#: Above this a float32 log-probability, score or value is a fill and no measurement.
SENTINEL = 1e30
#: Columns in the order in which a number travels, so that the first one named is where it began.
ORDER = ("rollout_log_probs", "old_log_probs", "ref_log_prob", "values", "rm_scores", "score")
#: Logged numbers that are NaN over nothing by design.
EMPTY = ("_std", "pearson_corr", "vf_explained_var", "non_aborted", "timing", "val-")


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Every float column in the order of the step, then the scalars."""
    kept = mask(step)
    names = [n for n in ORDER if n in step.columns] + sorted(n for n in step.columns if n not in ORDER)
    found: list[tuple[str, Any]] = []
    for name in names:
        column = step.columns[name]
        if column.dtype.kind == "f" and not name.startswith("parts/"):
            with np.errstate(invalid="ignore"):
                wrong = ~np.isfinite(column) | (np.abs(column) > SENTINEL)
            if wrong.any():
                found.append((name, wrong))
    if found:
        name, wrong = found[0]
        row, token = first(wrong)
        place = f"{name}[{row}]" + (f"[{token}]" if token is not None else "")
        inside = kept is None or wrong.shape != kept.shape or bool((wrong & kept).any())
        where = "" if wrong.ndim < 2 or kept is None or wrong.shape != kept.shape else f", mask {int(kept[row, token])}"
        others = [n for n, _ in found[1:]]
        value = step.columns[name][row] if token is None else step.columns[name][row, token]
        yield Finding(
            what=f"first non-finite value: {place} is {_said(value)}{where}"
            + (f"; also in {', '.join(others)}" if others else ""),
            where=step.at(row, token),
            share=share(int(wrong.sum()), wrong.size, "values"),
            why="one of them in a sum makes loss and weights NaN"
            if inside
            else "outside the mask it still reaches every sum that multiplies by the mask: NaN times 0 is NaN",
            advice="drop the row and find who wrote it"
            if inside
            else "select with where(), do not multiply by the mask",
            sure="certain",
            numbers={"values": float(wrong.sum()), "inside": float(inside)},
        )
    wrong_names = [n for n, v in step.scalars.items() if not np.isfinite(v) and not any(part in n for part in EMPTY)]
    if wrong_names:
        grad = [n for n in wrong_names if "grad_norm" in n]
        said = grad or wrong_names
        yield Finding(
            what=f"{said[0]} is {_said(step.scalars[said[0]])}"
            + (f", and {len(wrong_names) - 1} more" if wrong_names[1:] else ""),
            where=step.at(),
            share=share(len(wrong_names), len(step.scalars), "logged numbers"),
            why="an update with it destroys the weights; if updates are skipped instead, nothing is learnt from here on"
            if grad
            else "a mean over nothing, or a NaN in the batch",
            advice="stop, go back to the last checkpoint, and look at the batch of this step",
            sure="certain" if grad else "likely",
            numbers={"names": float(len(wrong_names))},
        )


def _said(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{value:.4g}"


def _outside(step: Step) -> Any:
    column = step.columns["ref_log_prob"].copy()
    column[step.columns["response_mask"] == 0] = np.nan
    return column


def _inside(step: Step) -> Any:
    column = step.columns["old_log_probs"].copy()
    column[3, 0] = -np.inf
    return column


BAD = {
    "a reference that gives NaN for padding": lambda: planted.altered(
        run(step={"use_kl_loss": True}), {"ref_log_prob": _outside}
    ),
    "a token of probability 0": lambda: planted.altered(planted.plain(), {"old_log_probs": _inside}),
    "a gradient that is NaN": lambda: planted.logged(planted.plain(), actor__grad_norm=float("nan")),
}
GOOD = {
    "finite": lambda: run(step={"use_kl_loss": True}),
    "NaN over nothing": lambda: planted.logged(planted.plain(), critic__vf_explained_var=float("nan")),
}
