"""Does the return reach the actions before a tool's reply, or is it cut at mask 0?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, first, mask, numbers, share

CODE = "C7"
NEEDS = (
    ("returns", "response_mask", "token_level_rewards"),
    ("returns", "response_mask", "rm_scores"),
    ("advantages", "response_mask", "rm_scores"),
)
UNLOCK = "save returns (or advantages) and rm_scores with response_mask"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """In rows that are paid behind a gap, look for returns of exactly 0 before it."""
    kept = mask(step)
    rewards = numbers(step, "token_level_rewards" if "token_level_rewards" in step.columns else "rm_scores")
    if kept is None or rewards is None or rewards.shape != kept.shape:
        return
    last = kept.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)
    inside = np.arange(kept.shape[1])[None, :] < last[:, None]
    # Start of the last run of trained tokens: everything trained before it lies behind at least one gap.
    gap = np.where(~kept & inside, np.arange(kept.shape[1])[None, :], -1).max(axis=1)
    early = kept & (np.arange(kept.shape[1])[None, :] < gap[:, None])
    late = kept & ~early
    paid = (np.where(late, rewards, 0.0).sum(axis=1) != 0) & early.any(axis=1)
    paid &= ~(np.where(early, rewards, 0.0) != 0).any(axis=1)
    returns = numbers(step, "returns")
    if not paid.any():
        return
    if returns is not None and returns.shape == kept.shape:
        cut = early & paid[:, None] & (np.abs(returns) < 1e-12)
        alive = (np.where(late, np.abs(returns), 0.0).max(axis=1) > 1e-9)[:, None]
    else:
        cut, alive = _by_advantage(step, kept, early, late, paid)
    cut &= alive
    if cut.sum() < 0.9 * early[paid].sum():
        return
    row, token = first(cut)
    rows = int(cut.any(axis=1).sum())
    yield Finding(
        what=f"{int(cut[row].sum())} of {int(kept[row].sum())} action tokens of row {row} get no return: the reward "
        f"comes behind a gap of mask 0, and so in {rows} of {int(paid.sum())} paid rows with a gap",
        where=step.at(row, token),
        share=share(int(cut.sum()), int(kept[paid].sum()), "action tokens of paid rows"),
        why="calls of tools in won rows are trained like those of lost rows (REINFORCE++ of verl below 0.9.0)",
        advice="carry the running return across mask 0 instead of resetting it there",
        sure="certain",
        numbers={"tokens": float(cut.sum()), "rows": float(rows)},
    )


def _by_advantage(step: Step, kept: Array, early: Array, late: Array, paid: Array) -> tuple[Array, Array]:
    """Without returns: early tokens of paid rows hold the very number that unpaid rows hold everywhere."""
    token = numbers(step, "advantages")
    lost = kept & ~paid[:, None] & (_total(step) == 0)[:, None]
    if token is None or not lost.any() or float(np.ptp(token[lost])) > 1e-6:
        return np.zeros_like(kept), np.zeros((len(kept), 1), dtype=bool)
    base = float(token[lost][0])
    moved = np.where(late, np.abs(token - base), 0.0).max(axis=1) > 1e-6
    return early & paid[:, None] & (np.abs(token - base) < 1e-6), moved[:, None]


def _total(step: Step) -> Array:
    """The sum of the placed scores of each row."""
    placed = numbers(step, "rm_scores" if "rm_scores" in step.columns else "token_level_rewards")
    assert placed is not None
    return np.asarray(placed.sum(axis=1))


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """Both versions of the estimator side by side, and the exact bias of the old one."""
    return {"experiment": "masks", "set": {"estimator": "reinforce_plus_plus_reset"}}


def _cut(**settings: Any) -> list[Step]:
    return run(skill=2.0, step={"estimator": "reinforce_plus_plus_reset", **settings})


BAD = {
    "REINFORCE++ of verl below 0.9.0": _cut,
    "the same with a discount": lambda: _cut(gamma=0.9),
    "the same, only advantages": lambda: planted.altered(_cut(), drop=("returns",)),
}
GOOD = {
    "REINFORCE++": lambda: run(skill=2.0, step={"estimator": "reinforce_plus_plus", "gamma": 0.9}),
    "no gaps": lambda: run(skill=2.0, multi_turn_rows=True, step={"estimator": "reinforce_plus_plus"}),
    "grpo": lambda: planted.altered(planted.plain(), drop=("returns",)),
    "gae": lambda: run(skill=2.0, step={"estimator": "gae", "lam": 0.95}),
}
