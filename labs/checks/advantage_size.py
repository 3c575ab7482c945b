"""Are the advantages alive, of a sane size, and do they push down as well as up?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, advantages, live, mask, numbers, scores, share

CODE = "C6"
NEEDS = (
    ("advantages", "response_mask"),
    ("advantage",),
    ("critic/advantages/max", "critic/advantages/min"),
)
UNLOCK = "save advantages with response_mask, or log critic/advantages/{mean,max,min}"

#: Nothing that is divided by a standard deviation of up to ten thousand values comes near this.
HUGE = 100.0
#: Estimators whose baseline may lie below every score of a batch.
ONE_SIDED = frozenset(
    {"remax", "gae", "gae_step", "gae_truncated", "gae_ignore", "td_lambda", "vtrace", "reward_to_go"}
)


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Look at every trained advantage, else at the logged extremes."""
    token, kept = numbers(step, "advantages"), mask(step)
    row = advantages(step)
    if token is not None and kept is not None and token.shape == kept.shape:
        values = token[kept]
    elif row is not None:
        values = row
    else:
        yield from _scalars(step)
        return
    values = values[np.isfinite(values)]
    if not len(values):
        return
    yield from _dead(step, values, kept)
    yield from _huge(step, values, row)
    yield from _one_sided(step, values, row)


def _dead(step: Step, values: Array, kept: Array | None) -> Iterator[Finding]:
    if np.abs(values).max() > 1e-12:
        return
    total, returns = scores(step), numbers(step, "returns")
    mixed = [] if total is None else live(step, total)[0]
    varied = returns is not None and kept is not None and bool(kept.any()) and float(np.ptp(returns[kept])) > 1e-9
    if mixed or varied:
        what = f"scores differ within {len(mixed)} groups" if mixed else "returns vary"
        yield Finding(
            what=f"all {len(values)} advantages are 0 while {what}",
            where=step.at(int(mixed[0][0]) if mixed else 0),
            share=share(len(values), len(values), "advantages"),
            why="nothing is learnt from this batch, and no error says so",
            advice="look at the axis of the normalisation: over a batch of one row every value is its own mean",
            sure="certain",
            numbers={"values": float(len(values))},
        )


def _huge(step: Step, values: Array, row: Array | None) -> Iterator[Finding]:
    total = scores(step)
    spread = 0.0 if total is None else float(np.nanmax(total) - np.nanmin(total))
    largest = float(np.abs(values).max())
    if largest <= max(HUGE, 20 * spread):
        return
    place = 0 if row is None else int(np.nanargmax(np.abs(row)))
    weight = np.abs(values)
    part = float(weight[weight > largest / 10].sum() / weight.sum())
    yield Finding(
        what=f"max |A| is {largest:.4g}: {int((weight > largest / 10).sum())} of {len(values)} values hold "
        f"{100 * part:.4g} % of the weight",
        where=step.at(place),
        share=share(int((weight > largest / 10).sum()), len(values), "advantages"),
        why="one row decides the step; this is a division by a standard deviation that is 0 or a rounding residue",
        advice="compare max - min with 0 before dividing, use the standard deviation of the whole group, or none",
        sure="certain",
        numbers={"max": largest, "weight": part},
    )


def _one_sided(step: Step, values: Array, row: Array | None) -> Iterator[Finding]:
    moved = values[np.abs(values) > 1e-9]
    total = scores(step)
    if step.facts.get("estimator") in ONE_SIDED or len(moved) < 2 or (moved.min() < 0 < moved.max()):
        return
    if total is None or not np.nanmax(total) > np.nanmin(total):
        return
    up = moved.min() > 0
    yield Finding(
        what=f"all advantages are {'>=' if up else '<='} 0 (mean {values.mean():.3g}) although scores differ",
        where=step.at(0 if row is None else int(np.nanargmax(np.abs(row)))),
        share=share(len(moved), len(values), "advantages"),
        why="nothing is ever pushed down: what was sampled grows, and groups compare nothing"
        if up
        else "nothing is ever pushed up",
        advice="check the baseline: groups of one row keep their raw score",
        sure="likely" if "estimator" in step.facts else "possible",  # ReMax and critics may do this
        numbers={"mean": float(values.mean()), "max": float(np.abs(values).max())},
    )


def _scalars(step: Step) -> Iterator[Finding]:
    if not step.has("critic/advantages/max", "critic/advantages/min"):
        return
    high, low = step.scalars["critic/advantages/max"], step.scalars["critic/advantages/min"]
    if np.isfinite([high, low]).all():
        yield from _huge(step, np.array([low, high]), None)
        score = [step.scalars.get(f"critic/score/{name}", 0.0) for name in ("max", "min")]
        if low >= 0 < high and score[0] > score[1] and step.facts.get("estimator") not in ONE_SIDED:
            yield Finding(
                what=f"advantages lie in [{low:.3g}, {high:.3g}]: nothing is pushed down",
                where=step.at(),
                share="every advantage",
                why="groups compare nothing, what was sampled grows",
                advice="check the group ids: groups of one row keep their raw score",
                sure="likely",
                numbers={"max": high, "min": low},
            )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """One-sided advantages come from groups of one; an exploding division has no estimator in the lab."""
    one_sided = "mean" in finding.numbers or "min" in finding.numbers
    return {"experiment": "groups", "set": {"estimator": "grpo"}} if one_sided else None


def _zeroed() -> list[Step]:
    zero = {"advantages": lambda s: 0 * s.columns["advantages"]}
    return planted.altered(planted.plain(), zero)


BAD = {
    "normalised along the wrong axis": _zeroed,
    "divided by the deviation of the others": lambda: [
        planted.regrouped(s, planted.leave_one_out_std) for s in run(skill=0.8, steps=2)
    ],
    "every group has one row": lambda: run(change=planted.uid_per_row),
    "the same, from scalars": lambda: planted.logged(
        planted.plain(steps=2), critic__advantages__min=0, critic__advantages__max=1
    ),
}
GOOD = {
    "grpo": planted.plain,
    "remax": lambda: run(skill=0.5, step={"estimator": "remax"}),
    "nearly all right": lambda: run(skill=5.0),
    "scalars": lambda: planted.logged(planted.plain(steps=3)),
}
