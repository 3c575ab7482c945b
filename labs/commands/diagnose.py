"""Find what is wrong in dumps, logs and runs of any trainer, with what to try."""

from __future__ import annotations

import math
import warnings
from typing import Any

import click

_WIDTH = 110
#: From so many checks on that one switch unlocks, what is missing is said once for all of them.
_AT_ONCE = 5
#: What --state takes: the type of each and the least that it may be.
_STATES: dict[str, tuple[Any, float | None]] = {
    "estimator": (str, None), "loss_mode": (str, None), "loss_agg_mode": (str, None), "kl_loss_type": (str, None),
    "beta": (float, 0), "actions": (int, 1), "eos": (int, 0), "pad": (int, None), "overlong_buffer": (int, 0),
    "max_lag": (int, 0),
}  # fmt: skip


@click.command(short_help=__doc__, context_settings={"max_content_width": _WIDTH})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--n", type=click.IntRange(min=1), help="Group size, where the file has no group id.")
@click.option("--max-response-length", type=click.IntRange(min=1), help="Longest response the run allowed, in tokens.")
@click.option("--state", "stated", multiple=True, metavar="KEY=VALUE", help="Another fact about the run (see above).")
@click.option("--validation/--training", default=None, help="What the rows are, where the file does not tell.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON document.")
@click.option("--show", type=click.Choice(["worst", "odd", "same"]), help="Print rows too, chosen for a reason.")
@click.option("--k", type=click.IntRange(min=1), default=3, show_default=True, help="How many rows --show prints.")
@click.option("--reproduce", is_flag=True, help="Run the smallest configuration of the lab with the same fault.")
@click.option("--report", "page", metavar="FILE", help="Write what was found as one offline HTML page too.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the page.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    paths: tuple[str, ...],
    stated: tuple[str, ...],
    as_json: bool,
    show: str | None,
    k: int,
    reproduce: bool,
    page: str | None,
    lang: str,
    quiet: bool,
    **options: Any,
) -> int:
    """Diagnose PATH...: files, folders of steps, runs of the lab, or - for text on standard input.

    Exit code 0: no fault; 1: faults; 2: nothing could be read.

    --reproduce writes reproduce-<check>.json into the current folder and runs it.

    --state takes estimator, loss_mode, loss_agg_mode, kl_loss_type (names), beta (number), actions, eos, pad,
    overlong_buffer, max_lag (integers).
    """
    from labs.console import Bar
    from labs.diagnosis import Examination
    from labs.reading import read, unlocks
    from labs.shown_rows import Showcase
    from labs.store import check_writable, dumps

    if page is not None:
        check_writable(page, "--report")
    facts = {**_facts(stated), **{name: value for name, value in options.items() if value is not None}}
    bar = Bar(quiet)
    examination, showcase = Examination(facts), Showcase(show, k) if show else None
    try:
        with warnings.catch_warnings():  # of libraries, about numbers in the data: checks say what is wrong with those
            warnings.simplefilter("ignore")
            for step in read(paths, facts, lambda done, total: bar(done >> 20, max(total >> 20, 1))):
                examination.look(step)
                if showcase is not None:
                    showcase.look(step)
            done = examination.end()
    finally:
        bar.close()
    done.unlocks = unlocks(done.formats, [each.check for each in done.unchecked], examination.names)
    runs = _reproduced(done) if reproduce else []
    if as_json:
        shown = [row.document() for row in showcase.rows()] if showcase is not None else []
        extra = {"rows_shown": shown, "reproduced": runs}
        click.echo(dumps({**done.document(), **{name: value for name, value in extra.items() if value}}))
    else:
        _print(done, runs)
        for row in showcase.rows() if showcase is not None else ():
            _echo("\n" + row.text())
    if page is not None:
        _write(page, done, runs, lang)
    return 0 if done.clean else 1


def _facts(stated: tuple[str, ...]) -> dict[str, Any]:
    """The pairs of --state, with their types."""
    from labs.errors import InputError, one_of

    made: dict[str, Any] = {}
    for pair in stated:
        key, _, text = pair.partition("=")
        if key not in _STATES:
            raise one_of("--state", key, list(_STATES))
        kind, least = _STATES[key]
        if kind is str:
            names = _names(key)
            if text not in names:
                raise one_of(f"--state {key}", text, names)
            made[key] = text
            continue
        try:
            made[key] = kind(text)
        except ValueError:
            raise InputError(f"--state {pair}: {key} takes a value like {key}={kind('1')}") from None
        if not math.isfinite(made[key]) or (least is not None and made[key] < least):
            raise InputError(f"--state {pair}: {key} is a number{f' of at least {least}' if least is not None else ''}")
    return made


def _names(key: str) -> list[str]:
    """What a fact that is a name may be."""
    from labs.registry import estimators, losses

    if key in ("estimator", "loss_mode"):
        return list(estimators if key == "estimator" else losses)
    if key == "loss_agg_mode":
        from labs.masked import AGG_MODES

        return list(AGG_MODES)
    from labs.kl import ESTIMATORS

    return [*ESTIMATORS, *(f"{name}+" for name in ESTIMATORS)]


def _write(path: str, done: Any, runs: list[dict[str, Any]], lang: str) -> None:
    """The page, with the command as it was typed."""
    import shlex
    import sys

    from labs.report import diagnosis_report
    from labs.store import write

    typed = shlex.join(["python", "-m", "labs", *sys.argv[1:]])
    again = [(run["check"], run["command"], run["lines"]) for run in runs]
    write(path, diagnosis_report(done, typed=typed, reproduced=again, lang=lang))


def _print(done: Any, runs: list[dict[str, Any]]) -> None:
    """The findings, then what ran, what could not and why."""
    read = ", ".join(f"{name} ({_many(count, 'step')})" for name, count in done.formats.items()) or "nothing"
    click.echo(f"read {read}: {_many(done.rows, 'row')} in {_many(done.sources, 'file')}")
    for note in done.notes:
        _wrapped(note, "note  ")
    for kind in [*done.faults, *done.remarks]:
        first = kind.findings[0]
        verdict = "note" if first.kind == "note" else f"FAIL ({first.sure})"
        _echo(f"\n{f'{kind.code} {kind.check}'.strip()}: {verdict}")
        _wrapped(first.what, "  what   ")
        for lead in ("where", "share", "why", "advice"):
            text = str(getattr(first, lead))
            if text:
                _wrapped(text, f"  {'try' if lead == 'advice' else lead:<5}  ")
        for other in kind.findings[1:]:
            _wrapped(f"{other.where}: {other.what}", "  also   ")
        if kind.count > len(kind.findings):
            steps = f", steps {kind.steps[0]} to {kind.steps[1]}" if kind.steps[0] != kind.steps[1] else ""
            click.echo(f"  also   {kind.count - len(kind.findings)} more like it{steps}")
    for run in runs:
        click.echo("")
        _wrapped(run["command"], f"reproduces {run['check']}: ")
        for line in run["lines"]:
            _wrapped(line, "  ")
    click.echo("")
    failing = {kind.check for kind in done.faults}
    _wrapped(", ".join(f"{name} (!)" if name in failing else name for name in done.ran) or "no check", "ran     ")
    at_once = {name for names in done.unlocks.values() if len(names) >= _AT_ONCE for name in names}
    for unchecked in done.unchecked:
        if unchecked.check not in at_once:
            _wrapped(unchecked.unlock, f"not run {unchecked.code} {unchecked.check}: ")
    if at_once:
        names = ", ".join(f"{each.code} {each.check}" for each in done.unchecked if each.check in at_once)
        _wrapped(f"{names} (what unlocks them follows; --json says what each reads)", "not run ")
    for sentence, names in done.unlocks.items():
        _wrapped(f"{sentence} (for {', '.join(names)})", "unlock  ")
    for name, error in done.failed.items():
        _wrapped(f"{error} (a bug of the lab: please report it)", f"broke   {name}: ")
    click.echo(f"\n{_verdict(done)}")


def _verdict(done: Any) -> str:
    if done.clean:
        return "nothing wrong found" if done.ran else "no check could run: nothing is known to be right or wrong"
    total = sum(kind.count for kind in done.faults)
    return f"{_many(total, 'fault')} of {_many(len(done.faults), 'kind')}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _echo(text: str) -> None:
    """Print text that files may have written."""
    from labs.console import printable

    click.echo(printable(text))


def _wrapped(text: str, lead: str) -> None:
    import textwrap

    indent = " " * min(len(lead), 12)
    _echo(textwrap.fill(" ".join(text.split()), _WIDTH, initial_indent=lead, subsequent_indent=indent))


def _reproduced(done: Any) -> list[dict[str, Any]]:
    """For the first finding of every kind that names one: write, run and sum up the smallest configuration."""
    from labs.reproduction import reproduce

    return [run for kind in done.faults for run in [reproduce(kind.findings[0])] if run is not None]
