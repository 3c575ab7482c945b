"""AReaL's rollout dump: JSON Lines of rows with `task_id`, `sample_idx`, `reward`, `prompt` and `completion`.

Three traps, which checks cannot see: a row whose last token does not train is not written, so episodes that end with a
tool's reply are missing; `prompt_len` is `seqlen` minus the trained tokens, so tool text shifts the split of prompt and
completion; `head_version` is -1. Only `tail_version` is used. A group is a `task_id`.
Source: AReaL 4aef98d8d, `rollout.dump_to_file`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import gather

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {
    "gts": "AReaL writes no answer: put it into the prompt's record and join by task_id",
    "response_mask": "AReaL writes no mask: save loss_mask, logprobs and versions of a batch with numpy.savez",
}
_KEYS = {"task_id", "sample_idx", "reward", "prompt", "completion"}


def recognise(source: Source) -> bool:
    """Objects with these keys."""
    return source.first.keys() >= _KEYS


def read(source: Source) -> Iterator[Step]:
    """One step for each newest version."""
    prompts: dict[str, int] = {}
    shifted = 0

    def convert(record: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        nonlocal shifted
        number, length = record.get("tail_version"), record.get("prompt_len")
        task = str(record.get("task_id"))
        if isinstance(length, int) and len(prompts) < 10_000 and prompts.setdefault(task, length) != length:
            shifted += 1
        total = record.get("seqlen")
        row = {
            "uid": task, "index": record.get("sample_idx"), "score": record.get("reward"),
            "output": record.get("completion"), "version": number,
        }  # fmt: skip
        if isinstance(total, int) and isinstance(length, int):
            row["length"] = total - length
        if isinstance(record.get("completion"), str):
            row["characters"] = len(record["completion"])
        return number, row

    for step in gather(source, "areal", convert):
        if shifted:
            step.notes.append(
                f"{shifted} rows have another prompt_len than their task's first row: tool text shifts the split of "
                "prompt and completion, so neither text is what it says"
            )
            shifted = 0
        yield step
