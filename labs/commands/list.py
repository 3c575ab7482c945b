"""List what the lab has: estimators, losses, rewards, masks, environments, experiments, exercises, checks."""

from __future__ import annotations

from typing import Any

import click

from labs.registry import KINDS, Registry


@click.command(short_help=__doc__)
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, name to description.")
def command(kind: str | None, as_json: bool) -> None:
    """List the entries of KIND, or of every kind; nothing is imported for it.

    KIND is one of estimators, losses, rewards, masks, environments, experiments, exercises, checks. For estimators and
    losses the table of what they declare follows; `labs show NAME` explains an entry.
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
        if kind is not None and registry.kind in COLUMNS:
            click.echo("\ndeclared, and held to it by tests\n" + "\n".join(table(registry)))


#: Kind -> field of the declaration -> heading. The sentence on bias has a place of its own in `labs show`.
COLUMNS: dict[str, dict[str, str]] = {
    "estimator": {
        "credit": "credit per",
        "groups": "groups",
        "critic": "critic",
        "group_of_one": "lone row",
        "equal_group": "equal scores",
        "group_shift": "shift-proof",
        "scale": "scale",
        "zero_where_masked": "0 if masked",
        "all_masked_row": "0 if empty",
        "single_token": "one token",
        "permutation": "any row order",
        "reward_on_masked": "masked reward",
        "crosses_tools": "crosses tools",
        "returns": "returns",
        "unbiased": "unbiased",
        "needs": "needs",
    },
    "loss": {
        "old_log_probs": "old log-probs",
        "aggregation": "aggregation",
        "on_policy": "on policy",
        "stop_gradient": "stop-gradient",
        "good_up": "A>0, ratio up",
        "good_down": "A>0, down",
        "bad_up": "A<0, up",
        "bad_down": "A<0, down",
        "all_masked": "all masked",
        "is_weights": "IS weights",
        "row_order": "any row order",
        "random": "random",
        "needs_config": "needs settings",
    },
}


def table(registry: Registry) -> list[str]:
    """The declarations of a registry, a row an entry; entries without one are left out."""
    from labs.errors import InputError
    from labs.properties import Properties, declared

    columns = COLUMNS[registry.kind]
    rows = [["", *columns.values()]]
    for name in registry:
        try:
            needs, properties = declared(registry, name)
        except InputError:  # a file that cannot be imported; the list above says why
            continue
        if properties is None:
            continue
        values = {"needs": needs, **vars(properties)}
        if not isinstance(properties, Properties):
            values |= vars(properties.extremes)
        rows.append([name, *(_word(values[field]) for field in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (", ".join(value) or "-") if isinstance(value, tuple) else str(value)


def find(kind: str) -> Registry:
    """The registry of a kind, by its plural or its singular; raises `InputError` with close names."""
    from labs.errors import one_of

    for plural, registry in KINDS.items():
        if kind in (plural, registry.kind):
            return registry
    raise one_of("kind", kind, list(KINDS))
