"""A file of `torch.save` (`.pt`, `.pth`), opened with `weights_only=True`: tensors by name, or slime's debug samples.

| content | becomes |
|---|---|
| a dictionary of tensors, also under `batch`, `non_tensor_batch`, `meta_info` | one step, names as in `labs.arrays` |
| `{"rollout_id": 5, "samples": [{...}]}` (slime `--save-debug-rollout-data`) | one step of rows, group `group_index` |
| the same with `format_version` (slime `--save-debug-train-data`) | one step, with advantages |

Anything that needs code to be run is refused, with the lines that make it readable.
Source: slime 624b824a8, `slime/ray/rollout.py`, `slime/utils/debug_utils`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from labs.arrays import step_of_arrays
from labs.dumps.pickled import refusal
from labs.errors import InputError
from labs.evidence import Step
from labs.gathering import Rows, as_step, step_number, to_float

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {
    "advantages": "slime: --save-debug-train-data writes them", "old_log_probs": "slime: --save-debug-train-data",
    "": "add the column to the tensors that you save",
}  # fmt: skip
_OLD = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
_SLIME = {
    "tokens": "sequence", "response": "output", "label": "gts", "response_length": "length",
    "response_lengths": "length",
    "rollout_log_probs": "rollout_log_probs", "log_probs": "old_log_probs", "ref_log_probs": "ref_log_prob",
    "loss_mask": "loss_mask", "loss_masks": "loss_mask", "values": "values", "advantages": "advantages",
    "returns": "returns", "prompt": "prompt", "weight_versions": "weight_versions", "index": "index",
}  # fmt: skip
#: A response that states more tokens than this states nonsense.
_LONGEST = 2**24
_ENDS = {"completed": "stop", "truncated": "length", "aborted": "abort"}


def recognise(source: Source) -> bool:
    """A zip archive with `data.pkl` in it, or the mark of torch's old files."""
    return (source.head.startswith(b"PK\x03\x04") and b"data.pkl" in source.head[:300]) or source.head.startswith(_OLD)


def read(source: Source) -> Iterator[Step]:
    """One step a file."""
    import torch

    try:
        with source.open() as stream:
            data = torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:
        if "weights" in str(error).lower() or "unsupported" in str(error).lower():
            raise InputError(refusal(source)) from None
        raise InputError(f"{source.shown} is no whole file of torch.save: it was cut or damaged") from None
    if isinstance(data, Mapping) and isinstance(data.get("samples"), list):
        yield _samples(source, data)
        return
    if not isinstance(data, Mapping):
        raise InputError(f"{source.shown} holds a {type(data).__name__}; save a dictionary of tensors by name")
    flat = {**{k: v for k, v in data.items() if not isinstance(v, Mapping)}}
    for part in ("batch", "non_tensor_batch", "meta_info"):
        flat.update(data.get(part) or {} if isinstance(data.get(part), Mapping) else {})
    arrays = {str(name): _array(value) for name, value in flat.items()}
    step = step_of_arrays(source, "torch_file", {name: value for name, value in arrays.items() if value is not None})
    left = [name for name, value in arrays.items() if value is None]
    if left:
        step.notes.append(f"left out, no dense tensors or simple lists: {', '.join(left)}")
    yield step


def _array(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.is_nested or value.is_quantized or value.is_meta or value.layout != torch.strided:
            return None
        return (value.float() if value.is_floating_point() else value).resolve_conj().resolve_neg().numpy()
    if isinstance(value, int | float | str):
        return value
    simple = isinstance(value, list | tuple) and all(isinstance(v, int | float | str) for v in value)
    return list(value) if simple else None


def _samples(source: Source, data: Mapping[str, Any]) -> Step:
    """Slime's samples as rows; `loss_mask` None means all ones, a removed sample has mask 0 and still its reward."""
    rows, train = Rows(), "format_version" in data
    for at, sample in enumerate(data["samples"], start=1):
        if not isinstance(sample, Mapping):
            source.faults.add("sample", at)
            continue
        row = {new: _values(sample[old]) for old, new in _SLIME.items() if sample.get(old) is not None}
        tokens = row.pop("sequence", None)
        length = step_number(row.get("length", 0))
        if length is None or not 0 <= length <= _LONGEST:
            source.faults.add("type", at, "length")
            row["length"] = length = 0
        if not isinstance(row.get("loss_mask", []), list):
            source.faults.add("type", at, "loss_mask")
            del row["loss_mask"]
        kept = row.setdefault("loss_mask", [1] * length)
        row["response_mask"] = [0] * len(kept) if _values(sample.get("remove_sample")) in (True, 1) else kept
        row["responses"] = tokens[-length:] if length and isinstance(tokens, list) else []
        versions = row.pop("weight_versions", None)
        if versions and isinstance(versions, list):
            row["version"] = versions[-1]
        cut = _values(sample.get("truncated")) in (True, 1)
        row["finish_reason"] = "length" if cut else _ENDS.get(str(sample.get("status")), "stop")
        if sample.get("group_index") is not None:
            row["uid"] = str(sample["group_index"])
        reward = sample.get("reward")
        if isinstance(reward, Mapping):
            row.update({f"parts/{name}": value for name, value in reward.items() if isinstance(value, int | float)})
            reward = reward.get("score")
        if reward is not None and not train:  # the training files hold normalised rewards
            row["score"] = reward
        rows.add(at, row)
    raw = data.get("raw_reward")
    if train and isinstance(raw, list) and len(raw) == len(rows.lines):
        rows.values["score"] = [to_float(value) for value in raw]
    number = step_number(data.get("rollout_id"))
    return as_step(source, "torch_file", source.number if number is None else number, rows, source.faults)


def _values(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
