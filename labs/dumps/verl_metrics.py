"""verl's metric log: JSON Lines of `{"step": 7, "data": {name: number}}` (trainer.logger contains `file`).

Names stand as logged: `critic/advantages/max`, `actor/pg_clipfrac`, `rollout_corr/kl`. Text such as "NaN" counts as a
number, anything else that is none is left out. Source: verl 0.9.1, `verl/utils/tracking.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from labs.evidence import Step
from labs.gathering import metric_step, step_number

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "set trainer.rollout_data_dir, which writes the rows of every step, and diagnose that folder too"}


def recognise(source: Source) -> bool:
    """Objects with `step` and a dictionary `data`."""
    return isinstance(source.first.get("data"), dict) and "step" in source.first


def read(source: Source) -> Iterator[Step]:
    """One step a line."""
    for line, record in source.records():
        data, stated = record.get("data"), record.get("step")
        number = step_number(stated)
        if not isinstance(data, dict) or stated is None:
            source.faults.add("missing", line, "step" if isinstance(data, dict) else "data")
            continue
        if number is None:
            source.faults.add("number", line)
            continue
        source.faults.rows += 1
        yield metric_step(source, "verl_metrics", number, data)
