"""A stored run as what experiment trackers hold: one series per number, under verl's names.

A number that verl logs keeps or gets verl's name (`Metric.verl` names it where the lab calls it otherwise, as
`train_success_rate` is `critic/score/mean` for scores 0 and 1); every other one becomes `lab/<name>`. The headline
numbers of a run stand at its last step as `lab/headline/<name>`. What is no finite number (text, lists, null) is left
out, since no tracker takes it.

A run over many seeds is as many series, one a seed. Nothing here knows a tracker: each is one file of `labs/exports/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from labs.config import is_number
from labs.errors import InputError
from labs.stored import results

#: The trackers count steps in 64 bits.
MOST_STEPS = 2**63


@dataclass(frozen=True, kw_only=True)
class Series:
    """One seed of one run.

    Attributes:
        experiment, fingerprint, seed: which run.
        config: its settings.
        steps: `(step, {name: value})`, steps ascending; the update's number where rows have one, else the row's.
    """

    experiment: str
    fingerprint: str
    seed: int
    config: Mapping[str, Any]
    steps: Sequence[tuple[int, Mapping[str, float]]]

    @property
    def name(self) -> str:
        """`<fingerprint>-s<seed>`, the name of the run's folder."""
        return f"{self.fingerprint}-s{self.seed}"

    def points(self) -> Iterator[tuple[int, str, float]]:
        """Every number as `(step, name, value)`."""
        for step, values in self.steps:
            for name, value in values.items():
                yield step, name, value


def load(path: str) -> list[Series]:
    """The series of the run in a folder, one a seed.

    Raises:
        InputError: no complete run is there, it is damaged, or its rows hold no number.
    """
    found = results(path)
    names = _verl_names(found[0].experiment)
    made = [
        Series(
            experiment=result.experiment,
            fingerprint=result.fingerprint,
            seed=result.seed or 0,
            config=result.config,
            steps=_steps(result.metrics, result.headline, names),
        )
        for result in found
    ]
    if not any(series.steps for series in made):
        raise InputError(f"{path} is a run of {found[0].experiment} without any number to export")
    return made


def _verl_names(experiment: str) -> dict[str, str]:
    from labs.registry import experiments

    declared = experiments[experiment].METRICS if experiment in experiments else ()
    return {metric.name: metric.verl for metric in declared if metric.verl}


def _steps(
    rows: Sequence[Mapping[str, Any]], headline: Mapping[str, float], names: Mapping[str, str]
) -> list[tuple[int, dict[str, float]]]:
    steps: dict[int, dict[str, float]] = {}
    for index, row in enumerate(rows):
        update = row.get("update")
        step = update if isinstance(update, int) and is_number(update) and abs(update) < MOST_STEPS else index
        numbers = {key: value for key, value in row.items() if key != "update" and is_number(value)}
        # A row that has both, the lab's name and verl's, has the same number twice; the lab's stays under its own.
        called = {key: key if "/" in key else names.get(key, "") for key in numbers}
        values = {
            (
                f"lab/{key}" if not called[key] or (called[key] != key and called[key] in numbers) else called[key]
            ): float(v)
            for key, v in numbers.items()
        }
        steps.setdefault(step, {}).update(values)
    final = {f"lab/headline/{key}": float(value) for key, value in headline.items()}
    if final:
        steps.setdefault(max(steps, default=0), {}).update(final)
    return sorted((step, values) for step, values in steps.items() if values)


def missing(library: str, extra: str) -> NoReturn:
    """Raise the error for a library that is not installed."""
    raise InputError(
        f"the export needs {library}, which is not installed; pip install -e '.[{extra}]' brings it"
    ) from None
