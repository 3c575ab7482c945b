"""Rows of any file into the columns of `labs.evidence.Step`, in bounded memory, and groups that the user states.

gather(source, format, convert)    JSON Lines, rows of one step together or not
columns(rows)                      numbers to [B] float, lists of numbers to [B, T], the rest to [B] objects
state_groups(step)                 `uid` from a stated group size; otherwise a note with the sizes that the text implies
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labs.evidence import Finding, Step, Where

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labs.sources import Faults, Source

#: Bytes of text and numbers that open steps may hold before they are passed on, whole or in parts.
BUDGET = 24 * 2**20
_SIMPLE = frozenset({int, float, bool})
_COUNTS = {"responses", "prompts", "versions", "token_ids", "position_ids"}
_WHOLE = {"session", "index", "version"}
_MASKS = {"response_mask", "loss_mask", "attention_mask"}
#: Columns that checks compute with: one number a row, one a token.
_BY_ROW = (
    "score", "advantage", "length", "characters", "session", "version", "duration", "accepted", "micro_batch",
)  # fmt: skip
_BY_TOKEN = (
    "responses", "response_mask", "loss_mask", "attention_mask", "tool_mask", "completion_mask", "versions",
    "rollout_log_probs", "old_log_probs", "ref_log_prob", "log_prob", "advantages", "returns", "values",
    "rm_scores", "token_level_scores", "token_level_rewards", "rollout_is_weights",
)  # fmt: skip

#: What `convert` makes of one record: the step as the file states it (None: the file's name says) and its columns.
Converted = tuple[Any, dict[str, Any]]


class Rows:
    """The rows of one step while it is read: a list a column, None where a row lacks it."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.values: dict[str, list[Any]] = {}

    def add(self, line: int, row: Mapping[str, Any]) -> int:
        """Take a row; returns about how many bytes it holds."""
        before, size, values = len(self.lines), 64, self.values
        for name, value in row.items():
            column = values.get(name)
            if column is None:
                column = values[sys.intern(name)] = [None] * before
            column.append(value)
            size += 8 if type(value) in _SIMPLE else _size(value)
        self.lines.append(line)
        if len(row) < len(values):
            for column in values.values():
                if len(column) == before:
                    column.append(None)
        return size


def _size(value: Any) -> int:
    if type(value) is str:
        return sys.getsizeof(value)
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + (
            sum(_size(v) for v in value) if value and not _number(value[0]) else 24 * len(value)
        )
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(_size(v) for v in value.values())
    return sys.getsizeof(value)


def gather(
    source: Source, form: str, convert: Callable[[dict[str, Any]], Converted | None], **facts: Any
) -> Iterator[Step]:
    """Steps of JSON Lines whose records are rows.

    Rows of a step may stand apart: steps stay open until their rows hold `BUDGET` bytes. A step that is larger is
    passed on in parts (with a note), between groups where rows have a `uid`. Records that `convert` answers with None
    are left out.
    """
    open_steps: dict[int | None, Rows] = {}
    sizes: dict[int | None, int] = {}
    closed: set[int | None] = set()
    parts: set[int | None] = set()

    def close(number: int | None) -> Step:
        rows = open_steps.pop(number)
        sizes.pop(number)
        step = as_step(source, form, number, rows, source.faults, **facts)
        if number in closed or number in parts:
            step.notes.append(f"step {number} of {source.shown} is large or scattered and was judged in parts")
        closed.add(number)
        return step

    last: int | None = None
    held = 0
    for line, record in source.records():
        converted = convert(record)
        if converted is None:
            continue
        stated, row = converted
        number = step_number(stated)
        if number is None:
            number = source.number
            if stated is not None:
                source.faults.add("number", line)
        if number in closed and number != last:
            source.faults.add("order", line)
        if held > BUDGET:  # the step of this row may still grow; all others go
            yield from (close(key) for key in sorted(set(open_steps) - {number}, key=_last_none))
            held = sizes.get(number, 0)
            if held > BUDGET and _new_group(open_steps, number, row):
                parts.add(number)
                yield close(number)
                held = 0
        rows = open_steps.setdefault(number, Rows())
        size = rows.add(line, row)
        sizes[number] = sizes.get(number, 0) + size
        held += size
        source.faults.rows += 1
        last = number
    yield from (close(key) for key in sorted(open_steps, key=_last_none))


def _last_none(number: int | None) -> float:
    return float("inf") if number is None else number


def _new_group(open_steps: Mapping[int | None, Rows], number: int | None, row: Mapping[str, Any]) -> bool:
    """Whether a step may be cut before `row`: between groups, or anywhere when it is twice too large."""
    rows = open_steps.get(number)
    if rows is None or "uid" not in row:
        return True
    return bool(rows.values["uid"][-1] != row["uid"]) or len(rows.lines) > 100_000


def as_step(source: Source, form: str, number: int | None, rows: Rows, faults: Faults, **facts: Any) -> Step:
    """One step of gathered rows; missing and non-numeric values become faults."""
    step = Step(
        source=source.shown, format=form, step=number, rows=len(rows.lines), facts=dict(facts),
        columns=columns(rows.values, rows.lines, faults), lines=np.asarray(rows.lines, dtype=np.int64),
    )  # fmt: skip
    drop_unusable(step)
    if source.facts.get("validation", source.validation):
        step.facts.setdefault("validation", True)
    state_groups(step, source.facts.get("n"))
    return step


def drop_unusable(step: Step) -> None:
    """Take out the columns that checks would compute with and cannot; each becomes a finding, a wrong shape a note."""
    for names, axes, shape in ((_BY_ROW, 1, "one number a row"), (_BY_TOKEN, 2, "one number a token")):
        for name in names:
            column = step.columns.get(name)
            if column is None or (column.dtype.kind in "iufb" and column.ndim == axes):
                continue
            del step.columns[name]
            if column.dtype.kind in "iufb":
                step.notes.append(f"column {name} of shape {column.shape} left out: it is {shape}")
                continue
            kinds = {"c": "complex numbers", "M": "dates", "m": "durations", "V": "records"}
            first = next((type(value) for value in column.flat if value is not None), None)
            words: dict[type, str] = {str: "text", list: "lists", dict: "dictionaries"}
            held = kinds.get(column.dtype.kind) or words.get(first or object, "objects")
            step.found.append(
                Finding(
                    check="file", what=f"column {name} holds {held} where numbers are needed and was left out",
                    where=Where(file=step.source, step=step.step), share=f"{len(column)} rows",
                    why=f"no check that reads {name} saw it", advice=f"write {name} as {shape}", sure="certain",
                )
            )  # fmt: skip


def columns(
    values: Mapping[str, Sequence[Any]], lines: Sequence[int], faults: Faults | None
) -> dict[str, NDArray[Any]]:
    """Arrays of the columns; lists of numbers become `[B, T]`, padded on the right.

    A column in which most values are numbers is one of numbers: text that spells a number is read as such, everything
    else is NaN and a fault. A missing value is NaN or None, and a fault where most rows have one.
    """
    made: dict[str, NDArray[Any]] = {}
    for name, column in values.items():
        there = [value for value in column if value is not None]
        if not there:
            continue
        if faults is not None and name in ("score", "output", "prompt", "uid") and len(there) < len(column):
            for line, value in zip(lines, column, strict=True):
                if value is None:
                    faults.add("missing", line, name)
        if all(isinstance(v, list | tuple) and (not v or _number(v[0])) for v in there):
            made[name] = ragged([v or () for v in column], name)
        elif (count := sum(map(_number, there))) * 2 > len(there) or name == "score":
            made[name] = np.array(
                column if name in _WHOLE and set(map(type, column)) == {int} else [*map(to_float, column)]
            )
            odd = () if count == len(there) or faults is None else zip(lines, column, strict=True)
            for line, value in odd:
                if faults is not None and value is not None and not _number(value):
                    faults.add("type", line, name)
        else:
            made[name] = np.fromiter(column, dtype=object, count=len(column))
    return made


def ragged(rows: Sequence[Sequence[Any]], name: str) -> NDArray[Any]:
    """`[B, T]`: 0 (ids and masks) or 0.0 to the right of every row; null is NaN."""
    width = max((len(row) for row in rows), default=0)
    whole = name in _COUNTS or name in _MASKS
    out = np.zeros((len(rows), width), dtype=np.int64 if whole else np.float64)
    for i, row in enumerate(rows):
        values = [to_float(v) for v in row]
        if whole and not all(map(np.isfinite, values)):
            out = out.astype(np.float64)
            whole = False
        out[i, : len(row)] = values
    return out


def step_number(value: Any) -> int | None:
    """A step as the file states it: a whole number of 64 bits, also as decimal text; None for everything else.

    >>> step_number(7.0), step_number("12"), step_number(float("inf")), step_number(True), step_number(10**30)
    (7, 12, None, None, None)
    """
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        return None
    return int(value)


def _number(value: Any) -> bool:
    return type(value) in _SIMPLE  # JSON and torch yield no subclasses; this runs for every value of every row


def to_float(value: Any) -> float:
    """The number, also as text; NaN for everything else."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def state_groups(step: Step, n: int | None) -> None:
    """Give rows without group id the groups that the user states, and say which; without a size, say what text implies.

    With `n`: blocks of n consecutive rows when each has one prompt (or there is no text, or every prompt is different);
    otherwise rows of one prompt text. A prompt that comes twice in a step then makes a group of 2n rows.
    """
    if n is not None:
        step.facts["n"] = n
    if "uid" in step.columns or not step.rows or step.facts.get("validation"):
        return
    prompts = step.columns.get("prompt")
    texts = [str(p) for p in prompts] if prompts is not None and prompts.ndim == 1 else None
    sizes = Counter(Counter(texts).values()) if texts else Counter()
    implied = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items())) or "unknown"
    if n is None:
        runs = sorted({len(run) for run in _runs(texts)}) if texts else []
        one = f"; --n {runs[0]} fits runs of equal prompts" if len(runs) == 1 and runs[0] > 1 else ""
        step.notes.append(
            f"groups unknown: no group id in this format. State the group size with --n N. By prompt text the groups "
            f"would be (number of size): {implied}{one}; equal text need not be one group"
        )
        return
    blocks = [i // n for i in range(step.rows)]
    pure = texts is None or all(len(set(texts[i : i + n])) == 1 for i in range(0, len(texts), n))
    if pure or texts is None or len(set(texts)) == len(texts):
        step.columns["uid"] = np.array([f"block{b}" for b in blocks], dtype=object)
        how = f"blocks of {n} consecutive rows" + (", each with one prompt" if texts and pure else "")
    else:
        names = {text: f"prompt{i}" for i, text in enumerate(dict.fromkeys(texts))}
        step.columns["uid"] = np.array([names[text] for text in texts], dtype=object)
        how = f"rows of one prompt text (number of size: {implied}), since blocks of {n} rows mix prompts"
    step.facts["grouped_by"] = how
    step.notes.append(f"groups as stated by --n {n}: {how}")


def _runs(texts: Sequence[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for text in texts:
        if run and text != run[-1]:
            yield run
            run = []
        run.append(text)
    if run:
        yield run


def metric_step(source: Source, form: str, number: int | None, values: Mapping[str, Any], **facts: Any) -> Step:
    """A step that has logged numbers only; text that spells a number counts, everything else is left out."""
    scalars = {}
    for name, value in values.items():
        if isinstance(value, int | float) or value in ("NaN", "nan", "inf", "-inf", "Infinity", "-Infinity"):
            scalars[str(name)] = to_float(value)
    return Step(source=source.shown, format=form, step=number, scalars=scalars, facts=dict(facts))
