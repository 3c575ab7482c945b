"""Write one offline HTML page about a stored run."""

from __future__ import annotations

import click


@click.command(short_help=__doc__)
@click.argument("run")
@click.option("--output", metavar="FILE", help="Where to write it (default: report.html in the folder of the run).")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the page.")
@click.option("--no-replay", is_flag=True, help="Do not compute the run again to show its episodes.")
def command(run: str, output: str | None, lang: str, no_replay: bool) -> None:
    """Write a page about the run in the folder RUN: question, answer, command, numbers, figures, replay, glossary.

    It is smaller than 2 MB, needs no network and can be read without JavaScript. The episodes of training in it are
    computed again from the settings and the seed, which takes about as long as the run. `report.zh.html` is the default
    file of --lang zh.
    """
    import os

    from labs.report import load, report
    from labs.store import check_writable, write
    from labs.stored import fits

    stored = load(run)
    path = os.path.join(run, "report.html" if lang == "en" else f"report.{lang}.html") if output is None else output
    check_writable(path, "--output")
    with fits(run):
        page = report(stored.results, lang, stamp=stored.stamp, replayed=not no_replay)
    write(path, page)
    click.echo(path)
