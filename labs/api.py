"""The same runs for notebooks: `labs.run("agent", seed=7, updates=100)`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from labs import jobs
from labs.errors import InputError
from labs.experiment import Result, execute

if TYPE_CHECKING:
    from labs.sweep import Sweep


def run(
    experiment: str,
    *,
    seed: int = 7,
    seeds: Iterable[int] | None = None,
    results: str | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Result | Sweep:
    """Run an experiment from Python.

    Args:
        experiment: its name.
        seed: the seed.
        seeds: many seeds instead of one; the result is then a `Sweep`, computed in this process.
        results: folder to store the run in, with figures, as the command line does; None stores nothing.
        fresh: compute again what is stored there.
        **settings: settings of the experiment by name.

    Returns:
        The result: `data`, `metrics`, `trajectories`, `headline`, and `figures()`.

    Raises:
        InputError: an unknown experiment, an unknown setting, or a value it cannot take.
    """
    config = jobs.configure(experiment, values=settings)
    order = jobs.Order(results=results or "", fresh=fresh, command=("labs.run", experiment))
    if seeds is not None:
        from labs import sweep

        chosen = sorted({jobs.check_seed(each) for each in seeds})
        if not chosen:
            raise InputError("seeds is empty; it takes at least one seed, such as range(8)")
        return (
            sweep.run_many(experiment, config, chosen, order)[0]
            if results
            else sweep.in_memory(experiment, config, chosen)
        )
    if results:
        return jobs.run_one(experiment, config, seed, order)[0]
    return execute(experiment, config, jobs.check_seed(seed))
