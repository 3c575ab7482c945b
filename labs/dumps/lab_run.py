"""A run of the lab: the folder `results/<experiment>/<fingerprint>-s<seed>/` with its `result.json`.

`metrics.jsonl` gives one step a row, `trajectories.jsonl` one step of rows after the last update, `config.json` the
facts (`group_size` is n, `estimator`, `loss`). Names that verl has too stand as they are; the course's learner logs
`mean_state_entropy` over rows of its table and counts of groups under names of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from labs.errors import InputError
from labs.evidence import Step
from labs.gathering import Rows, as_step, metric_step, to_float
from labs.sources import Source

LOG = {"": "save the batches of a run: TokenBatch.save writes a .npz file that can be diagnosed"}
_FACTS = {
    "group_size": "n", "estimator": "estimator", "loss": "loss_mode", "loss_agg_mode": "loss_agg_mode",
    "kl_loss_type": "kl_loss_type", "max_policy_lag": "max_lag",
}  # fmt: skip


def recognise(source: Source) -> bool:
    """A folder with `result.json` and `config.json`."""
    return source.folder and all(os.path.isfile(os.path.join(source.path, n)) for n in ("result.json", "config.json"))


def read(source: Source) -> Iterator[Step]:
    """The steps of `metrics.jsonl`, then the trajectories."""
    document = _json(os.path.join(source.path, "result.json"))
    config = _json(os.path.join(source.path, "config.json"))
    config = config.get("config", config)
    if not isinstance(document, Mapping) or not isinstance(config, Mapping):
        raise InputError(f"{source.shown} is no run of the lab: result.json or config.json holds no object")
    facts = {new: config[old] for old, new in _FACTS.items() if config.get(old) is not None}
    if config.get("use_kl_loss") is False:
        facts.pop("kl_loss_type", None)
    number = 0
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        path = os.path.join(source.path, name)
        if not os.path.isfile(path) or not os.path.getsize(path):
            continue
        part = Source(path)
        if name == "metrics.jsonl":
            for number, (_, row) in enumerate(part.records(), start=1):
                stated = row.get("update", number)
                named = ", ".join(value for value in row.values() if isinstance(value, str))  # a schedule, a rule
                run = {"run": named} if named else {}
                at = int(stated) if isinstance(stated, int) else number
                if isinstance(row.get("train_success_rate"), int | float):  # the reward is 0 or 1
                    row.setdefault("critic/score/mean", row["train_success_rate"])
                yield metric_step(part, "lab_run", at, row, **facts, **run)
        else:
            yield from _trajectories(part, number, facts)
        source.faults.rows += number
        found = part.faults.findings()
        if found:
            yield Step(source=part.shown, format="lab_run", found=found)
    if not number:
        yield metric_step(source, "lab_run", None, document.get("headline") or {}, **facts)


def _trajectories(source: Source, number: int, facts: Mapping[str, Any]) -> Iterator[Step]:
    """Episodes as rows (score, decisions, end); of the queue what each update trained on, then all rollouts."""
    rows, trained = Rows(), dict[int, Rows]()
    for line, record in source.records():
        row: dict[str, Any] = {}
        if isinstance(record.get("reward"), int | float):
            row["score"] = float(record["reward"])
        if isinstance(record.get("steps"), list):
            row["length"] = len(record["steps"])
            row["finish_reason"] = "length" if record.get("end") in ("timeout", "truncated") else "stop"
            row["output"] = " ".join(str(step.get("action")) for step in record["steps"] if isinstance(step, Mapping))
        if {"start", "end", "status"} <= record.keys():
            row["duration"] = to_float(record["end"]) - to_float(record["start"])
            row["accepted"] = float(record["status"] == "accepted")
            version = record.get("ingestion_version")
            if row["accepted"] and isinstance(version, int):
                trained.setdefault(version, Rows()).add(line, {"version": record.get("start_version")})
        if row:
            rows.add(line, row)
    kept = {name: value for name, value in facts.items() if name != "n"}
    for version, part in sorted(trained.items()):
        made = as_step(source, "lab_run", version + 1, part, source.faults, current_version=version, **kept)
        made.notes = []
        yield made
    if rows.lines:
        made = as_step(source, "lab_run", number, rows, source.faults, **kept)
        made.facts["validation"] = "score" in made.columns  # the held-out episodes of the last evaluation
        made.notes = []
        yield made


def _json(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}") from error
