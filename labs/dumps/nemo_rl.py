"""NeMo-RL's `train_data_step<k>.jsonl`: JSON Lines of rows with tokens, masks, advantages and both log-probabilities.

Each value is wrapped in a list of length 1. The mask that trains is `token_loss_mask` times `sample_loss_mask`. There
is no prompt id: groups are blocks of `num_generations_per_prompt` rows (state it with --n). Where `filtered_rewards`
stands beside `rewards`, it is the score of the row. Validation files hold `content` and `rewards` only.
Source: NeMo-RL 7ea279abf, `nemo_rl/algorithms/grpo.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import gather

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"uid": "NeMo-RL writes no prompt id: state num_generations_per_prompt with --n"}
_TOKENS = {
    "token_ids": "responses", "token_loss_mask": "loss_mask", "advantages": "advantages",
    "generation_logprobs": "rollout_log_probs", "prev_logprobs": "old_log_probs",
}  # fmt: skip


def recognise(source: Source) -> bool:
    """Objects with `content` and `rewards`."""
    return {"content", "rewards"} <= source.first.keys()


def read(source: Source) -> Iterator[Step]:
    """One step a file; its number is in the name."""
    if source.name.startswith("val_"):
        source.facts.setdefault("validation", True)

    def convert(record: dict[str, Any]) -> tuple[int | None, dict[str, Any]] | None:
        row = {new: _inner(record[old]) for old, new in _TOKENS.items() if old in record}
        row = {name: values for name, values in row.items() if isinstance(values, list)}
        row["output"] = str(_inner(record.get("content")))
        row["score"] = _inner(record.get("filtered_rewards", record.get("rewards")))
        if "loss_mask" in row:
            kept = _inner(record.get("sample_loss_mask", 1))
            row["response_mask"] = row["loss_mask"] if kept else [0] * len(row["loss_mask"])
        return None, row

    yield from gather(source, "nemo_rl", convert)


def _inner(value: Any) -> Any:
    """The value in a list of length 1; a list of tokens stays one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
