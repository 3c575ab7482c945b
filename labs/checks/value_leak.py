"""Do values at tool text or padding enter the advantages of the actions?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, first, mask, numbers, share

CODE = "C6"
NEEDS = (("values", "returns", "token_level_rewards", "response_mask"),)
UNLOCK = "save values, returns and token_level_rewards with response_mask"

#: gamma and lambda that are tried where the file does not state them.
_USUAL = ((1.0, 1.0), (1.0, 0.95), (0.99, 0.95), (0.99, 1.0), (1.0, 0.9), (0.9, 0.9))


def gae(rewards: Array, values: Array, kept: Array, gamma: float, lam: float, *, masked: bool) -> Array:
    """Generalised advantages; `masked` skips cells outside the mask as verl does, else every cell is a step."""
    following, running = np.zeros(len(rewards)), np.zeros(len(rewards))
    out = np.zeros_like(rewards)
    for t in range(rewards.shape[1] - 1, -1, -1):
        counts = kept[:, t] if masked else np.ones(len(rewards), dtype=bool)
        fresh = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * running
        running = np.where(counts, fresh, running)
        following = np.where(counts, values[:, t], following)
        out[:, t] = running
    return out


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Recompute both recursions and see which one the file holds; returns - values is the advantage unwhitened."""
    values, returns = numbers(step, "values"), numbers(step, "returns")
    rewards, kept = numbers(step, "token_level_rewards"), mask(step)
    if values is None or returns is None or rewards is None or kept is None or kept.all() or not kept.any():
        return
    if not np.isfinite([values, returns, rewards]).all():
        return
    raw = (returns - values)[kept]
    stated = (step.facts.get("gamma"), step.facts.get("lam"))
    tried = _USUAL if None in stated else (*((float(stated[0] or 0), float(stated[1] or 0)),), *_USUAL)
    close = 1e-4 * (1 + float(np.abs(raw).max()))
    for gamma, lam in tried:
        right = gae(rewards, values, kept, gamma, lam, masked=True)
        leaked = gae(rewards, values, kept, gamma, lam, masked=False)
        if np.abs(right[kept] - raw).max() < close:
            return
        if np.abs(leaked[kept] - raw).max() < close:
            wrong = kept & (np.abs(leaked - right) > close)
            row, token = first(wrong)
            yield Finding(
                what=f"values at mask-0 positions enter the advantages: row {row}, token {token} has "
                f"{leaked[row, token or 0]:.4g} instead of {right[row, token or 0]:.4g}",
                where=step.at(row, token),
                share=share(int(wrong.sum()), int(kept.sum()), "trained tokens"),
                why="the critic is not trained there, so what it says about tool text is noise in every action before",
                advice="skip cells outside the mask in the recursion",
                sure="certain",
                numbers={"found": float(leaked[row, token or 0]), "right": float(right[row, token or 0])},
            )
            return


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """GAE at tool text, in the experiment on masks."""
    return {"experiment": "masks", "set": {"estimator": "gae"}}


def _with_noise(step: Step) -> Array:
    return np.where(step.columns["response_mask"] > 0, step.columns["values"], 0.7)


def _leaked() -> list[Step]:
    """A critic that says 0.7 at every token it was never trained on, and a recursion that listens."""
    made = planted.altered(run(step={"estimator": "gae", "lam": 0.95}, warmup=3), {"values": _with_noise})

    def returns(step: Step) -> Array:
        c = step.columns
        kept = c["response_mask"] > 0
        return np.asarray(gae(c["token_level_rewards"], c["values"], kept, 1.0, 0.95, masked=False) + c["values"])

    return planted.altered(made, {"returns": returns})


BAD = {"a recursion through tool text": _leaked}
GOOD = {
    "verl's recursion": lambda: planted.altered(
        run(step={"estimator": "gae", "lam": 0.95}, warmup=3), {"values": _with_noise}
    ),
    "no critic": planted.plain,
}
