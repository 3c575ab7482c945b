"""Console lines that people paste: verl's `step:7 - critic/score/mean:0.3 - ...`, Hugging Face's Python dictionaries.

Anything before the numbers (`(TaskRunner pid=12)`, times, colour codes) and every other line is passed over. A
dictionary literal is read with `ast.literal_eval`, which executes nothing; one without `step` or `global_step` counts
on from the one before. Source: verl's `LocalLogger`, `transformers.TrainerCallback.on_log`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import metric_step, step_number

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "verl: set trainer.rollout_data_dir; TRL: log_completions=True; both write rows that can be diagnosed too"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_VERL = re.compile(r"\bstep:\s*(\d{1,18})\s+-\s+(.*)")
_PAIR = re.compile(r"^(.+?):\s*(?:np\.\w+\()?([-+]?(?:nan|inf|(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?))\)?$", re.IGNORECASE)
_LONGEST = 100_000


def recognise(source: Source) -> bool:
    """Some line among the first is one of these, and none is JSON."""
    if source.folder or b"\0" in source.head[:1000] or source.first:
        return False
    return any(_parsed(line) is not None for line in source.text.split("\n")[:500])


def read(source: Source) -> Iterator[Step]:
    """One step a line that holds numbers."""
    number = 0
    for _, text in source.lines():
        found = _parsed(text)
        if found is None:
            continue
        stated, values = found
        number = stated if stated is not None else number + 1
        source.faults.rows += 1
        yield metric_step(source, "console", number, values)


def _parsed(text: str) -> tuple[int | None, dict[str, Any]] | None:
    """Step and numbers of a line, or None."""
    text = _COLOUR.sub("", text)
    if found := _VERL.search(text):
        pairs = [_PAIR.match(part.strip()) for part in found[2].split(" - ")]
        values = {pair[1].strip(): float(pair[2]) for pair in pairs if pair}
        return (int(found[1]), values) if values else None
    start, end = text.find("{'"), text.rfind("}")
    if start < 0 or end < start or end - start > _LONGEST:
        return None
    try:
        row = ast.literal_eval(re.sub(r"\b(nan|inf)\b", r"'\1'", text[start : end + 1]))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):  # a key may be a list
        return None
    if not isinstance(row, dict) or not any(isinstance(value, int | float) for value in row.values()):
        return None
    stated = next((n for key in ("step", "global_step") if (n := step_number(row.get(key))) is not None), None)
    return stated, {key: value for key, value in row.items() if key not in ("step", "global_step")}
