"""Every check fires on its bad examples, and on nothing that is good: its own, the other checks', or healthy runs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from labs import faults
from labs.evidence import Finding, Step
from labs.registry import checks

torch.set_num_threads(1)

MODULES = {name: checks[name] for name in checks}
BAD = [(name, example) for name, module in MODULES.items() for example in module.BAD]
GOOD = [(name, example) for name, module in MODULES.items() for example in module.GOOD]


def findings(name: str, steps: list[Step], kind: str = "fault") -> list[Finding]:
    """What one check says of steps, those it has the data for."""
    module, memory = MODULES[name], {}
    found = [f for s in steps if any(s.has(*needs) for needs in module.NEEDS) for f in module.check(s, memory)]
    found += module.finish(memory) if hasattr(module, "finish") else []
    return [f for f in found if f.kind == kind]


@cache
def good(name: str, example: str) -> tuple[Step, ...]:
    return tuple(MODULES[name].GOOD[example]())


@pytest.mark.parametrize(("name", "example"), BAD)
def test_a_check_fires_on_its_bad_examples(name: str, example: str) -> None:
    found = findings(name, MODULES[name].BAD[example]())
    assert found
    for finding in found:
        assert finding.what
        assert "nan" not in finding.what
        assert finding.where.file
        assert finding.share
        assert finding.why
        assert finding.advice
        assert finding.numbers


@pytest.mark.parametrize("name", MODULES)
def test_a_check_is_silent_on_every_good_example(name: str) -> None:
    said = {(of, example): findings(name, list(good(of, example))) for of, example in GOOD}
    assert {key: [f.what for f in found] for key, found in said.items() if found} == {}


@pytest.mark.parametrize("number", range(faults.HEALTHY))
def test_every_check_is_silent_on_healthy_runs(number: int) -> None:
    steps = faults.healthy(number)
    assert {name: [f.what for f in found] for name in MODULES if (found := findings(name, steps))} == {}


@pytest.mark.parametrize("name", MODULES)
def test_a_check_survives_steps_without_its_data(name: str) -> None:
    empty = Step(source="x", format="lab")
    assert findings(name, [empty]) == []
    assert list(MODULES[name].check(empty, {})) == []


def spoilt(column: np.ndarray) -> dict[str, np.ndarray]:
    """A column with what broken files hold: NaN, infinity, None, text, another width, nothing."""
    made = {"text": np.full(column.shape, "x", dtype=object), "none": np.full(column.shape, None, dtype=object)}
    if column.dtype.kind in "biuf":
        holes = column.astype(float)
        holes.flat[::3] = np.nan
        made |= {"holes": holes, "infinite": np.where(np.isnan(holes), np.inf, holes), "nan": holes * np.nan}
    if column.ndim == 2:
        made |= {"flat": column[:, 0], "wide": np.hstack([column, column[:, :1]]), "nothing": column[:, :0]}
    return made


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 12, 15))])
def test_no_check_raises_or_warns_on_a_spoilt_column(number: int) -> None:
    for column in faults.healthy(number)[0].columns:
        for kind in spoilt(faults.healthy(number)[0].columns[column]):
            steps = faults.healthy(number)[:1]
            for step in steps:
                step.columns[column] = spoilt(step.columns[column])[kind]
            for name in MODULES:
                findings(name, steps)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_no_check_raises_or_warns_on_very_few_rows(rows: int) -> None:
    steps = faults.healthy(7)
    for step in steps:
        step.columns = {name: column[:rows] for name, column in step.columns.items()}
        step.rows = rows
    for name in MODULES:
        findings(name, steps)


@pytest.mark.parametrize("name", MODULES)
def test_a_check_declares_what_it_is(name: str) -> None:
    module = MODULES[name]
    assert module.__doc__
    assert module.__doc__.split("\n", 1)[0].endswith("?")
    assert module.CODE[0] in "CE"
    assert module.CODE[1:].isdigit()
    assert module.NEEDS
    assert all(isinstance(needs, tuple) for needs in module.NEEDS)
    assert module.UNLOCK[0].islower() or module.UNLOCK[0] == "-"
