"""A stored run as a report reads it: the results of one or several seeds, and the stamp."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from labs.errors import InputError
from labs.experiment import Result
from labs.registry import experiments
from labs.store import read_rows


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What is in the folder of a complete run.

    Attributes:
        path: the folder.
        results: one of each seed.
        stamp: what `stamp.json` holds, empty where it cannot be read.
    """

    path: str
    results: list[Result]
    stamp: dict[str, Any]


def load(path: str) -> Stored:
    """Read a run of one or many seeds.

    Raises:
        InputError: the folder holds no complete run, or one of an experiment that is not here.
    """
    try:
        with open(os.path.join(path, "result.json"), encoding="utf-8") as file:
            document = json.load(file)
        name, config = document["experiment"], document["config"]
        if "per_seed" in document:
            rows = read_rows(os.path.join(path, "seeds.jsonl"))
            results = [
                Result(experiment=name, fingerprint=document["fingerprint"], config=config, folder=path, **row)
                for row in rows
            ]
        else:
            result = Result.from_document(document, read_rows(os.path.join(path, "metrics.jsonl")))
            result.trajectories = read_rows(os.path.join(path, "trajectories.jsonl"))
            result.folder = path
            results = [result]
        if not results or not isinstance(config, dict):
            raise ValueError(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is no folder of a complete run: it needs a result.json written by a run") from None
    experiments.path(name)  # an experiment that is not here is refused by name
    return Stored(path=path, results=results, stamp=_stamp(path))


def _stamp(path: str) -> dict[str, Any]:
    try:
        with open(os.path.join(path, "stamp.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
