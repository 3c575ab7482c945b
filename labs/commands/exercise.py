"""Coursework that grades itself: list, start, show, check, next, hint, solution, report, grade."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from labs.grading.progress import Progress
    from labs.grading.spec import Exercise

LANG = click.option(
    "--lang", type=click.Choice(["en", "zh"]), default="en", show_default=True, help="Language of every sentence."
)
SEED = click.option("--seed", type=int, default=0, show_default=True, help="Chooses the hidden cases.")
JOBS = click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Files graded at a time.")


@click.group()
def command() -> None:
    """Coursework that grades itself.

    Begin with `labs exercise next`: it writes one file under exercises/ and prints what to do. Edit the file, then
    `labs exercise check`. Exit codes of check: 0 passed, 1 not yet, 2 not started, 3 the file crashed or hung.
    """


@command.command("list")
@LANG
def list_(lang: str) -> None:
    """The ladder: number, name, title, minutes, and how far you are."""
    from labs.grading.spec import ladder

    progress = _progress()
    width = max(len(e.name) for e in ladder())
    for exercise in ladder():
        entry = progress.entries.get(exercise.name)
        state = "x" if entry and entry.passed else "." if progress.file(exercise).exists() else " "
        title = exercise.title.zh if lang == "zh" else exercise.title.en
        click.echo(f"[{state}] {exercise.number:02d} {exercise.name:<{width}} {exercise.minutes:3d} min  {title}")


@command.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Begin again; the old file is kept under another name.")
@LANG
def start(name: str, force: bool, lang: str) -> None:
    """Write the file of one exercise, unless it is there."""
    from labs.grading.progress import start as write

    progress, exercise = _progress(), _get(name)
    path, written = write(progress, exercise, force)
    progress.current = exercise.name
    progress.of(exercise)
    progress.save()
    said = {
        ("en", True): f"wrote {_short(path)}",
        ("en", False): f"{_short(path)} is there already and was left as it is",
        ("zh", True): f"已写入 {_short(path)}",
        ("zh", False): f"{_short(path)} 已存在，保持原样",
    }
    click.echo(said[lang, written])
    _next(lang, f"show {exercise.name}")


@command.command()
@click.argument("name")
@LANG
def show(name: str, lang: str) -> None:
    """Print the statement of one exercise."""
    exercise = _get(name)
    click.echo(exercise.statement(_lang(lang)), nl=False)
    _footer(_progress(), exercise, lang)


@command.command("next")
@LANG
def next_(lang: str) -> None:
    """The first exercise that is not passed: write its file, print its statement."""
    from labs.grading.progress import start as write

    progress = _progress()
    exercise = progress.following()
    if exercise is None:
        click.echo("every exercise is passed" if lang == "en" else "所有练习都已通过")
        _next(lang, "report")
        return
    write(progress, exercise)
    progress.current = exercise.name
    progress.of(exercise)
    progress.save()
    click.echo(exercise.statement(_lang(lang)), nl=False)
    _footer(progress, exercise, lang)


@command.command()
@click.argument("name", required=False)
@click.option("--watch", is_flag=True, help="Check again whenever the file is saved; end with Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of sentences.")
@LANG
def check(name: str | None, watch: bool, as_json: bool, lang: str) -> int:
    """Check one exercise: the named one, else the one you worked on last."""
    exercise = _get(name) if name else _current(_progress())
    code = _check(exercise, as_json, lang)
    if watch:
        path = _progress().file(exercise)
        seen = path.stat().st_mtime_ns
        while code != 0:
            time.sleep(0.5)
            now = path.stat().st_mtime_ns if path.exists() else seen
            if now != seen:
                seen = now
                click.echo("")
                code = _check(exercise, as_json, lang)
    return code


def _check(exercise: Exercise, as_json: bool, lang: str) -> int:
    from labs.errors import InputError
    from labs.grading.checks import grade_source
    from labs.grading.classroom import read_source
    from labs.grading.text import render

    progress = _progress()
    path = progress.file(exercise)
    if not path.exists():
        raise InputError(f"{_short(path)} does not exist; write it with: python -m labs exercise start {exercise.name}")
    verdict = grade_source(exercise, read_source(path))
    # Loaded again: a hint may have been asked for in another window meanwhile.
    progress = _progress()
    entry = progress.of(exercise)
    entry.status, entry.attempts = verdict.status, entry.attempts + 1
    entry.passed = verdict.status == "passed"
    progress.current = exercise.name
    progress.save()
    if as_json:
        click.echo(json.dumps(verdict.record(), indent=2, ensure_ascii=False))
        return verdict.exit_code
    click.echo(render(verdict, _lang(lang)))
    click.echo("")
    if verdict.status == "passed":
        _next(lang, "next")
    elif verdict.status == "not started":
        _next(lang, f"show {exercise.name}")
    else:
        _next(lang, f"hint {exercise.name}")
    return verdict.exit_code


@command.command()
@click.argument("name", required=False)
@LANG
def hint(name: str | None, lang: str) -> None:
    """One more hint; how many you asked for is remembered."""
    progress = _progress()
    exercise = _get(name) if name else _current(progress)
    hints = exercise.hints(_lang(lang))
    entry = progress.of(exercise)
    entry.hints = min(entry.hints + 1, len(hints))
    progress.save()
    for number, text in enumerate(hints[: entry.hints], 1):
        click.echo(f"{number}/{len(hints)}  {text}")
    _next(lang, f"check {exercise.name}" if entry.hints < len(hints) else f"solution {exercise.name} --give-up")


@command.command()
@click.argument("name")
@click.option("--give-up", is_flag=True, help="Show it although the exercise is not passed; this is remembered.")
def solution(name: str, give_up: bool) -> None:
    """Print the solution, once the exercise is passed (or given up)."""
    from labs.errors import InputError

    progress, exercise = _progress(), _get(name)
    entry = progress.of(exercise)
    if not (entry.passed or entry.gave_up or give_up):
        raise InputError(f"{exercise.name} is not passed yet; ask for a hint, or say --give-up, which is remembered")
    if give_up and not entry.passed:
        entry.gave_up = True
        progress.save()
    click.echo(exercise.solution_source(), nl=False)


@command.command()
@click.option("--output", type=click.Path(path_type=Path), help="Write the report here instead of printing it.")
@click.option("--gradescope", type=click.Path(path_type=Path), help="Write Gradescope's results.json here as well.")
@SEED
@JOBS
@LANG
def report(output: Path | None, gradescope: Path | None, seed: int, jobs: int, lang: str) -> None:
    """Grade everything you started again, from the files, and report it as JSON."""
    from labs.grading import classroom

    result = classroom.report(Path.cwd(), jobs=jobs, seed=seed, lang=_lang(lang))
    if gradescope:
        _write(gradescope, classroom.gradescope(result))
    if output:
        _write(output, result)
        click.echo(f"{result['passed']} of {result['of']} exercises passed; report in {output}")
    else:
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))


@command.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Write everything as JSON here.")
@click.option("--csv", "table", type=click.Path(path_type=Path), help="Write one row per student and exercise here.")
@SEED
@JOBS
@LANG
def grade(folder: Path, output: Path | None, table: Path | None, seed: int, jobs: int, lang: str) -> None:
    """Grade a class: FOLDER/STUDENT/NN_exercise.py or FOLDER/STUDENT_NN_exercise.py.

    Prints scores, pass rates and the most common mistakes. Choose a seed of your own: the hidden cases of seed 0 can
    be read off by anyone who has the lab.
    """
    from labs.grading import classroom

    result = classroom.grade_class(folder, jobs=jobs, seed=seed, lang=_lang(lang))
    if output:
        _write(output, result)
    if table:
        table.write_text(classroom.table(result), encoding="utf-8")
    for student, own in result["students"].items():
        click.echo(f"{student}: {own['passed']} of {len(own['exercises'])} passed, score {own['score']:g}")
    for name, own in result["exercises"].items():
        passed = own["statuses"].get("passed", 0)
        click.echo(f"\n{name}: {passed} of {own['files']} passed")
        rates = sorted(own["pass_rate"].items(), key=lambda item: item[1]["rate"])
        for check_name, rate in [r for r in rates if r[1]["rate"] < 1][:3]:
            click.echo(f"  {rate['rate']:6.1%} pass {check_name}")
        for entry in own["mistakes"][:3]:
            click.echo(f"  {entry['count']}x {entry['mistake']}: {entry['sentence']}")
    for path in result["stray_files"]:
        click.echo(f"not an exercise: {path}", err=True)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _lang(lang: str) -> Any:
    return lang


def _get(name: str) -> Exercise:
    from labs.grading.spec import get

    return get(name)


def _progress() -> Progress:
    from labs.grading.progress import Progress

    progress = Progress.load(Path.cwd())
    if progress.set_aside:
        sys.stderr.write(f"the progress file could not be read; it was kept as {progress.set_aside}\n")
    return progress


def _current(progress: Progress) -> Exercise:
    exercise = _get(progress.current) if progress.current else progress.following()
    return exercise if exercise is not None else _get("1")


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()))


def _footer(progress: Progress, exercise: Exercise, lang: str) -> None:
    path = progress.file(exercise)
    if not path.exists():
        _next(lang, f"start {exercise.name}")
        return
    click.echo(f"\nYour file: {_short(path)}" if lang == "en" else f"\n你的文件：{_short(path)}")
    _next(lang, f"check {exercise.name}")


def _next(lang: str, arguments: str) -> None:
    suffix = " --lang zh" if lang == "zh" and not arguments.startswith("solution") else ""
    click.echo(f"{'Next' if lang == 'en' else '下一步'}: python -m labs exercise {arguments}{suffix}")
