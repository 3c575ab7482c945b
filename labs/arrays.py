"""Arrays that somebody saved, under verl's names and right-padded: what every reader of tensors does with them.

| library | its name | verl's |
|---|---|---|
| OpenRLHF, SkyRL | action_mask, action_log_probs, base_action_log_probs | response_mask, old_log_probs, ref_log_prob |
| SkyRL, AReaL, prime-rl | rollout_logprobs, logprobs, inference_logprobs, versions | rollout_log_probs, versions |
| TRL | completion_ids, old_per_token_logps, ref_per_token_logps | responses, old_log_probs, ref_log_prob |
| TRL | sampling_per_token_logps | rollout_log_probs |
| all | scores, rewards, reward of shape [B]; advantages of shape [B] | score; advantage |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from labs.evidence import Step
from labs.gathering import drop_unusable, state_groups, step_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labs.sources import Source

_NAMES = {
    "action_mask": "response_mask", "action_log_probs": "old_log_probs", "base_action_log_probs": "ref_log_prob",
    "rollout_logprobs": "rollout_log_probs", "logprobs": "rollout_log_probs", "inference_logprobs": "rollout_log_probs",
    "trainer_logprobs": "old_log_probs", "old_logprobs": "old_log_probs", "old_log_prob": "old_log_probs",
    "prox_logp": "old_log_probs", "ref_log_probs": "ref_log_prob", "ref_logprobs": "ref_log_prob",
    "ref_logp": "ref_log_prob", "completion_ids": "responses", "old_per_token_logps": "old_log_probs",
    "ref_per_token_logps": "ref_log_prob", "sampling_per_token_logps": "rollout_log_probs", "uids": "uid",
    "response_length": "length", "response_lengths": "length", "log_probs": "log_prob",
    "group_index": "uid", "rewards": "token_level_rewards",
}  # fmt: skip
_ROW = {"scores": "score", "rewards": "score", "reward": "score", "advantages": "advantage"}
_RIGHT = ("attention_mask", "response_mask", "loss_mask")
_STEP = ("global_steps", "global_step", "step", "rollout_id")


def step_of_arrays(source: Source, form: str, arrays: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> Step:
    """One step of named arrays.

    A column whose first axis is not B, or with more than two axes, is left out with a note; numbers without an axis
    are the step's number or scalars. Rows that are padded on the left (every row ends with mask 1, some start with 0)
    are moved.
    """
    step = Step(source=source.shown, format=form, step=source.number)
    columns: dict[str, NDArray[Any]] = {}
    for name, value in {**(meta or {}), **arrays}.items():
        try:
            array = np.asarray(value)
        except ValueError:  # lists of several lengths
            step.notes.append(f"column {name} left out: its rows differ in length; pad them")
            continue
        if array.ndim == 0:
            if name in _STEP and array.dtype.kind in "iuf" and (stated := step_number(array.item())) is not None:
                step.step = stated
            elif array.dtype.kind in "iufb":
                step.scalars[name] = float(array)
            continue
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 and name in _ROW else array
        columns[_ROW.get(name, name) if array.ndim == 1 and name in _ROW else _NAMES.get(name, name)] = _plain(array)
    anchors = [columns[n] for n in ("response_mask", "responses", "loss_mask", "advantages") if n in columns]
    lengths = Counter(len(column) for column in anchors or columns.values())
    step.rows = max(lengths, key=lambda n: lengths[n]) if lengths else 0
    for name, column in columns.items():
        if len(column) != step.rows or column.ndim > 2:
            step.notes.append(f"column {name} of shape {column.shape} left out: the batch has {step.rows} rows")
        else:
            step.columns[name] = column
    if not step.columns:
        step.rows = 0
    drop_unusable(step)
    _masks(step)
    if source.facts.get("validation", source.validation):
        step.facts["validation"] = True
    state_groups(step, source.facts.get("n"))
    return step


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Text as objects, truth values as integers, half precision as single."""
    if array.dtype.kind in "US":
        return array.astype(str).astype(object)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _masks(step: Step) -> None:
    """Right-align, group ids as text, TRL's two masks as one, and the length of each row."""
    columns = step.columns
    for name in ("uid",):
        if name in columns:
            columns[name] = np.array([str(label) for label in columns[name].tolist()], dtype=object)
    if "responses" not in columns and "response_mask" not in columns and "input_ids" in columns:
        columns["responses"] = columns["input_ids"]
    if "response_mask" not in columns:
        if "completion_mask" in columns:
            tools = columns.get("tool_mask", np.ones_like(columns["completion_mask"]))
            fits = tools.shape == columns["completion_mask"].shape
            columns["response_mask"] = columns["completion_mask"] * tools if fits else columns["completion_mask"]
        elif "loss_mask" in columns:
            columns["response_mask"] = columns["loss_mask"]
    mask = columns.get("response_mask")
    if mask is None or mask.ndim != 2 or not mask.size:
        return
    anchor = next(columns[n] for n in _RIGHT if n in columns and columns[n].shape == mask.shape)
    if (anchor[:, -1] == 1).all() and (anchor[:, 0] == 0).any():
        first = (anchor != 0).argmax(1)
        for name, column in columns.items():
            if column.shape == mask.shape:
                columns[name] = np.stack([np.roll(row, -k) for row, k in zip(column, first, strict=True)])
        step.notes.append("rows were padded on the left and have been moved")
    if "length" not in columns:
        seen = columns.get("attention_mask")
        width = columns["response_mask"].shape[1]
        alive = columns["response_mask"] if seen is None or seen.shape[1] < width else seen[:, -width:]
        columns["length"] = (alive != 0).cumsum(1).argmax(1).astype(np.float64) + (alive != 0).any(1)
    if "finish_reason" not in columns and "truncated" in columns and columns["truncated"].ndim == 1:
        cut = columns["truncated"].astype(bool)
        columns["finish_reason"] = np.where(cut, "length", "stop").astype(object)
