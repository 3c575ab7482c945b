"""A pickle (verl's DataProto, SkyRL's TensorBatch, ROLL): refused, with the lines that make it readable.

Unpickling runs code that the file brings. The lab never does it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from labs.errors import InputError
from labs.evidence import Step

if TYPE_CHECKING:
    from labs.sources import Source

LOG: dict[str, str] = {}
#: Run in the training environment, where the pickle is trusted and its classes can be imported.
CONVERTER = (
    'import pickle, numpy as np; d = pickle.load(open({0}, "rb")); np.savez({1}, '
    "**{{k: (v.float() if v.is_floating_point() else v).cpu().numpy() for k, v in d.batch.items()}}, "
    'uid=np.array(d.non_tensor_batch["uid"]).astype(str))'
)
_TORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")


def recognise(source: Source) -> bool:
    """Starts as pickles of protocol 2 and later do, and not as torch's old files."""
    head = source.head
    tensors = head[8:9] == b"{" and b'"data_offsets"' in head  # a safetensors file of 128 + 256 * k bytes of header
    return head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and not tensors and not head.startswith(_TORCH)


def read(source: Source) -> Iterator[Step]:
    """Refuse.

    Raises:
        InputError: always, with the converter.
    """
    raise InputError(refusal(source))


def refusal(source: Source) -> str:
    """The sentence, with the converter for this file."""
    program = CONVERTER.format(_literal(source.name), _literal(f"{source.name}.npz"))
    return (
        f"{source.shown} is a pickle, which runs code when it is opened and so never is; where you trust it, run "
        f"python -c {shlex.quote(program)} and diagnose {shlex.quote(source.name)}.npz"
    )


def _literal(name: str) -> str:
    """The name between double quotes as Python reads it, on one line: the shell needs the single ones."""
    inner = repr('"' + name)[2:-1]  # repr takes double quotes only for text without any
    return '"' + inner.replace("\\'", "'").replace('"', '\\"') + '"'
