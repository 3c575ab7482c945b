"""Hold an estimator or a loss to its contract, and say which known one it is and where it differs."""

from __future__ import annotations

from typing import Any

import click


@click.command(short_help=__doc__)
@click.argument("target")
@click.option("--seed", default=0, show_default=True, help="Seed of the random batches.", type=click.IntRange(min=0))
def command(target: str, seed: int) -> int:
    """Verify TARGET: the name of an estimator or a loss (`rloo`, `losses/gpg`), or a Python file that defines one.

    Exit code 0: contract, declaration and recorded rows hold; 1: something does not; 2: nothing to verify.
    """
    import torch

    from labs.verify import verify

    torch.set_num_threads(1)
    report = verify(target, seed=seed)
    click.echo(f"{report.kind} {report.name}\n")
    if report.findings:
        click.echo("contract: broken")
        for finding in report.findings:
            click.echo(f"  {finding.what}: {finding.text}")
            _batch(getattr(finding, "batch", {}), "    smallest batch")
    else:
        click.echo("contract: kept")
    if report.measured:
        click.echo("declares nothing; measured:")
        for name, value in report.measured.items():
            click.echo(f"  {name:<18} {value}")
    for sentence in report.doubts:
        click.echo(f"doubtful: {sentence}")
    for other in report.equals:
        click.echo(f"equals {other}: {_first_line(report.kind, other)}")
    for sentence in report.resembles:
        click.echo(f"equals {sentence}")
    if report.nearest is not None:
        nearest = report.nearest
        how = f"equal on {nearest.share:.0%} of the batches" if nearest.share else "equal on none of the batches"
        click.echo(f"equals no other {report.kind} of the lab; nearest is {nearest.other}, {how}:")
        click.echo(f"  {_first_line(report.kind, nearest.other)}")
        _batch(nearest.batch, "  they differ on")
        click.echo(f"    {report.name}: {_shown(nearest.mine)}")
        click.echo(f"    {nearest.other}: {_shown(nearest.theirs)}")
    for function, (ran, matched) in report.golden.items():
        click.echo(f"recorded rows of verl's {function}: {matched} of {ran} reproduced")
    for sentence in report.mismatches[:5]:
        click.echo(f"  {sentence}")
    for sentence in report.passed_over:
        click.echo(f"passed over: {sentence}")
    verdict = "all good"
    if report.resembles or report.doubts:
        what = "what it resembles" if report.resembles else "what is doubtful"
        verdict = f"keeps the contract; is {what} what you mean?"
    click.echo(f"\n{verdict if report.good else 'not good'}")
    return 0 if report.good else 1


def _first_line(kind: str, name: str) -> str:
    from labs.registry import estimators, losses

    return (estimators if kind == "estimator" else losses).describe(name)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"raises {value}"
    return "; ".join(str([[round(x, 6) for x in row] for row in t.reshape(-1, t.shape[-1]).tolist()]) for t in value)


def _batch(batch: Any, title: str) -> None:
    """The columns of a small batch that say most, on lines of their own."""
    names = ("token_level_rewards", "response_mask", "index", "old_log_prob", "log_prob", "advantages")
    shown = [n for n in names if n in batch]
    if shown:
        click.echo(title)
    for name in shown:
        column = batch[name]
        text = column.tolist()
        if name not in ("index", "response_mask"):
            text = [[round(x, 4) for x in row] for row in text] if column.ndim == 2 else text
        click.echo(f"      {name} = {text}")
