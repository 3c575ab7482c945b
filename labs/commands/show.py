"""Show what an entry declares (formula, settings, numbers it logs, paper), or what a stored run found."""

from __future__ import annotations

from typing import Any

import click

from labs.registry import KINDS, Registry


@click.command(short_help=__doc__)
@click.argument("name")
def command(name: str) -> None:
    """Show NAME: an entry (`rloo`, or `losses/gpg` where two kinds share a name) or the folder of a run."""
    import os

    if os.path.isdir(name):
        _run(name)
        return
    for i, (registry, entry) in enumerate(_find(name)):
        if i:
            click.echo("\n" + "=" * 80 + "\n")
        _entry(registry, entry)


def _find(name: str) -> list[tuple[Registry, str]]:
    """Every entry of that name; raises `InputError` with close names when there is none."""
    from labs.commands.list import find
    from labs.errors import one_of

    kind, slash, entry = name.rpartition("/")
    if slash:
        registry = find(kind)
        registry.path(entry)
        return [(registry, entry)]
    found = [(registry, name) for registry in KINDS.values() if name in registry]
    if not found:
        raise one_of("name", name, sorted({each for registry in KINDS.values() for each in registry}))
    return found


def _entry(registry: Registry, name: str) -> None:
    """Docstring, what it takes, what it declares, where it is."""
    import inspect
    import os
    import sys

    entry = registry[name]
    module = sys.modules.get(getattr(entry, "__module__", ""), entry) if callable(entry) else entry
    home = sys.modules.get(f"{registry.package}.{name}", module)
    click.echo(f"{registry.kind} {name}   {os.path.relpath(registry.path(name))}\n")
    click.echo(inspect.getdoc(home) or "")
    own = inspect.getdoc(entry) if entry is not home and callable(entry) else None
    if own:
        click.echo("\n" + own)
    if callable(entry):
        click.echo(f"\n{name}{inspect.signature(entry)}".replace("'", ""))
    meta: dict[str, Any] = getattr(entry, "meta", {})
    needs = getattr(entry, "needs", ())
    if needs:
        click.echo(f"\nneeds       {', '.join(needs)}")
    for key, value in meta.items():
        if key != "metrics":
            click.echo(f"{key:<11} {_words(value)}")
    if registry.kind in ("estimator", "loss"):
        from labs.moments import method

        click.echo(f"{'moments':<11} {method(registry.kind, name)}")
    if hasattr(entry, "Config"):
        _settings(entry.Config)
    metrics = getattr(entry, "METRICS", meta.get("metrics", ()))
    if metrics:
        _metrics(metrics)


def _words(value: Any) -> str:
    """A declared value on lines of its own where it has parts."""
    from dataclasses import fields, is_dataclass

    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return "".join(f"\n  {key:<18} {part}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _settings(config: type[Any]) -> None:
    from labs.config import as_dict, settings
    from labs.settings import allowed

    defaults = as_dict(config())
    click.echo("\nsettings (--set key=value)")
    for name, declared in settings(config).items():
        data = declared.metadata
        unit = f" [{data['unit']}]" if data["unit"] != "1" else ""
        default = "none" if defaults[name] is None else str(defaults[name]).lower()
        click.echo(f"  {name:<22} {default:<12} {data['help']}{unit}; {allowed(declared)}")


def _metrics(metrics: Any) -> None:
    click.echo("\nnumbers")
    for metric in metrics:
        text = f"; {metric.text}" if metric.text else ""
        click.echo(f"  {metric.name:<28} [{metric.unit}] {metric.formula}{text}")


def _run(folder: str) -> None:
    """The summary of a stored run."""
    import json
    import os

    from labs.errors import InputError
    from labs.stored import document

    found = document(folder)
    try:
        with open(os.path.join(folder, "stamp.json"), encoding="utf-8") as file:
            stamp = json.load(file)
        if not isinstance(stamp, dict):
            raise ValueError
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{folder} is no folder of a complete run: its stamp.json is missing or damaged") from None
    words = [*found.get("summary", ()), found.get("conclusion", "")]
    name, config = found["experiment"], found["config"]
    which = f"{len(found['per_seed'])} seeds" if "per_seed" in found else f"seed {found['seed']}"
    dirty = " with changes" if stamp.get("dirty") else ""
    click.echo(
        f"{name}, {which}, made {stamp.get('finished')} by lab {stamp.get('lab')}, commit {stamp.get('commit')}{dirty}"
    )
    click.echo("settings: " + ", ".join(f"{key}={value}" for key, value in config.items()))
    click.echo("\n".join(line for line in words if line))
