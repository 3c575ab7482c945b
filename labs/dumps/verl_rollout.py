"""verl's rollout and validation dumps: JSON Lines with `input`, `output` and `score`, of all three generations.

| generation | fields | group |
|---|---|---|
| spring 2025 | input, output, score, step | none |
| legacy and fully asynchronous | + gts, every key of the reward's extra information, request_id | none |
| V1, since mid 2026 | input, output, gts, score, step, uid | `{uid}_{session}_{index}`, split from the right |

Validation dumps (`reward` beside `score`, or a folder that says so) are no training data. Rows whose uid starts with
`pad` are filled in by the sampler and are left out. `score` is the sum of `rm_scores`, before KL.
Source: verl 0.9.1, `trainer.rollout_data_dir`, `trainer.validation_data_dir`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import gather

if TYPE_CHECKING:
    from labs.sources import Source

_TENSORS = "save the batch as tensors: in the training environment, write its columns with numpy.savez to a .npz file"
LOG = {
    "uid": "verl's V1 trainer writes it (`trainer.use_v1`); for older files state --n",
    "advantages": _TENSORS, "response_mask": _TENSORS, "old_log_probs": _TENSORS, "rollout_log_probs": _TENSORS,
    "parts/*": "return the parts of the reward in reward_extra_info (the legacy trainer writes them, V1 does not yet)",
    "/": "add `file` to trainer.logger and diagnose that log too", "": _TENSORS,
}  # fmt: skip
_NAMES = {"input": "prompt", "output": "output", "gts": "gts", "score": "score", "request_id": "request_id",
          "response_length": "length", "length": "length", "finish_reason": "finish_reason",
          "stop_reason": "finish_reason"}  # fmt: skip


def recognise(source: Source) -> bool:
    """Objects with `input`, `output` and a score."""
    return {"input", "output"} <= source.first.keys() and bool({"score", "reward"} & source.first.keys())


def read(source: Source) -> Iterator[Step]:
    """One step for each value of `step`; without one, the file's name says."""
    if "reward" in source.first and "score" in source.first:
        source.facts.setdefault("validation", True)
    padding = 0

    def convert(record: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        nonlocal padding
        row = _row(record)
        if isinstance(row.get("uid"), str) and row["uid"].startswith("pad"):
            padding += 1
            source.faults.rows += 1
            return None
        return record.get("step"), row

    for step in gather(source, "verl_rollout", convert):
        if padding:
            step.notes.append(f"{padding} rows of padding (uid starts with pad) left out")
            padding = 0
        yield step


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """The columns of one record."""
    row: dict[str, Any] = {}
    validation = "reward" in record and "score" in record
    for key, value in record.items():
        if key in _NAMES:
            row[_NAMES[key]] = value
        elif key == "uid":
            row.update(_uid(value))
        elif key == "reward":
            if not validation:
                row["score"] = value
        elif key != "step":
            numeric = isinstance(value, (int, float))  # True and False are parts too
            row[f"parts/{key}" if numeric else f"extra/{key}"] = value
    if isinstance(row.get("output"), str):
        row["characters"] = len(row["output"])
    return row


def _uid(value: Any) -> dict[str, Any]:
    """`a_b_2_0` is prompt `a_b`, session 2, output 0; anything else is the prompt's id itself."""
    if not isinstance(value, str):
        return {"uid": None if value is None else str(value)}
    head, *tail = value.rsplit("_", 2)
    if len(tail) == 2 and all(part.isdecimal() and len(part) < 19 for part in tail):
        return {"uid": head, "session": int(tail[0]), "index": int(tail[1])}
    return {"uid": value}
