"""Solutions of the exercises and the cases that grading draws for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.grading import checks
from labs.grading.process import InProcess, call
from labs.grading.spec import Inputs, get


def solution(name: str) -> Callable[[Inputs], Any]:
    exercise = get(name)
    runner = InProcess.of_source(exercise, exercise.solution_source())
    return lambda inputs: call(runner, inputs)


def cases(name: str, wanted: Callable[[Inputs], bool] = lambda x: True) -> Iterator[tuple[Inputs, Any]]:
    """Recorded inputs with the solution's answers; at least five."""
    answer = solution(name)
    inputs = [x for seed in range(3) for x in checks.recorded(get(name), seed) if wanted(x)]
    assert len(inputs) >= 5
    for x in inputs:
        yield x, answer(x)


def f64(value: Any) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def near(got: Any, wanted: Any, rel: float = 1e-9) -> None:
    """Nested numbers agree; NaN equals NaN."""
    np.testing.assert_allclose(np.array(got, dtype=float), np.array(wanted, dtype=float), rtol=rel, atol=1e-11)
