"""Which reader of `labs/dumps/` takes a file, and the steps of many files.

A reader is a file of `labs/dumps/`: its docstring says what the format is, and it defines

- `recognise(source) -> bool`: whether this is its format, judged by content (a name only where content cannot tell);
- `read(source) -> Iterator[labs.evidence.Step]`, lazily;
- `LOG`: what to switch on in that software to get a column or scalar that the format lacks, by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from labs.errors import InputError
from labs.evidence import Finding, Step, Where
from labs.registry import checks, dumps
from labs.sources import Source

#: What folders of runs hold beside data.
_IGNORED = (".png", ".svg", ".html", ".md", ".py", ".yaml", ".yml", ".part", ".tmp")


def _natural(path: str) -> list[Any]:
    """Numbers in names count as numbers: `2.jsonl` before `10.jsonl`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", path) if part]


def expand(paths: Sequence[str], skipped: list[str] | None = None) -> list[tuple[str, bool]]:
    """Every file (or folder that is one run of the lab) to read, and whether it was named by the user.

    Inside a folder links to folders are not followed (they may lead back) and what is no file is passed over (opening a
    pipe would wait for its writer); such paths are added to `skipped`.

    Raises:
        InputError: a path that does not exist, or a folder without files.
    """
    found: list[tuple[str, bool]] = []
    passed: list[str] = [] if skipped is None else skipped

    def closed(error: OSError) -> None:
        passed.append(str(error.filename))

    for path in paths:
        if path == "-" or (os.path.exists(path) and not os.path.isdir(path)):
            found.append((path, True))
            continue
        if not os.path.isdir(path):
            raise InputError(f"there is no file or folder {path}")
        here: list[str] = []
        for folder, inside, names in os.walk(path, onerror=closed):
            inside[:] = [name for name in inside if not name.startswith(".")]
            passed += [link for name in inside if os.path.islink(link := os.path.join(folder, name))]
            if {"result.json", "config.json"} <= set(names):
                inside[:] = []
                here.append(folder)
            else:
                kept = [n for n in names if not n.startswith(".") and not n.endswith(_IGNORED)]
                for file in (os.path.join(folder, name) for name in kept):
                    (here if os.path.isfile(file) else passed).append(file)
        if not here:
            raise InputError(f"{path} holds no file to read")
        found += [(name, name == path) for name in sorted(here, key=_natural)]
    return found


def reader_of(source: Source) -> tuple[str, Any]:
    """Name and module of the reader that takes a source.

    Raises:
        InputError: empty, or in no format that the lab reads.
    """
    if not source.folder and not source.head.strip(b"\xef\xbb\xbf \t\r\n\0"):
        raise InputError(f"{source.shown} is empty")
    for name in dumps:
        module = dumps[name]
        try:
            mine = module.recognise(source)
        except Exception:  # values that break the question are no reason to take the file, nor to lose the others
            mine = False
        if mine:
            return name, module
    raise InputError(f"{source.shown} is in no format that the lab reads: {', '.join(dumps)}")


def read(
    paths: Sequence[str], facts: dict[str, Any] | None = None, progress: Callable[[int, int], None] | None = None
) -> Iterator[Step]:
    """The steps of all files, in the order of their numbers; what is wrong with a file comes with its last step.

    Every step says in the fact `origin` which run it belongs to: files of rows in one folder are steps of one run, a
    log is a run of its own. A file among several that cannot be read becomes a finding; a file of a folder in an
    unknown format a note.

    Raises:
        InputError: nothing can be read at all.
    """
    skipped: list[str] = []
    files = [
        (file, named, path if os.path.isdir(path) else os.path.dirname(path))
        for path in paths
        for file, named in expand([path], skipped)
    ]
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path, _, _ in files]
    first: InputError | None = None
    passed: list[Finding] = []
    unknown: list[str] = []
    yielded = False
    for i, (path, named, origin) in enumerate(files):
        report = _report(progress, sum(sizes[:i]), sum(sizes)) if progress is not None else None
        try:
            for step in _steps(path, facts or {}, report):
                yielded = True
                whole = step.format == "lab_run" or not step.rows
                step.facts.setdefault("origin", path if whole else origin)
                yield step
        except (InputError, OSError) as caught:
            error = caught if isinstance(caught, InputError) else InputError(f"{path} cannot be read: {plain(caught)}")
            first = first or error
            if named or "no format" not in str(error):
                passed.append(_unread(path, str(error)))
            else:
                unknown.append(path)
    if first is not None and not yielded:
        raise first
    notes = []
    for what, names in (("in no format that the lab reads", unknown), ("links to folders and no files", skipped)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            notes.append(f"passed over, {what}: {', '.join(names[:3])}{more}")
    if passed or notes:
        yield Step(source="", format="file", found=passed, notes=notes)


def unlocks(formats: Iterable[str], unchecked: Iterable[str], there: Container[str] = ()) -> dict[str, list[str]]:
    """What to switch on in the software that wrote these formats, and which of the checks that did not run it unlocks.

    `there` are the names that the files have. Of every check the alternative with the fewest names counts. A format's
    advice (`LOG`) is by name; `/` stands for every logged scalar, the empty name for everything else.
    """
    made: dict[str, list[str]] = {}
    for form in formats:
        log: dict[str, str] = dumps[form].LOG if form in dumps else {}
        for check in unchecked:
            needs = min(checks[check].NEEDS, key=len)
            other = {
                name: log.get("/" if "/" in name and "/" in log else "", "") for name in needs if name not in there
            }
            for sentence in dict.fromkeys(log.get(name, other[name]) for name in other):
                if sentence:
                    made.setdefault(f"{form}: {sentence}", []).append(check)
    return made


def _steps(path: str, facts: dict[str, Any], progress: Callable[[int], None] | None) -> Iterator[Step]:
    """The steps of one file, then one without rows that holds what is wrong with its lines, if anything is.

    Steps without a row or a number are dropped; a file that has no other is refused.
    """
    source = Source(path, progress)
    source.facts = dict(facts)
    name, module = reader_of(source)
    empty, words = True, []
    try:
        for step in module.read(source):
            if not ((step.rows and step.columns) or step.scalars or name == "lab_run"):
                words += [finding.what for finding in step.found] + step.notes
                continue
            empty = False
            step.facts = {**source.facts, **step.facts}
            yield step
    except (InputError, OSError):
        raise
    except Exception as error:  # files may hold anything; what was read before stays
        raise InputError(f"{source.shown} cannot be read as {name}: {plain(error)}") from error
    found = source.faults.findings()
    if empty:
        words = [*(finding.what for finding in found), *words][:1]
        raise InputError(f"{source.shown} holds nothing that {name} can use{''.join(f': {word}' for word in words)}")
    if found:
        yield Step(source=source.shown, format=name, found=found)


def plain(error: BaseException) -> str:
    """What an error that no reader foresaw says about the file, without the words of the library that raised it."""
    if isinstance(error, MemoryError):
        return "it states more data than fit into memory"
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    if isinstance(error, OSError):
        return str(error.strerror or "it is damaged").lower()
    if isinstance(error, UnicodeError):
        return "it holds bytes that are no text"
    return "a value in it is of another kind than that format has there"


def _report(progress: Callable[[int, int], None], before: int, total: int) -> Callable[[int], None]:
    return lambda seen: progress(before + seen, total)


def _unread(path: str, sentence: str) -> Finding:
    return Finding(
        check="file", what=f"the file was not read: {sentence}", where=Where(file=path), share="1 file",
        why="what it holds is missing from every count", advice="write it again, or leave it out", sure="certain",
    )  # fmt: skip
