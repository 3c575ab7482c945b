"""What was the loss divided by: is the logged loss the stated one, and whose tokens weigh how much?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, mask, numbers, share

CODE = "E4"
NEEDS = (("advantages", "response_mask"), ("token_loss", "response_mask"))
UNLOCK = "save advantages, log_prob, old_log_probs, response_mask, loss_mask (and micro_batch), and log actor/pg_loss"

#: Shares of tokens without advantage, and of rejected ones, and the ratio of lengths, from which they are mentioned.
DEAD, REJECTED, LENGTHS = 0.5, 0.25, 4.0


def conventions(loss: Array, kept: Array, chosen: Array, part: Array | None) -> dict[str, float]:
    """The loss `[B, T]` under every convention: over kept or chosen tokens, and micro-batches summed up wrongly."""
    inner = np.where(kept, loss, 0.0)
    rows, count, width = inner.sum(axis=1), kept.sum(axis=1), kept.shape[1]
    made: dict[str, float] = {}
    for name, base in (("", kept), (" of loss_mask", chosen)):
        present = float(base.any(axis=1).sum())
        made[f"token-mean{name}"] = float(rows.sum()) / float(base.sum())
        made[f"seq-mean-token-sum{name}"] = float(rows.sum()) / present
        made[f"seq-mean-token-sum-norm{name}"] = float(rows.sum()) / present / width
        made[f"seq-mean-token-mean{name}"] = float((rows / np.maximum(count, 1)).sum()) / present
    made["token-sum"] = float(rows.sum())
    made["sum over rows / width, not divided by rows"] = float(rows.sum()) / width
    if (chosen & ~kept).any():
        made["the mask after rejection ignored"] = float(np.where(chosen, loss, 0.0).sum()) / float(chosen.sum())
    if part is not None:
        labels = np.unique(part)
        sums, tokens, size = (np.array([v[part == k].sum() for k in labels]) for v in (rows, count, np.ones(len(rows))))
        means = sums / np.maximum(tokens, 1)
        made["local token means weighted by rows"] = float((means * size).sum() / size.sum())
        made["plain mean of local token means"] = float(means.mean())
        made["sum of local token means"] = float(means.sum())
    return made


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Recompute the loss, compare it with what was logged, and say what the denominators do."""
    kept, pull = mask(step), numbers(step, "advantages")
    loss = numbers(step, "token_loss")
    if kept is None or not kept.any() or (loss is None and pull is None):
        return
    chosen = mask(step, "loss_mask")
    chosen = kept if chosen is None else chosen | kept
    if loss is None and pull is not None:
        loss = -pull * _ratio(step, kept, pull)
    assert loss is not None
    found = conventions(np.nan_to_num(loss, posinf=0.0, neginf=0.0), kept, chosen, numbers(step, "micro_batch"))
    yield from _compared(step, found)
    if pull is not None and np.isfinite(pull[kept]).all():
        yield from _noted(step, kept, chosen, pull, memory)


def _ratio(step: Step, kept: Array, pull: Array) -> Array:
    """The clipped ratio of PPO, 1 where the log-probabilities are not there."""
    old, new = numbers(step, "old_log_probs"), numbers(step, "log_prob")
    if old is None or new is None or old.shape != kept.shape or new.shape != kept.shape:
        return np.ones(kept.shape)
    low, high = (float(step.facts.get(f"clip_ratio_{side}", 0.2)) for side in ("low", "high"))
    ratio = np.exp(np.clip(np.where(kept, new - old, 0.0), -20, 20))
    return np.asarray(np.where(pull < 0, np.clip(ratio, 1 - low, 3.0), np.minimum(ratio, 1 + high)))


def _compared(step: Step, found: dict[str, float]) -> Iterator[Finding]:
    logged, mode = step.scalars.get("actor/pg_loss"), step.facts.get("loss_agg_mode")
    if logged is None or mode is None or abs(logged) < 1e-9:
        return

    def near(value: float, other: float) -> bool:
        return abs(value - other) < 1e-4 * max(abs(value), abs(other))

    right = [v for n, v in found.items() if n == mode or n.startswith(f"{mode} of")]
    if not right or any(near(logged, v) for v in right):
        return
    said = f"the logged loss is {logged:.4g}, {mode} is {right[0]:.4g}"
    names = [n for n, v in found.items() if near(logged, v)]
    names = [n for n in names if n.removesuffix(" of loss_mask") not in names or not n.endswith("loss_mask")]
    names.sort(key=lambda n: "local" not in n)
    factor = logged / right[0] if right[0] else 0.0
    whole = next((k for k in range(2, 65) if near(factor, k) or near(factor, 1 / k)), None)
    if not names and whole is None:
        return  # another loss, a clip of its own or several mini-batches: nothing is known
    what = f"{said}: it is {', or '.join(names[:2])}" if names else f"{said}: a factor of {factor:.4g} (dp_size?)"
    yield Finding(
        what=what,
        where=step.at(),
        share="the whole batch",
        why="gradients are scaled, and split by micro-batch or length, in another way than the settings say",
        advice="divide by one count over all micro-batches and devices, and multiply by the number of devices",
        sure="certain" if names else "likely",
        numbers={"logged": logged, "stated": right[0], "factor": factor},
    )


def _noted(step: Step, kept: Array, chosen: Array, pull: Array, memory: dict[str, Any]) -> Iterator[Finding]:
    dead, tokens = int((kept & (pull == 0)).sum()), int(kept.sum())
    gone = int((chosen & ~kept).sum())
    if DEAD * tokens < dead < tokens and "dead" not in memory:
        memory["dead"] = True
        yield _note(
            step,
            f"{100 * dead / tokens:.0f} % of the tokens in the denominator have A = 0: the gradient is scaled by "
            f"{1 - dead / tokens:.2g} relative to live tokens",
            share(dead, tokens, "tokens"),
            "the step shrinks as more groups become equal; this is no fault",
            "read the learning rate with it",
            {"dead": dead / tokens},
        )
    if gone > REJECTED * chosen.sum() and "gone" not in memory:
        memory["gone"] = True
        yield _note(
            step,
            f"{100 * gone / chosen.sum():.0f} % of the chosen tokens are rejected: with a fixed denominator "
            f"(verl) "
            f"the gradient shrinks by as much, with that of kept tokens it does "
            f"not",
            share(gone, int(chosen.sum()), "tokens"),
            "the two conventions differ by the rate of rejection",
            "know which one you have",
            {"rejected": gone / chosen.sum()},
        )
    length = kept.sum(axis=1).astype(float)
    lost = (length > 0) & (np.where(kept, pull, 0.0).sum(axis=1) < 0)
    mode = step.facts.get("loss_agg_mode")
    if mode == "seq-mean-token-mean" and lost.sum() > 1 and "length" not in memory:
        ratio = float(length[lost].max() / length[lost].min())
        if ratio >= LENGTHS:
            memory["length"] = True
            yield _note(
                step,
                f"the penalty per token is {ratio:.3g} times smaller for the longest losing row",
                "losing rows",
                "long wrong answers are punished less per token, so that answers grow",
                "use token-mean, or a constant denominator",
                {"ratio": ratio},
            )


def _note(step: Step, what: str, part: str, why: str, advice: str, values: dict[str, float]) -> Finding:
    return Finding(
        what=what, where=step.at(), share=part, why=why, advice=advice, sure="certain", numbers=values, kind="note"
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """A ledger of weights by denominator, and micro-batches."""
    return {"experiment": "aggregation", "set": {"splits": [1, 2, 4]}}


def _logged(name: str, parts: int = 1, factor: float = 1.0) -> list[Step]:
    """A run that says token-mean and divides otherwise."""
    made = planted.plain(step={"estimator": "rloo"})
    for step in made:
        step.columns["micro_batch"] = np.arange(step.rows) * parts // step.rows
        kept = step.columns["response_mask"] > 0
        found = conventions(-step.columns["advantages"], kept, kept, step.columns["micro_batch"])
        step.scalars["actor/pg_loss"] = factor * found[name]
    return made


BAD = {
    "rows are summed and not divided by their tokens": lambda: _logged("seq-mean-token-sum"),
    "local means weighted by rows": lambda: _logged("local token means weighted by rows", parts=3),
    "the number of devices is missing": lambda: _logged("token-mean", factor=0.5),
}
GOOD = {
    "token-mean": lambda: _logged("token-mean", parts=3),
    "rejection": lambda: run(skill=1.0, rollout_lag=1, warmup=2, step={"masks": (("rejection", {}),)}),
    "rows": lambda: run(step={"loss_agg_mode": "seq-mean-token-mean"}),
    "two mini-batches": lambda: run(epochs=2, minibatches=2),
}
