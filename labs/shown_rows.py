"""A few rows of a dump, each chosen for a reason: the worst, the odd, or those whose group is all the same.

| kind | rows, in this order |
|---|---|
| worst | lowest score (without scores: lowest advantage), the longest first among equals |
| odd | a number not finite; gold in an output of score 0 or less; a mask that opens again; empty output; the longest |
| same | one row a group of equal scores, groups of equal outputs first |

Only the chosen rows are kept while steps stream by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labs.evidence import Step

_TEXT = 600
_TOKENS = 48
_SIDE = (
    "responses", "tokens", "response_mask", "loss_mask", "versions", "rollout_log_probs", "old_log_probs",
    "ref_log_prob", "advantages", "token_level_scores", "token_level_rewards", "values", "returns",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One row with the reason it was chosen.

    Attributes:
        reason: in words.
        where: file, line, step and row.
        fields: what the row has one of: text and numbers.
        tokens: the columns with one value a token, by name.
    """

    reason: str
    where: str
    fields: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, list[Any]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """JSON types."""
        return {"reason": self.reason, "where": self.where, "fields": self.fields, "tokens": self.tokens}

    def text(self) -> str:
        """For a terminal: the fields, then tokens and masks side by side."""
        lines = [f"-- {self.reason} ({self.where})"]
        for name, value in self.fields.items():
            shown = str(value)
            if len(shown) > _TEXT:
                shown = f"{shown[:_TEXT]} ... ({len(shown)} characters)"
            lines.append(f"   {name:<14} " + shown.replace("\n", "\n" + " " * 18))
        if self.tokens:
            names = list(self.tokens)
            widths = [max(len(name), 8) for name in names]
            lines.append("   token  " + "  ".join(n.rjust(w) for n, w in zip(names, widths, strict=True)))
            count = max(map(len, self.tokens.values()))
            for t in range(min(count, _TOKENS)):
                cells = [_cell(self.tokens[n][t]).rjust(w) for n, w in zip(names, widths, strict=True)]
                lines.append(f"   {t:>5}  " + "  ".join(cells))
            if count > _TOKENS:
                lines.append(f"   ... {count - _TOKENS} more tokens")
        return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


class Showcase:
    """Chooses `k` rows of a kind while steps stream by."""

    def __init__(self, kind: str, k: int) -> None:
        self._kind, self._k = kind, k
        self._kept: list[tuple[tuple[Any, ...], int, Shown]] = []
        self._seen = 0

    def look(self, step: Step) -> None:
        """Consider the rows of a step."""
        if not step.rows:
            return
        ranked = {"worst": _worst, "odd": _odd, "same": _same}[self._kind](step)
        for _, (key, row, reason) in zip(range(self._k), sorted(ranked, key=lambda r: (r[0], r[1])), strict=False):
            self._seen += 1
            if len(self._kept) < self._k or key < self._kept[-1][0]:
                self._kept.append((key, self._seen, _shown(step, row, reason)))
        self._kept = sorted(self._kept, key=lambda entry: entry[:2])[: self._k]

    def rows(self) -> list[Shown]:
        """The chosen rows, the most telling first."""
        return [shown for _, _, shown in self._kept]


Ranked = Iterator[tuple[tuple[float, ...], int, str]]


def _length(step: Step) -> NDArray[Any]:
    for name in ("length", "characters"):
        if name in step.columns:
            lengths: NDArray[Any] = np.nan_to_num(step.columns[name].astype(float))
            return lengths
    mask = step.columns.get("response_mask")
    if mask is None:
        return np.zeros(step.rows)
    return np.asarray(mask.sum(1), dtype=float)


def _scores(step: Step) -> tuple[str, NDArray[Any]] | None:
    for name in ("score", "advantage", "rm_scores", "token_level_scores", "token_level_rewards", "advantages"):
        if name in step.columns:
            column = step.columns[name].astype(float)
            return ("score" if "score" in name else name), column.sum(1) if column.ndim == 2 else column
    return None


def _worst(step: Step) -> Ranked:
    found, length = _scores(step), _length(step)
    if found is not None:
        name, values = found
        for row in np.lexsort((-length, values))[:1000]:
            value = float(np.nan_to_num(values[row], nan=-1e30))
            yield (value, -float(length[row])), int(row), f"{name} {values[row]:g}"


def _odd(step: Step) -> Ranked:
    length, found = _length(step), _scores(step)
    bad = np.zeros(step.rows, dtype=bool)
    for column in step.columns.values():
        if column.dtype.kind == "f":
            bad |= ~np.isfinite(column).reshape(step.rows, -1).all(1)
    for row in np.flatnonzero(bad):
        yield (0.0, float(row)), int(row), "a number that is not finite"
    outputs, gold = step.columns.get("output"), step.columns.get("gts")
    if outputs is not None and gold is not None and found is not None:
        for row in np.flatnonzero(found[1] <= 0):
            if isinstance(gold[row], str) and gold[row] and gold[row] in str(outputs[row]):
                reason = f"gold {gold[row]!r} is in the output, score {found[1][row]:g}"
                yield (1.0, float(len(str(outputs[row])))), int(row), reason
    mask = step.columns.get("response_mask")
    if mask is not None and mask.ndim == 2:
        opens = (np.diff(mask.astype(int), axis=1, prepend=0) == 1).sum(1)
        for row in np.flatnonzero(opens > 1):
            yield (2.0, float(mask[row].sum())), int(row), f"mask opens {opens[row]} times"
    if outputs is not None:
        for at, text in enumerate(outputs):
            if not text:
                yield (3.0, float(at)), at, "empty output"
    longest = int(np.argmax(length))
    yield (4.0, -float(length[longest])), longest, f"longest of its step ({length[longest]:g})"


def _same(step: Step) -> Ranked:
    found, uid = _scores(step), step.columns.get("uid")
    if found is None or uid is None:
        return
    groups: dict[Any, list[int]] = {}
    for row, name in enumerate(uid):
        groups.setdefault(name, []).append(row)
    outputs = step.columns.get("output")
    for name, rows in groups.items():
        values = found[1][rows]
        if len(rows) > 1 and np.ptp(values) == 0:
            texts = {str(outputs[row]) for row in rows} if outputs is not None else set()
            what = f"group {name}: all {len(rows)} rows have {found[0]} {values[0]:g}"
            yield (float(len(texts)), float(rows[0])), rows[0], what + (", all texts equal" if len(texts) == 1 else "")


def _json(value: Any) -> Any:
    """JSON types; everything else (decimals, dates, bytes of a table) as text."""
    if isinstance(value, dict):
        return {str(key): _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_json(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _shown(step: Step, row: int, reason: str) -> Shown:
    fields: dict[str, Any] = {}
    tokens: dict[str, list[Any]] = {}
    for name, column in step.columns.items():
        if column.ndim == 1:
            value = column[row]
            fields[name] = _json(value.item() if isinstance(value, np.generic) else value)
    for name in _SIDE:
        column = step.columns.get(name, np.empty(0))
        if column.ndim == 2:
            tokens[name] = column[row].tolist()
    width = max(map(len, tokens.values()), default=0)
    tokens = {name: values for name, values in tokens.items() if len(values) == width}
    return Shown(reason=reason, where=str(step.at(row)), fields=fields, tokens=tokens)
