"""Does the verifier say yes to what is right and to nothing else: gold in the text, gold missing, all answers named?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, scores, share

CODE = "E1"
NEEDS = (("output", "gts", "score"),)
UNLOCK = "log output, gts and score of each row (verl: trainer.rollout_data_dir)"

#: The end of an output in which an answer is looked for; the rows, and their share, that are no accident.
TAIL, ROWS, PART = 100, 3, 0.05
#: Most distinct right answers that can be taken for a list of choices.
CHOICES = 10


def answers(gold: Any) -> list[str]:
    """The accepted answers of a row as text: a string, a list, or either as JSON; none for null."""
    if isinstance(gold, str) and gold[:1] in "[{":
        try:
            gold = json.loads(gold)
        except ValueError:
            return [gold]
    if isinstance(gold, dict):
        gold = gold.get("target", gold.get("answer", gold.get("ground_truth", list(gold.values()))))
    many = gold if isinstance(gold, list | tuple) else [gold]
    return [str(one).strip() for one in many if one is not None and str(one).strip() not in ("", "None", "nan")]


def named(text: str, answer: str) -> bool:
    """Whether the answer stands in the text as a word of its own; `3` does not stand in `13`, `3.5` or `-3`."""
    return re.search(rf"(?<![\w.-]){re.escape(answer)}(?![\w]|\.\d)", text, re.IGNORECASE) is not None


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Read every row."""
    total = scores(step)
    if total is None or "output" not in step.columns or "gts" not in step.columns:
        return
    text = [str(one) for one in step.columns["output"].tolist()]
    gold = [answers(one) for one in step.columns["gts"].tolist()]
    low, high = float(np.nanmin(total)), float(np.nanmax(total))
    if len(text) != step.rows or not any(gold):
        return
    yield from _missed(step, text, gold, total, min(low, 0.0))
    yield from _unparsed(step, gold, total, high, low)
    yield from _all_named(step, text, gold, total, high, low)


def _missed(step: Step, text: list[str], gold: list[list[str]], total: Array, low: float) -> Iterator[Finding]:
    failed = [i for i in range(step.rows) if total[i] <= low and gold[i]]
    ends = [(text[i].rstrip().splitlines() or [""])[-1][-TAIL:] for i in failed]
    rows = [i for i, end in zip(failed, ends, strict=True) if any(named(end, one) for one in gold[i])]
    if len(rows) >= ROWS and len(rows) >= PART * len(failed):
        yield _finding(
            step,
            rows,
            f"{len(rows)} rows score {total[rows[0]]:.3g} and end with the right answer, such as "
            f"{gold[rows[0]][0]!r} in row {rows[0]}",
            len(failed),
            "rows without score",
            "right answers are pushed down as wrong ones",
            "accept the answer without its marker, or print the marker in the prompt",
            "likely",
        )


def _unparsed(step: Step, gold: list[list[str]], total: Array, high: float, low: float) -> Iterator[Finding]:
    without = [i for i in range(step.rows) if not gold[i]]
    paid = [i for i in without if total[i] >= high]
    if paid and high > low and len(paid) >= 0.9 * len(without):
        yield _finding(
            step,
            paid,
            f"{len(paid)} rows whose right answer is missing have the best score {high:.3g}",
            step.rows,
            "rows",
            "the mean score is inflated, and a group where only some rows fail to parse learns noise",
            "leave out tasks whose right answer cannot be parsed",
            "certain",
        )


def _all_named(
    step: Step, text: list[str], gold: list[list[str]], total: Array, high: float, low: float
) -> Iterator[Finding]:
    choices = sorted({one[0].lower() for one in gold if one})
    if not 3 <= len(choices) <= CHOICES or not high > low:
        return
    every = [i for i in range(step.rows) if all(named(text[i], one) for one in choices)]
    paid = [i for i in every if total[i] >= high]
    best = int((total >= high).sum())
    if len(paid) >= ROWS and len(paid) > 0.8 * len(every) and len(paid) >= PART * best:
        yield _finding(
            step,
            paid,
            f"{len(paid)} outputs name all {len(choices)} right answers of the batch and have the best score",
            best,
            "rows with the best score",
            "naming every answer wins: the policy learns to list, not to choose",
            "accept an output only if it names one answer",
            "likely",
        )


def _finding(
    step: Step, rows: list[int], what: str, whole: int, noun: str, why: str, advice: str, sure: Any
) -> Finding:
    return Finding(
        what=what,
        where=step.at(rows[0]),
        share=share(len(rows), whole, noun),
        why=why,
        advice=advice,
        sure=sure,
        numbers={"rows": float(len(rows))},
    )


def _strict() -> list[Step]:
    """A verifier that misses its marker in every third right answer."""
    return planted.altered(planted.plain(), {"score": lambda s: s.columns["score"] * (np.arange(s.rows) % 3 > 0)})


def _missing() -> list[Step]:
    """The right answer of one group is lost, and the verifier says yes to what it cannot read."""

    def lost(step: Step) -> Any:
        return step.columns["uid"] == step.columns["uid"][0]

    made = planted.altered(planted.plain(), {"score": lambda s: np.where(lost(s), 1.0, s.columns["score"])})
    for step in made:
        step.columns["gts"][lost(step)] = None
    return made


def _lists_all(step: Step) -> Array:
    """Won rows answer with every answer there is."""
    every = " or ".join(sorted(set(step.columns["gts"].tolist())))
    return np.where(step.columns["score"] > 0, f"answer {every}", step.columns["output"]).astype(object)


BAD = {
    "right answers score 0": _strict,
    "no right answer, best score": _missing,
    "naming every answer wins": lambda: planted.altered(planted.plain(), {"output": _lists_all}),
}
GOOD = {
    "the lab's verifier": lambda: run(skill=2.0, steps=3),
    "a reward model": lambda: planted.altered(planted.plain(), {"gts": lambda s: np.array([None] * s.rows)}),
}
