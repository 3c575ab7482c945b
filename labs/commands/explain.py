"""Explain one number of a stored run: stage by stage, the formula with the numbers put in, down to the logits."""

from __future__ import annotations

import click


@click.command(short_help=__doc__)
@click.argument("run")
@click.argument("column", default="loss_weights")
@click.option("--update", "number", type=click.IntRange(min=1), default=1, show_default=True, help="Which update.")
@click.option(
    "--at", "place", help="Row and position of the token, `i,t`; by default the one with the largest |advantage|."
)
def command(run: str, column: str, number: int, place: str | None) -> None:
    """Explain COLUMN (advantages, token_level_rewards, loss_weights, ...) of one token in the folder RUN.

    The run is computed again up to that update from its configuration and seed; nothing is read but `result.json`.
    """
    import re

    import torch

    from labs.errors import InputError
    from labs.explain import explain
    from labs.registry import experiments
    from labs.settings import build
    from labs.stored import document

    match = re.fullmatch(r"\s*(\d{1,18})\s*,\s*(\d{1,18})\s*", "0,0" if place is None else place)
    if match is None:
        raise InputError(f"--at is {place!r}; it must be row,position, for instance 12,3")
    found = document(run)
    if "per_seed" in found:
        raise InputError(f"{run} has {len(found['per_seed'])} seeds; explain takes a run of one, made with --seed")
    name, settings, seed = found["experiment"], found["config"], found["seed"]
    module = experiments[name]
    if not hasattr(module, "explained"):
        able = [n for n in experiments if hasattr(experiments[n], "explained")]
        raise InputError(
            f"{run} is a run of {name}, which trains no policy; runs of {', '.join(able)} can be explained"
        )
    torch.set_num_threads(1)
    config = build(module.Config, settings, f"{run}: ")
    updates = getattr(config, "updates", 1)
    if number > updates:
        raise InputError(f"--update is {number}; the run has updates 1 to {updates}")
    click.echo(f"{name}, seed {seed}, update {number} of {updates}\n")
    update, at = module.explained(config, seed, number), (int(match[1]), int(match[2]))
    if place is None:
        at = update.loudest()
        click.echo(f"--at {at[0]},{at[1]}: the token with the largest |advantage| of the batch\n")
    click.echo(explain(update, at, column))
