"""Compare two stored runs: same seeds paired, the difference with its interval, and one sentence."""

from __future__ import annotations

import click


@click.command(short_help=__doc__)
@click.argument("a", metavar="RUN_A")
@click.argument("b", metavar="RUN_B")
@click.option("--metric", metavar="NAME", help="The headline number that decides (default: the first one).")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--figure", "picture", metavar="FILE", help="Draw the deciding number into a PNG file.")
@click.option("--report", metavar="FILE", help="Write one offline HTML page.")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of the page.")
def command(
    a: str, b: str, metric: str | None, as_json: bool, picture: str | None, report: str | None, lang: str
) -> None:
    """Compare the runs in the folders RUN_A and RUN_B.

    Runs of many seeds (`--seeds 0-31`) are paired over the seeds that both have. A single seed has no interval, so the
    answer is then "cannot tell". The number of seeds that would tell finds a difference of the size seen in 4 of 5
    repetitions of the comparison.
    """
    from labs.compare import compare, figure, load
    from labs.console import say
    from labs.store import check_writable, dumps, write

    for path, option in ((picture, "--figure"), (report, "--report")):
        if path is not None:
            check_writable(path, option)
    found = compare(load(a), load(b), metric)
    if picture is not None or report is not None:
        from labs import plots

        drawn = plots.png(figure(found))
        if picture is not None:
            write(picture, drawn)
            say(f"wrote {picture}")
        if report is not None:
            from labs.report import comparison_report

            write(report, comparison_report(found, drawn, lang=lang))
            say(f"wrote {report}")
    if as_json:
        click.echo(dumps(found.document()))
        return
    click.echo(f"A  {found.a.path}  ({_seeds(found.a.values)} of {found.a.experiment})")
    click.echo(f"B  {found.b.path}  ({_seeds(found.b.values)} of {found.b.experiment})")
    if not found.settings:
        click.echo("settings: the same")
    for name, first, second in found.settings:
        click.echo(f"  {name:<24} A {_word(first)}    B {_word(second)}")
    width = max(len(d.name) for d in found.differences)
    click.echo(f"{'':<{width}}  {'A':>10}  {'B':>10}  {'A - B':>10}  95 % interval of A - B")
    for d in found.differences:
        bounds = "none" if d.difference.low is None else f"{d.difference.low:.4g} to {d.difference.high:.4g}"
        click.echo(f"{d.name:<{width}}  {d.a.value:>10.4g}  {d.b.value:>10.4g}  {d.difference.value:>+10.4g}  {bounds}")
    click.echo(found.sentence())


def _seeds(values: object) -> str:
    from labs.seeds import spell

    seeds = sorted(values)  # type: ignore[call-overload]
    return f"seed{'s' if len(seeds) > 1 else ''} {spell(seeds)}"


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else "default" if value is None else str(value)
