"""Read a verl configuration: what it amounts to, and which settings are inert or dangerous."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help=__doc__)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(file: Path, as_json: bool) -> int:
    """Read the algorithm, actor, rollout, critic and reward blocks of FILE (YAML), as verl 0.9.1 would.

    Exit code 0: nothing wrong or dangerous; 1: something is; 2: the file cannot be read.
    """
    from labs.verl_config import read, summary
    from labs.verl_config_rules import examine

    settings = read(file)
    found = examine(settings)
    bad = any(f.level in ("wrong", "dangerous") for f in found)
    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps({"summary": summary(settings), "findings": [asdict(f) for f in found]}, indent=1))
        return int(bad)
    click.echo("\n".join(summary(settings)) + "\n")
    for finding in found:
        click.echo(f"{finding.level}: {finding.setting} {finding.text}.")
        if finding.remedy:
            click.echo(f"    try: {finding.remedy}")
    count = sum(f.level != "note" for f in found)
    click.echo(f"\n{count} setting{'' if count == 1 else 's'} wrong, dangerous or inert")
    return int(bad)
