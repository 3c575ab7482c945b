"""How many groups have equal scores and teach nothing, and do they get advantage 0?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import GROUPED, Array, advantages, groups, live, numbers, scores, share

CODE = "C5"
NEEDS = (("uid", "score"), ("n", "score"), ("uid", "rm_scores"), ("uid", "token_level_scores"))
UNLOCK = "log the group id and the score of each row, or state the group size with --n"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Split the groups of the step into live and dead ones."""
    total = scores(step)
    if total is None:
        return
    mixed, dead = live(step, total)
    if not mixed and not dead:
        return
    shaped = numbers(step, "token_level_rewards")
    yield from _pushed(step, total if shaped is None else shaped.sum(axis=1))
    yield from _same_text(step, total)
    n = int(np.bincount([len(g) for g in mixed + dead]).argmax())
    memory.setdefault("where", step.at(int(dead[0][0]) if dead else 0))
    memory.setdefault("n", n)
    memory["live"] = memory.get("live", 0) + len(mixed)
    memory["dead"] = memory.get("dead", 0) + len(dead)
    high = max(float(total[g].max()) for g in mixed + dead)
    rows = np.concatenate(mixed + dead)
    memory.setdefault("rates", []).append(float((total[rows] == high).mean()))
    memory["binary"] = memory.get("binary", True) and len(np.unique(total[rows])) <= 2


def _pushed(step: Step, total: Array) -> Iterator[Finding]:
    """What the estimator saw is the score after KL, if that is there."""
    row, (mixed, dead) = advantages(step), live(step, total)
    if row is None or not dead:
        return
    row = np.nan_to_num(row, posinf=0.0, neginf=0.0)
    size = [float(np.abs(row[g]).max()) for g in dead]
    if max(size) < 1e-5 * (1.0 + max((float(np.abs(row[g]).max()) for g in mixed), default=0.0)):
        return
    grouped = step.facts.get("estimator") in GROUPED
    known = "estimator" in step.facts
    # Without the estimator's name: live groups that sum to 0 show that the baseline is meant to be the group's.
    centred = bool(mixed) and all(abs(float(row[g].sum())) < 1e-4 * float(np.abs(row[g]).sum()) for g in mixed)
    every = np.concatenate(mixed + dead)
    gap = total[every] - row[every]
    one = bool(mixed) and float(np.ptp(gap)) < 1e-4 * (1 + float(np.abs(total[every]).max()))
    if not (grouped or (not known and (centred or (one and len(mixed + dead) > 1)))):
        return
    worst = dead[int(np.argmax(size))]
    yield Finding(
        what=f"{sum(s > 1e-5 for s in size)} of {len(dead)} groups with equal scores have an advantage, the largest "
        f"{max(size):.4g}" + (": the baseline is not the group mean" if one else ""),
        where=step.at(int(worst[0])),
        share=share(len(dead), len(mixed + dead), "groups"),
        why="such a group says nothing about which answer is better; the policy is trained on the prompt's difficulty "
        "or on rounding",
        advice="subtract the mean of the row's own group; test max - min, not a standard deviation, for 0",
        sure="certain" if grouped or centred else "likely",
        numbers={"advantage": max(size), "dead": float(len(dead))},
    )


def _same_text(step: Step, total: Array) -> Iterator[Finding]:
    text = step.columns.get("output", step.columns.get("responses"))
    failed = [g for g in groups(step).values() if len(g) >= 4 and total[g].max() < np.nanmax(total)]
    if text is None or len(failed) < 3:
        return
    same = [g for g in failed if len({str(x) for x in text[g].tolist()}) == 1]
    if len(same) >= 0.5 * len(failed):
        yield Finding(
            what=f"{len(same)} of {len(failed)} groups without a best score hold the same output in every row",
            where=step.at(int(same[0][0])),
            share=share(len(same), len(failed), "failing groups"),
            why="sampling has collapsed: n rollouts explore no more than one, and no reward can tell them apart",
            advice="look at the entropy and the sampling temperature before the reward",
            sure="certain",
            numbers={"groups": float(len(same))},
        )


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """The share of dead groups over the file, beside what independent rollouts would give."""
    alive, dead = memory.get("live", 0), memory.get("dead", 0)
    if dead < 0.5 * (alive + dead) or alive + dead < 4:
        return
    observed, n, rate = dead / (alive + dead), memory["n"], float(np.mean(memory["rates"]))
    what = f"{100 * observed:.0f} % of groups have equal scores"
    values = {"observed": observed, "n": float(n), "rate": rate}
    if memory["binary"]:
        expected, more = (rate**k + (1 - rate) ** k for k in (n, 4 * n))
        what += f"; independent rollouts at a rate of {rate:.2g} and n={n} would give {100 * expected:.0f} %"
        what += f", n={4 * n} {100 * more:.0f} %"
        if observed > expected + 0.2:
            what += ": prompts are polarised (always or never solved), and more rollouts will not help"
        values["expected"] = expected
    yield Finding(
        what=what,
        where=memory["where"],
        share=share(dead, alive + dead, "groups"),
        why="no group has any signal: the gradient is 0" if not alive else "these groups have advantage 0",
        advice="choose tasks of middle difficulty, filter groups and sample again, or raise n",
        sure="certain",
        numbers=values,
        kind="note" if alive else "fault",
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The share of groups with contrast by skill and size; for a wrong baseline, wrong group ids."""
    if "rate" in finding.numbers:
        n = min(max(int(finding.numbers["n"]), 2), 16)
        sizes = {"small": n, "large": 4 * n, "group_sizes": [n, 4 * n], "budget": 8 * n}
        return {"experiment": "groups", "set": sizes}
    return {"experiment": "groups", "set": {"estimator": "grpo"}}


def _one_baseline() -> list[Step]:
    made = planted.plain()
    for step in made:
        baseline = step.columns["score"].mean()
        step.columns["advantages"] = (step.columns["score"] - baseline)[:, None] * (step.columns["response_mask"] > 0)
    return made


def _collapsed() -> list[Step]:
    """A policy that is sure of the wrong tool in one family."""

    def same(step: Step) -> Any:
        text = step.columns["output"].copy()
        for rows in groups(step).values():
            if step.columns["score"][rows].max() == 0:
                text[rows] = "add"
        return text

    return planted.altered(run(skill=1.0, steps=2), {"output": same})


BAD = {
    "one baseline for all groups": _one_baseline,
    "no group has any signal": lambda: run(steps=2, change=lambda batch: batch.replace(scores=0 * batch["scores"])),
    "all rollouts of a group are the same and fail": _collapsed,
}
GOOD = {
    "group baseline": lambda: run(skill=2.5, steps=3),
    "a converged run": lambda: run(skill=4.5, steps=6),
    "whitening over the batch": lambda: run(skill=2.5, step={"estimator": "reinforce_plus_plus"}),
}
