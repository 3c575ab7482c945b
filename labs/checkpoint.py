"""The whole state of a run in one `.npz` file: go on with the same numbers as if nothing had happened.

Saved are the logits, reference, past policies, critic, both optimisers, KL coefficient, generator, episodes that wait
for a cut row, and the counters. The configuration is not: `restore` is given it, and refuses another one than the file
was written under. Nothing is ever pickled.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labs.batched import PathBatch
from labs.environment import Environment, Task
from labs.episodes import Episodes
from labs.errors import InputError
from labs.policy import Policy
from labs.trainer import Trainer, TrainerConfig


def save(trainer: Trainer, path: Path) -> None:
    """Write the state of `trainer`, whole or not at all."""
    arrays: dict[str, Any] = {
        "config": np.array(_identity(trainer.environment, trainer.config)),
        "number": np.array(trainer.number),
        "logits": trainer.logits.detach().numpy(),
        "values": trainer.values.detach().numpy(),
        "reference": trainer.reference.logits.numpy(),
        "reference_version": np.array(trainer.reference.version),
        "past": np.stack([p.logits.numpy() for p in trainer.past]),
        "past_versions": np.array([p.version for p in trainer.past]),
        "kl_coefficient": np.array(trainer.controller.value),
        "generator": trainer.generator.get_state().numpy(),
    }
    for name, optimiser in (("policy", trainer.optimiser), ("critic", trainer.critic_optimiser)):
        for what, value in optimiser.state_dict()["state"].get(0, {}).items():
            if value is not None:
                arrays[f"{name}_optimiser.{what}"] = value.detach().numpy()
    if trainer.pending is not None:
        arrays |= _packed(trainer.pending)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as stream:
        np.savez(stream, **arrays)
    part.replace(path)


def restore(path: Path, environment: Environment, config: TrainerConfig) -> Trainer:
    """A `Trainer` that goes on where the saved one stood.

    Raises:
        InputError: no such file, or it was written under another environment or configuration.
    """
    if not path.is_file():
        raise InputError(f"{path} is no file; it should be one that save wrote")
    with np.load(path, allow_pickle=False) as data:
        found = {name: data[name] for name in data.files}
    if str(found["config"]) != _identity(environment, config):
        raise InputError(f"{path} was saved under another environment or configuration: {found['config']}")
    trainer = Trainer(environment, config, seed=0)
    trainer.number = int(found["number"])
    with torch.no_grad():
        trainer.logits.copy_(torch.from_numpy(found["logits"]))
        trainer.values.copy_(torch.from_numpy(found["values"]))
    trainer.reference = Policy(
        torch.from_numpy(found["reference"]), config.temperature, int(found["reference_version"])
    )
    trainer.past = deque(
        (
            Policy(torch.from_numpy(logits), config.temperature, int(version))
            for logits, version in zip(found["past"], found["past_versions"], strict=True)
        ),
        maxlen=config.rollout_lag + 1,
    )
    trainer.controller.value = float(found["kl_coefficient"])
    trainer.generator.set_state(torch.from_numpy(found["generator"]))
    for name, optimiser in (("policy", trainer.optimiser), ("critic", trainer.critic_optimiser)):
        prefix = f"{name}_optimiser."
        state = {n.removeprefix(prefix): torch.from_numpy(a) for n, a in found.items() if n.startswith(prefix)}
        if state:
            optimiser.load_state_dict({**optimiser.state_dict(), "state": {0: state}})
    if "pending.uid" in found:
        trainer.pending = _unpacked(environment, found)
    return trainer


def _identity(environment: Environment, config: TrainerConfig) -> str:
    return f"{environment.name}: {config!r}"


def _packed(episodes: Episodes) -> dict[str, Any]:
    columns = dict(zip(PathBatch._fields, episodes.paths, strict=True))
    return {
        f"pending.{name}": column
        for name, column in {
            **columns,
            "uid": episodes.uid,
            "log_probs": episodes.log_probs,
            "versions": episodes.versions,
            "families": np.array([task.family for task in episodes.tasks]),
            "operands": np.array([task.operands for task in episodes.tasks]),
        }.items()
    }


def _unpacked(environment: Environment, found: dict[str, Any]) -> Episodes:
    own = {name.removeprefix("pending."): column for name, column in found.items() if name.startswith("pending.")}
    tasks = zip(own["families"].tolist(), own["operands"].tolist(), strict=True)
    return Episodes(
        environment=environment,
        tasks=tuple(Task(family, tuple(operands)) for family, operands in tasks),
        uid=own["uid"],
        paths=PathBatch(*(own[name] for name in PathBatch._fields)),
        log_probs=own["log_probs"],
        versions=own["versions"],
    )
