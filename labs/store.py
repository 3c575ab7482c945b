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

import json
import math
import os
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


def write(path: str, content: str | bytes) -> None:
    """Write a file whole or not at all: beside its place, then renamed.

    A link is followed, and what is no regular file (`/dev/stdout`, a named pipe) is written to rather than replaced.
    """
    data = content.encode() if isinstance(content, str) else content
    path = os.path.realpath(path)
    special = os.path.exists(path) and not os.path.isfile(path)
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


def check_writable(path: str, option: str) -> None:
    """Refuse, before any work, a file that could not be written.

    Raises:
        InputError: it is a folder, its folder is missing, or writing there is not allowed.
    """
    folder = os.path.dirname(os.path.realpath(path))
    if not path or os.path.isdir(path):
        raise InputError(f"{option} {path or repr(path)} is a folder; give a file")
    if not os.path.isdir(folder):
        raise InputError(f"{option} {path}: there is no folder {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise InputError(f"{option} {path} cannot be written: permission denied")


def check_folder(path: str) -> None:
    """Refuse a file where the folder of all runs should be."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise InputError(f"{path} is a file; the folder of the runs (--results) goes elsewhere")


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file, without a last line that a killed process left torn.

    Raises:
        InputError: a line before the last is no JSON.
    """
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        texts = file.read().split("\n")
    rows = []
    for number, text in enumerate(texts[:-1], start=1):  # what follows the last newline is torn, or nothing
        try:
            rows.append(json.loads(text))
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: line {number} is no JSON; remove the line, or run again with --fresh") from error
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
        self._made: list[str] = []

    def file(self, *names: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.path, *names)

    def document(self) -> dict[str, Any] | None:
        """The stored result, or None when the run is not complete."""
        try:
            with open(self.file("result.json"), encoding="utf-8") as file:
                found = json.load(file)
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def result(self) -> Result | None:
        """The stored result of one seed, with its metric rows and trajectories."""
        document = self.document()
        if document is None:
            return None
        result = Result.from_document(document, read_rows(self.file("metrics.jsonl")))
        result.trajectories = read_rows(self.file("trajectories.jsonl"))
        result.folder = self.path
        return result

    def prepare(self) -> None:
        """Make the folder, so that a place that cannot be written is found before the work and not after it."""
        missing, path = [], self.path
        while path and not os.path.isdir(path):
            check_folder(path)
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            os.mkdir(path)
            self._made.append(path)
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
