"""Tensors in a numpy archive (`.npz`): the lab's own `TokenBatch` files, and what practitioners save.

Array names as in `labs.arrays`. An array of Python objects is a pickle inside the archive and is left out with a note.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labs.arrays import step_of_arrays
from labs.errors import InputError
from labs.evidence import Step

if TYPE_CHECKING:
    from labs.sources import Source

LOG = {"": "add the column to the arrays that you save"}
_LARGEST = 2 * 2**30


def recognise(source: Source) -> bool:
    """A zip archive whose first file is a numpy array."""
    return source.head.startswith(b"PK\x03\x04") and b".npy" in source.head[:300]


def read(source: Source) -> Iterator[Step]:
    """One step a file."""
    import numpy as np

    arrays: dict[str, Any] = {}
    objects: list[str] = []
    try:
        with source.open() as stream, zipfile.ZipFile(stream) as archive:
            size = sum(info.file_size for info in archive.infolist())
        if size > _LARGEST:
            raise InputError(
                f"{source.shown} holds {size / 2**30:.1f} GB of arrays; allowed: 2 GB, save fewer rows a file"
            )
        with source.open() as stream, np.load(stream, allow_pickle=False) as data:
            for name in data.files:
                try:
                    arrays[name] = data[name]
                    if isinstance(arrays[name], bytes):  # what numpy gives for a member that is no array
                        raise InputError(f"{source.shown} is no whole .npz archive: {name} is no array")
                except ValueError as error:
                    if isinstance(error, InputError) or "pickle" not in str(error).lower():
                        raise
                    objects.append(name)
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, KeyError, NotImplementedError) as error:
        raise InputError(f"{source.shown} is no whole .npz archive: it was cut or damaged") from error
    except MemoryError as error:
        raise InputError(f"{source.shown} is no whole .npz archive: an array states more data than it has") from error
    step = step_of_arrays(source, "npz", arrays)
    if objects:
        what = ", ".join(objects)
        step.notes.append(f"{what}: an array of Python objects, which is a pickle; save it with .astype(str)")
    yield step
