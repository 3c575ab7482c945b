"""How old is the policy that sampled, are rows mixed, and does dropping old work drop the long tasks?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import Array, numbers, share

CODE = "E6"
NEEDS = (
    ("versions",),
    ("version",),
    ("duration", "accepted"),
    ("training/off_policy/trajectory_staleness/mean",),
)
UNLOCK = "save the policy version of each token (versions) or row, and duration and accepted of each rollout"

#: Mean lag from which it is said when no bound is stated; gap of acceptance between short and
#: long rollouts that is a fault and that is mentioned, and rows for it.
LAG, GAP, SOME, ROWS = 4.0, 0.5, 0.3, 12


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Lags of rows against the bound, mixed rows, acceptance by duration."""
    oldest, newest, tokens = _versions(step)
    if newest is not None and oldest is not None:
        yield from _lags(step, oldest, newest, tokens, memory)
    elif (mean := step.scalars.get("training/off_policy/trajectory_staleness/mean", 0.0)) > LAG:
        yield _finding(
            step,
            None,
            f"the mean lag is {mean:.3g} versions",
            "the batch",
            "the batch is far off-policy",
            "lower the bound on staleness or the number of rollouts in flight",
            "likely",
            {"lag": mean},
        )
    yield from _accepted(step)


def _versions(step: Step) -> tuple[Array | None, Array | None, Array | None]:
    tokens, row = numbers(step, "versions"), numbers(step, "version")
    if tokens is not None and tokens.ndim == 2:
        there = tokens >= 0
        if not there.any():
            return None, None, None
        newest = np.where(there, tokens, -np.inf).max(axis=1)
        oldest = np.where(there, tokens, np.inf).min(axis=1)
        return oldest, newest, tokens
    return row, row, None


def _lags(step: Step, oldest: Array, newest: Array, tokens: Array | None, memory: dict[str, Any]) -> Iterator[Finding]:
    use = np.isfinite(newest)
    if not use.any():
        return
    stated = step.facts.get("current_version")
    current = float(newest[use].max()) if stated is None else float(stated)
    if stated is None and tokens is not None and step.step is not None:
        current = max(current, float(step.step - 1))
    lag = np.where(use, current - newest, 0.0)
    bound = step.facts.get("max_lag")
    values = {"lag": float(lag[use].mean()), "max": float(lag.max())}
    row = int(lag.argmax())
    if bound is not None and lag.max() > bound:
        fresh = int((lag[use] <= bound).sum())
        what = f"{fresh} of {int(use.sum())} rows within lag {bound:g}, the oldest is {lag.max():g} behind"
        what += "; the step would train on nothing" if not fresh else ""
        yield _finding(
            step,
            row,
            what,
            share(int((lag > bound).sum()), int(use.sum()), "rows"),
            "rows beyond the bound were trained, or the batch is empty without them",
            "drop before sampling and go on sampling until the batch is full",
            "certain",
            values,
        )
    elif bound is None and values["lag"] > LAG:
        yield _finding(
            step,
            row,
            f"the mean lag is {values['lag']:.3g} versions, the largest {values['max']:g}",
            share(int((lag > LAG).sum()), int(use.sum()), "rows"),
            "the batch is far off-policy",
            "lower the bound on staleness or the number of rollouts in flight",
            "likely",
            values,
        )
    mixed = use & (newest > oldest)
    if mixed.any() and tokens is not None and "mixed" not in memory:
        memory["mixed"] = True
        limit = current - (1 if bound is None else float(bound))
        kept = (tokens >= limit) & (tokens >= 0)
        part = float(kept[mixed].sum() / (tokens[mixed] >= 0).sum())
        yield _finding(
            step,
            int(mixed.argmax()),
            f"{int(mixed.sum())} rows hold tokens of several versions; a rule by token "
            f"(lag at "
            f"most {current - limit:g}) would keep {100 * part:.0f} % of their tokens, a rule by oldest token "
            f"none of the "
            "rows with an older one",
            share(int(mixed.sum()), int(use.sum()), "rows"),
            "the part that is dropped still conditions the rest",
            "decide by token or by row",
            "certain",
            {**values, "kept": part},
            kind="note",
        )


def _accepted(step: Step) -> Iterator[Finding]:
    duration, accepted = numbers(step, "duration"), numbers(step, "accepted")
    if duration is None or accepted is None or len(duration) < ROWS or float(np.ptp(duration)) <= 0:
        return
    fast, slow = duration <= np.quantile(duration, 0.5), duration >= np.quantile(duration, 0.75)
    slow &= ~fast
    if not slow.any():
        return
    quick, late = float(accepted[fast].mean()), float(accepted[slow].mean())
    if quick - late > SOME:
        wasted = float((duration * (1 - accepted)).sum() / duration.sum())
        yield _finding(
            step,
            int(np.flatnonzero(slow)[0]),
            f"acceptance by duration: fast {100 * quick:.0f} %, slow "
            f"{100 * late:.0f} %; "
            f"{100 * wasted:.0f} % of the rollout time is thrown "
            f"away",
            share(int((accepted == 0).sum()), len(accepted), "rows"),
            "trained data are biased to short episodes: long tasks are never learnt",
            "bound the lag where a rollout is started and not where it arrives",
            "certain",
            {"fast": quick, "slow": late, "wasted": wasted},
            kind="fault" if quick - late > GAP else "note",
        )


def _finding(
    step: Step, row: int | None, what: str, part: str, why: str, advice: str, sure: Any, values: dict[str, float],
    kind: Any = "fault",
) -> Finding:  # fmt: skip
    return Finding(
        what=what, where=step.at(row), share=part, why=why, advice=advice, sure=sure, numbers=values, kind=kind
    )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The exact bias at the same lag, and the selection by a gate at arrival."""
    if "slow" in finding.numbers:
        return {"experiment": "offpolicy", "set": {"max_lag": 1, "pace": 1.0}}
    lag = min(max(round(finding.numbers["lag"]), 1), 32)
    return {"experiment": "offpolicy", "set": {"lags": [0, lag], "version": 36}}


def _arrivals() -> list[Step]:
    """Two kinds of task that take 1 and 4 trainer steps; lag 2 is allowed, and tested at arrival."""
    duration = np.tile([1.0, 4.0], 12)
    columns = {"duration": duration, "accepted": (duration <= 2).astype(float)}
    return [Step(source="rollouts.jsonl", format="lab", step=1, rows=len(duration), columns=columns)]


BAD = {
    "six versions behind": lambda: run(rollout_lag=6, warmup=8),
    "beyond the stated bound": lambda: planted.altered(run(rollout_lag=3, warmup=4), max_lag=2),
    "long tasks are dropped": _arrivals,
    "logged": lambda: planted.logged(planted.plain(), training__off_policy__trajectory_staleness__mean=9),
}
GOOD = {
    "on-policy": lambda: planted.plain(steps=3),
    "one version behind": lambda: planted.altered(run(rollout_lag=1, warmup=3, learning_rate=0.5), max_lag=2),
}
