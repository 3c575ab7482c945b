"""One configuration over many seeds: resumed where it stopped, the same whatever the number of processes.

The unit of work is one seed. A finished seed is a line of `seeds.jsonl` at once; a killed run loses the seeds that were
under way and no other. Processes are started fresh (spawn), so nothing depends on what the parent had loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labs.config import as_dict, fingerprint
from labs.errors import InputError
from labs.experiment import Progress, Result, execute
from labs.jobs import Order, check_seed, draw, warn_if_code_changed
from labs.registry import experiments
from labs.seeds import SeedRows, spell
from labs.stamp import Stamp, code
from labs.stats import Interval, t_interval
from labs.store import RunFolder, dumps, lines, write
from labs.stored import fits, seed_rows


@dataclass(kw_only=True, repr=False)
class Sweep:
    """The results of many seeds of one configuration, in the order of the seeds."""

    experiment: str
    fingerprint: str
    config: dict[str, Any]
    results: list[Result]
    folder: str | None = None

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return [int(result.seed or 0) for result in self.results]

    @property
    def headline(self) -> dict[str, Interval]:
        """Mean over seeds and 95 % t interval of every headline number."""
        names = self.results[0].headline
        return {name: t_interval([result.headline[name] for result in self.results]) for name in names}

    @property
    def summary(self) -> list[str]:
        """At most five lines: the headline numbers with interval and n."""
        shown = dict(list(self.headline.items())[:5])
        width = max(map(len, shown), default=0)
        return [f"{name:<{width}}  {interval}" for name, interval in shown.items()]

    @property
    def conclusion(self) -> str:
        """The first headline number over the seeds, and the seeds where it was lowest and highest."""
        if not self.results[0].headline:
            return ""
        name, interval = next(iter(self.headline.items()))
        if interval.low is None:
            return f"{name} is {interval.value:.4g} for one seed, which says nothing about others"
        by = sorted(self.results, key=lambda result: result.headline[name])
        low, high = ((result.headline[name], result.seed) for result in (by[0], by[-1]))
        return (
            f"{name} is {interval.value:.4g} on average ({interval.name} {interval.low:.4g} to {interval.high:.4g}, "
            f"n = {interval.n} seeds), lowest {low[0]:.4g} at seed {low[1]}, highest {high[0]:.4g} at seed {high[1]}"
        )

    def __repr__(self) -> str:
        """What a notebook shows: which runs, and the headline numbers over them."""
        return "\n".join([f"{self.experiment}, seeds {spell(self.seeds)}", *self.summary, self.conclusion])

    def document(self) -> dict[str, Any]:
        """The full JSON result: the headline over seeds, then every seed's own."""
        headline = {name: interval._asdict() for name, interval in self.headline.items()}
        return {
            "experiment": self.experiment,
            "seeds": self.seeds,
            "fingerprint": self.fingerprint,
            "config": self.config,
            "headline": headline,
            "summary": self.summary,
            "conclusion": self.conclusion,
            "per_seed": [{"seed": result.seed, **result.headline} for result in self.results],
        }


def _one(name: str, config: Any, seed: int) -> dict[str, Any]:
    """The row of one seed."""
    import json
    import time

    begin = time.perf_counter()
    result = execute(name, config, seed)
    row = {"seed": seed, "headline": result.headline, "data": result.data, "metrics": result.metrics}
    # Through JSON at once, so that a fresh row and a stored one are the same object to whatever reads them.
    return {"row": json.loads(dumps(row, compact=True)), "seconds": time.perf_counter() - begin}


def run_many(
    name: str, config: Any, seeds: Sequence[int], order: Order, jobs: int = 1, progress: Progress | None = None
) -> tuple[Sweep, bool]:
    """Run the seeds that are missing, then store the summary over all of them.

    Args:
        name, config: what to run.
        seeds: which seeds.
        order: how to store it.
        jobs: number of processes; 1 runs in this one.
        progress: called after every seed.

    Returns:
        The sweep, and whether all of it was stored already.
    """
    for seed in seeds:
        check_seed(seed)
    mark = fingerprint(name, config)
    folder = RunFolder(order.results, name, mark, spell(seeds))
    stored = []
    if not order.fresh and folder.document() is not None:
        stored = seed_rows(folder.file("seeds.jsonl"))
    if [row["seed"] for row in stored] == list(seeds):
        warn_if_code_changed(folder, order)
        sweep = _sweep(name, mark, config, stored, folder)
        if order.draw and not folder.has_figures(order.svg):
            with fits(folder.path):
                draw(folder, name, sweep.results, order)
        return sweep, True
    try:
        folder.prepare()
        if not order.fresh:
            seed_rows(folder.file("seeds.jsonl"))
        stamp = Stamp(list(order.command))
        folder.reopen()
        rows = SeedRows(folder.file("seeds.jsonl"), fresh=order.fresh)
    except BaseException:
        folder.abandon()
        raise
    try:
        if rows.rows:
            warn_if_code_changed(folder, order)
        else:
            write(folder.file("stamp.json"), dumps(code()) + "\n")
        done = {row["seed"] for row in rows.rows}
        missing = [seed for seed in seeds if seed not in done]
        timing = []
        for made in _work(name, config, missing, jobs):
            rows.append(made["row"])
            timing.append({"seed": made["row"]["seed"], "seconds": made["seconds"]})
            if progress is not None:
                progress(len(rows.rows), len(seeds))
        rows.close(order=seeds)
    finally:
        rows.close()
    sweep = _sweep(name, mark, config, rows.rows, folder)
    if order.draw:
        draw(folder, name, sweep.results, order)
    which = {"experiment": name, "seeds": spell(seeds), "fingerprint": mark, "processes": jobs}
    files = {
        "config.json": dumps(sweep.config) + "\n",
        "stamp.json": dumps(stamp.finish(**which)) + "\n",
        "timing.jsonl": lines(timing),
    }
    folder.save(files, sweep.document())
    return sweep, False


def _sweep(name: str, mark: str, config: Any, rows: Sequence[dict[str, Any]], folder: RunFolder | None) -> Sweep:
    settings = as_dict(config)
    own = ("seed", "headline", "data", "metrics")
    results = [
        Result(experiment=name, fingerprint=mark, config=settings, **{key: row[key] for key in own}) for row in rows
    ]
    return Sweep(
        experiment=name, fingerprint=mark, config=settings, results=results, folder=folder.path if folder else None
    )


def in_memory(name: str, config: Any, seeds: Sequence[int]) -> Sweep:
    """The sweep without files, in this process."""
    rows = [_one(name, config, check_seed(seed))["row"] for seed in seeds]
    return _sweep(name, fingerprint(name, config), config, rows, None)


def _work(name: str, config: Any, seeds: Sequence[int], jobs: int) -> Iterator[dict[str, Any]]:
    """The rows of the seeds as they become ready."""
    if jobs <= 1 or len(seeds) <= 1:
        for seed in seeds:
            yield _one(name, config, seed)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    jobs = min(jobs, len(seeds))
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _start_worker)
    try:
        with _no_interrupt():  # the workers inherit it: only this process answers Ctrl-C
            futures = [pool.submit(_work_one, name, as_dict(config), seed) for seed in seeds]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        raise InputError(
            "a worker process was killed (out of memory?); run the same command again to go on, or with --jobs 1"
        ) from None
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _work_one(name: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """What a worker does: the configuration travels as plain values, since its class lives in a module of its own."""
    from labs.settings import build

    return _one(name, build(experiments[name].Config, settings), seed)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ignore Ctrl-C, then put the previous handler back; only the main thread may do so, others do nothing."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _start_worker() -> None:
    """End this worker when its parent is gone: a killed parent cannot tell its workers."""
    import os
    import threading
    from multiprocessing import parent_process

    def wait() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
