"""Flat metric rows: JSON Lines of `{"step": 7, "loss": 0.1, ...}` (prime-rl, OpenRLHF, wandb's history).

The step is `step`, `_step`, `global_step`, `train/global_step` or `update`; other names stand as logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import metric_step, step_number

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "diagnose the rows of the run too (verl: trainer.rollout_data_dir; TRL: log_completions=True)"}
_STEPS = ("step", "_step", "global_step", "train/global_step", "trainer/global_step", "update")


def recognise(source: Source) -> bool:
    """Objects with a step and at least one other number, most values being numbers and none a list or an object."""
    first = source.first
    values = [value for key, value in first.items() if key not in _STEPS]
    numbers = sum(isinstance(value, int | float) for value in values)
    flat = not any(isinstance(value, list | dict) for value in values)
    return _stated(first) is not None and flat and numbers > 0 and numbers * 2 > len(values)


def read(source: Source) -> Iterator[Step]:
    """One step a line."""
    for line, record in source.records():
        stated = _stated(record)
        number = step_number(stated)
        if number is None:
            source.faults.add(*("missing", line, "step") if stated is None else ("number", line))
            continue
        source.faults.rows += 1
        values = {name: value for name, value in record.items() if name not in _STEPS}
        yield metric_step(source, "metric_rows", number, values)


def _stated(record: Mapping[str, Any]) -> int | float | None:
    return next((record[name] for name in _STEPS if isinstance(record.get(name), int | float)), None)
