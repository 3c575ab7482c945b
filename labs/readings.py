"""What checks ask of a step: the mask, the score and the advantage of each row, the groups, and how to say a share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labs.evidence import Finding, Step

Array = NDArray[Any]

#: Estimators that compare a row with its group and give an all-equal group the advantage 0.
GROUPED = frozenset(
    {"grpo", "grpo_vectorized", "grpo_population", "dr_grpo", "rloo", "rloo_vectorized", "opo", "trl_grpo",
     "trl_rloo", "standardize_by_group"}
)  # fmt: skip


#: Columns with one number a token; every other column has one a row.
TOKENS = frozenset(
    {"rollout_log_probs", "old_log_probs", "ref_log_prob", "log_prob", "rm_scores", "token_level_scores",
     "token_level_rewards", "values", "advantages", "returns", "rollout_is_weights", "versions", "entropy",
     "token_loss", "row_index"}
)  # fmt: skip


def numbers(step: Step, name: str) -> Array | None:
    """A column as float64; None when it is missing, is text, or has not the shape of its kind.

    None and NaN entries become NaN. A column of `TOKENS` must be as wide as `response_mask`, where that is there; what
    is of another width is for `mask_stages` to say.
    """
    column = step.columns.get(name)
    if column is None or not column.size or len(column) != step.rows:
        return None
    if column.ndim != (2 if name in TOKENS else 1):
        return None
    wanted = step.columns.get("response_mask")
    if name in TOKENS and wanted is not None and wanted.shape != column.shape:
        return None
    return _float(column)


def _float(column: Array) -> Array | None:
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    try:
        return np.array([np.nan if x is None else float(x) for x in column.ravel().tolist()]).reshape(column.shape)
    except (TypeError, ValueError):
        return None


def mask(step: Step, name: str = "response_mask") -> Array | None:
    """A mask `[B, T]` as booleans, of the shape of `response_mask`; the response part of `attention_mask`."""
    column = step.columns.get(name)
    if column is None or column.ndim != 2 or not column.size or len(column) != step.rows:
        return None
    width = next((step.columns[n].shape[1] for n in ("response_mask", "responses") if _wide(step, n)), column.shape[1])
    if name == "attention_mask" and column.shape[1] > width > 0:
        column = column[:, -width:]
    found = _float(column) if column.shape[1] == width else None
    return None if found is None else np.asarray(np.nan_to_num(found) != 0)


def _wide(step: Step, name: str) -> bool:
    return name in step.columns and step.columns[name].ndim == 2


def scores(step: Step) -> Array | None:
    """The score of each row: `score`, or the sum of the placed scores; None when no row has one."""
    column = numbers(step, "score")
    for name in ("rm_scores", "token_level_scores"):
        placed = numbers(step, name) if column is None else None
        column = column if placed is None else placed.sum(axis=1)
    return column if column is not None and np.isfinite(column).any() else None


def advantages(step: Step) -> Array | None:
    """The advantage of each row: `advantage`, or the mean of `advantages` over the mask (NaN without a token)."""
    row = numbers(step, "advantage")
    tokens, kept = numbers(step, "advantages"), mask(step)
    if row is None and tokens is not None and kept is not None:
        count = kept.sum(axis=1)
        row = np.where(count > 0, np.where(kept, tokens, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
    return row if row is not None and np.isfinite(row).any() else None


def rollouts(step: Step) -> Array:
    """The rows that stand for one rollout each: no padding, and of a session with several outputs the last one."""
    rows = np.arange(step.rows)
    if "uid" in step.columns:
        rows = rows[[not str(label).startswith("pad") for label in step.columns["uid"].tolist()]]
    if not ("uid" in step.columns and "session" in step.columns):
        return rows
    order = numbers(step, "index")
    order = order if order is not None and np.isfinite(order).all() else None
    last: dict[tuple[str, str], int] = {}
    for row in rows.tolist() if order is None else rows[np.argsort(order[rows], kind="stable")].tolist():
        last[str(step.columns["uid"][row]), str(step.columns["session"][row])] = row
    return np.array(sorted(last.values()), dtype=np.int64)


def repeated(step: Step) -> Array:
    """The rows whose uid, session and index were there before: written twice, and no further output of a session."""
    if not all(name in step.columns for name in ("uid", "session", "index")):
        return np.array([], dtype=np.int64)
    keys = zip(*(step.columns[name].tolist() for name in ("uid", "session", "index")), strict=True)
    seen: set[tuple[Any, ...]] = set()
    again = []
    for row, key in enumerate(keys):
        if key in seen:
            again.append(row)
        seen.add(key)
    return np.array(again, dtype=np.int64)


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
    if states is not None and not np.isfinite(states[use]).all():
        states = None
    x, y = one[use], (other - one)[use]
    if states is not None and len(x):
        label = states[use]
        for values in (x, y):
            for state in np.unique(label):
                values[label == state] -= values[label == state].mean()
    return slope(x, y) if len(x) > 3 else (0.0, 0.0)


def convention_note(step: Step, what: str, values: dict[str, float]) -> Finding:
    """The note that names the convention behind the advantages of a step; it is no fault."""
    return Finding(
        what=what,
        where=step.at(),
        share="the batch",
        why="library and paper give one name to several formulas",
        advice="compare it with what you meant",
        sure="certain",
        numbers=values,
        kind="note",
    )
