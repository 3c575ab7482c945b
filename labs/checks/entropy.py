"""Does the policy still explore, and if entropy rises, does it help?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import mask, numbers, share

CODE = "E8"
NEEDS = (("actor/entropy",), ("entropy", "response_mask"), ("entropy",))
UNLOCK = "log actor/entropy (verl: actor.entropy_coeff or calculate_entropy), or save entropy a token"

#: Part of log(actions), or nats where the action space is unknown, below which nothing is explored; a good score.
FLAT, NATS, GOOD_SCORE = 0.03, 0.02, 0.8
#: Windows of the trend, how many must rise while the score falls, and by how much in all.
WINDOWS, RISING, RISE = 5, 4, 0.2


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Keep entropy and score of the step."""
    value = step.scalars.get("actor/entropy", step.scalars.get("entropy"))
    column, kept = numbers(step, "entropy"), mask(step)
    if value is None and column is not None and kept is not None and column.shape == kept.shape and kept.any():
        value = float(column[kept].mean())
    if value is None or not math.isfinite(value):
        return
    memory.setdefault("entropy", []).append(value)
    memory.setdefault("score", []).append(step.scalars.get("critic/score/mean", step.scalars.get("reward", math.nan)))
    memory.setdefault("where", []).append(step.at())
    memory["actions"] = step.facts.get("actions", memory.get("actions"))
    if "critic/score/max" in step.scalars:
        memory["best"] = max(memory.get("best", -math.inf), step.scalars["critic/score/max"])
    yield from ()


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """The level at the end, and the trend."""
    entropy, score = np.array(memory.get("entropy", [])), np.array(memory.get("score", []))
    if not len(entropy):
        return
    actions = memory.get("actions")
    top = math.log(actions) if actions and actions > 1 else None
    tail = max(1, len(entropy) // 5)
    level, reached = float(entropy[-tail:].mean()), float(np.nan_to_num(score[-tail:], nan=math.nan).mean())
    best = max(memory.get("best", 1.0), 1e-9)
    limit = FLAT * top if top else NATS
    values = {"entropy": level, "score": reached if math.isfinite(reached) else 0.0}
    against = f", {100 * level / top:.2g} % of log {actions}" if top else ""
    if level < limit and reached < GOOD_SCORE * best:
        yield Finding(
            what=f"entropy is {level:.3g} nats{against}, at a mean score of {reached:.3g} (best {best:.3g})",
            where=memory["where"][-1],
            share=share(tail, len(entropy), "steps"),
            why="the policy samples one answer and it is not the right one: rollouts of a group are copies",
            advice="go back to a checkpoint before the collapse; raise the upper clip or the temperature, lower "
            "the step size",
            sure="likely",
            numbers=values,
        )
    if top and entropy.max() > top * (1 + 1e-6):
        yield Finding(
            what=f"entropy {entropy.max():.4g} is above log {actions} = {top:.4g}",
            where=memory["where"][int(entropy.argmax())],
            share=share(int((entropy > top).sum()), len(entropy), "steps"),
            why="no policy over these actions has it: it is summed over tokens, or in bits",
            advice="average over the mask, in nats",
            sure="certain",
            numbers={"entropy": float(entropy.max()), "score": values["score"]},
        )
    yield from _trend(memory, entropy, score)


def _trend(memory: dict[str, Any], entropy: Any, score: Any) -> Iterator[Finding]:
    if len(entropy) < 2 * (WINDOWS + 1) or not np.isfinite(score).all():
        return
    h, s = ([float(part.mean()) for part in np.array_split(x, WINDOWS + 1)] for x in (entropy, score))
    both = sum(h[i + 1] > h[i] and s[i + 1] < s[i] for i in range(WINDOWS))
    if both >= RISING and h[-1] > (1 + RISE) * h[0]:
        yield Finding(
            what=f"entropy rises in {both} of the last {WINDOWS} windows while the score falls ({h[0]:.3g} to "
            f"{h[-1]:.3g} "
            f"nats, score {s[0]:.3g} to {s[-1]:.3g})",
            where=memory["where"][-1],
            share=share(both, WINDOWS, "windows"),
            why="exploration is no longer useful: the policy falls apart",
            advice="lower the upper clip or the entropy coefficient, and look at mismatch and staleness",
            sure="likely",
            numbers={"entropy": h[-1], "score": s[-1]},
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """A training that collapses for too large a step."""
    settings = {"estimator": "reinforce_plus_plus", "learning_rate": 400.0, "row_entropy_coeff": 0.0, "updates": 30}
    return {"experiment": "train", "set": settings} if finding.numbers["entropy"] < 0.2 else None


def _collapse() -> list[Step]:
    """A step size at which the first batch decides: one family of tasks is never solved again."""
    step = {"estimator": "reinforce_plus_plus"}
    return run(skill=0.0, warmup=12, steps=2, step=step, learning_rate=400.0, row_entropy_coeff=0.0)


BAD = {
    "the step size is far too large": _collapse,
    "rising while the score falls": lambda: planted.logged(
        planted.plain(steps=12), actor__entropy=lambda i: 0.5 + 0.1 * i, critic__score__mean=lambda i: 0.6 - 0.03 * i
    ),
    "summed over tokens": lambda: planted.logged(planted.plain(steps=2), actor__entropy=4.0),
}
GOOD = {
    "learning": lambda: run(skill=0.5, steps=14),
    "converged": lambda: run(skill=5.0, steps=12),
}
