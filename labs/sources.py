"""One file as bytes, lines and JSON records, whatever its encoding, with what is wrong with single lines counted.

Nothing is unpickled. A file is opened as often as needed; standard input and pipes are spooled to disk for that.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import IO, Any

from labs.errors import InputError
from labs.evidence import Finding, Where

#: A line longer than this is no line of a log; it is skipped so that memory stays bounded.
LONGEST_LINE = 64 * 2**20
#: A file that must be read whole (one JSON document, tensors) may have this many bytes.
LARGEST_DOCUMENT = 256 * 2**20
_HEAD = 2**18
_LOST = "what it held is missing from every count"
#: Kind of fault -> what is wrong with the line, why it matters, what to do.
_WORDS = {
    "broken": ("is no JSON and was skipped", _LOST, "a writer was killed or two wrote at once: write the file again"),
    "encoding": (
        "is not UTF-8; what could not be decoded stands as \ufffd",
        "texts do not compare there",
        "write UTF-8",
    ),
    "object": ("holds JSON that is no object and was skipped", _LOST, "write one object a line"),
    "several": ("holds several objects; all were read", "rows may be lost", "give every process a file of its own"),
    "long": (f"is longer than {LONGEST_LINE // 2**20} MB and was skipped", _LOST, "write one row a line"),
    "number": ("has a step that is no whole number", "its place among the steps is unknown", "write step as 7"),
    "sample": ("stands for a sample that is no dictionary and was skipped", _LOST, "save one dictionary a sample"),
    "cell": ("has a quotation mark that is not closed (or a huge cell) and was skipped", _LOST, "export it again"),
    "order": ("belongs to a step that had ended before", "its groups cannot be judged whole", "sort the file by step"),
    "record": ("counts a record that cannot be read", _LOST, "the run is going on, or the file was cut: copy it again"),
    "cut": ("is the last that could be read: the compressed file is damaged", _LOST, "copy the file again"),
}


class Faults:
    """What is wrong with lines of one file: counted by kind, with the first line of each."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = 0
        self.rows = 0
        self._seen: dict[tuple[str, str], list[int]] = {}

    def add(self, kind: str, line: int, detail: str = "") -> None:
        """One more line with this fault; `detail` tells cases of one kind apart (a column's name)."""
        entry = self._seen.setdefault((kind, detail), [0, line])
        entry[0] += 1

    def findings(self) -> list[Finding]:
        """One finding a kind."""
        found = []
        for (kind, detail), (count, line) in self._seen.items():
            what, why, advice = _WORDS.get(kind) or _column(kind, detail)
            also = f", and {count - 1} more" if count > 1 else ""
            close = f" ({detail})" if detail and kind in _WORDS else ""
            found.append(
                Finding(
                    check="file", what=f"line {line} {what}{close}{also}", where=Where(file=self.source, line=line),
                    share=f"{count} of {max(self.lines, line)} lines", why=why, advice=advice, sure="certain",
                    numbers={"lines": count},
                )
            )  # fmt: skip
        return found


def _column(kind: str, name: str) -> tuple[str, str, str]:
    """The words of a fault that concerns column `name`."""
    why = f"checks that read {name} leave the row out or see NaN"
    if kind == "missing":
        return f"has no {name}, which other lines have", why, f"write {name} in every row"
    return f"holds {name} that is no number; it counts as NaN", why, f"write {name} as a number"


class Source:
    """One file (compressed with gzip or not), or standard input, that can be opened again and again.

    Args:
        path: the file; `-` is standard input, which is spooled to disk, as is everything that is no regular file.
        progress: called with the bytes read so far.

    Attributes:
        shown: how messages name it.
        size: bytes on disk.
        head: its first 256 KiB, decompressed.
        facts: what the user states (`n`, `max_response_length`); readers may use it.
    """

    def __init__(self, path: str, progress: Callable[[int], None] | None = None) -> None:
        self.path, self.shown = path, "standard input" if path == "-" else path
        self.facts: dict[str, Any] = {}
        self.faults = Faults(self.shown)
        self._progress = progress
        self._spool: IO[bytes] | None = None
        if path == "-":
            self._spool = _spooled(sys.stdin.buffer)
        elif not os.path.isfile(path) and not os.path.isdir(path):
            with open(path, "rb") as stream:
                self._spool = _spooled(stream)
        if self._spool is not None:
            self.size = self._spool.seek(0, io.SEEK_END)
        else:
            self.size = os.path.getsize(path)
        self.head = b""
        if not self.folder:
            with self.open() as stream:
                try:
                    self.head = stream.read(_HEAD)
                except (OSError, EOFError, zlib.error) as error:
                    raise InputError(f"{self.shown} cannot be read: {error}") from error

    @property
    def folder(self) -> bool:
        """Whether it is a folder that one reader takes whole."""
        return self._spool is None and os.path.isdir(self.path)

    @property
    def name(self) -> str:
        """The last part of the path, without `.gz`."""
        return os.path.basename(os.path.normpath(self.path)).removesuffix(".gz")

    @property
    def number(self) -> int | None:
        """The step that the file's name states: `12.jsonl`, `train_data_step12.jsonl`, `completions_00012.parquet`."""
        found = re.findall(r"\d+", self.name.rsplit(".", 1)[0])
        return int(found[-1]) if found and len(found[-1]) < 10 else None

    @property
    def validation(self) -> bool:
        """Whether its name or that of a folder just above says that it is no training data."""
        near = "/".join(os.path.abspath(self.path).lower().split(os.sep)[-3:]) if self._spool is None else ""
        return bool({"val", "valid", "validation", "eval"} & set(re.split(r"[^a-z]+", near)))

    def open(self) -> IO[bytes]:
        """The bytes from the start."""
        if self._spool is not None:
            self._spool.seek(0)
            raw: IO[bytes] = io.BytesIO(self._spool.read()) if self.size < _HEAD else _Kept(self._spool)
        else:
            raw = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
        start = raw.read(2)
        raw.seek(0)
        if start == b"\x1f\x8b":
            import gzip

            return gzip.open(raw)  # type: ignore[return-value]
        return raw

    def whole(self) -> bytes:
        """All bytes, of a file that must be read whole.

        Raises:
            InputError: it is too large for that.
        """
        if self.size > LARGEST_DOCUMENT:
            raise InputError(
                f"{self.shown} has {self.size / 2**20:.0f} MB; a file that is one document may have 256 MB"
            )
        with self.open() as stream:
            return stream.read(LARGEST_DOCUMENT)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of every line that is not blank; encodings by their mark, UTF-8 otherwise."""
        with self.open() as raw:
            stream, seen = _decoded(raw, self.head), 0
            number = 0
            while line := self._line(stream, number):
                number += 1
                seen += len(line)
                if self._progress is not None and number % 256 == 0:
                    self._progress(seen)
                if len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
                    self.faults.add("long", number)
                    while (more := stream.readline(LONGEST_LINE)) and not more.endswith(b"\n"):
                        seen += len(more)
                    continue
                try:
                    text = line.decode()
                except UnicodeDecodeError:
                    self.faults.add("encoding", number)
                    text = line.decode(errors="replace")
                if text := text.strip("\ufeff \t\r\n\0"):
                    self.faults.lines = number
                    yield number, text

    def _line(self, stream: IO[bytes], number: int) -> bytes:
        try:
            return stream.readline(LONGEST_LINE)
        except (OSError, EOFError, zlib.error):  # a compressed file that is damaged or cut
            self.faults.add("cut", max(number, 1))
            return b""

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line and object of every line of JSON Lines (or of one JSON array); broken lines become faults."""
        if self.text.lstrip("\ufeff \t\r\n")[:1] == "[":
            for number, row in enumerate(self.document(), start=1):
                if isinstance(row, dict):
                    yield number, row
                else:
                    self.faults.add("object", number)
            return
        for number, text in self.lines():
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                yield from self._salvage(number, text)
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self.faults.add("object", number)

    def _salvage(self, number: int, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The whole objects of a line that is no JSON: two writers at once, or a line without its end."""
        decoder, at, found = json.JSONDecoder(), 0, []
        while at < len(text):
            try:
                row, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                ends = getattr(error, "pos", 0) >= len(text) - 1 or "Unterminated" in str(error)
                self.faults.add("broken", number, "it ends too early" if ends else "")
                break
            found += [row] if isinstance(row, dict) else []
            at += len(text[at:]) - len(text[at:].lstrip())
        if len(found) > 1:
            self.faults.add("several", number)
        yield from ((number, row) for row in found)

    def document(self) -> Any:
        """The file as one JSON document.

        Raises:
            InputError: it is none.
        """
        try:
            return json.loads(self.whole())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.shown} is no whole JSON document: {error}") from error

    @cached_property
    def first(self) -> dict[str, Any]:
        """The first object among the first lines of JSON Lines; empty when there is none."""
        text = _text(self.head)
        lines = [text[1:].lstrip()] if text.startswith("[") else text.split("\n")[:200]
        if text.startswith("{") and len(lines) == 1 and len(self.head) == _HEAD:  # a first row that is longer than that
            with self.open() as raw:
                lines = [_text(_decoded(raw, self.head).readline(LONGEST_LINE))]
        for line in lines:
            line = line.strip("\ufeff \t\r\n\0")
            try:
                row = json.JSONDecoder().raw_decode(line)[0] if line.startswith("{") else None
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and row:
                return row
        return {}

    @property
    def text(self) -> str:
        """The head as text, without bytes that are none."""
        return _text(self.head)


class _Kept(io.BufferedReader):
    """A view of a spooled stream that survives `close`."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(io.FileIO(os.dup(stream.fileno())))
        self.seek(0)


def _spooled(stream: IO[bytes]) -> IO[bytes]:
    import shutil

    spool = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the source)
    shutil.copyfileobj(stream, spool, 2**20)
    spool.flush()
    return spool


def _text(head: bytes) -> str:
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if head.startswith(mark):
            return head.decode(encoding, errors="replace")
    return head.decode("utf-8-sig", errors="replace").strip()


def _decoded(raw: IO[bytes], head: bytes) -> IO[bytes]:
    """The stream as UTF-8: UTF-16 by its mark, everything else as it is."""
    if not head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw
    return codecs.EncodedFile(raw, "utf-8", "utf-16", errors="replace")
