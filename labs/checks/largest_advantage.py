"""Does the largest logged advantage fit the group size, and one convention throughout the run?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import convention_note

CODE = "E12"
NEEDS = (("critic/advantages/max",),)
UNLOCK = "log critic/advantages/{max,min}"


def largest(value: float) -> dict[str, int]:
    """The group size in which one success has this advantage, by convention; of the sizes in use, up to 64.

    One of n has sqrt(n - 1) under the population deviation and (n - 1) / sqrt(n) under Bessel's.
    """
    found: dict[str, int] = {}
    for n in (2, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64):
        for name, scale in (("Bessel", math.sqrt((n - 1) / n)), ("population", 1.0)):
            if name not in found and abs(value - scale * math.sqrt(n - 1)) < 2e-5 * value + 2e-6:
                found[name] = n
    return found


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Look the number up."""
    high = step.scalars.get("critic/advantages/max")
    if high is None or "advantages" in step.columns or not math.isfinite(high):
        return
    n = int(step.facts.get("n") or 0)
    low = step.scalars.get("critic/advantages/min", 0.0)
    size = max(high, -low)
    for name, count in largest(size).items():
        before = memory.setdefault("kinds", {}).setdefault(name, (count, step.step, size))
        others = [(k, v) for k, v in memory["kinds"].items() if k != name and v[0] == count]
        if others and size > 1.2 and "both" not in memory:
            memory["both"] = True
            yield Finding(
                what=f"max |A| is {size:.4f}, one of {count} by the {name} deviation; in step {others[0][1][1]} it was "
                f"{others[0][1][2]:.4f}, by the {others[0][0]} one: two conventions in one run",
                where=step.at(),
                share="the log",
                why="half of the numbers are from other code than the rest; step sizes differ by sqrt((n - 1) / n)",
                advice="find out which code writes which number",
                sure="likely",
                numbers={"max": size, "n": float(count)},
            )
        elif before[1] == step.step and size > 1.2:
            formula = "(n - 1) / sqrt(n)" if name == "Bessel" else "sqrt(n - 1)"
            yield convention_note(
                step,
                f"max |A| = {size:.4f} = {formula} for n = {count}: one of {count}, {name} deviation",
                {"max": size, "n": float(count)},
            )
    if (
        n > 1
        and step.facts.get("estimator") in ("grpo", "grpo_vectorized", "trl_grpo")
        and size > 1.001 * math.sqrt(n - 1)
    ):
        yield Finding(
            what=f"max |A| is {size:.4f}; with groups of {n} no deviation gives more than sqrt(n - 1) = "
            f"{math.sqrt(n - 1):.4f}",
            where=step.at(),
            share="the largest advantage",
            why="groups are larger than n, or the advantages were scaled once more",
            advice="check the group ids and what follows the estimator",
            sure="certain",
            numbers={"max": size, "n": float(n)},
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The exact moments of the conventions side by side."""
    n = min(max(int(finding.numbers["n"]), 2), 4)
    return {"experiment": "estimators", "set": {"compared": ["grpo", "grpo_population", "dr_grpo"], "group_size": n}}


BAD = {
    "two conventions in one log": lambda: planted.logged(
        planted.plain(steps=3),
        critic__advantages__max=lambda i: (7 / math.sqrt(8), math.sqrt(7), 7 / math.sqrt(8))[i],
        critic__advantages__min=-0.5,
    ),
    "groups larger than n": lambda: planted.logged(
        planted.plain(steps=2), critic__advantages__max=3.75, critic__advantages__min=-1
    ),
}
GOOD = {
    "a log": lambda: planted.logged(planted.plain(steps=3)),
    "population deviation": lambda: planted.logged(run(skill=2.0, steps=3, step={"estimator": "grpo_population"})),
}
