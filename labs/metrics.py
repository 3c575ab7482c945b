"""What a logged number declares: name, unit, formula, range and scope.

Every number the lab shows to a user has such a declaration; the glossary of a report, `labs show` and the
property test that holds a metric in its range are all made from it. An entry that logs a number of its own
declares it in its `metrics=` data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from labs.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The declaration of one logged number.

    Attributes:
        name: as logged (verl's name where verl logs it).
        unit: "1" for a pure number, "nat", "token", "s", "trajectory", ...
        formula: how it is computed, in one line.
        low, high: the range it can never leave.
        healthy: the range in which a run is usually fine, in words ("" where there is none).
        scope: what it is computed over: token, row, group, batch, update, run.
        text: one sentence a reader who does not know the number needs.
        better: "higher" or "lower" where one of them is what everybody wants; a comparison then says who is better.
        verl: verl's name of the same number where the lab calls it otherwise; exports use it.
    """

    name: str
    unit: str
    formula: str
    low: float = -math.inf
    high: float = math.inf
    healthy: str = ""
    scope: str = "batch"
    text: str = ""
    better: str = ""
    verl: str = ""

    def holds(self, value: float, slack: float = 0.0) -> bool:
        """True when `value` lies in the declared range, widened by `slack` for rounding (NaN never does)."""
        return self.low - slack <= value <= self.high + slack


def by_name(*groups: Iterable[Metric]) -> dict[str, Metric]:
    """Name -> declaration over all `groups`; the same declaration may come twice.

    Raises:
        InputError: two different declarations of one name, which would make one logged number mean two things.
    """
    table: dict[str, Metric] = {}
    for metric in (m for group in groups for m in group):
        if table.setdefault(metric.name, metric) != metric:
            raise InputError(
                f"metric {metric.name!r} is declared twice: {table[metric.name].formula}; {metric.formula}"
            )
    return table
