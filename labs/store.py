"""Runs on disk: one folder a run, every file whole or not there, the last one says that the run is complete.

    results/<experiment>/<fingerprint>-s<seed>/
        config.json          every setting
        metrics.jsonl        one row per step
        trajectories.jsonl   one row per trajectory of the result
        figures/             PNG, and SVG on demand
        stamp.json           version, commit, packages, machine, command, times
        timing.jsonl         wall-clock numbers
        result.json          the full result; written last, so a folder without it is not a run

A run over many seeds has `seeds.jsonl` (one row per seed, appended and flushed) in place of metrics and
trajectories. Everything but stamp.json and timing.jsonl has the same bytes whenever the same command runs.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from labs.errors import InputError
from labs.experiment import Result


def dumps(value: Any, compact: bool = False) -> str:
    """JSON text; JSON has no NaN and no infinity, so they become null.

    Args:
        value: JSON types.
        compact: on one line rather than indented.
    """
    indent = None if compact else 2
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as JSON Lines."""
    return "".join(dumps(row, compact=True) + "\n" for row in rows)


#: What to do about files of a run that are damaged.
AGAIN = "the command that made the run makes it again with --fresh"


def write(path: str, content: str | bytes) -> None:
    """Write a file whole or not at all: beside its place, then renamed.

    A link is followed, and what is no regular file (`/dev/stdout`, a named pipe) is written to rather than replaced.
    Standard output under a name of its own gets the content where it stands, whatever is behind it.
    """
    data = content.encode() if isinstance(content, str) else content
    special = os.path.exists(path) and not os.path.isfile(path)
    if (special or path.startswith(("/dev/", "/proc/"))) and _is_standard_output(path):
        _to_standard_output(data, path)
        return
    # The real path of an open pipe, `/proc/N/fd/pipe:[...]`, is none that can be opened.
    path = path if special else os.path.realpath(path)
    beside = path if special else f"{path}.{os.getpid()}.tmp"
    try:
        with open(beside, "wb") as file:
            file.write(data)
        if not special:
            os.replace(beside, path)
    except BaseException as error:
        if not special and os.path.exists(beside):
            os.unlink(beside)
        if isinstance(error, OSError):  # a full disk does not say where
            error.filename = path
        raise


def _is_standard_output(path: str) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


def _to_standard_output(data: bytes, path: str) -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        left = memoryview(data)
        while left:
            left = left[os.write(1, left) :]
    except OSError as error:
        error.filename = None if error.errno == errno.EPIPE else path
        raise


def check_writable(path: str, option: str) -> None:
    """Refuse, before any work, a file that could not be written.

    Raises:
        InputError: it is empty or a folder, its folder is missing, or writing there is not allowed.
    """
    if not path:
        raise InputError(f"{option} is empty; give a file")
    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise InputError(f"{option} {path} is a folder; give a file")
    if not os.path.isdir(folder):
        raise InputError(f"{option} {path}: there is no folder {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise InputError(f"{option} {path} cannot be written: permission denied")


def check_folder(path: str, option: str = "--results") -> None:
    """Refuse, before any work, a place where no folder can be: nothing, a file, or below a file."""
    if not path:
        raise InputError(f"{option} is empty; give a folder")
    above = os.path.abspath(path)
    if os.path.exists(above) and not os.path.isdir(above):
        raise InputError(f"{path} is a file; the folder for {option} goes elsewhere")
    while not os.path.exists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise InputError(f"{option} {path}: {above} is a file, so no folder can be below it")


def read_rows(path: str, whole: bool = False) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file, without a last line that a killed process left torn.

    Args:
        path: the file; one that is not there has no rows.
        whole: refuse a file that is torn or not there, as no file of a complete run is.

    Raises:
        InputError: a line before the last is no JSON object, or the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            texts = file.read().split(b"\n")
    except FileNotFoundError:
        if whole:
            raise InputError(f"{path} is missing, so the run is damaged; {AGAIN}") from None
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    rows = []
    for number, text in enumerate(texts[:-1], start=1):  # what follows the last newline is torn, or nothing
        try:
            row = json.loads(text.decode())
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number} is no JSON object; remove the line, or run again with --fresh")
        rows.append(row)
    if whole and texts[-1]:
        raise InputError(f"{path} is damaged: its last line is torn; {AGAIN}")
    return rows


class RunFolder:
    """The folder of one run.

    Args:
        results: the folder that holds every run.
        experiment, fingerprint: which configuration.
        seeds: as in the folder's name, `7` or `0-31`.
    """

    def __init__(self, results: str, experiment: str, fingerprint: str, seeds: str) -> None:
        self.path = os.path.join(results, experiment, f"{fingerprint}-s{seeds}")
        self.experiment, self.fingerprint = experiment, fingerprint
        self.seed = int(seeds) if seeds.isdecimal() else None
        self._made: list[str] = []

    def file(self, *names: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, *names)

    def document(self) -> dict[str, Any] | None:
        """The stored result, or None when the run is not complete: it is missing, damaged or another run's."""
        if not os.path.exists(self.file("result.json")):
            return None
        from labs import stored

        try:
            found = stored.document(self.path)
        except InputError:
            return None
        return found if (found["experiment"], found["fingerprint"]) == (self.experiment, self.fingerprint) else None

    def result(self) -> Result | None:
        """The stored result of one seed, with its metric rows and trajectories."""
        document = self.document()
        if document is None or document.get("seed") != self.seed:
            return None
        from labs import stored

        (result,) = stored.results(self.path)
        return result

    def prepare(self) -> None:
        """Make the folder, so that a place that cannot be written is found before the work and not after it.

        Raises:
            InputError: something that is no folder is where one should be, or the other way round.
        """
        missing, path = [], self.path
        while path and not os.path.isdir(path):
            check_folder(path)
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            try:
                os.mkdir(path)
            except FileNotFoundError:  # what the system answers below /proc, where the folder above is there
                raise InputError(f"{path} cannot be made: its place takes no folders; give another --results") from None
            self._made.append(path)
        for name in os.listdir(self.path):
            folder = os.path.isdir(self.file(name))
            if (folder and name.endswith((".json", ".jsonl"))) or (not folder and name == "figures"):
                raise InputError(f"{self.file(name)} is a {'folder' if folder else 'file'}; move it out of the way")
        write(self.file(".probe"), b"")
        os.unlink(self.file(".probe"))

    def abandon(self) -> None:
        """Remove the folders that `prepare` made and nothing was written to."""
        for path in reversed(self._made):
            try:
                os.rmdir(path)
            except OSError:
                return

    def reopen(self) -> None:
        """The run is not complete from here on."""
        if os.path.exists(self.file("result.json")):
            os.unlink(self.file("result.json"))

    def save(self, files: Mapping[str, str | bytes], document: Mapping[str, Any]) -> None:
        """Write every file, and `result.json` as the last one."""
        text = dumps(document) + "\n"
        self.reopen()
        for name, content in files.items():
            write(self.file(name), content)
        write(self.file("result.json"), text)

    def has_figures(self, svg: bool) -> bool:
        """True when the figures are there, in every format asked for."""
        try:
            names = os.listdir(self.file("figures"))
        except FileNotFoundError:
            return False
        return not svg or any(name.endswith(".svg") for name in names)

    def save_figures(self, files: Mapping[str, bytes]) -> None:
        """Put the folder of figures in place, all of them or none."""
        beside, old = self.file(f"figures.{os.getpid()}.tmp"), self.file(f"figures.{os.getpid()}.old")
        os.mkdir(beside)
        try:
            for name, content in files.items():
                write(os.path.join(beside, name), content)
            if os.path.isdir(self.file("figures")):
                os.rename(self.file("figures"), old)
            os.rename(beside, self.file("figures"))
        finally:
            _remove(beside)
            _remove(old)

    def figures(self) -> list[str]:
        """The paths of its figures."""
        if not os.path.isdir(self.file("figures")):
            return []
        return [self.file("figures", name) for name in sorted(os.listdir(self.file("figures")))]


def _remove(folder: str) -> None:
    """Remove a folder of files, if it is there."""
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
