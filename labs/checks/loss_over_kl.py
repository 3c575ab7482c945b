"""Is loss over KL one number in every step, and is it the stated beta?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.readings import share

CODE = "E12"
NEEDS = (("loss", "kl"),)
UNLOCK = "log loss and kl (TRL does)"

#: Steps of a log over which loss / kl must not move.
STEPS = 4


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Keep the ratio."""
    if step.has("loss", "kl") and step.scalars.get("kl"):
        memory.setdefault("beta", []).append(step.scalars.get("loss", 0.0) / step.scalars["kl"])
        memory.setdefault("stated", step.facts.get("beta"))
        memory.setdefault("where", step.at())
    yield from ()


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Loss over KL that does not move is beta."""
    ratio = np.array(memory.get("beta", []))
    if len(ratio) < STEPS or not np.isfinite(ratio).all() or ratio.mean() <= 0 or np.ptp(ratio) > 0.02 * ratio.mean():
        return
    beta, stated = float(np.median(ratio)), memory.get("stated")
    if stated and abs(beta - float(stated)) > 0.05 * float(stated):
        yield Finding(
            what=f"loss / kl is {beta:.4g} in all {len(ratio)} steps, beta is said to be {float(stated):.4g}",
            where=memory["where"],
            share=share(len(ratio), len(ratio), "steps"),
            why="the coefficient that acts is another one than the settings say",
            advice="look for a second factor, such as gradient accumulation",
            sure="likely",
            numbers={"beta": beta, "stated": float(stated)},
        )
    else:
        yield Finding(
            what=f"loss / kl is {beta:.4g} in all {len(ratio)} steps: that is beta, and the loss is the KL term alone",
            where=memory["where"],
            share=share(len(ratio), len(ratio), "steps"),
            why="advantages average to 0, so that the printed loss says nothing about learning",
            advice="watch the scores and the gradient norm",
            sure="likely",
            numbers={"beta": beta},
            kind="note",
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """A coefficient that can be compared with its gradient."""
    return {"experiment": "kl", "set": {"kl_coef": min(finding.numbers["beta"], 1000.0)}}


def _kl_log(beta: float) -> list[Step]:
    return [
        Step(
            source="trainer_state.json",
            format="trl",
            step=k,
            scalars={"loss": 0.04 * kl, "kl": kl},
            facts={"beta": beta},
        )
        for k, kl in enumerate((0.1, 0.3, 0.25, 0.4), start=1)
    ]


BAD = {"another beta": lambda: _kl_log(0.01)}
GOOD = {"beta as stated": lambda: _kl_log(0.04)}
