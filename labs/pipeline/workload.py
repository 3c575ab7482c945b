"""How long rollouts take."""

from __future__ import annotations

import math
import random

from labs.errors import InputError

#: Every 13th task of the course's workload is a straggler, five times as long as drawn.
STRAGGLER_EVERY, STRAGGLER_FACTOR = 13, 5.0


def course_durations(tasks: int, mean: float, seed: int) -> list[float]:
    """The course's rollouts: lognormal with log-standard deviation 1, every 13th five times as long.

    ``d_i = exp(ln(mean) - 1/2 + z_i)`` seconds with standard normal ``z_i`` from `random.Random(seed)`, so that the
    expectation is `mean` before the tasks 0, 13, 26, ... are multiplied by 5.

    Raises:
        InputError: a mean that is not positive and finite.
    """
    if not 0 < mean < math.inf:
        raise InputError(f"the mean duration is {mean!r}; allowed: a positive number of seconds")
    generator = random.Random(seed)
    drawn = [generator.lognormvariate(math.log(mean) - 0.5, 1.0) for _ in range(tasks)]
    return [d * STRAGGLER_FACTOR if i % STRAGGLER_EVERY == 0 else d for i, d in enumerate(drawn)]
