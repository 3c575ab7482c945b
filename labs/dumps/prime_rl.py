"""prime-rl's token export: JSON Lines, one packed sequence a line, with arrays a token.

`loss_mask` is the mask that trains, `inference_logprobs` and `trainer_logprobs` the two sides of the mismatch; null is
NaN. There is no reward and no group. Files of several ranks belong to one step and stay apart.
Source: prime-rl 559b44772, `trainer.enable_token_export`, schema version 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import gather

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {
    "score": "diagnose rollouts/step_*/**/traces.jsonl of the same run, or log reward/mean",
    "uid": "token exports hold no group id; prime-rl's episode traces do",
}
_NAMES = {
    "token_ids": "responses", "loss_mask": "response_mask", "advantages": "advantages", "entropy": "entropy",
    "inference_logprobs": "rollout_log_probs", "trainer_logprobs": "old_log_probs",
    "importance_ratio": "rollout_is_weights",
}  # fmt: skip


def recognise(source: Source) -> bool:
    """Objects with `schema_version`, `token_ids` and `loss_mask`."""
    return {"schema_version", "token_ids", "loss_mask"} <= source.first.keys()


def read(source: Source) -> Iterator[Step]:
    """One step for each value of `step`."""

    def convert(record: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        row = {new: record[old] for old, new in _NAMES.items() if isinstance(record.get(old), list)}
        for name in ("response_mask",):
            row[name] = [int(bool(value)) for value in row.get(name, [])]
        return record.get("step"), row

    for step in gather(source, "prime_rl", convert):
        step.notes = [note for note in step.notes if not note.startswith("groups unknown")]
        yield step
