"""The systems of `labs/pipeline/systems/`: published schedulers as data, every rule with its evidence.

A file holds `title`, `source`, `text`, `apart` (the one rule that sets the system apart) and `[rules]`: for every rule
its value and why, either `read`, found in the source that the file cites, or `assumed`. Sizes and times are not part of
a system; they come from whoever runs it.

>>> from labs.pipeline.catalogue import load
>>> system = load("verl-one-step-off")
>>> system.rules(workers=16, batch_size=8).in_flight
'drain'
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs.errors import InputError, one_of
from labs.pipeline.rules import Rules

FOLDER = Path(__file__).parent / "systems"

#: Rules that every file states, and those that it states when another one makes them matter.
ALWAYS = (
    "submission", "concurrency_batches", "queue_batches", "ingestion", "sweep", "order", "in_flight", "steps_per_sync",
    "version_unit", "requeue", "filter",
)  # fmt: skip
SOMETIMES = ("submission_batches", "submission_clock", "returns", "on_full", "max_policy_lag")


@dataclass(frozen=True)
class System:
    """One published system.

    Attributes:
        name: of the file.
        title, source, text, apart: as in the file.
        values: rule to value.
        read, assumed: rule to evidence; every rule is in one of them.
    """

    name: str
    title: str
    source: str
    text: str
    apart: str
    values: Mapping[str, Any]
    read: Mapping[str, str]
    assumed: Mapping[str, str]

    def rules(self, **settings: Any) -> Rules:
        """The system with sizes, times and changed rules.

        Raises:
            InputError: an unknown name, or a combination that cannot work.
        """
        batch = settings.get("batch_size", Rules.batch_size) * settings.get("group_size", Rules.group_size)
        values = {
            name: value["batches"] * batch if isinstance(value, dict) else value for name, value in self.values.items()
        }
        return Rules().but(**{**values, **settings})

    def assumptions(self) -> list[str]:
        """One line per assumed rule, for whoever prints results."""
        return [f"assumed: {name} = {spell(self.values[name])} ({why})" for name, why in self.assumed.items()]


def spell(value: Any) -> str:
    """A rule's value as a person writes it."""
    if isinstance(value, dict):
        return f"{value['batches']} batches"
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def names() -> list[str]:
    """The systems there are."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> System:
    """A system by name.

    Raises:
        InputError: an unknown name, or a file that leaves a rule out or without evidence.
    """
    if name not in names():
        raise one_of("the system", name, names())
    path = FOLDER / f"{name}.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    values: dict[str, Any] = {}
    read: dict[str, str] = {}
    assumed: dict[str, str] = {}
    for rule, entry in data["rules"].items():
        marks = sorted(set(entry) - {"value"})
        if rule not in ALWAYS + SOMETIMES:
            raise InputError(f"{path.name}: {rule} is no rule of a system; allowed: {', '.join(ALWAYS + SOMETIMES)}")
        if marks not in (["assumed"], ["read"]):
            raise InputError(f"{path.name}: {rule} is marked {marks}; allowed: read or assumed, with the evidence")
        value = entry["value"]
        if rule in ("concurrency_batches", "queue_batches") and value == "none":
            value = None
        values[rule] = tuple(value) if isinstance(value, list) else value
        (read if marks == ["read"] else assumed)[rule] = entry[marks[0]]
    needed = list(ALWAYS)
    needed += ["submission_batches", "returns"] if values.get("submission") != "open" else []
    needed += ["submission_clock"] if values.get("submission") == "budget" else []
    needed += ["on_full"] if values.get("queue_batches") is not None else []
    needed += ["max_policy_lag"] if values.get("ingestion") != "train" else []
    missing = [rule for rule in needed if rule not in values]
    if missing:
        raise InputError(f"{path.name} does not say {', '.join(missing)}")
    words = {key: data[key] for key in ("title", "source", "text", "apart")}
    return System(name=name, values=values, read=read, assumed=assumed, **words)
