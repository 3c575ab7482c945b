"""Did the KL charged in the reward change the sign, the order or the size of what a row earns?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import first, live, numbers, share

CODE = "C2"
NEEDS = (
    ("token_level_scores", "token_level_rewards"),
    ("rm_scores", "token_level_rewards"),
    ("critic/score/mean", "critic/rewards/mean"),
)
UNLOCK = "save token_level_scores and token_level_rewards, or log critic/score/mean and critic/rewards/mean"

_WHY = "the policy is then trained to stay near the reference, and the task decides little or nothing"
_ADVICE = "lower kl_coef until the charge is a small part of the spread of scores, or charge KL in the loss"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Compare the total before and after shaping, row by row, else the two means."""
    name = "token_level_scores" if "token_level_scores" in step.columns else "rm_scores"
    before, after = numbers(step, name), numbers(step, "token_level_rewards")
    if before is None or after is None:
        yield from _scalars(step)
        return
    score, reward = before.sum(axis=1), after.sum(axis=1)
    if not np.isfinite(score + reward).all():
        return
    flipped = (np.sign(score) * np.sign(reward) < 0) & (np.abs(score) > 1e-9)
    if flipped.any():
        row, _ = first(flipped)
        yield Finding(
            what=f"KL in the reward turns row {row} from {score[row]:.4g} to {reward[row]:.4g}",
            where=step.at(row),
            share=share(int(flipped.sum()), step.rows, "rows"),
            why=_WHY,
            advice=_ADVICE,
            sure="certain",
            numbers={"score": float(score[row]), "reward": float(reward[row])},
        )
    charge, spread = float(np.std(score - reward)), float(np.std(score))
    mixed, _ = live(step, score)
    if mixed and charge > 0.5 * spread and not flipped.any():
        yield Finding(
            what=f"the KL charged varies by {charge:.3g} between rows, the scores by {spread:.3g}",
            where=step.at(),
            share=share(step.rows, step.rows, "rows"),
            why=_WHY,
            advice=_ADVICE,
            sure="likely",
            numbers={"charge_std": charge, "score_std": spread},
        )


def _scalars(step: Step) -> Iterator[Finding]:
    if not step.has("critic/score/mean", "critic/rewards/mean"):
        return
    score, reward = step.scalars["critic/score/mean"], step.scalars["critic/rewards/mean"]
    if score * reward < 0 and abs(score) > 1e-6:
        yield Finding(
            what=f"the mean score {score:.4g} becomes the mean reward {reward:.4g}",
            where=step.at(),
            share="the mean of the batch",
            why=_WHY,
            advice=_ADVICE,
            sure="likely",
            numbers={"score": score, "reward": reward},
        )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The same charge in a training of the lab."""
    return {"experiment": "train", "set": {"use_kl_in_reward": True, "kl_coef": 1.0}}


def _charged(coefficient: float, **settings: Any) -> list[Step]:
    step = {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": coefficient}}
    return run(warmup=12, step=step, **settings)


BAD = {
    "a coefficient of 1": lambda: _charged(1.0, skill=0.0, learning_rate=6.0),
    "the same, from two means": lambda: planted.logged(
        planted.plain(steps=2), critic__score__mean=0.3, critic__rewards__mean=-0.2
    ),
}
GOOD = {"a coefficient of 0.01": lambda: _charged(0.01), "no KL": planted.plain}
