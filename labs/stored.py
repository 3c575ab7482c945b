"""What is stored of a run, checked when it is read: a reader gets what the files promise, or one sentence.

    document(path)    result.json of the run in a folder
    results(path)     one `Result` a seed, with its metric rows and trajectories
    seed_rows(path)   the rows of seeds.jsonl
    fits(path)        around code of an experiment that reads its rows by name

Files of a run may be torn, edited or of another version. Nothing here repairs them: `--fresh` makes a run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from labs.config import is_number
from labs.errors import InputError
from labs.experiment import MAX_SEED, Result
from labs.store import AGAIN, read_rows

_NAMES = {dict: "an object", list: "a list", str: "a text", int: "an integer", float: "a number", bool: "true or false",
          type(None): "null"}  # fmt: skip


def document(path: str) -> dict[str, Any]:
    """The object in `result.json` of the run in the folder `path`.

    Its `experiment` is a name, `fingerprint` letters and digits, `config` an object, `headline` an object of finite
    numbers (of intervals over many seeds), `seed` a seed or `per_seed` a list of one row a seed, all with the same
    finite numbers; `summary` and `next` are lists of texts, `conclusion` is a text.

    Raises:
        InputError: there is no such file, it cannot be read, or it is damaged.
    """
    file = os.path.join(path, "result.json")
    try:
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path} is no folder of a complete run: it needs a result.json written by a run") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise _damaged(file, "it is nested too deep") from None
    except ValueError as error:
        raise _damaged(file, f"it is no JSON ({error})") from None
    _check(file, found)
    made: dict[str, Any] = found
    return made


def _check(file: str, found: Any) -> None:
    _is(file, "it", found, dict)
    for name in ("experiment", "fingerprint", "config", "headline"):
        if name not in found:
            raise _damaged(file, f"it has no {name}")
    for name, kind in {"experiment": str, "fingerprint": str, "config": dict, "headline": dict, "conclusion": str,
                       "summary": list, "next": list}.items():  # fmt: skip
        if name in found:
            _is(file, name, found[name], kind)
    for name in ("summary", "next"):
        for line in found.get(name, ()):
            _is(file, f"a line of {name}", line, str)
    # Both become names of folders where a run is exported.
    if not found["experiment"].isidentifier() or not found["fingerprint"].isalnum():
        raise _damaged(file, "experiment or fingerprint is no name")
    if "per_seed" not in found:
        _seed(file, found.get("seed"))
        _numbers(file, "headline", found["headline"])
        return
    rows = _is(file, "per_seed", found["per_seed"], list)
    for row in rows:
        _is(file, "a row of per_seed", row, dict)
        _seed(file, row.get("seed"))
        _numbers(file, "per_seed", row)
    _alike(file, [row["seed"] for row in rows], rows)


def results(path: str) -> list[Result]:
    """The results of the run in the folder `path`, one a seed, trajectories with a run of one seed.

    Raises:
        InputError: no complete run is there, or one of its files is damaged.
    """
    found = document(path)
    if "per_seed" in found:
        which = {name: found[name] for name in ("experiment", "fingerprint", "config")}
        rows = seed_rows(os.path.join(path, "seeds.jsonl"), whole=True)
        if [row["seed"] for row in rows] != [row["seed"] for row in found["per_seed"]]:
            raise _damaged(os.path.join(path, "seeds.jsonl"), "it has other seeds than result.json")
        own = ("seed", "headline", "data", "metrics")
        return [Result(**which, **{name: row[name] for name in own}, folder=path) for row in rows]
    result = Result.from_document(found, read_rows(os.path.join(path, "metrics.jsonl"), whole=True))
    trajectories = os.path.join(path, "trajectories.jsonl")
    result.trajectories = read_rows(trajectories, whole=True) if os.path.exists(trajectories) else []
    result.folder = path
    return [result]


def seed_rows(file: str, whole: bool = False) -> list[dict[str, Any]]:
    """The checked rows of `seeds.jsonl`; a torn last line is dropped, or refused when it must be `whole`."""
    rows = read_rows(file, whole)
    for number, row in enumerate(rows, start=1):
        what = f"line {number}: "
        _seed(file, row.get("seed"), what)
        for name, kind in {"headline": dict, "data": dict, "metrics": list}.items():
            _is(file, f"{what}{name}", row.get(name), kind)
        _numbers(file, f"{what}headline", row["headline"])
        for each in row["metrics"]:
            _is(file, f"{what}a row of metrics", each, dict)
    if rows:
        _alike(file, [row["seed"] for row in rows], [row["headline"] for row in rows])
    elif whole:
        raise _damaged(file, "it has no row")
    return rows


@contextmanager
def fits(path: str | None) -> Iterator[None]:
    """Say in one sentence that stored rows are not what the code inside reads by name.

    The rows of an experiment are its own, so only its code knows what they hold; `path` is the run's folder, None for a
    result that was just made, whose errors are bugs and stay as they are.

    Raises:
        InputError: something that the code looked up is missing or of another type.
    """
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if path is None:
            raise
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = "" if last is None else f" at {os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno}"
        said = f"{type(error).__name__}{where}: {error}"
        raise InputError(
            f"{path} is damaged, or of another version: its rows are not as needed ({said}); {AGAIN}"
        ) from error


def _damaged(file: str, what: str) -> InputError:
    return InputError(f"{file} is damaged: {what}; {AGAIN}")


def _is(file: str, what: str, value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise _damaged(file, f"{what} is {_NAMES.get(type(value), 'something else')}, not {_NAMES[kind]}")
    return value


def _seed(file: str, seed: Any, what: str = "") -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MAX_SEED:
        shown = f"{seed}" if isinstance(seed, int) and abs(seed) < 10**20 else _NAMES.get(type(seed), "something else")
        raise _damaged(file, f"{what}seed is {shown}, not an integer from 0 to {MAX_SEED}")


def _numbers(file: str, what: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not is_number(value):
            raise _damaged(file, f"{what} has {name}, which is no finite number")


def _alike(file: str, seeds: Sequence[int], values: Sequence[Mapping[str, Any]]) -> None:
    if not seeds or len(set(seeds)) != len(seeds):
        raise _damaged(file, "it names no seed, or one twice")
    for row in values:
        if row.keys() != values[0].keys():
            raise _damaged(file, "its seeds have different headline numbers")
