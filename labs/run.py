"""Run an experiment: `python -m labs.run --experiment agent --seed 7`, or `labs.run("agent", seed=7)` from Python.

This module is what a run pays for before it starts, so it imports nothing but click; the module itself can be called.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from labs.errors import InputError

if TYPE_CHECKING:
    from labs.experiment import Result
    from labs.sweep import Sweep


class Command(click.Command):
    """A command whose `--set` takes several `key=value` at once: `--set estimator=rloo loss=vanilla`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give every pair that follows one of `--set` a `--set` of its own."""
        spread: list[str] = []
        for i, argument in enumerate(args):
            more = i >= 2 and spread[-2] == "--set" and re.match(r"[A-Za-z_][\w.]*=", argument)
            spread += ["--set", argument] if more else [argument]
        return super().parse_args(ctx, spread)


@click.command(cls=Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--experiment", metavar="NAME", help="What to run; --list shows the names.")
@click.option("--config", metavar="FILE", help="Settings as one JSON object.")
@click.option("--set", "pairs", metavar="KEY=VALUE ...", multiple=True, help="Settings, over those of --config.")
@click.option("--seed", type=int, metavar="N", help="The seed (default 7).")
@click.option("--seeds", metavar="0-31", help="Many seeds: mean, interval and n of every headline number.")
@click.option("--jobs", type=int, metavar="N", help="Processes for --seeds (default: one a core); changes no result.")
@click.option("--output", metavar="FILE", help="Write the full JSON result there; print one receipt line.")
@click.option("--trajectories", metavar="FILE", help="Write the trajectories there as JSON Lines.")
@click.option("--json", "as_json", is_flag=True, help="Print the full JSON result.")
@click.option("--compact", is_flag=True, help="JSON on one line; without --output implies --json.")
@click.option("--results", metavar="DIR", default="results", show_default=True, help="The folder of all runs.")
@click.option("--no-figures", is_flag=True, help="Draw nothing.")
@click.option("--svg", is_flag=True, help="Figures as SVG too.")
@click.option("--fresh", is_flag=True, help="Compute again what is already stored.")
@click.option("--quiet", is_flag=True, help="Print the run's folder and nothing else.")
@click.option("--list", "listing", is_flag=True, help="List the experiments.")
@click.option("--version", is_flag=True, help="Print the version.")
def command(experiment: str | None, listing: bool, version: bool, **options: Any) -> None:
    """Run an experiment, store it, and say what came out."""
    if version:
        import labs

        click.echo(f"tabular-agent-rl-lab {labs.__version__}")
    elif listing:
        from labs.registry import experiments

        for name in experiments:
            click.echo(f"{name:<16} {experiments.describe(name)}")
    elif experiment is None:
        from labs.registry import experiments

        raise InputError(f"which experiment? give --experiment NAME, one of {', '.join(experiments)}")
    else:
        _run(experiment, **options)


def _run(
    name: str,
    *,
    config: str | None,
    pairs: tuple[str, ...],
    seed: int | None,
    seeds: str | None,
    jobs: int | None,
    output: str | None,
    trajectories: str | None,
    as_json: bool,
    compact: bool,
    results: str,
    no_figures: bool,
    svg: bool,
    fresh: bool,
    quiet: bool,
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
    from labs.config import changed
    from labs.console import Bar, say
    from labs.store import check_folder, check_writable, dumps, lines, write

    settings = work.configure(name, config, pairs)
    check_folder(results)
    for path, option in ((output, "--output"), (trajectories, "--trajectories")):
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
    text = dumps(done.document(), compact) + "\n" if output or as_json or compact else ""
    if output is not None:
        write(output, text)
        which = {"seed": seed} if many is None else {"seeds": many}
        click.echo(dumps({"experiment": name, **which, "output": output}, compact=True))
    elif text:
        click.echo(text, nl=False)
    elif quiet:
        click.echo(done.folder)
    else:
        click.echo("\n".join(_summary(done, name, seeds, stored)))


def _refuse(*rules: tuple[bool, str]) -> None:
    for broken, sentence in rules:
        if broken:
            raise InputError(sentence)


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _summary(done: Result | Sweep, name: str, seeds: str | None, stored: bool) -> list[str]:
    """The numbers that matter, where the files are, and what to type next."""
    import os

    path = done.folder or ""
    figures = os.path.join(path, "figures")
    count = len(os.listdir(figures)) if os.path.isdir(figures) else 0
    if seeds is None:
        words = [*done.summary, done.conclusion] if done.conclusion else done.summary  # type: ignore[union-attr]
        following = done.next  # type: ignore[union-attr]
    else:
        words = done.summary
        following = (f"python -m labs.run --experiment {name} --seed 7", f"python -m labs show {name}")
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


def main() -> int:
    """The entry point of `python -m labs.run`; returns the exit code."""
    from labs import console

    return console.main(command, "python -m labs.run")


if __name__ == "__main__":
    sys.exit(main())
