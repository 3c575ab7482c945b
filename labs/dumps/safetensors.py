"""Tensors in a `.safetensors` file, array names as in `labs.arrays`; text goes into the file's metadata as JSON.

`metadata={"uid": json.dumps([...]), "global_step": "12"}`: what parses as JSON becomes a column or a number.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.arrays import step_of_arrays
from labs.errors import InputError
from labs.evidence import Step

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "add the column to the tensors that you save; uid goes into the metadata as a JSON list"}


def recognise(source: Source) -> bool:
    """Eight bytes of length, then a JSON object that describes tensors."""
    head = source.head
    if len(head) < 10 or head[8:9] != b"{":
        return False
    (length,) = struct.unpack("<Q", head[:8])
    return 2 <= length <= 100 * 2**20 and (b'"data_offsets"' in head or b'"__metadata__"' in head)


def read(source: Source) -> Iterator[Step]:
    """One step a file."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load
    except ImportError:
        raise InputError(
            f"{source.shown} needs the package safetensors: pip install 'tabular-agent-rl-lab[safetensors]'"
        ) from None
    data = source.whole()
    try:
        tensors = load(data)
        (length,) = struct.unpack("<Q", data[:8])
        about = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{source.shown} is no whole safetensors file: it was cut or damaged") from error
    arrays = {name: (t.float() if t.is_floating_point() else t).numpy() for name, t in tensors.items()}
    yield step_of_arrays(source, "safetensors", arrays, {name: _value(text) for name, text in about.items()})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
