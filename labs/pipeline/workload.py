"""How long rollouts take, and how often they succeed.

Every purpose has its own stream of random numbers, keyed by what it is for (task, sample, attempt, worker) and not
by when it is drawn, so that two systems meet the same tasks and differ by their rules alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import NormalDist

from labs.errors import InputError

#: Every 13th task of the course's workload is a straggler, five times as long as drawn.
STRAGGLER_EVERY, STRAGGLER_FACTOR = 13, 5.0

_MASK = (1 << 64) - 1


def course_durations(tasks: int, mean: float, seed: int) -> list[float]:
    """The course's rollouts: lognormal with log-standard deviation 1, every 13th five times as long.

    ``d_i = exp(ln(mean) - 1/2 + z_i)`` seconds with standard normal ``z_i`` from `random.Random(seed)`, so that the
    expectation is `mean` before the tasks 0, 13, 26, ... are multiplied by 5.

    Raises:
        InputError: a mean that is not positive and finite.
    """
    _positive("mean duration", mean)
    generator = random.Random(seed)
    drawn = [generator.lognormvariate(math.log(mean) - 0.5, 1.0) for _ in range(tasks)]
    return [d * STRAGGLER_FACTOR if i % STRAGGLER_EVERY == 0 else d for i, d in enumerate(drawn)]


def lognormal_durations(
    tasks: int, mean: float, sigma: float, seed: int, *, group_size: int = 1, within: float = 0.0, cap: float = math.inf
) -> list[float]:
    """Lognormal rollouts, alike within a group, cut at a limit: ``[tasks * group_size]`` seconds, groups together.

    ``min(cap, exp(ln(mean) - sigma^2/2 + sigma z))`` with ``z = sqrt(within) z_task + sqrt(1 - within) z_sample``. What
    reaches `cap` is a point mass there: truncated, not finished.

    Args:
        tasks: how many.
        mean: expectation before the cut, in seconds.
        sigma: log-standard deviation; 1.0 to 1.4 fits reasoning rollouts (the 99th percentile is 10 to 26 medians).
        seed: of the draws.
        group_size: samples per task.
        within: correlation of the log durations within a task, 0 to 1.
        cap: the longest a rollout can take.
    """
    _positive("mean duration", mean)
    if not 0 <= sigma < math.inf or not 0 <= within <= 1 or not cap > 0:
        raise InputError(
            f"sigma is {sigma!r}, within {within!r}, cap {cap!r}; allowed: sigma at least 0, within 0 to 1, cap above 0"
        )
    generator = random.Random(seed)
    shared, own, mu = math.sqrt(within), math.sqrt(1 - within), math.log(mean) - sigma * sigma / 2
    durations = []
    for _ in range(tasks):
        common = shared * generator.gauss(0.0, 1.0) if within else 0.0
        for _ in range(group_size):
            durations.append(min(cap, math.exp(mu + sigma * (common + own * generator.gauss(0.0, 1.0)))))
    return durations


def rollout_durations(
    tasks: int, mean: float, sigma: float, seed: int, *, group_size: int = 1, within: float = 0.0,
    every: int = STRAGGLER_EVERY, factor: float = 1.0, cap: float = math.inf,
) -> list[float]:  # fmt: skip
    """`lognormal_durations` with stragglers: every `every`-th task takes `factor` times as long, then the cut.

    With sigma 1, groups of one, no cut and the course's stragglers it is `course_durations`, number for number.

    Raises:
        InputError: as `lognormal_durations`; a factor below 0, or `every` below 1.
    """
    _positive("mean duration", mean)
    if not 0 <= sigma < math.inf or not 0 <= within <= 1 or not cap > 0 or every < 1 or not 0 <= factor < math.inf:
        raise InputError(
            f"sigma is {sigma!r}, within {within!r}, cap {cap!r}, every {every!r}, factor {factor!r}; allowed: sigma "
            f"and factor at least 0, within 0 to 1, cap above 0, every at least 1"
        )
    normal = random.Random(seed).normalvariate
    shared, own, mu = math.sqrt(within), math.sqrt(1 - within), math.log(mean) - sigma * sigma / 2
    durations = []
    for task in range(tasks):
        common = shared * normal(0.0, 1.0) if within else 0.0
        times = factor if task % every == 0 else 1.0
        for _ in range(group_size):
            durations.append(min(cap, math.exp(mu + sigma * (common + own * normal(0.0, 1.0))) * times))
    return durations


def success_rates(seconds: Sequence[float], group_size: int, low: float, high: float, seed: int) -> list[float]:
    """Success rates spread evenly from `low` to `high` over the tasks, the one with the longest rollouts the hardest.

    ``high - (high - low) * (rank + 1/2) / tasks`` with the rank of the task's mean seconds; ties by a keyed draw.

    Raises:
        InputError: bounds that are no probabilities in order.
    """
    if not 0 <= low <= high <= 1:
        raise InputError(f"success rates go from {low!r} to {high!r}; allowed: 0 <= low <= high <= 1")
    tasks = len(seconds) // group_size
    means = [math.fsum(seconds[i * group_size : (i + 1) * group_size]) for i in range(tasks)]
    order = sorted(range(tasks), key=lambda i: (means[i], uniform(seed, 4, i)))
    rates = [0.0] * tasks
    for rank, task in enumerate(order):
        rates[task] = high - (high - low) * (rank + 0.5) / tasks
    return rates


class Workload:
    """Tasks: how long their rollouts take, and how likely they succeed where no learner says so.

    Args:
        seconds: `[tasks * group_size]` durations on a worker of speed 1, groups together, at least one group, each
            finite and not negative.
        group_size: samples per task.
        success: `[tasks]` probabilities of reward 1, None for no rewards.
        seed: of rewards, of workers' lifetimes and of the tasks that replace others.

    Raises:
        InputError: durations that are no durations, or an incomplete group.
    """

    def __init__(
        self, seconds: Sequence[float], *, group_size: int = 1, success: Sequence[float] | None = None, seed: int = 0
    ) -> None:
        if not len(seconds):
            raise InputError("there are no tasks; a run needs at least one")
        if not all(map(math.isfinite, seconds)) or min(seconds) < 0:
            i = next(i for i, d in enumerate(seconds) if not (math.isfinite(d) and d >= 0))
            raise InputError(
                f"the duration of task {i // group_size} is {seconds[i]!r}; allowed: "
                f"a finite number of at least 0 seconds"
            )
        if len(seconds) % group_size:
            raise InputError(f"there are {len(seconds)} durations; allowed: a multiple of group_size = {group_size}")
        self.tasks = len(seconds) // group_size
        if success is not None and (len(success) != self.tasks or not all(0 <= p <= 1 for p in success)):
            raise InputError(
                f"success rates are {list(success)[:3]}...; allowed: {self.tasks} probabilities, one per task"
            )
        self.seconds = seconds
        self.group_size = group_size
        self.success = success
        self.seed = seed

    def prompt(self, task: int) -> int:
        """The task whose durations and success rate `task` has; a replacement is drawn among the given ones."""
        return task if task < self.tasks else int(uniform(self.seed, 1, task) * self.tasks)

    def duration(self, task: int, sample: int) -> float:
        """Seconds of a rollout on a worker of speed 1; every attempt at it takes as long as the first."""
        return self.seconds[self.prompt(task) * self.group_size + sample]

    def reward(self, task: int, sample: int, attempt: int) -> float:
        """0 or 1 with the task's success rate, drawn again at every attempt."""
        assert self.success is not None
        return float(uniform(self.seed, 2, task, sample, attempt) < self.success[self.prompt(task)])

    def lifetime(self, mean: float, worker: int, life: int) -> float:
        """Seconds until a worker dies in its life number `life`: exponential."""
        return -mean * math.log1p(-uniform(self.seed, 3, worker, life))


def uniform(*keys: int) -> float:
    """A number in [0, 1) that is a function of integers: splitmix64 over the keys in turn.

    Source: Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators".
    """
    state = 0
    for key in keys:
        state = (state + key * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 11) * 2.0**-53


def lognormal_law(mean: float, sigma: float, points: int = 20_000) -> list[float]:
    """A lognormal law as `points` equally likely values, its quantiles at the midpoints, scaled to the exact mean."""
    _positive("mean duration", mean)
    normal = NormalDist()
    values = [math.exp(sigma * normal.inv_cdf((i + 0.5) / points)) for i in range(points)]
    scale = mean * points / math.fsum(values)
    return [scale * value for value in values]


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"the {name} is {value!r}; allowed: a positive number of seconds")
