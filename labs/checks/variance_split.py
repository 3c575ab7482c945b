"""Does the score vary within groups, where it teaches, or only between prompts?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, groups, scores, share

CODE = "E3"
NEEDS = (
    ("uid", "score"),
    ("n", "score"),
    ("uid", "rm_scores"),
    ("reward_std", "frac_reward_zero_std"),
)
UNLOCK = "log the group id and the score of each row, or state the group size with --n"

#: Share of the variance within groups below which it is said, and groups for it.
LITTLE, GROUPS = 0.1, 4


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Add up squares within groups and in all; in logs, look at the two numbers that say the same."""
    if step.has("reward_std", "frac_reward_zero_std") and "said" not in memory:
        deviation, dead = step.scalars.get("reward_std", 0.0), step.scalars.get("frac_reward_zero_std", 0.0)
        if dead >= 1.0 and deviation > 1e-6:
            memory["said"] = True
            yield _finding(0.0, deviation, "every group", step.at())
    total = scores(step)
    if total is None:
        return
    found = [rows for rows in groups(step).values() if len(rows) > 1 and np.isfinite(total[rows]).all()]
    if not found:
        return
    memory.setdefault("where", step.at(int(found[0][0])))
    every = np.concatenate(found)
    memory["groups"] = memory.get("groups", 0) + len(found)
    memory["rows"] = memory.get("rows", 0) + len(every)
    for name, value in (
        ("within", sum(float(((total[g] - total[g].mean()) ** 2).sum()) for g in found)),
        ("all", float(((total[every] - total[every].mean()) ** 2).sum())),
        # Of n independent rollouts of equally hard prompts, a share 1 - 1/n of the squares lies within groups.
        ("even", sum(len(g) - 1 for g in found) / len(every) * len(found)),
    ):
        memory[name] = memory.get(name, 0.0) + value


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """The split over the file."""
    if not memory.get("all", 0.0) > 1e-12 or memory["groups"] < 2:
        return
    within, even = memory["within"] / memory["all"], memory["even"] / memory["groups"]
    if within < 1e-12 or (within < LITTLE * even and memory["groups"] >= GROUPS):
        deviation = float(np.sqrt(memory["all"] / max(memory["rows"] - 1, 1)))
        part = share(memory["groups"], memory["groups"], "groups")
        yield _finding(within, deviation, part, memory["where"])


def _finding(within: float, deviation: float, part: str, where: Any) -> Finding:
    return Finding(
        what=f"variance: {100 * (1 - within):.0f} % between prompts, {100 * within:.0f} % within groups; the standard "
        f"deviation of the scores, {deviation:.4g}, is not signal",
        where=where,
        share=part,
        why="advantages compare rows of one prompt, and those score alike",
        advice="look at the parts of the reward that are the same for a whole prompt; choose prompts of middle "
        "difficulty",
        sure="certain",
        numbers={"within": within, "std": deviation},
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """Prompts that are nearly always or nearly never solved."""
    return {"experiment": "groups", "set": {"skills": [-3.0, 6.0]}}


def _by_prompt() -> list[Step]:
    """The score is a matter of the prompt."""

    def score(step: Step) -> Array:
        return np.array([6.0 if str(uid)[-1] in "02468" else -6.0 for uid in step.columns["uid"]])

    return planted.altered(planted.plain(steps=2), {"score": score})


def _noisy() -> list[Step]:
    made = _by_prompt()
    noise = np.random.default_rng(3).normal(size=made[0].rows)
    return planted.altered(made, {"score": lambda s: s.columns["score"] + noise})


BAD = {
    "the score depends on the prompt alone": _by_prompt,
    "nearly so": _noisy,
    "the same, logged": lambda: planted.logged(planted.plain(), reward_std=5.08, frac_reward_zero_std=1.0),
}
GOOD = {"mixed groups": lambda: run(skill=2.0, steps=2), "a converged run": lambda: run(skill=4.0, steps=4)}
