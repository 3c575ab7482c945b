"""Reports: one student's folder, and a class of folders, graded again from the files in parallel.

No time, host or path outside the graded folder enters a report, and the hidden cases depend on nothing but the seed:
the same files and the same seed give the same bytes, whatever the number of processes.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import labs
from labs.errors import InputError
from labs.grading.progress import FOLDER, Progress
from labs.grading.spec import Exercise, Language, ladder

#: A student's file is text of at most this many bytes.
MOST_BYTES = 1 << 20


class Work(NamedTuple):
    """One file to grade."""

    student: str
    exercise: str
    path: Path


def read_source(path: Path) -> str:
    """The text of a student's file; raises `InputError` when it is none."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} has more than {MOST_BYTES} bytes; an answer is a short Python file")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text: {error}") from error


def _graded(item: tuple[str, Path, int, Language]) -> dict[str, Any]:
    """Grade one file; a file that cannot be read is a broken one. Runs in a process of the pool."""
    from labs.grading.checks import grade_source
    from labs.grading.spec import get
    from labs.grading.text import mistake_text, render

    name, path, seed, lang = item
    exercise = get(name)
    try:
        source = read_source(path)
    except InputError as error:
        # The message would hold a path; the report is the same wherever the folder lies.
        source = f"raise ValueError({str(error).replace(str(path), path.name)!r})"
    verdict = grade_source(exercise, source, seed)
    record = verdict.record()
    record["sentences"] = [mistake_text(exercise, m, lang) for m in verdict.mistakes]
    record["text"] = render(verdict, lang)
    return record


def grade_all(work: Sequence[Work], seed: int, jobs: int, lang: Language) -> list[dict[str, Any]]:
    """Records in the order of `work`."""
    items = [(w.exercise, w.path, seed, lang) for w in work]
    if jobs <= 1 or len(items) <= 1:
        return [_graded(item) for item in items]
    with ProcessPoolExecutor(min(jobs, len(items)), mp_context=get_context("spawn")) as pool:
        return list(pool.map(_graded, items))


def report(root: Path, *, jobs: int = 1, seed: int = 0, lang: Language = "en") -> dict[str, Any]:
    """One student's report: every started exercise graded again, with what the progress file remembers as remarks."""
    progress = Progress.load(root)
    work = [Work("", e.name, progress.file(e)) for e in ladder() if progress.file(e).is_file()]
    if not work:
        raise InputError(f"{root / FOLDER} holds no exercise yet; begin with: python -m labs exercise next")
    exercises = []
    for item, record in zip(work, grade_all(work, seed, jobs, lang), strict=True):
        entry = progress.entries.get(item.exercise)
        remarks = {"attempts": entry.attempts, "hints": entry.hints, "gave_up": entry.gave_up} if entry else {}
        exercises.append({**record, **remarks})
    return {
        "lab_version": labs.__version__,
        "seed": seed,
        "passed": sum(e["status"] == "passed" for e in exercises),
        "of": len(ladder()),
        "score": round(sum(e["score"] for e in exercises), 4),
        "exercises": exercises,
    }


def gradescope(result: dict[str, Any]) -> dict[str, Any]:
    """A report as Gradescope's `results.json`: one test an exercise of the ladder, one point each."""
    done = {e["exercise"]: e for e in result["exercises"]}
    tests = []
    for exercise in ladder():
        record = done.get(exercise.name)
        status = record["status"] if record else "not started"
        tests.append(
            {
                "name": f"{exercise.number:02d} {exercise.name}",
                "number": str(exercise.number),
                "score": record["score"] if record else 0.0,
                "max_score": 1.0,
                "status": "passed" if status == "passed" else "failed",
                "output": record["text"] if record else "not started",
                "visibility": "visible",
            }
        )
    return {"output": f"{result['passed']} of {result['of']} exercises passed", "tests": tests}


def find(folder: Path) -> tuple[list[Work], list[str]]:
    """Files of a class, and the Python files that are no exercise.

    `STUDENT/.../NN_exercise.py` belongs to STUDENT; a file directly in the folder must be called
    `STUDENT_NN_exercise.py`.

    Raises:
        InputError: the folder does not exist or holds no exercise; one student has two files for one exercise.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder")
    by_stem = {Path(e.file_name).stem: e for e in ladder()}
    work, stray = [], []
    seen: dict[tuple[str, str], str] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        match = _match(path.stem, by_stem)
        student = parts[0] if len(parts) > 1 else path.stem.removesuffix(match[0]).rstrip("_- ") if match else ""
        if match is None or not student:
            stray.append("/".join(parts))
            continue
        key = (student, match[1].name)
        if key in seen:
            raise InputError(f"{student} has two files for {match[1].name}: {seen[key]} and {'/'.join(parts)}")
        seen[key] = "/".join(parts)
        work.append(Work(student, match[1].name, path))
    if not work:
        names = ", ".join(e.file_name for e in ladder()[:3])
        raise InputError(f"{folder} holds no answer: files are called like the ones students start from ({names}, ...)")
    order = {e.name: e.number for e in ladder()}
    return sorted(work, key=lambda w: (w.student, order[w.exercise])), stray


def _match(stem: str, by_stem: dict[str, Exercise]) -> tuple[str, Exercise] | None:
    fitting = [name for name in by_stem if stem == name or stem.endswith(("_" + name, "-" + name))]
    if not fitting:
        return None
    longest = max(fitting, key=len)
    return longest, by_stem[longest]


def grade_class(folder: Path, *, jobs: int = 1, seed: int = 0, lang: Language = "en") -> dict[str, Any]:
    """Grade a class: scores a student, pass rates a check, the most common named mistakes an exercise."""
    work, stray = find(folder)
    records = grade_all(work, seed, jobs, lang)
    students: dict[str, dict[str, Any]] = {}
    for item, record in zip(work, records, strict=True):
        students.setdefault(item.student, {})[item.exercise] = record
    by_exercise: dict[str, list[dict[str, Any]]] = {e.name: [] for e in ladder()}
    for item, record in zip(work, records, strict=True):
        by_exercise[item.exercise].append(record)
    return {
        "lab_version": labs.__version__,
        "seed": seed,
        "students": {
            name: {
                "score": round(sum(r["score"] for r in own.values()), 4),
                "passed": sum(r["status"] == "passed" for r in own.values()),
                "exercises": own,
            }
            for name, own in students.items()
        },
        "exercises": {name: statistics(own) for name, own in by_exercise.items() if own},
        "stray_files": stray,
    }


def statistics(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Of the records of one exercise: statuses, pass rate a check (of those it ran for), mistakes by frequency."""
    records = list(records)
    checks: dict[str, list[bool]] = {}
    for record in records:
        for check in record["checks"]:
            if check["passed"] is not None:
                checks.setdefault(f"{check['layer']}: {check['name']}", []).append(check["passed"])
    mistakes = Counter(pair for r in records for pair in zip(r["mistakes"], r["sentences"], strict=True))
    ordered = sorted(mistakes.items(), key=lambda kv: (-kv[1], kv[0]))
    return {
        "files": len(records),
        "statuses": dict(sorted(Counter(r["status"] for r in records).items())),
        "pass_rate": {name: {"ran": len(v), "rate": round(sum(v) / len(v), 4)} for name, v in checks.items()},
        "mistakes": [{"mistake": m, "count": n, "sentence": s} for (m, s), n in ordered],
    }


def table(result: dict[str, Any]) -> str:
    """A class as CSV: one row a student and exercise."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["student", "exercise", "status", "score", "checks_passed", "checks_ran", "checks_exist", "mistakes"]
    )
    for student, own in result["students"].items():
        for name, r in own["exercises"].items():
            counts = (r["checks_passed"], r["checks_ran"], r["checks_exist"])
            writer.writerow([_cell(student), name, r["status"], r["score"], *counts, " ".join(r["mistakes"])])
    return stream.getvalue()


def _cell(text: str) -> str:
    """A name that a spreadsheet will not run as a formula."""
    return "'" + text if text[:1] in "=+-@" else text
