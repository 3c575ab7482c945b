"""The local file that remembers what a student started, asked and passed.

`.labs/progress.json` in the working folder is for the student's comfort (`next`, `list`): no grade comes from it. A
report grades the files again, so that editing the progress gains nothing; what only this file knows (hints, a
solution looked at) is reported as remarks. It is written whole or not at all, by the grading process alone, and a file
that cannot be read is set aside under another name, never overwritten.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labs.grading.spec import Exercise, ladder

FOLDER = Path("exercises")
FILE = Path(".labs") / "progress.json"


@dataclass
class Entry:
    """What is remembered of one exercise: `status` of the last check, attempts, hints shown, solution given up for."""

    status: str = "not started"
    attempts: int = 0
    hints: int = 0
    gave_up: bool = False
    passed: bool = False


@dataclass
class Progress:
    """All entries, and the exercise worked on last; `set_aside` names a damaged file that was kept."""

    root: Path
    entries: dict[str, Entry] = field(default_factory=dict)
    current: str | None = None
    set_aside: Path | None = None

    @classmethod
    def load(cls, root: Path) -> Progress:
        """Read the file under `root`; a missing one is an empty progress."""
        path = root / FILE
        if not path.exists():
            return cls(root)
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            entries = {str(k): Entry(**v) for k, v in data["exercises"].items()}
            if not all(_typed(e) for e in entries.values()):
                raise TypeError("an entry has the wrong type")
            current = data.get("current")
            return cls(root, entries, current if isinstance(current, str) else None)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            number = 1
            while (aside := path.with_name(f"progress.damaged-{number}.json")).exists():
                number += 1
            path.rename(aside)
            return cls(root, set_aside=aside)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        path = self.root / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "version": 1,
            "current": self.current,
            "exercises": {name: asdict(self.entries[name]) for name in sorted(self.entries)},
        }
        part = path.with_name(path.name + ".part")
        with part.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(data, indent=2) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)

    def of(self, exercise: Exercise) -> Entry:
        """The entry of an exercise; a fresh one when there is none yet."""
        return self.entries.setdefault(exercise.name, Entry())

    def file(self, exercise: Exercise) -> Path:
        """Where the student's file of an exercise is."""
        return self.root / FOLDER / exercise.file_name

    def following(self) -> Exercise | None:
        """The first exercise of the ladder that is not passed; None when all are."""
        passed = {name for name, entry in self.entries.items() if entry.passed}
        return next((e for e in ladder() if e.name not in passed), None)


def _typed(entry: Entry) -> bool:
    counts = isinstance(entry.attempts, int) and isinstance(entry.hints, int)
    return (
        counts and isinstance(entry.status, str) and isinstance(entry.gave_up, bool) and isinstance(entry.passed, bool)
    )


def start(progress: Progress, exercise: Exercise, force: bool = False) -> tuple[Path, bool]:
    """Write the student's file unless it is there; with `force` the old one is kept under a `.bak` name.

    Returns:
        The file, and whether it was written now.
    """
    path = progress.file(exercise)
    if path.exists():
        if not force:
            return path, False
        number = 1
        while (backup := path.with_suffix(f".bak{number}")).exists():
            number += 1
        path.rename(backup)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as stream:
        stream.write(exercise.stub_source())
    return path, True
