"""`labs exercise` as a student and a teacher use it: files, progress, reports, whole classes."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labs import console
from labs.commands.exercise import command
from labs.errors import InputError
from labs.grading import checks, classroom
from labs.grading.process import InProcess, call
from labs.grading.progress import FILE, Entry, Progress, start
from labs.grading.spec import get, ladder
from labs.terminal import invoke

RLOO = get("rloo")
WRONG = RLOO.mistake_source(next(m for m in RLOO.mistakes if m.name == "own_included"))
TWO_WRONG = RLOO.mistake_source(*(m for m in RLOO.mistakes if m.name in ("singleton_zero", "wrong_sign")))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def labs(*arguments: str) -> tuple[int, str]:
    """Exit code, and what was printed to either stream."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = console.guard(invoke, command, "exercise", list(arguments))
    return code, out.getvalue()


def write(home: Path, source: str, name: str = "rloo") -> Path:
    path = Progress.load(home).file(get(name))
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


def test_a_student_from_first_to_last_command(home: Path) -> None:
    code, text = labs("start", "rloo")
    assert code == 0
    assert "wrote exercises/04_rloo.py" in text
    assert labs("check")[0] == 2
    write(home, WRONG)
    code, text = labs("check", "rloo")
    assert code == 1
    assert "leave the trajectory's own reward out" in text
    assert "checks exist" in text
    assert "Next: python -m labs exercise hint rloo" in text
    code, text = labs("check", "--lang", "zh")
    assert code == 1
    assert "应当把这条轨迹自己的奖励排除在外" in text
    assert "下一步" in text
    assert labs("solution", "rloo")[0] == 2
    write(home, RLOO.solution_source())
    code, text = labs("check")
    assert code == 0
    assert "passed" in text
    assert labs("solution", "rloo") == (0, RLOO.solution_source())
    code, text = labs("list")
    assert "[x] 04 rloo" in text
    assert "[ ] 01 masked_mean" in text
    entry = Progress.load(home).entries["rloo"]
    assert (entry.attempts, entry.passed, entry.status) == (4, True, "passed")


def test_two_mistakes_at_once_are_both_named(home: Path) -> None:
    write(home, TWO_WRONG)
    code, text = labs("check", "rloo")
    assert code == 1
    assert text.count("What went wrong") == 2


def test_next_writes_shows_and_moves_on(home: Path) -> None:
    code, text = labs("next")
    assert code == 0
    assert text.startswith("# Masked mean")
    assert (home / "exercises" / "01_masked_mean.py").is_file()
    progress = Progress.load(home)
    for exercise in ladder():
        progress.of(exercise).passed = exercise.name != "gae"
    progress.save()
    assert labs("next", "--lang", "zh")[1].startswith("# 手算 GAE")
    progress.of(get("gae")).passed = True
    progress.save()
    assert "every exercise is passed" in labs("next")[1]


def test_a_student_file_is_never_overwritten(home: Path) -> None:
    path = write(home, "mine = 1\n")
    assert "left as it is" in labs("start", "rloo")[1]
    labs("next")
    assert path.read_text() == "mine = 1\n"
    labs("start", "rloo", "--force")
    assert path.read_text() == RLOO.stub_source()
    assert path.with_suffix(".bak1").read_text() == "mine = 1\n"
    start(Progress.load(home), RLOO, force=True)
    assert path.with_suffix(".bak2").exists()
    assert path.with_suffix(".bak1").read_text() == "mine = 1\n"


def test_hints_come_one_at_a_time_and_are_remembered(home: Path) -> None:
    hints = RLOO.hints("en")
    assert labs("hint", "rloo")[1].count("/3  ") == 1
    assert labs("hint", "rloo")[1].count("/3  ") == 2
    text = labs("hint", "rloo")[1]
    assert all(h in text for h in hints)
    labs("hint", "rloo")
    assert Progress.load(home).entries["rloo"].hints == 3
    assert labs("solution", "rloo", "--give-up")[0] == 0
    assert Progress.load(home).entries["rloo"].gave_up is True


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"exercises": 3}', '{"exercises": {"rloo": {"hints": "x"}}}', "\x00"]
)
def test_a_damaged_progress_file_is_kept_aside(home: Path, content: str) -> None:
    (home / FILE).parent.mkdir()
    (home / FILE).write_text(content, encoding="utf-8")
    code, text = labs("list")
    assert code == 0
    assert "was kept as" in text
    assert (home / FILE).with_name("progress.damaged-1.json").read_text(encoding="utf-8") == content
    (home / FILE).write_text("{", encoding="utf-8")
    labs("list")
    assert (home / FILE).with_name("progress.damaged-2.json").read_text(encoding="utf-8") == "{"


def test_wrong_input_is_one_sentence(home: Path) -> None:
    for arguments, words in (
        (("show", "rlo"), "did you mean rloo"),
        (("show", "99"), "the ladder goes from 1"),
        (("check", "rloo"), "does not exist; write it with"),
        (("report",), "holds no exercise yet"),
        (("grade", "nowhere"), "is no folder"),
        (("grade", "."), "holds no answer"),
    ):
        code, text = labs(*arguments)
        assert code == 2, arguments
        assert words in text
        assert text.count("\n") == 1
    write(home, "x")
    (home / "exercises" / "04_rloo.py").write_bytes(b"\xff\xfe\x00bad")
    assert labs("check", "rloo")[0] == 2
    (home / "exercises" / "04_rloo.py").write_text("#" * (classroom.MOST_BYTES + 1))
    assert "bytes; an answer is a short Python file" in labs("check", "rloo")[1]


def test_check_as_json_is_the_record(home: Path) -> None:
    write(home, WRONG)
    code, text = labs("check", "rloo", "--json")
    record = json.loads(text)
    assert code == 1
    assert record["mistakes"] == ["own_included"]
    assert record["checks_exist"] == record["checks_ran"] == len(record["checks"])
    assert record["checks_passed"] < record["checks_exist"]
    assert 0 < record["score"] < 1


def test_statements_show_the_cases_in_both_languages(home: Path) -> None:
    english, chinese = labs("show", "gae")[1], labs("show", "gae", "--lang", "zh")[1]
    for number in ("0.7365", "0.9365"):
        assert number in english
        assert number in chinese
    assert "工具回复" in chinese


def test_a_report_grades_the_files_again_whatever_the_progress_says(home: Path) -> None:
    """Editing the progress file gains nothing."""
    write(home, WRONG)
    progress = Progress(home, {"rloo": Entry(status="passed", passed=True, hints=1), "gae": Entry(passed=True)})
    progress.save()
    code, _ = labs("report", "--output", "report.json", "--gradescope", "results.json")
    assert code == 0
    result = json.loads((home / "report.json").read_text(encoding="utf-8"))
    (record,) = result["exercises"]
    assert record["status"] == "failed"
    assert record["hints"] == 1
    assert result["passed"] == 0
    assert result["of"] == len(ladder())
    scope = json.loads((home / "results.json").read_text(encoding="utf-8"))
    assert len(scope["tests"]) == len(ladder())
    assert {t["name"]: t["status"] for t in scope["tests"]}["04 rloo"] == "failed"
    assert all(set(t) >= {"score", "max_score", "name", "output", "status"} for t in scope["tests"])
    assert all(0 <= t["score"] <= t["max_score"] for t in scope["tests"])
    write(home, RLOO.solution_source())
    assert json.loads(labs("report")[1])["passed"] == 1


def klass(folder: Path) -> None:
    for student, source in (
        ("ada", RLOO.solution_source()),
        ("bob", WRONG),
        ("cem", WRONG),
        ("dot", "import os\nos._exit(3)\n"),
    ):
        (folder / student).mkdir(parents=True)
        (folder / student / RLOO.file_name).write_text(source, encoding="utf-8")
    (folder / "eve_04_rloo.py").write_text(TWO_WRONG, encoding="utf-8")
    (folder / "ada" / "notes.py").write_text("pass\n", encoding="utf-8")


@pytest.mark.slow
def test_a_class_is_graded_alike_by_one_process_and_by_two(home: Path) -> None:
    klass(home / "class")
    arguments = ("grade", "class", "--seed", "11", "--output")
    code, text = labs(*arguments, "one.json", "--jobs", "1", "--csv", "table.csv")
    assert code == 0
    assert labs(*arguments, "two.json", "--jobs", "2")[0] == 0
    assert (home / "one.json").read_bytes() == (home / "two.json").read_bytes()
    assert str(home) not in (home / "one.json").read_text(encoding="utf-8")
    result = json.loads((home / "one.json").read_text(encoding="utf-8"))
    assert list(result["students"]) == ["ada", "bob", "cem", "dot", "eve"]
    assert [s["passed"] for s in result["students"].values()] == [1, 0, 0, 0, 0]
    own: dict[str, Any] = result["exercises"]["rloo"]
    assert own["statuses"] == {"died": 1, "failed": 3, "passed": 1}
    assert own["mistakes"][0] == {"mistake": "own_included", "count": 2, "sentence": RLOO.mistakes[0].text.en}
    assert own["pass_rate"]["hand: 1"] == {"ran": 4, "rate": 0.25}
    assert result["stray_files"] == ["ada/notes.py"]
    assert "2x own_included" in text
    assert "not an exercise: ada/notes.py" in text
    rows = list(csv.DictReader((home / "table.csv").open(encoding="utf-8")))
    assert [r["student"] for r in rows] == list(result["students"])


def test_one_student_with_two_files_for_one_exercise_is_refused(home: Path) -> None:
    klass(home / "class")
    (home / "class" / "ada" / "old").mkdir()
    (home / "class" / "ada" / "old" / RLOO.file_name).write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="ada has two files for rloo"):
        classroom.find(home / "class")


def test_a_name_that_a_spreadsheet_would_run_is_quoted() -> None:
    record = {"status": "passed", "score": 1, "checks_passed": 1, "checks_ran": 1, "checks_exist": 1, "mistakes": []}
    text = classroom.table({"students": {"=cmd()": {"exercises": {"rloo": record}}}})
    assert text.splitlines()[1].startswith("'=cmd()")


def test_memorised_answers_fail_under_a_seed_the_student_does_not_know(home: Path) -> None:
    """The hidden cases of seed 0 can be read off the package; those of the teacher's seed cannot."""
    reference = InProcess.of_source(RLOO, RLOO.solution_source())
    table = {repr(x): call(reference, x) for x in checks.recorded(RLOO, 0)}
    source = (
        f"TABLE = {table!r}\n\ndef rloo(rewards, groups):\n"
        "    return TABLE.get(repr({'rewards': rewards, 'groups': groups}), [0.0] * len(rewards))\n"
    )
    known = checks.grade_source(RLOO, source, seed=0)
    assert known.count("hidden")[0] == known.count("hidden")[2]
    assert known.status == "failed", "properties are searched anew"
    secret = checks.grade_source(RLOO, source, seed=11)
    assert secret.count("hidden")[0] < secret.count("hidden")[2]


def test_listing_needs_neither_torch_nor_hypothesis(home: Path) -> None:
    code = (
        "import sys; from labs.commands.exercise import command; from labs.grading.spec import ladder; ladder();"
        "print([m for m in ('torch', 'numpy', 'hypothesis', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_missing_hypothesis_is_one_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, WRONG)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    code, text = labs("check", "rloo")
    assert (code, text) == (2, "error: checking an exercise needs hypothesis: python -m pip install hypothesis\n")
