"""TensorBoard event files (`events.out.tfevents.*`): scalars, tags as logged; read without TensorBoard or protobuf.

A file is records of length (uint64), checksum, protobuf `Event`, checksum. Of an event the fields step (2) and summary
(5) count; of a summary's values tag (1), simple_value (2), and tensor (8) when it holds one float. A file whose last
record is cut (the run is still going, or was killed) gives the others. Source: `tensorflow/core/util/event.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.evidence import Step
from labs.gathering import metric_step

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "diagnose the rows of the run too (verl: trainer.rollout_data_dir; TRL: log_completions=True)"}
#: Steps that may still grow: tags of one step are separate events, and may come late.
_OPEN = 256
_LARGEST = 64 * 2**20


def recognise(source: Source) -> bool:
    """The first event states the version of the format."""
    return b"brain.Event:" in source.head[:64]


def read(source: Source) -> Iterator[Step]:
    """One step for each step that has scalars, in order of first appearance."""
    steps: dict[int, dict[str, float]] = {}
    for number, values in _events(source):
        steps.setdefault(number, {}).update(values)
        source.faults.rows += 1
        if len(steps) > _OPEN:
            first = next(iter(steps))
            yield metric_step(source, "tensorboard", first, steps.pop(first))
    for number, values in steps.items():
        yield metric_step(source, "tensorboard", number, values)


def _events(source: Source) -> Iterator[tuple[int, dict[str, float]]]:
    """Step and scalars of every event that has scalars."""
    with source.open() as stream:
        count = 0
        while head := stream.read(12):
            count += 1
            size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else _LARGEST + 1
            data = stream.read(size + 4)[:-4] if size <= _LARGEST else b""
            if len(data) != size:
                source.faults.add("record", count)
                return
            number, values = 0, {}
            try:
                for field, value in _fields(data):
                    if field == 2 and isinstance(value, int):
                        number = value
                    elif field == 5 and isinstance(value, bytes):
                        values = dict(_scalars(value))
            except (IndexError, struct.error, UnicodeDecodeError):
                source.faults.add("record", count)
                continue
            if values:
                yield number, values


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for field, value in _fields(summary):
        if field != 1 or not isinstance(value, bytes):
            continue
        parts = dict(_fields(value))
        number = parts.get(2)
        if number is None and isinstance(parts.get(8), bytes):
            tensor = dict(_fields(parts[8]))
            number = tensor.get(4, tensor.get(5)) if tensor.get(1) == 1 else None
        if isinstance(number, bytes) and len(number) == 4 and isinstance(parts.get(1), bytes):
            yield parts[1].decode(), struct.unpack("<f", number)[0]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of every field of a protobuf message: an integer, or the bytes of anything else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind, -1)
        if size < 0:
            size, at = _varint(data, at)
        if kind not in (1, 2, 5) or at + size > len(data):
            raise IndexError("no protobuf message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise IndexError("no protobuf message")
