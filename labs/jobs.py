"""One run from settings to files: look whether it is stored, compute it, draw it, store it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labs.config import fingerprint
from labs.errors import InputError
from labs.experiment import MAX_SEED, Progress, Result, execute, figures
from labs.registry import experiments
from labs.stamp import Stamp, code
from labs.store import RunFolder, dumps, lines


def configure(name: str, file: str | None = None, pairs: Sequence[str] = (), values: Mapping[str, Any] = {}) -> Any:
    """The configuration of experiment `name`: defaults, then a JSON file, then `key=value` texts, then values."""
    config_class = experiments[name].Config
    if file is None and not pairs and not values:
        return config_class()
    from labs.settings import build, checked, parse_pairs, read_file

    merged = {} if file is None else checked(config_class, read_file(file), f"--config {file}: ")
    merged.update(checked(config_class, parse_pairs(config_class, pairs), "--set: "))
    return build(config_class, {**merged, **values})


def check_seed(seed: int) -> int:
    """Refuse a seed that some generator would not take, or take for another one."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed is {seed!r}; allowed: an integer from 0 to {MAX_SEED}")
    return seed


@dataclass(kw_only=True, eq=False, repr=False)
class Order:
    """How a run is to be stored.

    Attributes:
        results: the folder of all runs.
        draw: make figures.
        svg: make them as SVG too.
        fresh: compute again what is already stored.
        command: what was typed, for the stamp.
        warn: gets sentences a person should see.
    """

    results: str = "results"
    draw: bool = True
    svg: bool = False
    fresh: bool = False
    command: Sequence[str] = ()
    warn: Callable[[str], None] = lambda text: None


def run_one(name: str, config: Any, seed: int, order: Order, progress: Progress | None = None) -> tuple[Result, bool]:
    """Run one seed and store it, unless it is stored already.

    Returns:
        The result, and whether it comes from an earlier run. Figures that are asked for and missing are drawn from
        what is stored.
    """
    import time

    folder = RunFolder(order.results, name, fingerprint(name, config), str(check_seed(seed)))
    stored = None if order.fresh else folder.result()
    if stored is not None:
        warn_if_code_changed(folder, order)
        if order.draw and not folder.has_figures(order.svg):
            from labs.stored import fits

            with fits(folder.path):
                draw(folder, name, [stored], order)
        return stored, True
    try:
        folder.prepare()
        stamp = Stamp(list(order.command))
        begin = time.perf_counter()
        result = execute(name, config, seed, progress)
        timing = [*result.timing, {"stage": "run", "seconds": time.perf_counter() - begin}]
        folder.reopen()
        if order.draw:
            begin = time.perf_counter()
            draw(folder, name, [result], order)
            timing.append({"stage": "figures", "seconds": time.perf_counter() - begin})
        which = {"experiment": name, "seed": seed, "fingerprint": result.fingerprint}
        files: dict[str, str | bytes] = {
            "config.json": dumps(result.config) + "\n",
            "metrics.jsonl": lines(result.metrics),
            "trajectories.jsonl": lines(result.trajectories),
            **result.files,
            "stamp.json": dumps(stamp.finish(**which)) + "\n",
            "timing.jsonl": lines(timing),
        }
        folder.save(files, result.document())
    except BaseException:
        folder.abandon()
        raise
    result.folder = folder.path
    return result, False


def draw(folder: RunFolder, name: str, results: Sequence[Result], order: Order) -> None:
    """Draw the figures of a run into its folder."""
    from labs import plots

    folder.save_figures(plots.files(figures(name, results), order.svg))


def warn_if_code_changed(folder: RunFolder, order: Order) -> None:
    """Say so when a stored run was made by other code than the code at hand."""
    import json

    try:
        with open(folder.file("stamp.json"), encoding="utf-8") as file:
            stamp = json.load(file)
        made_by = {key: stamp[key] for key in ("commit", "dirty", "source")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        made_by = {}
    if made_by != code():
        order.warn(f"note: {folder.path} was made by other code than this; --fresh computes it again")
