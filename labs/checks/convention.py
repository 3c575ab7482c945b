"""Which convention made the advantages: which deviation, or none, or leave-one-out; and is it the stated one?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, advantages, convention_note, live, numbers, scores, share

CODE = "E12"
NEEDS = (
    ("uid", "score", "advantages", "response_mask"),
    ("uid", "rm_scores", "advantages", "response_mask"),
    ("uid", "score", "advantage"),
    ("n", "score", "advantage"),
)
UNLOCK = "save advantages with the group id and the score of each row"

#: What each convention makes of the scores of a group.
RULES: dict[str, Callable[[Array], Array]] = {
    "mean and Bessel deviation (GRPO)": lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-6),
    "mean and population deviation": lambda r: (r - r.mean()) / (r.std() + 1e-6),
    "mean and Bessel deviation with epsilon 1e-4 (TRL)": lambda r: (r - r.mean()) / (r.std(ddof=1) + 1e-4),
    "mean alone (Dr. GRPO)": lambda r: r - r.mean(),
    "leave-one-out (RLOO)": lambda r: (r - r.mean()) * len(r) / (len(r) - 1),
}
#: The rules that an estimator's name stands for.
STATED = {
    "grpo": (0, 2), "grpo_vectorized": (0, 2), "grpo_population": (1,), "standardize_by_group": (1,),
    "trl_grpo": (0, 2),
    "dr_grpo": (3,), "rloo": (4,), "rloo_vectorized": (4,), "trl_rloo": (4,),
}  # fmt: skip


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Recompute the advantages of live groups by every rule."""
    row, total = advantages(step), scores(step)
    shaped = numbers(step, "token_level_rewards")
    if row is not None and total is not None:
        yield from _recomputed(step, row, total if shaped is None else shaped.sum(axis=1), memory)


def _recomputed(step: Step, row: Array, total: Array, memory: dict[str, Any]) -> Iterator[Finding]:
    mixed, _ = live(step, total)
    if not mixed or not all(np.isfinite(row[g]).all() for g in mixed):
        return
    size = max(float(np.abs(row[g]).max()) for g in mixed)
    fits = {
        name: max(float(np.abs(rule(total[g]) - row[g]).max()) for g in mixed) / max(size, 1e-9)
        for name, rule in RULES.items()
    }
    best = min(fits, key=lambda name: fits[name])
    stated = step.facts.get("estimator")
    norm = bool(step.facts.get("norm_adv_by_std_in_grpo", True))
    if stated not in STATED or not norm:
        stated = None
    if fits[best] > 2e-3:
        return
    n, top = len(mixed[0]), max(float(np.abs(row[g]).max()) for g in mixed)
    values = {"max": top, "n": float(n), "error": fits[best]}
    wanted = [list(RULES)[i] for i in STATED[stated]] if stated else []
    if stated and all(fits[name] > 2e-3 for name in wanted):
        group = mixed[0]
        factor = float(np.abs(row[group]).max() / np.abs(RULES[wanted[0]](total[group])).max())
        yield Finding(
            what=f"the estimator is {stated}, and the advantages are {best}: max |A| {top:.4f}, {factor:.4g} "
            f"times those of "
            f"{wanted[0]}",
            where=step.at(int(group[0])),
            share=share(len(mixed), len(mixed), "live groups"),
            why="the step size is another one; without a deviation easy and hard prompts are weighed otherwise, too",
            advice="compare the code with the settings, and the learning rate with the factor",
            sure="certain",
            numbers={**values, "factor": factor},
        )
    elif "said" not in memory:
        memory["said"] = True
        yield convention_note(step, f"advantages are {best}, to {fits[best]:.1g}", values)


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The exact moments of the conventions side by side."""
    n = min(max(int(finding.numbers["n"]), 2), 4)
    return {
        "experiment": "estimators",
        "set": {"compared": ["grpo", "grpo_population", "dr_grpo", "rloo"], "group_size": n},
    }


def _claims(estimator: str) -> list[Step]:
    return planted.altered(run(skill=2.0, step={"estimator": "grpo_population"}), estimator=estimator)


BAD = {
    "population deviation called grpo": lambda: _claims("grpo"),
    "population deviation called rloo": lambda: _claims("rloo"),
}
GOOD = {
    "grpo": lambda: run(skill=2.0, steps=3),
    "population deviation, and says so": lambda: run(skill=2.0, step={"estimator": "grpo_population"}),
}
