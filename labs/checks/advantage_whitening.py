"""Over what were the advantages normalised: the mask or the padding too, once or twice, rows or tokens?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, advantages, live, mask, numbers, scores, share, short

CODE = "C6"
NEEDS = (("advantages", "response_mask"),)
UNLOCK = "save advantages with response_mask"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Means and deviations over several sets of cells."""
    token, kept = numbers(step, "advantages"), mask(step)
    if token is None or kept is None or token.shape != kept.shape or kept.sum() < 2 or not np.isfinite(token).all():
        return
    values = token[kept]
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    if deviation < 1e-9:
        return
    everywhere = float(token.mean())
    if abs(everywhere) < 1e-5 and abs(mean) > 0.02 and not kept.all() and np.abs(token[~kept]).max() > 1e-9:
        yield Finding(
            what=f"masked mean {mean:.3f} (should be 0), {100 * float((values > 0).mean()):.0f} % positive; over all "
            f"{token.size} cells, padding included, the mean is 0: the mean was taken without the mask",
            where=step.at(),
            share=share(kept.size - int(kept.sum()), kept.size, "cells outside the mask"),
            why="short rows shift everybody's advantage; a bad row can be praised",
            advice="take the mean over the mask, like the variance",
            sure="certain",
            numbers={"mean": mean, "share_outside": float((~kept).mean())},
        )
    if abs(mean) < 1e-4 and abs(deviation - 1) < 1e-3:
        yield from _twice(step)
        yield from _by_length(step, token, kept, memory)


def _twice(step: Step) -> Iterator[Finding]:
    """Whitened, and yet every group has the same deviation, whatever its scores: it was divided by its own before."""
    row, total = advantages(step), scores(step)
    if row is None or total is None or step.facts.get("estimator") == "gdpo":  # which is made this way
        return
    mixed, _ = live(step, total)
    before = np.array([float(total[g].std()) for g in mixed])
    if len(mixed) < 2 or float(np.ptp(before)) < 0.02 * float(before.max()):
        return
    for ddof in (0, 1):
        after = np.array([float(row[g].std(ddof=ddof)) for g in mixed])
        if float(np.ptp(after)) < 1e-3 * float(after.max()) and abs(float(after[0]) - 1) > 2e-3:
            sums = [float(row[g].sum()) for g in mixed[:4]]
            yield Finding(
                what="mean 0 and standard deviation 1 over tokens, and the pattern of groups: whitened twice; the "
                f"sums of groups are {short(sums)} instead of 0, every deviation is {after[0]:.4g} instead of 1",
                where=step.at(int(mixed[0][0])),
                share=share(len(mixed), len(mixed), "live groups"),
                why="the advantage of a row depends on the rest of the batch, and a group no longer sums to 0",
                advice="leave out the whitening over the batch behind a group estimator",
                sure="certain" if "estimator" in step.facts else "likely",  # GDPO is made this way
                numbers={"deviation": float(after[0]), "largest_sum": float(np.abs(sums).max())},
            )
            return


def _by_length(step: Step, token: Array, kept: Array, memory: dict[str, Any]) -> Iterator[Finding]:
    """One advantage a row, whitened over tokens: long rows set mean and deviation."""
    row = advantages(step)
    has = kept.any(axis=1)
    if (
        row is None
        or "said" in memory
        or has.sum() < 2
        or float(np.abs(np.where(kept, token - row[:, None], 0)).max()) > 1e-6
    ):
        return
    shift = float(row[has].mean())
    if abs(shift) > 0.02:
        memory["said"] = True
        positive = float(kept[has & (row > 0)].sum() / kept.sum())
        yield Finding(
            what=f"one advantage a row, whitened over tokens: the mean over rows is {shift:.3g}; rows above 0 hold "
            f"{100 * positive:.0f} % of the tokens",
            where=step.at(),
            share=share(int(has.sum()), step.rows, "rows"),
            why="mean and deviation count long rows more often (as in verl's REINFORCE++ with a baseline)",
            advice="whiten one number a row if rows are meant to count alike",
            sure="certain",
            numbers={"shift": shift, "positive_share": positive},
            kind="note",
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The exact bias of an estimator that whitens over the batch, beside one that does not."""
    compared = ["grpo", "reinforce_plus_plus_baseline"]
    return {"experiment": "estimators", "set": {"compared": compared, "learners": ["rloo", "grpo"]}}


def _whiten(values: Array, kept: Array, cells: Array) -> Array:
    return np.asarray((values - values[cells].mean()) / values[kept].std(ddof=1))


def _unmasked() -> list[Step]:
    """One advantage a row in every cell, the mean over all cells, the deviation over the mask."""

    def whole(step: Step) -> Array:
        row = np.repeat(step.columns["score"][:, None], step.columns["response_mask"].shape[1], axis=1)
        return _whiten(row, step.columns["response_mask"] > 0, np.ones(row.shape, dtype=bool))

    return planted.altered(planted.plain(), {"advantages": whole})


def _again() -> list[Step]:
    def again(step: Step) -> Array:
        kept = step.columns["response_mask"] > 0
        return np.where(kept, _whiten(step.columns["advantages"], kept, kept), 0.0)

    return planted.altered(run(skill=2.0, steps=2), {"advantages": again})


BAD = {"the mean over padding": _unmasked, "whitened twice": _again}
GOOD = {
    "once, by group": lambda: run(skill=2.0, steps=3),
    "population deviation": lambda: run(skill=2.0, step={"estimator": "grpo_population"}),
    "once, over the batch": lambda: run(step={"estimator": "reinforce_plus_plus_baseline"}),
    "gae": lambda: run(step={"estimator": "gae", "lam": 0.95}),
}
