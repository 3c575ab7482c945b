"""What checks ask of a step: the mask, the score and the advantage of each row, the groups, and how to say a share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labs.evidence import Step

Array = NDArray[Any]

#: Estimators that compare a row with its group and give an all-equal group the advantage 0.
GROUPED = frozenset(
    {"grpo", "grpo_vectorized", "grpo_population", "dr_grpo", "rloo", "rloo_vectorized", "opo", "trl_grpo",
     "trl_rloo", "standardize_by_group"}
)  # fmt: skip


def numbers(step: Step, name: str) -> Array | None:
    """A column as float64 (None and text that is no number become NaN), or None when it is missing or is text."""
    column = step.columns.get(name)
    if column is None:
        return None
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    try:
        return np.array([np.nan if x is None else float(x) for x in column.ravel().tolist()]).reshape(column.shape)
    except (TypeError, ValueError):
        return None


def mask(step: Step, name: str = "response_mask") -> Array | None:
    """A mask as booleans; the response part of `attention_mask`."""
    column = numbers(step, name)
    if column is None or column.ndim != 2:
        return None
    if name == "attention_mask":
        width = next((step.columns[n].shape[1] for n in ("response_mask", "responses") if n in step.columns), None)
        column = column[:, -width:] if width is not None and width < column.shape[1] else column
    return np.asarray(np.nan_to_num(column) != 0)


def scores(step: Step) -> Array | None:
    """The score of each row: `score`, or the sum of the placed scores."""
    column = numbers(step, "score")
    if column is not None and column.ndim == 1:
        return column
    for name in ("rm_scores", "token_level_scores"):
        placed = numbers(step, name)
        if placed is not None and placed.ndim == 2:
            return np.asarray(placed.sum(axis=1))
    return None


def advantages(step: Step) -> Array | None:
    """The advantage of each row: `advantage`, or the mean of `advantages` over the mask (NaN without a token)."""
    column = numbers(step, "advantage")
    if column is not None:
        return column
    tokens, kept = numbers(step, "advantages"), mask(step)
    if tokens is None or kept is None or tokens.shape != kept.shape:
        return None
    count = kept.sum(axis=1)
    total = np.where(kept, tokens, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def rollouts(step: Step) -> Array:
    """The rows that stand for one rollout each: no padding, and of a session with several outputs the last one."""
    rows = np.arange(step.rows)
    if "uid" in step.columns:
        rows = rows[[not str(label).startswith("pad") for label in step.columns["uid"].tolist()]]
    if not ("uid" in step.columns and "session" in step.columns):
        return rows
    order = numbers(step, "index")
    last: dict[tuple[str, str], int] = {}
    for row in rows.tolist() if order is None else rows[np.argsort(order[rows], kind="stable")].tolist():
        last[str(step.columns["uid"][row]), str(step.columns["session"][row])] = row
    return np.array(sorted(last.values()), dtype=np.int64)


def groups(step: Step) -> dict[str, Array]:
    """Rows of each group by label: by `uid`, else blocks of the stated `n`, else nothing."""
    if step.facts.get("validation") or not step.rows:
        return {}
    rows = rollouts(step)
    if "uid" in step.columns:
        found: dict[str, list[int]] = {}
        for row in rows.tolist():
            found.setdefault(str(step.columns["uid"][row]), []).append(row)
        return {label: np.array(members) for label, members in found.items()}
    n = int(step.facts.get("n") or 0)
    if n < 1 or len(rows) % n:
        return {}
    return {f"rows {i} to {i + n - 1}": rows[i : i + n] for i in range(0, len(rows), n)}


def spread(values: Array) -> float:
    """Largest minus smallest: unlike a standard deviation it is exactly 0 for equal numbers, whatever they are."""
    return float(values.max() - values.min()) if len(values) else 0.0


def live(step: Step, values: Array) -> tuple[list[Array], list[Array]]:
    """Groups of at least two rows whose values differ, and those whose values are all equal."""
    several = [rows for rows in groups(step).values() if len(rows) > 1 and np.isfinite(values[rows]).all()]
    return [g for g in several if spread(values[g]) > 0], [g for g in several if spread(values[g]) == 0]


def share(part: float, whole: float, noun: str) -> str:
    """`3 of 12 groups (25 %)`."""
    percent = 100 * part / whole if whole else 0.0
    digits = f"{percent:.0f}" if percent >= 1 or percent == 0 else f"{percent:.2g}"
    return f"{part:g} of {whole:g} {noun} ({digits} %)"


def short(values: Iterable[float]) -> str:
    """Numbers to four digits, with commas."""
    return ", ".join(f"{value:.4g}" for value in values)


def first(condition: Array) -> tuple[int, int | None]:
    """Row, and token if there are any, of the first true entry."""
    place = np.argwhere(condition)[0].tolist()
    return (place[0], place[1]) if len(place) > 1 else (place[0], None)


def slope(x: Array, y: Array) -> tuple[float, float]:
    """Least-squares slope of y on x and the share of y's variance that the line explains; 0, 0 without spread."""
    dx, dy = x - x.mean(), y - y.mean()
    power, total = float(dx @ dx), float(dy @ dy)
    if power < 1e-12 or total < 1e-18:
        return 0.0, 0.0
    return float(dx @ dy) / power, float(dx @ dy) ** 2 / (power * total)


def temperature(one: Array, other: Array, kept: Array, states: Array | None) -> tuple[float, float]:
    """Slope of `other - one` on `one` over tokens that were really chosen, within each state where states are known.

    If `one` is at temperature a and `other` at b, the slope is a / b - 1, and the line is exact within a state.
    """
    use = kept & (one < -1e-6)
    x, y = one[use], (other - one)[use]
    if states is not None and len(x):
        label = states[use]
        for values in (x, y):
            for state in np.unique(label):
                values[label == state] -= values[label == state].mean()
    return slope(x, y) if len(x) > 3 else (0.0, 0.0)
