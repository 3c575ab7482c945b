"""TRL's completion tables: Parquet with `step`, `prompt`, `completion`, one column a reward function, `advantage`.

Rows are in generation order, so a group is a block of `num_generations` rows. Its size is the length of the runs of
equal prompts, and is taken only when every run has that length and the advantages of each block sum to 0; otherwise
state it with --n. Reward columns become `parts/<name>`; NaN there means that the function returned None, and TRL's sum
takes it as 0. Weights are not in the file: `score` is the sum with the weights that reproduce the advantages, or the
plain sum.
Source: TRL f2cd57710, `log_completions=True`, `trl/trainer/grpo_trainer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from labs.errors import InputError
from labs.evidence import Step
from labs.gathering import Rows, as_step, step_number, to_float

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labs.sources import Source

_MORE = "TRL's tables hold no tokens: numpy.savez of completion_mask, old_per_token_logps, advantages of a batch does"
LOG = {
    "gts": "let a reward function log the right answer (log_extra) as a column named solution",
    "/": "diagnose trainer_state.json of the same run too",
    "": _MORE,
}
#: Names that a column of right answers has, where a reward function logs it.
_GOLD = ("solution", "answer", "ground_truth", "gold", "label", "target", "gts")
#: TRL's epsilon beside the standard deviation.
EPSILON = 1e-4


def recognise(source: Source) -> bool:
    """A Parquet file."""
    return source.head.startswith(b"PAR1")


def read(source: Source) -> Iterator[Step]:
    """One step for each value of `step`."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"{source.shown} needs pyarrow: pip install 'tabular-agent-rl-lab[parquet]'") from None
    rows: dict[int | None, Rows] = {}
    line = 0
    try:
        with source.open() as stream:
            table = ParquetFile(stream)
            names = table.schema_arrow.names
            if not {"prompt", "completion"} <= set(names):
                raise InputError(f"{source.shown} is Parquet without prompt and completion; it has {', '.join(names)}")
            for batch in table.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    line += 1
                    stated = record.pop("step", None)
                    number = step_number(stated)
                    if number is None and stated is not None:
                        source.faults.add("number", line)
                    number = source.number if number is None else number
                    rows.setdefault(number, Rows()).add(line, _row(record))
    except (ArrowException, OSError):
        raise InputError(f"{source.shown} is no whole Parquet file: it was cut or damaged") from None
    source.faults.rows = source.faults.lines = line
    for number, gathered in sorted(rows.items(), key=lambda pair: -1 if pair[0] is None else pair[0]):
        stated = source.facts.get("n")
        size = _size(gathered) if stated is None else None
        source.facts["n"] = size if size is not None else stated
        step = as_step(source, "trl_completions", number, gathered, source.faults)
        source.facts["n"] = stated
        if size is not None:
            step.notes = [note for note in step.notes if not note.startswith("groups as stated")]
            step.notes.append(f"n is {size}: runs of equal prompts have that length and their advantages sum to 0")
        _score(step)
        yield step


def _row(record: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in record.items():
        if key == "completion":
            row["output"] = _text(value)
            row["characters"] = len(row["output"])
        elif key == "prompt":
            row[key] = _text(value)
        elif key == "advantage":
            row[key] = value
        elif key in _GOLD and isinstance(value, str):
            row["gts"] = value
        elif isinstance(value, int | float):
            row[f"parts/{key}"] = value
        elif value is not None:
            row[f"extra/{key}"] = value
    return row


def _text(value: Any) -> str:
    """Plain text, or the contents of a conversation."""
    if isinstance(value, list):
        return "\n".join(str(turn.get("content", "")) if isinstance(turn, dict) else str(turn) for turn in value)
    return "" if value is None else str(value)


def _size(rows: Rows) -> int | None:
    """The group size that prompts and advantages agree on, or None."""
    runs = [len(list(run)) for _, run in groupby(rows.values.get("prompt", []))]
    if not runs or len(set(runs)) > 1 or runs[0] < 2 or "advantage" not in rows.values:
        return None
    values = np.array([*map(to_float, rows.values["advantage"])])
    sums = np.abs(values.reshape(-1, runs[0]).sum(1))
    return runs[0] if (sums <= 1e-3 * runs[0]).all() else None


def _score(step: Step) -> None:
    """`score` from the parts, with weights that explain the advantages where there are any."""
    names = [name for name in step.columns if name.startswith("parts/")]
    if not names:
        return
    parts = np.stack([step.columns[name] for name in names], axis=1).astype(float)
    silent = np.isnan(parts)
    if silent.any():
        parts = np.where(silent, 0.0, parts)
        step.columns.update({name: parts[:, at] for at, name in enumerate(names)})
        said = ", ".join(f"{name[6:]} {count}" for name, count in zip(names, silent.sum(0), strict=True) if count)
        step.notes.append(f"reward functions that returned None, which counts as 0 (rows): {said}")
    weights, n = np.ones(len(names)), step.facts.get("n")
    advantage = step.columns.get("advantage")
    if advantage is not None and n and step.rows % n == 0 and step.rows:
        found = _weights(parts.reshape(-1, n, len(names)), advantage.astype(float).reshape(-1, n))
        shown = ", ".join(f"{name[6:]} {weight:.3g}" for name, weight in zip(names, found or weights, strict=True))
        if found is None:
            step.notes.append("no weights of the reward functions reproduce the advantages; score is their plain sum")
        else:
            weights = np.array(found)
            step.notes.append(f"reward weights that reproduce all advantages (up to a common factor): {shown}")
    step.columns["score"] = parts @ weights


def _weights(parts: NDArray[Any], advantage: NDArray[Any]) -> list[float] | None:
    """Weights w with advantage = (R - mean) / (std + 1e-4) in every block for R = parts w, or None.

    Ones are tried first. Otherwise: centred parts times w are a multiple s_g > 0 of the advantages of each block g, a
    homogeneous linear system whose null vector is w (largest entry 1) and all s_g.
    """
    _, n, count = parts.shape
    ones = np.ones(count)
    if _fits(parts @ ones, advantage):
        return [1.0] * count
    live = np.flatnonzero(np.abs(advantage).max(1) > 1e-3)[:64]
    if not len(live):
        return None
    system = np.zeros((len(live) * n, count + len(live)))
    for at, block in enumerate(live):
        system[at * n : (at + 1) * n, :count] = parts[block] - parts[block].mean(0)
        system[at * n : (at + 1) * n, count + at] = -advantage[block]
    scale = np.linalg.norm(system, axis=0)
    if (scale == 0).any():
        return None
    null = np.linalg.svd(system / scale)[2][-1] / scale
    null = null * np.sign(null[count]) if null[count] else null
    weights = null[:count] / (np.abs(null[:count]).max() or 1.0)
    return [float(w) for w in weights] if _fits(parts @ weights, advantage) else None


def _fits(total: NDArray[Any], advantage: NDArray[Any]) -> bool:
    """Whether the advantages follow from the totals, divided by the block's standard deviation or not."""
    centred = total - total.mean(1, keepdims=True)
    scaled = centred / (total.std(1, ddof=1, keepdims=True) + EPSILON)
    return any(np.allclose(made, advantage, atol=2e-3) for made in (scaled, centred))
