"""Is the ratio 1 before the first update, and if not, is it a temperature on one side or noise?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import first, mask, numbers, share, temperature

CODE = "C8"
NEEDS = (("old_log_probs", "log_prob", "response_mask"),)
UNLOCK = "save old_log_probs and log_prob of the first mini-batch with response_mask"

#: Slope and explained share from which a linear pattern is a temperature; a mean |log-ratio| that kernels do not make.
SLOPE, EXPLAINED, NOISE = 0.04, 0.95, 0.02


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Regress the log-ratio on the log-probability."""
    old, new, kept = numbers(step, "old_log_probs"), numbers(step, "log_prob"), mask(step)
    if old is None or new is None or kept is None or old.shape != kept.shape or new.shape != kept.shape:
        return
    gap = np.where(kept, new - old, 0.0)
    if not kept.any() or not np.isfinite(gap).all():
        return
    size = float(np.abs(gap[kept]).mean())
    tilt, explained = temperature(new, old, kept, numbers(step, "row_index"))
    numbered = {"slope": tilt, "explained": explained, "mean": size}
    row, token = first(np.abs(gap) >= np.abs(gap).max())
    if abs(tilt) > SLOPE and explained > EXPLAINED:
        yield Finding(
            what=f"the log-ratio is linear in the new log-prob with slope {tilt:.2f} (= {1 + tilt:.3g} - 1): "
            "temperature mismatch, not noise",
            where=step.at(row, token),
            share=share(int((np.abs(gap) > 1e-6).sum()), int(kept.sum()), "trained tokens"),
            why="the ratio is far from 1 before any update: the clip throws tokens away and the rest is weighted "
            "wrongly",
            advice="divide the logits by the sampling temperature wherever log-probabilities are computed",
            sure="certain" if explained > 0.999 else "likely",
            numbers=numbered,
        )
    elif size > NOISE and step.facts.get("mini_batch") == 0:
        yield Finding(
            what=f"the mean |log-ratio| of the first mini-batch is {size:.3g}, without the pattern of a temperature",
            where=step.at(row, token),
            share=share(int((np.abs(gap) > NOISE).sum()), int(kept.sum()), "trained tokens"),
            why="before any update the ratio is 1: the two passes did not see the same model or the same tokens",
            advice="look at dropout, other kernels or batch composition, and weights that were synchronised late",
            sure="likely",
            numbers=numbered,
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """What a ratio away from 1 costs under the clips, exactly."""
    return {"experiment": "clipping", "set": {"losses": ["vanilla"]}}


BAD = {
    "old log-probs at temperature 0.7": lambda: run(rescored=0.7),
    "old log-probs at temperature 1.3, without states": lambda: planted.altered(
        run(rescored=1.3, skill=0.3), drop=("row_index",)
    ),
    "another model scored": lambda: planted.altered(run(drift=0.5), mini_batch=0),
}
GOOD = {
    "the same policy": planted.plain,
    "a later mini-batch": lambda: run(drift=0.1),
}
