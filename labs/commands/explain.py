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
    import json
    import os
    import re

    import torch

    from labs.errors import InputError
    from labs.explain import explain
    from labs.registry import experiments
    from labs.settings import build

    match = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", place or "0,0")
    if match is None:
        raise InputError(f"--at is {place!r}; it must be row,position, for instance 12,3")
    try:
        with open(os.path.join(run, "result.json"), encoding="utf-8") as file:
            document = json.load(file)
        name, settings, seed = document["experiment"], document["config"], document["seed"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{run} is no folder of a complete run over one seed: it needs a result.json") from None
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
