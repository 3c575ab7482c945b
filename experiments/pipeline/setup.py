"""From settings to a system and its work, and to the other settings that are run beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labs.errors import InputError
from labs.pipeline import catalogue
from labs.pipeline.catalogue import ALWAYS, SOMETIMES, System
from labs.pipeline.rules import Rules
from labs.pipeline.workload import Workload, rollout_durations, success_rates

#: Settings that are rules under the same name and not of a system.
MACHINES = (
    "workers", "batch_size", "group_size", "training_seconds", "sync_seconds", "resume_seconds",
    "mean_time_to_failure", "restart_seconds", "evaluation_every", "evaluation_seconds",
)  # fmt: skip
#: Settings for which 0 is no bound.
UNBOUNDED = ("queue_batches", "concurrency_batches")
#: Speeds of a pool, relative to a worker of speed 1.
SPEEDS = (1e-6, 1e6)


def changes(config: Any) -> dict[str, Any]:
    """The rules that are not the file's, by name."""
    found = {name: getattr(config, name) for name in ALWAYS + SOMETIMES if getattr(config, name) is not None}
    return {name: None if name in UNBOUNDED and value == 0 else value for name, value in found.items()}


def rules(config: Any) -> tuple[System, Rules]:
    """The system and its rules.

    Raises:
        InputError: a combination that cannot work.
    """
    system = catalogue.load(config.system)
    pools = tuple(_pool(text) for text in config.pools)
    machines = {name: getattr(config, name) for name in MACHINES}
    built = system.rules(**machines, **changes(config), pools=pools)
    if built.submission == "open":
        for name in ("submission_batches", "submission_clock", "returns"):
            if getattr(config, name) is not None:
                raise InputError(
                    f"{name} is set, but submission is open and counts nothing; allowed: {name}=none, or submission "
                    f"budget or quota"
                )
    if config.tasks * config.group_size > 1_000_000:
        raise InputError(
            f"tasks is {config.tasks} and group_size {config.group_size}; allowed: at most 1,000,000 trajectories"
        )
    if len(config.success) not in (0, 2):
        raise InputError(
            f"success has {len(config.success)} numbers; allowed: the lowest and the highest rate, or none"
        )
    if built.filter != "none" and not config.success:
        raise InputError(f"filter is {built.filter}, but there are no rewards; allowed: success=LOWEST,HIGHEST")
    return system, built


def _pool(text: str) -> tuple[int, float]:
    """`48x2.5` -> (48, 2.5)."""
    size, times, speed = text.partition("x")
    try:
        if not times:
            raise ValueError
        pool = int(size), float(speed)
    except ValueError:
        raise InputError(f"pools has {text!r}; allowed: NUMBERxSPEED, such as 48x2.5") from None
    if not SPEEDS[0] <= pool[1] <= SPEEDS[1]:
        raise InputError(f"pools has {text!r}; allowed: a speed from {SPEEDS[0]:g} to {SPEEDS[1]:,.0f}")
    return pool


def work(config: Any, seed: int) -> Workload:
    """The tasks."""
    g = config.group_size
    seconds = rollout_durations(
        config.tasks, config.duration_mean, config.sigma, seed, group_size=g, within=config.within,
        every=config.straggler_every, factor=config.straggler_factor,
        cap=math.inf if config.cap is None else config.cap,
    )  # fmt: skip
    success = success_rates(seconds, g, *config.success, seed) if config.success else None
    return Workload(seconds, group_size=g, success=success, seed=seed)


def words(config: Any) -> str:
    """The workload and the machines in one line."""
    law = f"lognormal of mean {config.duration_mean:g} s, sigma {config.sigma:g}" if config.sigma else ""
    law = law or f"{config.duration_mean:g} s each"
    if config.straggler_factor != 1:
        law += f", every {config.straggler_every}th x{config.straggler_factor:g}"
    if config.cap is not None:
        law += f", cut at {config.cap:g} s"
    groups = f" groups of {config.group_size}" if config.group_size > 1 else ""
    return (
        f"work: {config.tasks:,} tasks, rollouts {law}; {config.workers:,} workers, batches of {config.batch_size}"
        f"{groups}, {config.training_seconds:g} s a step, {config.sync_seconds:g} s a publication"
    )


def prepare(config: Any) -> list[tuple[str, Any]]:
    """The varied configurations by name, every one of them checked.

    Raises:
        InputError: settings that cannot work, here or in `vary`.
    """
    rules(config)
    return varied(config)


def varied(config: Any) -> list[tuple[str, Any]]:
    """What `vary` asks for: every combination of its parts, each with the text that names it.

    Raises:
        InputError: `vary` does not read as settings, or one of them cannot work.
    """
    if not config.vary:
        return []
    found: list[tuple[str, Any]] = []
    for combination in itertools.product(*(_part(part) for part in config.vary.split("/"))):
        pairs = [pair for pairs in combination for pair in pairs]
        other = _with(config, pairs)
        rules(other)
        twice = [name for name, known in found if known == other]
        if twice:
            raise InputError(f"vary asks for {twice[0]} twice; allowed: every setting once")
        found.append((" ".join(pairs), other))
    if len(found) > 64:
        raise InputError(f"vary asks for {len(found)} runs; allowed: at most 64")
    return found


def _part(text: str) -> list[list[str]]:
    """`a+b=1+2,3+4` -> [["a=1", "b=2"], ["a=3", "b=4"]]."""
    names, equals, values = text.partition("=")
    if not equals or not values:
        raise InputError(f"vary has the part {text!r}; write key=value,value")
    keys, found = names.split("+"), []
    for value in values.split(","):
        parts = value.split("+") if len(keys) > 1 else [value]
        if len(parts) != len(keys):
            raise InputError(f"vary gives {value!r} to {names}; allowed: {len(keys)} values joined by +")
        found.append([f"{key}={part}" for key, part in zip(keys, parts, strict=True)])
    return found


def _with(config: Any, pairs: Sequence[str]) -> Any:
    """The configuration with some settings changed."""
    from labs.settings import checked, parse_pairs

    cls = type(config)
    for pair in pairs:
        if pair.split("=")[0] in ("vary", "frontier"):
            raise InputError(f"vary changes {pair.split('=')[0]}; allowed: any other setting")
    return replace(config, **checked(cls, parse_pairs(cls, pairs, "vary: "), "vary: "), vary="")


def bounds(built: Rules) -> tuple[str, list[float]]:
    """What bounds the staleness under these rules, and values of it that can run, from the tightest.

    The largest lag where it is enforced; otherwise how far submission may be ahead; otherwise the queue; otherwise
    nothing does, and the lag that is only counted stands for it.
    """
    if built.ingestion != "train":
        name, values = "max_policy_lag", [0, 1, 2, 4, 8, 16]
        if built.version_unit != "sync":
            own = max(1, built.max_policy_lag)
            values = sorted({own * k // 4 for k in (0, 1, 2, 4, 8, 16)})
    elif built.submission != "open":
        name, k = "submission_batches", built.steps_per_sync
        values = [1.0 * k, 1.25 * k, 1.5 * k, 2.0 * k, 3.0 * k, 5.0 * k]
    else:
        name, values = "queue_batches", [1.0, 1.5, 2.0, 3.0, 5.0, 9.0]
    possible = []
    for value in values:
        try:
            built.but(**{name: value})
        except InputError:
            continue
        possible.append(float(value))
    return name, possible
