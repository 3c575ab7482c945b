"""Find what is wrong in dumps, logs and runs of any trainer, with what to try."""

from __future__ import annotations

from typing import Any

import click

_WIDTH = 110


@click.command(short_help=__doc__, context_settings={"max_content_width": _WIDTH})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--n", type=click.IntRange(min=1), help="Group size, where the file has no group id.")
@click.option("--max-response-length", type=click.IntRange(min=1), help="Longest response the run allowed, in tokens.")
@click.option("--estimator", help="Advantage estimator of the run.", metavar="NAME")
@click.option("--loss-mode", help="Policy loss of the run.", metavar="NAME")
@click.option("--beta", type=float, help="Coefficient of the KL penalty.")
@click.option("--actions", type=click.IntRange(min=2), help="Size of the action space, for the entropy.")
@click.option("--validation/--training", default=None, help="What the rows are, where the file does not tell.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON document.")
@click.option("--show", type=click.Choice(["worst", "odd", "same"]), help="Print rows too, chosen for a reason.")
@click.option("--k", type=click.IntRange(min=1), default=3, show_default=True, help="How many rows --show prints.")
@click.option("--reproduce", is_flag=True, help="Run the smallest configuration of the lab with the same fault.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    paths: tuple[str, ...], as_json: bool, show: str | None, k: int, reproduce: bool, quiet: bool, **facts: Any
) -> int:
    """Diagnose PATH...: files, folders of steps, runs of the lab, or - for text on standard input.

    Exit code 0: nothing found; 1: findings; 2: nothing could be read.
    """
    from labs.console import Bar
    from labs.diagnosis import Examination
    from labs.reading import read
    from labs.shown_rows import Showcase
    from labs.store import dumps

    stated = {name: value for name, value in facts.items() if value is not None}
    bar = Bar(quiet)
    examination, showcase = Examination(stated), Showcase(show, k) if show else None
    try:
        for step in read(paths, stated, bar):
            examination.look(step)
            if showcase is not None:
                showcase.look(step)
    finally:
        bar.close()
    done = examination.end()
    runs = _reproduced(done) if reproduce else []
    if as_json:
        shown = [row.document() for row in showcase.rows()] if showcase is not None else []
        extra = {"rows_shown": shown, "reproduced": runs}
        click.echo(dumps({**done.document(), **{name: value for name, value in extra.items() if value}}))
    else:
        _print(done, runs)
        for row in showcase.rows() if showcase is not None else ():
            click.echo("\n" + row.text())
    return 0 if done.clean else 1


def _print(done: Any, runs: list[dict[str, Any]]) -> None:
    """The findings, then what ran, what could not and why."""
    read = ", ".join(f"{name} ({count} steps)" for name, count in done.formats.items()) or "nothing"
    click.echo(f"read {read}: {done.rows:,} rows of {done.steps} steps in {done.sources} files")
    for note in done.notes:
        _wrapped(note, "note  ")
    for kind in done.kinds:
        first = kind.findings[0]
        name = f"{kind.code} {kind.check}".strip()
        click.echo(f"\n{name}: {'warning' if first.sure == 'possible' else 'FAIL'} ({first.sure})")
        _wrapped(first.what, "  what   ")
        _wrapped(str(first.where), "  where  ")
        _wrapped(first.share, "  share  ")
        _wrapped(first.why, "  why    ")
        _wrapped(first.advice, "  try    ")
        for other in kind.findings[1:]:
            _wrapped(f"{other.where}: {other.what}", "  also   ")
        if kind.count > len(kind.findings):
            more = kind.count - len(kind.findings)
            steps = f", steps {kind.steps[0]} to {kind.steps[1]}" if kind.steps[0] != kind.steps[1] else ""
            click.echo(f"  also   {more} more like it{steps}")
    for run in runs:
        click.echo("")
        _wrapped(run["command"], f"reproduces {run['check']}: ")
        for line in run["lines"]:
            _wrapped(line, "  ")
    click.echo("")
    codes = {kind.check for kind in done.kinds}
    _wrapped(", ".join(f"{name}{' !' if name in codes else ''}" for name in done.ran) or "no check", "ran       ")
    for unchecked in done.unchecked:
        _wrapped(unchecked.unlock, f"could not {unchecked.code} {unchecked.check}: ")
    for name, error in done.failed.items():
        _wrapped(f"{error} (a bug of the lab: please report it)", f"failed    {name}: ")
    total = sum(kind.count for kind in done.kinds)
    click.echo(f"\n{'nothing found' if done.clean else f'{total} findings of {len(done.kinds)} kinds'}")


def _wrapped(text: str, lead: str) -> None:
    import textwrap

    indent = " " * min(len(lead), 12)
    click.echo(textwrap.fill(" ".join(text.split()), _WIDTH, initial_indent=lead, subsequent_indent=indent))


def _reproduced(done: Any) -> list[dict[str, Any]]:
    """For the first finding of every kind that names one: write, run and sum up the smallest configuration."""
    from labs.reproduction import reproduce

    return [run for kind in done.kinds for run in [reproduce(kind.findings[0])] if run is not None]
