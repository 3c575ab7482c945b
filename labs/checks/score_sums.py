"""Does the total of the placed scores of each row say what was expected?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import first, numbers, rollouts, scores, share

CODE = "C1"
NEEDS = (("score",), ("rm_scores",), ("token_level_scores",))
UNLOCK = "log the score of each row (verl: trainer.rollout_data_dir), or save rm_scores"

#: Rows without a single differing score that make a verifier suspect.
SILENT_ROWS = 200


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Compare every total that the step has, and count what a session was paid."""
    total = scores(step)
    if total is None:
        return
    for name in ("rm_scores", "token_level_scores"):
        placed = numbers(step, name)
        if placed is None or placed.ndim != 2:
            continue
        gap = np.abs(placed.sum(axis=1) - total)
        wrong = gap > 1e-4 * (1 + np.abs(total))
        if wrong.any():
            row, _ = first(wrong)
            yield Finding(
                what=f"row {row} has score {total[row]:.4g} and its {name} sum to {placed[row].sum():.4g}",
                where=step.at(row),
                share=share(int(wrong.sum()), step.rows, "rows"),
                why="advantages are made of the placed scores, so training sees another reward than the one you read",
                advice="place the whole score on one token of the row, and shape it before it is logged",
                sure="certain",
                numbers={"score": float(total[row]), "placed": float(placed[row].sum())},
            )
    yield from _sessions(step, total)
    seen = total[np.isfinite(total)]
    if len(seen) and not step.facts.get("validation"):
        memory["rows"] = memory.get("rows", 0) + len(seen)
        memory["low"] = min(memory.get("low", np.inf), float(seen.min()))
        memory["high"] = max(memory.get("high", -np.inf), float(seen.max()))
        memory.setdefault("where", step.at())


def _sessions(step: Step, total: Any) -> Iterator[Finding]:
    if step.facts.get("validation") or not step.has("uid", "session"):
        return
    order = numbers(step, "index")
    if order is None:
        return
    last = {(step.columns["uid"][row], step.columns["session"][row]): order[row] for row in rollouts(step).tolist()}
    keys = zip(step.columns["uid"].tolist(), step.columns["session"].tolist(), strict=True)
    rest = np.array([row for row, key in enumerate(keys) if order[row] < last.get(key, -1)], dtype=np.int64)
    paid = rest[np.nan_to_num(total[rest]) != 0]
    if len(paid):
        yield Finding(
            what=f"{len(paid)} outputs that are not the last of their session hold a score of their own",
            where=step.at(int(paid[0])),
            share=share(len(paid), len(rest), "earlier outputs"),
            why="a session is paid once, by its last output: its total is a multiple of the score otherwise",
            advice="write the score to the output with the largest index and 0 to the others",
            sure="likely",
            numbers={"outputs": float(len(paid))},
        )


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """Say so when nothing ever scored differently."""
    if memory.get("rows", 0) >= SILENT_ROWS and memory["low"] == memory["high"]:
        yield Finding(
            what=f"every one of {memory['rows']} rows scored {memory['low']:.4g}",
            where=memory["where"],
            share=share(memory["rows"], memory["rows"], "rows"),
            why="equal scores carry no gradient, whatever the estimator",
            advice="score a right answer by hand with your reward function; then look at the difficulty of the tasks",
            sure="likely",
            numbers={"score": memory["low"]},
        )


def _unpaid() -> list[Step]:
    """A verifier that never says yes."""
    return run(steps=5, change=lambda batch: batch.replace(scores=0 * batch["scores"]))


BAD = {
    "a verifier that never says yes": _unpaid,
    "half of the score is lost where it is placed": lambda: planted.altered(
        planted.plain(), {"rm_scores": lambda s: s.columns["rm_scores"] / 2}
    ),
    "every output of a session holds its score": lambda: planted.altered(
        run(multi_turn_rows=True), {"score": lambda s: np.ones(s.rows)}, drop=("rm_scores", "token_level_scores")
    ),
}
GOOD = {
    "single output": planted.plain,
    "several outputs a session": lambda: run(multi_turn_rows=True),
    "an easy batch": lambda: run(skill=6.0, group_size=4),
}
