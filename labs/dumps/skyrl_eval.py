"""SkyRL's evaluation dump: JSON Lines with `input_prompt`, `output_response`, `score`, `stop_reason`.

It is no training data. Source: SkyRL a9564572e, `<data_source>.jsonl` of an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import gather

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "set trainer.dump_data_batch and convert the pickle of a training batch to .npz"}


def recognise(source: Source) -> bool:
    """Objects with these keys."""
    return {"input_prompt", "output_response", "score"} <= source.first.keys()


def read(source: Source) -> Iterator[Step]:
    """One step a file."""
    source.facts.setdefault("validation", True)

    def convert(record: dict[str, Any]) -> tuple[int | None, dict[str, Any]] | None:
        output = record.get("output_response")
        row = {
            "prompt": str(record.get("input_prompt")), "output": output, "score": record.get("score"),
            "finish_reason": record.get("stop_reason"),
        }  # fmt: skip
        if isinstance(output, str):
            row["characters"] = len(output)
        return None, row

    yield from gather(source, "skyrl_eval", convert)
