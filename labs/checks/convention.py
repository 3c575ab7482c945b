"""Which convention made the advantages: which deviation, or none, or leave-one-out; and is it the stated one?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, advantages, live, numbers, scores, share

CODE = "E12"
NEEDS = (
    ("uid", "score", "advantages", "response_mask"),
    ("uid", "score", "advantage"),
    ("n", "score", "advantage"),
    ("critic/advantages/max",),
    ("loss", "kl"),
)
UNLOCK = "save advantages with the group id and the score of each row, or log critic/advantages/max"

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
#: Steps of a log over which loss / kl must not move.
STEPS = 4


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Recompute by every rule where groups are known; else read the largest advantage."""
    row, total = advantages(step), scores(step)
    shaped = numbers(step, "token_level_rewards")
    if row is not None and total is not None:
        yield from _recomputed(step, row, total if shaped is None else shaped.sum(axis=1), memory)
    high = step.scalars.get("critic/advantages/max")
    if row is None and high is not None:
        yield from _largest(step, high, memory)
    if step.has("loss", "kl") and step.scalars.get("kl"):
        memory.setdefault("beta", []).append(step.scalars.get("loss", 0.0) / step.scalars["kl"])
        memory.setdefault("stated", step.facts.get("beta"))
        memory.setdefault("where", step.at())


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
        yield _note(step, f"advantages are {best}, to {fits[best]:.1g}", values)


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


def _largest(step: Step, high: float, memory: dict[str, Any]) -> Iterator[Finding]:
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
            yield _note(
                step, f"max |A| = {size:.4f} = {formula} for n = {count}: one of {count}, {name} deviation",
                {"max": size, "n": float(count)},
            )  # fmt: skip
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


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Loss over KL that does not move is beta."""
    ratio = np.array(memory.get("beta", []))
    if len(ratio) < STEPS or not np.isfinite(ratio).all() or ratio.mean() <= 0 or np.ptp(ratio) > 0.02 * ratio.mean():
        return
    beta, stated = float(np.median(ratio)), memory.get("stated")
    where = Step(source=memory["where"].file or "", format="", step=memory["where"].step)
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
        yield _note(
            where, f"loss / kl is {beta:.4g} in all {len(ratio)} steps: that is beta, and the printed loss is the "
                   f"KL term alone",
            {"beta": beta},
        )  # fmt: skip


def _note(step: Step, what: str, values: dict[str, float]) -> Finding:
    return Finding(
        what=what, where=step.at(), share="the batch", why="library and paper give one name to several formulas",
        advice="compare it with what you meant", sure="certain", numbers=values, kind="note",
    )  # fmt: skip


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The exact moments of the conventions side by side."""
    if "factor" not in finding.numbers and "max" not in finding.numbers:
        return None
    n = min(max(int(finding.numbers["n"]), 2), 4)
    return {
        "experiment": "estimators",
        "set": {"compared": ["grpo", "grpo_population", "dr_grpo", "rloo"], "group_size": n},
    }


def _claims(estimator: str) -> list[Step]:
    return planted.altered(run(skill=2.0, step={"estimator": "grpo_population"}), estimator=estimator)


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


BAD = {
    "population deviation called grpo": lambda: _claims("grpo"),
    "population deviation called rloo": lambda: _claims("rloo"),
    "two conventions in one log": lambda: planted.logged(
        planted.plain(steps=3),
        critic__advantages__max=lambda i: (7 / math.sqrt(8), math.sqrt(7), 7 / math.sqrt(8))[i],
        critic__advantages__min=-0.5,
    ),
    "groups larger than n": lambda: planted.logged(
        planted.altered(planted.plain(steps=2), n=8), critic__advantages__max=3.75, critic__advantages__min=-1
    ),
    "another beta": lambda: _kl_log(0.01),
}
GOOD = {
    "grpo": lambda: run(skill=2.0, steps=3),
    "population deviation, and says so": lambda: run(skill=2.0, step={"estimator": "grpo_population"}),
    "a log": lambda: planted.logged(planted.plain(steps=3)),
    "beta as stated": lambda: _kl_log(0.04),
}
