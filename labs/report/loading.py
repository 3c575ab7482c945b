"""A stored run as a report reads it: the results of one or several seeds, and the stamp."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from labs.experiment import Result
from labs.registry import experiments
from labs.stored import results


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
        InputError: the folder holds no complete run, a damaged one, or one of an experiment that is not here.
    """
    found = results(path)
    experiments.path(found[0].experiment)  # an experiment that is not here is refused by name
    return Stored(path=path, results=found, stamp=_stamp(path))


def _stamp(path: str) -> dict[str, Any]:
    try:
        with open(os.path.join(path, "stamp.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
