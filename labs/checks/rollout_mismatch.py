"""Do the engine that sampled and the trainer agree on the log-probabilities, by token and by sequence?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, first, mask, numbers, share, temperature

CODE = "E5"
NEEDS = (
    ("rollout_log_probs", "old_log_probs", "response_mask"),
    ("rollout_corr/kl",),
    ("rollout_corr/chi2_seq",),
    ("training/rollout_actor_probs_pearson_corr",),
    ("sampling/sampling_logp_difference/mean",),
)
UNLOCK = "save rollout_log_probs beside old_log_probs (verl: rollout.calculate_log_probs=True)"

#: Mean k3 a token, in nats, that one set of weights does not reach; cap of a sequence ratio; token agreement.
KL, CAP, TOKEN = 0.01, 3.0, 0.05
#: Slope and explained share from which a linear pattern is a temperature.
SLOPE, EXPLAINED = 0.04, 0.95

_WHY = "training weighs tokens by another policy than the one that sampled: biased gradients that look like drift"


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Compare token by token over fresh rows, then row by row; else read the logged numbers."""
    rollout, old, kept = numbers(step, "rollout_log_probs"), numbers(step, "old_log_probs"), mask(step)
    if rollout is None or old is None or kept is None or rollout.shape != old.shape or old.shape != kept.shape:
        yield from _logged(step)
        return
    versions = numbers(step, "versions")
    if versions is not None and step.step is not None:  # stale rows differ rightly; `staleness` speaks of them
        kept = kept & (np.where(versions >= 0, versions, step.step - 1) >= step.step - 1)
    gap = np.where(kept, old - rollout, 0.0)
    if not kept.any() or not np.isfinite(gap).all():
        return
    inner = gap[kept]
    k3 = float((np.expm1(np.clip(inner, -20, 20)) - inner).mean())
    tilt, explained = temperature(old, rollout, kept, numbers(step, "row_index"))
    row, token = first(np.abs(gap) >= np.abs(gap).max())
    values = {"kl": k3, "slope": tilt, "largest": float(np.abs(inner).max())}
    part = share(int((np.abs(gap) > TOKEN).sum()), int(kept.sum()), "trained tokens")
    if abs(tilt) > SLOPE and explained > EXPLAINED:
        yield _finding(
            step,
            row,
            token,
            f"rollout minus trainer log-prob is linear in the log-prob with slope {tilt:.2f}: a "
            f"temperature on one side",
            part,
            "score at the sampling temperature",
            values,
            "likely",
        )
    elif (late := _from(gap, kept)) is not None:
        row, token = late
        yield _finding(
            step,
            row,
            token,
            f"log-probs of row {row} agree up to token {token - 1} and differ from token "
            f"{token} on: the "
            "ids were made again from text",
            part,
            "train on the engine's ids, or drop the row",
            values,
            "likely",
        )
    elif k3 > KL:
        yield _finding(
            step,
            row,
            token,
            f"the KL between rollout and trainer is {k3:.3g} a token, the largest difference {values['largest']:.3g}",
            part,
            "compare precision, kernels and weights; correct with token weights",
            values,
            "certain",
        )
    yield from _sequences(step, gap, kept, values)


def _from(gap: Array, kept: Array) -> tuple[int, int] | None:
    """First row whose tokens agree up to a place and then no more, while most rows agree everywhere."""
    off = kept & (np.abs(gap) > 0.2)
    rows = np.flatnonzero(off.any(axis=1))
    if not len(rows) or len(rows) > 0.5 * len(gap):
        return None
    for row in rows.tolist():
        start = int(off[row].argmax())
        after, before = kept[row, start:], kept[row, :start]
        if before.sum() and after.sum() > 1 and off[row, start:][after].mean() > 0.6:
            return row, start
    return None


def _sequences(step: Step, gap: Array, kept: Array, values: dict[str, float]) -> Iterator[Finding]:
    size, length = float(np.abs(gap[kept]).mean()), kept.sum(axis=1)
    total = np.abs(gap.sum(axis=1))
    beyond = total > math.log(CAP)
    if size < TOKEN and beyond.sum() > 0.1 * len(total):
        row = int(total.argmax())
        ratio, token = math.exp(min(float(total[row]), 700.0)), math.exp(float(np.abs(gap[row][kept[row]]).mean()))
        yield _finding(
            step,
            row,
            None,
            f"token ratio fine ({token:.3f}), sequence ratio unusable: {ratio:.4g} after "
            f"{int(length[row])} tokens, above about {math.log(CAP) / math.log(token):.0f} tokens at cap {CAP:g}",
            share(int(beyond.sum()), len(total), "rows"),
            "weigh tokens, or use the geometric mean of the row",
            {**values, "ratio": ratio},
            "certain",
        )


def _logged(step: Step) -> Iterator[Finding]:
    kl, corr = (
        step.scalars.get("rollout_corr/kl", 0.0),
        step.scalars.get("training/rollout_actor_probs_pearson_corr", 1.0),
    )
    row, token = step.scalars.get("rollout_corr/chi2_seq", 0.0), step.scalars.get("rollout_corr/chi2_token", 0.0)
    gap = step.scalars.get("sampling/sampling_logp_difference/mean", 0.0)
    values = {"kl": kl, "pearson": corr, "chi2_seq": row, "difference": gap}
    if kl > KL or corr < 0.98 or gap > TOKEN:
        seen = [f"KL {kl:.3g}"] if kl > KL else []
        seen += [f"correlation {corr:.3f}"] if corr < 0.98 else []
        seen += [f"mean difference {gap:.3g}"] if gap > TOKEN else []
        yield _finding(
            step,
            None,
            None,
            f"rollout and trainer probabilities differ: {', '.join(seen)}",
            "the batch",
            "compare precision, kernels and weights; correct with token weights",
            values,
            "likely",
        )
    if row > 1.0 and token < 0.01:
        yield _finding(
            step,
            None,
            None,
            f"chi2 of sequence weights is {row:.3g}, of token weights {token:.2g}",
            "the batch",
            "weigh tokens, not sequences",
            values,
            "certain",
        )


def _finding(
    step: Step, row: int | None, token: int | None, what: str, part: str, advice: str, values: dict[str, float],
    sure: Any,
) -> Finding:  # fmt: skip
    return Finding(what=what, where=step.at(row, token), share=part, why=_WHY, advice=advice, sure=sure, numbers=values)


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """A policy that samples and another one that is trained, with rejection in between."""
    return {"experiment": "masks", "set": {"drift": 0.5}}


def _noise(scale: float, bias: float = 0.0, seed: int = 1) -> Any:
    def column(step: Step) -> Array:
        old, kept = step.columns["old_log_probs"], step.columns["response_mask"] > 0
        noise = np.random.default_rng(seed).normal(-bias, scale, old.shape)
        return np.where(kept, old + noise, 0.0)

    return column


def _again(step: Step) -> Array:
    """Every fifth row was tokenised again from its second action on."""
    made, kept = step.columns["old_log_probs"].copy(), step.columns["response_mask"] > 0
    for row in range(0, len(made), 5):
        places = np.flatnonzero(kept[row])[1:]
        made[row, places] -= 1.5
    return made


def _long() -> list[Step]:
    return run(format_tokens=60, skill=3.0)


BAD = {
    "sampled at temperature 1, scored at 0.7": lambda: run(rescored=0.7),
    "another engine": lambda: planted.altered(planted.plain(), {"rollout_log_probs": _noise(0.4)}),
    "tokenised again": lambda: planted.altered(run(skill=3.0), {"rollout_log_probs": _again}),
    "a small bias on long rows": lambda: planted.altered(_long(), {"rollout_log_probs": _noise(0.0, 0.012)}),
    "logged": lambda: planted.logged(planted.plain(), rollout_corr__kl=0.08, rollout_corr__chi2_seq=6.7),
}
GOOD = {
    "the same engine": planted.plain,
    "numeric noise": lambda: planted.altered(planted.plain(), {"rollout_log_probs": _noise(0.01)}),
    "stale rows": lambda: run(rollout_lag=1, warmup=3, learning_rate=0.5),
}
