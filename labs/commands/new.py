"""Start an estimator, a loss, an environment or an experiment from a template."""

from __future__ import annotations

import click


@click.command(short_help=__doc__)
@click.argument("kind")
@click.argument("name")
def command(kind: str, name: str) -> None:
    """Write the template of KIND as a new entry NAME; it runs as it is, and the file says what to change."""
    import keyword
    import os

    from labs.commands.list import find
    from labs.errors import InputError, one_of
    from labs.store import write

    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "templates")
    kinds = sorted(file.removesuffix(".py.txt") for file in os.listdir(folder) if file.endswith(".py.txt"))
    if kind not in kinds:
        raise one_of("kind", kind, kinds)
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name != name.lower():
        raise InputError(f"name is {name!r}; allowed: a Python name in lower case, such as my_{kind}")
    registry = find(kind)
    if name in registry:
        raise InputError(f"{kind} {name!r} is there already: {os.path.relpath(registry.path(name))}")
    path = registry.folder / f"{name}.py"
    with open(os.path.join(folder, f"{kind}.py.txt"), encoding="utf-8") as file:
        write(str(path), file.read().replace("{{name}}", name))
    click.echo(f"wrote {os.path.relpath(path)}")
    following = {
        "estimator": f"python -m labs verify {name}",
        "loss": f"python -m labs verify losses/{name}",
        "environment": f"python -m labs.run --experiment agent --set environment={name}",
        "experiment": f"python -m labs.run --experiment {name} --seed 7",
    }
    click.echo(f"next  {following.get(kind, f'python -m labs list {kind}s')}\n      python -m labs show {name}")
