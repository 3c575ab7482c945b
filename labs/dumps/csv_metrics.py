"""Metrics as CSV: wandb's export (`Step`, `<run> - <metric>`, with `__MIN` and `__MAX`), or one metric a column.

Runs of an export do not mix: each is a run of its own. The `__MIN` and `__MAX` of a point (which wandb adds when it
thins a curve) are left out. Empty cells are missing values.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import TYPE_CHECKING

from labs.evidence import Step
from labs.gathering import metric_step, step_number

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {
    "": "export more metrics, or diagnose the rows of the run (verl: trainer.rollout_data_dir; TRL: log_completions)"
}
_STEPS = ("step", "_step", "global_step", "train/global_step", "training/global_step", "trainer/global_step")


def recognise(source: Source) -> bool:
    """A header with a column of steps, then a line that has a number there."""
    if b"\0" in source.head[:1000] and not source.head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    rows = [_cells(source, line) for line in source.text.splitlines()[:2]]
    if len(rows) < 2 or len(rows[0]) < 2:
        return False
    at = _step_column(rows[0])
    return at is not None and at < len(rows[1]) and _number(rows[1][at]) is not None


def read(source: Source) -> Iterator[Step]:
    """The steps of the first run, then those of the next."""
    header: list[str] = []
    runs: dict[str, list[tuple[int, str]]] = {}
    count = 0
    at = 0
    for line, text in source.lines():
        row = _cells(source, text, strict=bool(header))
        if header and not row:
            source.faults.add("cell", line)
            continue
        if not header:
            header = [name.strip() for name in row]
            at = _step_column(header) or 0
            for column, name in enumerate(header):
                run, dash, metric = name.rpartition(" - ")
                if column != at and not name.endswith(("__MIN", "__MAX")):
                    runs.setdefault(run if dash else "", []).append((column, metric))
            if len(runs) > 1:
                yield from _each(source, header, at, runs)
                return
            continue
        count += 1
        yield from _step(source, line, row, at, *next(iter(runs.items()), ("", [])))


def _each(source: Source, header: list[str], at: int, runs: dict[str, list[tuple[int, str]]]) -> Iterator[Step]:
    """Several runs: the file is read once for each, so that no run has to be kept."""
    once = next(iter(runs))
    for run, columns in runs.items():
        for number, (line, text) in enumerate(source.lines()):
            row = _cells(source, text, strict=number > 0)
            if not row and run == once:
                source.faults.add("cell", line)
            there = at < len(row) and _number(row[at]) is not None
            if number and row and (run == once or there):  # a fault counts once
                yield from _step(source, line, row, at, run, columns)


def _step(
    source: Source, line: int, row: list[str], at: int, run: str, columns: list[tuple[int, str]]
) -> Iterator[Step]:
    stated = row[at].strip() if at < len(row) else ""
    number = step_number(_number(stated))
    if number is None:
        source.faults.add(*("number", line) if stated else ("missing", line, "step"))
        return
    values = {name: _number(row[column]) for column, name in columns if column < len(row) and row[column].strip()}
    for name, value in values.items():
        if value is None:
            source.faults.add("type", line, name)
    source.faults.rows += 1
    kept = {name: value for name, value in values.items() if value is not None}
    if kept:
        yield metric_step(source, "csv_metrics", number, kept, **({"run": run} if run else {}))


def _step_column(header: list[str]) -> int | None:
    names = [name.strip().strip('"').lower() for name in header]
    return next((names.index(name) for name in _STEPS if name in names), None)


def _cells(source: Source, text: str, strict: bool = False) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=_delimiter(source), strict=strict), [])
    except csv.Error:  # a NUL or 128 KB in a cell; when strict, a quotation mark that is not closed
        return []


def _delimiter(source: Source) -> str:
    first = source.text.split("\n", 1)[0]
    return max(",;\t", key=first.count)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
