"""Many seeds: how they are written, and the file in which finished ones survive whatever happens to the run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from labs.errors import InputError
from labs.experiment import MAX_SEED, spell
from labs.store import dumps, lines, read_rows, write

__all__ = ["SeedRows", "parse_seeds", "spell"]


def parse_seeds(text: str) -> list[int]:
    """`0-31` or `0,2,5-7` as a sorted list of seeds; raises `InputError` for anything else."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise InputError(f"--seeds is {text!r}; write it as 0-31 or 0,2,5-7")
        # Python refuses to read a number of thousands of digits, and nobody wants to see one in a message.
        first, last = (int(digits) if len(digits) <= 20 else math.inf for digits in (match[1], match[2] or match[1]))
        if not first <= last <= MAX_SEED:
            raise InputError(f"--seeds has {part.strip()[:40]}; a range goes up, and no seed is above {MAX_SEED}")
        if last - first >= 1_000_000:
            raise InputError(f"--seeds has {part.strip()}; a run takes at most 1,000,000 seeds")
        seeds.extend(range(int(first), int(last) + 1))
    if len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds is {text!r}; it names a seed twice")
    return sorted(seeds)


class SeedRows:
    """`seeds.jsonl`: one row per finished seed, appended and flushed, so that a killed run keeps what it has.

    Opening drops a torn last line. Only one process may append: a second one is refused where the system has locks.
    """

    def __init__(self, path: str, fresh: bool = False) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - stays open while rows arrive
        try:
            self._lock()
            self.rows = [] if fresh else read_rows(path)
            with open(path, "rb") as written:
                whole = 0 if fresh else written.read().rfind(b"\n") + 1
            self._file.truncate(whole)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # no such locks on Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process is writing {self.path}; wait for it, or use another --results") from None

    def append(self, row: dict[str, Any]) -> None:
        """Add a row; it is on its way to the disk when this returns."""
        self.rows.append(row)
        self._file.write(dumps(row, compact=True) + "\n")
        self._file.flush()

    def close(self, order: Sequence[int] | None = None) -> None:
        """Close the file; with `order` (seeds), bring the rows of a finished run in that order first."""
        self._file.close()
        if order is not None:
            by_seed = {row["seed"]: row for row in self.rows}
            self.rows = [by_seed[seed] for seed in order]
            write(self.path, lines(self.rows))
