"""Run an experiment: `python -m labs.run --experiment agent --seed 7`, or `labs.run("agent", seed=7)` from Python.

This module is what a run pays for before it starts, so it imports next to nothing. Arguments that are plainly right are
read here; everything else (help, other spellings, mistakes) goes to click, in `labs/commands/run.py`, with the same
table of options. The module itself can be called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labs.errors import InputError

if TYPE_CHECKING:
    from labs.experiment import Result
    from labs.sweep import Sweep

#: Option -> what it takes ("text", "integer", "pairs" or, for a flag, ""), the name of that in the help, and the help.
OPTIONS: dict[str, tuple[str, str, str]] = {
    "--experiment": ("text", "NAME", "What to run; --list shows the names."),
    "--config": ("text", "FILE", "Settings as one JSON object."),
    "--set": ("pairs", "KEY=VALUE ...", "Settings, over those of --config."),
    "--seed": ("integer", "N", "The seed (default 7)."),
    "--seeds": ("text", "0-31", "Many seeds: mean, interval and n of every headline number."),
    "--jobs": ("integer", "N", "Processes for --seeds (default: one a core); changes no result."),
    "--output": ("text", "FILE", "Write the full JSON result there; print one receipt line."),
    "--trajectories": ("text", "FILE", "Write the trajectories there as JSON Lines."),
    "--json": ("", "", "Print the full JSON result."),
    "--compact": ("", "", "JSON on one line; without --output implies --json."),
    "--report": ("text", "FILE", "Write one offline HTML page about the run there."),
    "--results": ("text", "DIR", "The folder of all runs (default results)."),
    "--no-figures": ("", "", "Draw nothing."),
    "--svg": ("", "", "Figures as SVG too."),
    "--fresh": ("", "", "Compute again what is already stored."),
    "--quiet": ("", "", "Print the run's folder and nothing else."),
    "--list": ("", "", "List the experiments."),
    "--version": ("", "", "Print the version."),
}


def destination(option: str) -> str:
    """The parameter that an option fills: `--no-figures` is `no_figures`, `--set` is `pairs`."""
    name = option[2:].replace("-", "_")
    return {"set": "pairs", "json": "as_json", "list": "listing"}.get(name, name)


def is_pair(text: str) -> bool:
    """True for what may follow `--set` beside its first `key=value`."""
    return text.partition("=")[0].isidentifier() and "=" in text


def plain(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The options of arguments that are plainly right; None for all others, which click then reads and judges."""
    options: dict[str, Any] = {}
    at = 0
    while at < len(arguments):
        option, at = arguments[at], at + 1
        if option not in OPTIONS:
            return None
        kind, name = OPTIONS[option][0], destination(option)
        if kind == "pairs":
            first = at
            while at < len(arguments) and (at == first or is_pair(arguments[at])):
                at += 1
            values = arguments[first:at]
            if not values or values[0].startswith("-"):
                return None
            options[name] = (*options.get(name, ()), *values)
            continue
        if name in options:
            return None
        if not kind:
            options[name] = True
            continue
        value = arguments[at] if at < len(arguments) else "-"
        at += 1
        integer = value.isascii() and value.isdecimal() and len(value) < 20  # Python reads no thousands of digits
        if value.startswith("-") or (kind == "integer" and not integer):
            return None
        options[name] = int(value) if kind == "integer" else value
    return options


def execute(*, experiment: str | None = None, listing: bool = False, version: bool = False, **options: Any) -> None:
    """Do what the options ask for."""
    if version:
        import labs

        sys.stdout.write(f"tabular-agent-rl-lab {labs.__version__}\n")
    elif listing:
        from labs.registry import experiments

        for name in experiments:
            sys.stdout.write(f"{name:<16} {experiments.describe(name)}\n")
    elif experiment is None:
        from labs.registry import experiments

        raise InputError(f"which experiment? give --experiment NAME, one of {', '.join(experiments)}")
    else:
        _run(experiment, **options)


def _run(
    name: str,
    *,
    config: str | None = None,
    pairs: tuple[str, ...] = (),
    seed: int | None = None,
    seeds: str | None = None,
    jobs: int | None = None,
    output: str | None = None,
    trajectories: str | None = None,
    as_json: bool = False,
    compact: bool = False,
    report: str | None = None,
    results: str = "results",
    no_figures: bool = False,
    svg: bool = False,
    fresh: bool = False,
    quiet: bool = False,
) -> None:
    """Refuse what cannot work, run the rest, print."""
    _refuse(
        (seed is not None and seeds is not None, "--seed and --seeds exclude each other"),
        (seeds is not None and trajectories is not None, "--trajectories takes one seed, not --seeds"),
        (jobs is not None and seeds is None, "--jobs is for --seeds; one seed is one process"),
        (jobs is not None and jobs < 1, f"--jobs is {jobs}; allowed: an integer of at least 1"),
        (
            as_json and output is not None,
            "--json and --output exclude each other: one prints the result, one writes it",
        ),
        (no_figures and svg, "--no-figures and --svg exclude each other"),
        (not results, "--results is empty; give a folder"),
    )
    from labs import jobs as work
    from labs.config import changed, spelled
    from labs.console import Bar, say
    from labs.store import check_folder, check_writable, dumps, lines, write

    settings = work.configure(name, config, pairs)
    check_folder(results)
    for path, option in ((output, "--output"), (trajectories, "--trajectories"), (report, "--report")):
        if path is not None:
            check_writable(path, option)
    many = None
    if seeds is not None:
        from labs import sweep
        from labs.seeds import parse_seeds

        many = parse_seeds(seeds)
    else:
        seed = work.check_seed(7 if seed is None else seed)
    if not quiet:
        other = ", ".join(f"{key}={value}" for key, value in changed(settings).items()) or "default settings"
        say(f"{name}, {f'seeds {seeds}' if many else f'seed {seed}'}, {other}")
    order = work.Order(
        results=results, draw=not no_figures, svg=svg, fresh=fresh, command=("labs.run", *sys.argv[1:]), warn=say
    )
    bar = Bar(quiet)
    done: Result | Sweep
    try:
        if many is not None:
            done, stored = sweep.run_many(name, settings, many, order, jobs or _cores(), bar)
        else:
            done, stored = work.run_one(name, settings, int(seed or 0), order, bar)
    finally:
        bar.close()
    if trajectories is not None:
        write(trajectories, lines(done.trajectories))  # type: ignore[union-attr]
    if report is not None:
        from labs.report import load
        from labs.report import report as page
        from labs.stored import fits

        run = load(done.folder or "")
        with fits(done.folder if stored else None):
            made = page(run.results, stamp=run.stamp)
        write(report, made)
    text = dumps(done.document(), compact) + "\n" if output or as_json or compact else ""
    if output is not None:
        write(output, text)
        which = {"seed": seed} if many is None else {"seeds": many}
        text = dumps({"experiment": name, **which, "output": output}, compact=True) + "\n"
    elif quiet and not text:
        text = f"{done.folder}\n"
    elif not text:
        text = "\n".join(_summary(done, name, seeds, stored, spelled(settings))) + "\n"
    sys.stdout.write(text)


def _refuse(*rules: tuple[bool, str]) -> None:
    for broken, sentence in rules:
        if broken:
            raise InputError(sentence)


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _summary(done: Result | Sweep, name: str, seeds: str | None, stored: bool, same: str) -> list[str]:
    """The numbers that matter, where the files are, and what to type next; `same` spells the settings."""
    import os

    path = done.folder or ""
    figures = os.path.join(path, "figures")
    count = len(os.listdir(figures)) if os.path.isdir(figures) else 0
    words = [*done.summary, done.conclusion] if done.conclusion else done.summary
    if seeds is None:
        following = done.next  # type: ignore[union-attr]
    else:
        following = (f"python -m labs.run --experiment {name}{same} --seed 7", f"python -m labs show {name}")
    note = ", stored by an earlier run; --fresh computes it again" if stored else ""
    return [
        *words,
        f"files  {path}{os.sep} ({count} figures{note})",
        *(f"{'next' if i == 0 else '':<6} {line}" for i, line in enumerate(following[:2])),
    ]


class _Callable(ModuleType):
    """`labs.run` is a module for `python -m` and a function for notebooks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Result | Sweep:
        """Run an experiment and return its result; arguments as for `labs.api.run`."""
        from labs.api import run

        return run(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable


def start(arguments: Sequence[str]) -> object:
    """Run the command line on its arguments."""
    options = plain(arguments)
    if options is not None:
        execute(**options)
        return 0
    from labs.commands.run import command
    from labs.terminal import invoke

    return invoke(command, "python -m labs.run", arguments)


def main() -> int:
    """The entry point of `python -m labs.run`; returns the exit code."""
    from labs.console import guard

    return guard(start, sys.argv[1:])


if __name__ == "__main__":
    from labs.console import leave

    leave(main())
