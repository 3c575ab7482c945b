"""How much does the clip take away, is the logged fraction the one that acts, does the dual clip act?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import duplicate, planted, run
from labs.readings import first, mask, numbers, share

CODE = "C8"
NEEDS = (
    ("old_log_probs", "log_prob", "advantages", "response_mask"),
    ("actor/pg_clipfrac",),
    ("clip_ratio/region_mean",),
)
UNLOCK = "save old_log_probs, log_prob and advantages with response_mask, or log actor/pg_clipfrac"

#: Share of tokens without gradient from which a batch is over-used, and share under the dual clip.
MUCH, LOWER = 0.3, 0.01


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Count clipped tokens from the columns, else read the logged numbers."""
    logged = step.scalars.get("actor/pg_clipfrac", step.scalars.get("clip_ratio/region_mean"))
    memory["steps"] = memory.get("steps", 0) + (logged is not None)
    memory["inert"] = memory.get("inert", True) and not logged and abs(step.scalars.get("actor/ppo_kl", 1.0)) < 1e-9
    memory.setdefault("where", step.at())
    old, new, kept = numbers(step, "old_log_probs"), numbers(step, "log_prob"), mask(step)
    pull = numbers(step, "advantages")
    if old is None or new is None or kept is None or pull is None or not kept.any():
        yield from _logged(step, logged)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(np.clip(np.where(kept, new - old, 0.0), -20, 20))
    low, high = (float(step.facts.get(f"clip_ratio_{side}", 0.2)) for side in ("low", "high"))
    dual = float(step.facts.get("clip_ratio_c", 3.0))
    outside = kept & ((ratio > 1 + high) | (ratio < 1 - low))
    above, below = kept & (pull > 0) & (ratio > 1 + high), kept & (pull < 0) & (ratio < 1 - low)
    acting, lower = above | below, kept & (pull < 0) & (ratio > dual)
    count = int(kept.sum())
    real, naive = float(acting.sum() / count), float(outside.sum() / count)
    sides = f"high {above.sum() / count:.3g}, low {below.sum() / count:.3g}"
    spoken = f"clipped {real:.3g} ({sides}); outside band {naive:.3g}"
    if logged is not None and naive > real + 1e-3 and abs(logged - naive) < 1e-3 * (1 + naive):
        yield _finding(
            step,
            f"the logged clip fraction {logged:.3g} ignores the sign of A: {spoken}",
            first(outside & ~acting),
            share(int((outside & ~acting).sum()), count, "trained tokens"),
            "a token outside the band is only clipped when it would go further; the rest keep their gradient",
            "count ratio > 1 + high where A > 0 and ratio < 1 - low where A < 0",
            "certain",
            real,
            naive,
        )
    if real > MUCH:
        yield _finding(
            step,
            spoken,
            first(acting),
            share(int(acting.sum()), count, "trained tokens"),
            "these tokens have no gradient: the batch is used too long or the step is too large",
            "fewer epochs or mini-batches, a smaller learning rate",
            "likely",
            real,
            naive,
        )
    if lower.sum() > LOWER * count:
        row, token = first(lower)
        place = row, token or 0
        yield _finding(
            step,
            f"dual clip: {int(lower.sum())} token, gradient 0 there, A={pull[place]:.3g} at ratio "
            f"{ratio[place]:.3g} "
            f"costs {-pull[place] * dual:.3g} instead of {-pull[place] * ratio[place]:.3g}",
            (row, token),
            share(int(lower.sum()), count, "trained tokens"),
            "bad tokens became more than three times as likely: the policy runs away from what sampled",
            "look at staleness and at the learning rate",
            "likely",
            real,
            naive,
        )


def _logged(step: Step, logged: float | None) -> Iterator[Finding]:
    lower = step.scalars.get("actor/pg_clipfrac_lower", 0.0)
    if logged is not None and logged > MUCH:
        yield _finding(
            step,
            f"the clip fraction is {logged:.3g}",
            (None, None),
            f"{100 * logged:.0f} % of trained tokens",
            "these tokens have no gradient: the batch is used too long or the step is too large",
            "fewer epochs or mini-batches, a smaller learning rate",
            "likely",
            logged,
            logged,
        )
    if lower > LOWER:
        yield _finding(
            step,
            f"the dual clip acts on {lower:.3g} of the tokens",
            (None, None),
            f"{100 * lower:.0f} % of trained tokens",
            "bad tokens became more than three times as likely: the policy runs away from what sampled",
            "look at staleness and at the learning rate",
            "likely",
            lower,
            lower,
        )


def _finding(
    step: Step, what: str, place: tuple[int | None, int | None], part: str, why: str, advice: str, sure: Any,
    real: float, naive: float,
) -> Finding:  # fmt: skip
    return Finding(
        what=what,
        where=step.at(*place),
        share=part,
        why=why,
        advice=advice,
        sure=sure,
        numbers={"clipped": real, "outside": naive},
    )


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """One update a batch: the clip never acts."""
    if memory.get("steps", 0) >= 5 and memory["inert"]:
        yield Finding(
            what=f"ratio 1 and clip fraction 0 in all {memory['steps']} steps: one update a batch",
            where=memory["where"],
            share=share(memory["steps"], memory["steps"], "steps"),
            why="this is expected; the settings of the clip change nothing, and the printed loss says nothing",
            advice="watch the gradient norm and the scores instead",
            sure="certain",
            numbers={"steps": float(memory["steps"])},
            kind="note",
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """Many epochs on one batch, and what the clips stop."""
    return {"experiment": "clipping", "set": {"losses": ["vanilla"], "epochs": 60, "learning_rate": 0.1}}


def _sign_ignored() -> list[Step]:
    made = run(drift=0.6)
    for step in made:
        ratio = np.exp(step.columns["log_prob"] - step.columns["old_log_probs"])[step.columns["response_mask"] > 0]
        step.scalars["actor/pg_clipfrac"] = float((np.abs(ratio - 1) > 0.2).mean())
    return made


def _runaway() -> list[Step]:
    """Bad tokens whose probability has grown fourfold."""
    made = [duplicate(step) for step in planted.plain()]
    for step in made:
        grown = 1.4 * (step.columns["advantages"] < 0)
        step.columns["old_log_probs"] = step.columns["log_prob"] - grown
    return made


BAD = {
    "the sign is ignored": _sign_ignored,
    "a batch used for long": lambda: run(drift=3.0),
    "bad tokens grow": _runaway,
    "the same, logged": lambda: planted.logged(
        planted.plain(steps=2), actor__pg_clipfrac=0.6, actor__pg_clipfrac_lower=0.1
    ),
}
GOOD = {
    "two mini-batches": lambda: run(epochs=2, minibatches=2, learning_rate=0.5, steps=3),
    "a later mini-batch": lambda: run(drift=0.1),
    "one update a batch": lambda: planted.plain(steps=6),
}
