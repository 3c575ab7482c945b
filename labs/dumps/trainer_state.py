"""Hugging Face's `trainer_state.json`: the `log_history` of TRL's trainers, names as logged.

Entries of one step (training and evaluation log apart) are separate steps; one whose names all start with `eval_` is
no training data. Source: TRL f2cd57710, transformers `TrainerState`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from labs.errors import InputError
from labs.evidence import Step
from labs.gathering import metric_step, step_number

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "set log_completions=True, which writes completions/*.parquet, and diagnose that folder too"}


def recognise(source: Source) -> bool:
    """One JSON object with `log_history`."""
    return source.text.startswith("{") and '"log_history"' in source.text


def read(source: Source) -> Iterator[Step]:
    """One step an entry of the history."""
    document = source.document()
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        raise InputError(f"{source.shown} has no list log_history")
    for at, entry in enumerate(history, start=1):
        if not isinstance(entry, dict):
            continue
        names = [name for name in entry if name not in ("step", "epoch")]
        evaluation = bool(names) and all(name.startswith("eval_") for name in names)
        number = step_number(entry.get("step"))
        if number is None and entry.get("step") is not None:
            source.faults.add("number", at)
            continue
        values = {name: value for name, value in entry.items() if name != "step"}
        facts = {"validation": True} if evaluation else {}
        source.faults.rows += 1
        yield metric_step(source, "trainer_state", number, values, **facts)
