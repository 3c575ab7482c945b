"""Simulate a system of asynchronous training and print the whole report."""

from __future__ import annotations

import sys
from typing import Any

import click

from labs.commands.run import Command
from labs.errors import InputError, one_of

#: For `--help`; \b keeps the lines of the examples apart.
HELP = """Run SYSTEM, one of the files of labs/pipeline/systems, on a workload: time of every pool, the three waits,
lag, bias, closed forms beside the simulation, hazards, and the rules that the file assumes.

\b
labs simulate verl-fully-async --set workers=96 sigma=1.4
labs simulate areal --vary submission_batches=1,2,3,5
labs simulate course-asynchronous --vary in_flight=drain,mixed/sigma=0.5,1.4 --show table

The run is stored under results/pipeline with figures and trace.json, which ui.perfetto.dev opens. `labs show
pipeline` explains the settings.
"""


def _systems() -> list[tuple[str, str]]:
    """Names and titles, read without importing the model."""
    from labs.pipeline import catalogue

    return [(name, catalogue.load(name).title) for name in catalogue.names()]


@click.command(cls=Command, help=HELP, short_help=__doc__)
@click.argument("system", required=False)
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE ...", help="Machines, work and rules to change.")
@click.option("--vary", metavar="KEY=A,B", help="Other values to run beside; / for every combination, + for together.")
@click.option("--show", metavar="SECTION,...", help="Print these sections only; computes without storing.")
@click.option("--seed", type=int, metavar="N", help="The seed (default 7).")
@click.option("--seeds", metavar="0-31", help="Many seeds: mean, interval and n of every headline number.")
@click.option("--results", default="results", metavar="DIR", help="The folder of all runs (default results).")
@click.option("--output", metavar="FILE", help="Write the full JSON result there; print one receipt line.")
@click.option("--json", "as_json", is_flag=True, help="Print the full JSON result.")
@click.option("--no-figures", is_flag=True, help="Draw nothing.")
@click.option("--svg", is_flag=True, help="Figures as SVG too.")
@click.option("--fresh", is_flag=True, help="Compute again what is already stored.")
@click.option("--list", "listing", is_flag=True, help="List the systems.")
def command(
    system: str | None,
    pairs: tuple[str, ...],
    vary: str | None,
    show: str | None,
    seed: int | None,
    seeds: str | None,
    listing: bool,
    **options: Any,
) -> None:
    """Run one system, or list them."""
    if listing:
        found = _systems()
        width = max(len(name) for name, _ in found)
        click.echo("\n".join(f"{name:<{width}}  {title}" for name, title in found))
        return
    from labs.pipeline import catalogue

    if system is None:
        raise InputError(f"which system? give one of {', '.join(catalogue.names())}")
    if system not in catalogue.names():
        raise one_of("the system", system, catalogue.names())
    if any(pair.startswith(("system=", "vary=")) for pair in pairs):
        raise InputError("--set changes system or vary; write labs simulate SYSTEM --vary KEY=A,B")
    pairs = (f"system={system}", *pairs, *([f"vary={vary}"] if vary is not None else []))
    if show is not None:
        _print_sections(pairs, show, seed, seeds, options)
        return
    from labs.run import execute

    given = {name: value for name, value in options.items() if value not in (None, (), False)}
    whole = seeds is None and "output" not in given and "as_json" not in given
    given |= {"seed": seed} if seed is not None else {}
    given |= {"seeds": seeds} if seeds is not None else {}
    if not whole:
        execute(experiment="pipeline", pairs=pairs, **given)
        return
    _print_report(pairs, 7 if seed is None else seed, given)


def _print_sections(
    pairs: tuple[str, ...], show: str, seed: int | None, seeds: str | None, options: dict[str, Any]
) -> None:
    """Some sections of a run that is not stored."""
    from labs import jobs
    from labs.experiment import execute
    from labs.pipeline.told import SECTIONS, lines

    wanted = [name.strip() for name in show.split(",")]
    for name in wanted:
        if name not in SECTIONS:
            raise one_of("--show", name, SECTIONS)
    clash = [f"--{name.removeprefix('as_')}" for name in ("output", "as_json", "svg", "fresh") if options[name]]
    if clash or seeds is not None:
        raise InputError(
            f"--show and {clash[0] if clash else '--seeds'} exclude each other: it prints and stores nothing"
        )
    if "table" not in wanted and not any(pair.startswith("frontier=") for pair in pairs):
        pairs = (*pairs, "frontier=false")
    config = jobs.configure("pipeline", pairs=pairs)
    if "table" in wanted and not config.frontier and not config.vary:
        raise InputError("--show table has no row: frontier is false; allowed: frontier=true, or --vary KEY=A,B")
    result = execute("pipeline", config, jobs.check_seed(7 if seed is None else seed))
    click.echo("\n".join(lines(result.data["report"], wanted)))


def _print_report(pairs: tuple[str, ...], seed: int, given: dict[str, Any]) -> None:
    """The whole report of a stored run, where the files are, and what to type next."""
    import os

    from labs import jobs
    from labs.console import Bar, say
    from labs.pipeline.told import lines
    from labs.store import check_folder

    folder = given.get("results", "results")
    if given.get("no_figures") and given.get("svg"):
        raise InputError("--no-figures and --svg exclude each other")
    if not folder:
        raise InputError("--results is empty; give a folder")
    config = jobs.configure("pipeline", pairs=pairs)
    check_folder(folder)
    jobs.check_seed(seed)
    order = jobs.Order(
        results=folder, draw=not given.get("no_figures"), svg=bool(given.get("svg")), fresh=bool(given.get("fresh")),
        command=("labs", *sys.argv[1:]), warn=say,
    )  # fmt: skip
    bar = Bar()
    try:
        result, stored = jobs.run_one("pipeline", config, seed, order, bar)
    finally:
        bar.close()
    note = ", stored by an earlier run; --fresh computes it again" if stored else ""
    text = [
        *lines(result.data["report"]),
        f"files    {result.folder}{os.sep} (figures, result.json, trace.json for ui.perfetto.dev{note})",
        *(f"{'next' if i == 0 else '':<9}{line}" for i, line in enumerate(result.next)),
    ]
    click.echo("\n".join(text))
