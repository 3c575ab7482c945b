"""List what the lab has: estimators, losses, rewards, masks, environments, experiments, exercises, checks."""

from __future__ import annotations

import click

from labs.registry import KINDS, Registry


@click.command(short_help=__doc__)
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, name to description.")
def command(kind: str | None, as_json: bool) -> None:
    """List the entries of KIND, or of every kind; nothing is imported for it.

    KIND is one of estimators, losses, rewards, masks, environments, experiments, exercises, checks.
    """
    chosen = KINDS if kind is None else {kind: find(kind)}
    if as_json:
        import json

        found = {plural: {name: each.describe(name) for name in each} for plural, each in chosen.items()}
        click.echo(json.dumps(found if kind is None else found[kind], indent=2))
        return
    for plural, registry in chosen.items():
        if kind is None:
            click.echo(f"{plural} ({len(registry)})")
        width = max((len(name) for name in registry), default=0)
        for name in registry:
            click.echo(f"{'  ' if kind is None else ''}{name:<{width}}  {registry.describe(name)}")


def find(kind: str) -> Registry:
    """The registry of a kind, by its plural or its singular; raises `InputError` with close names."""
    from labs.errors import one_of

    for plural, registry in KINDS.items():
        if kind in (plural, registry.kind):
            return registry
    raise one_of("kind", kind, list(KINDS))
