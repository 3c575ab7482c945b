"""Files and folders that nobody meant to write: every one ends in a sentence, and the good ones beside it are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from labs.errors import InputError
from labs.evidence import Step
from labs.gathering import step_number
from labs.reading import plain, read
from labs.sources import Source
from tests.dump_examples import jsonl, text, v1_rows


def steps(path: Path | str, **facts: Any) -> list[Step]:
    return list(read([str(path)], facts))


def faults(made: list[Step]) -> dict[int | None, str]:
    """Line to what is wrong with it."""
    return {finding.where.line: finding.what for step in made for finding in step.found}


def test_a_folder_with_pipes_and_links_that_lead_back(tmp_path: Path) -> None:
    jsonl(tmp_path / "12.jsonl", v1_rows())
    os.mkfifo(tmp_path / "13.jsonl")
    (tmp_path / "14.jsonl").symlink_to("14.jsonl")
    (tmp_path / "15.jsonl").symlink_to("nowhere")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "x\u00b2.md").write_text("")
    (tmp_path / "x\u00b2").write_text("")
    made = steps(tmp_path)
    assert sum(step.rows for step in made) == 12
    (note,) = made[-1].notes
    assert "passed over" in note
    assert "and 1 more" in note  # of four


@pytest.mark.parametrize("bad", ['{"step":Infinity,"loss":1}', '{"step":1e400,"input":"a","output":"b","score":1}'])
def test_a_first_row_with_an_impossible_step_costs_no_other_file(tmp_path: Path, bad: str) -> None:
    jsonl(tmp_path / "12.jsonl", v1_rows())
    text(bad)(tmp_path / "13.jsonl")
    made = steps(tmp_path)
    assert made[0].rows == 12
    assert "no whole number" in " ".join(faults(made).values())


@pytest.mark.parametrize(
    ("name", "content", "line", "there"),
    [
        ("m.jsonl", '{"step":1,"a":1}\n{"step":Infinity,"a":2}\n{"step":3,"a":3}\n', 2, [1, 3]),
        ("v.jsonl", '{"step":1,"data":{"a":1}}\n{"step":-1e999,"data":{}}\n{"step":3,"data":{"a":3}}\n', 2, [1, 3]),
        ("m.csv", "step,a\n1,1\ninf,2\n1e400,2\n3,3\n", 3, [1, 3]),
        ("t.json", '{"log_history":[{"step":1,"a":1},{"step":Infinity,"a":2},{"step":3,"a":3}]}', 2, [1, 3]),
    ],
)
def test_one_impossible_step_costs_one_line(
    tmp_path: Path, name: str, content: str, line: int, there: list[int]
) -> None:
    made = steps(text(content)(tmp_path / name))
    assert [step.step for step in made if step.scalars] == there
    assert "no whole number" in faults(made)[line]


def test_steps_that_files_state() -> None:
    stated = [True, "a", "\u00b2", "\u0663", "9" * 5000, [1], float("nan"), float("-inf"), 10**30]
    assert {step_number(value) for value in stated} == {None}
    assert [step_number(value) for value in (-3, 1.5, " 2 ")] == [-3, 1, 2]


def test_ids_with_digits_that_are_no_numbers(tmp_path: Path) -> None:
    ids = ["a_\u00b2_\u00b2", f"a_{'1' * 5000}_1", "a_1_2"]
    (step,) = steps(jsonl(tmp_path / "12.jsonl", [{**v1_rows()[0], "uid": uid} for uid in ids]))
    assert list(step.columns["uid"]) == [*ids[:2], "a"]


@pytest.mark.parametrize(
    "line", ["step:7 - a:1.2.3 - b:4", "step:7 - a:. - b:4", "step:7 - a:- - b:4 - c:1.1.1.1", "{'b': 4, 'step': 7}"]
)
def test_versions_and_addresses_in_a_log_are_no_numbers(tmp_path: Path, line: str) -> None:
    content = f"{line}\n{{'a': 1, [1]: 2}}\nstep:{'9' * 5000} - a:1\n"
    (step,) = steps(text(content)(tmp_path / "log.txt"))
    assert (step.step, step.scalars) == (7, {"b": 4.0})


def test_one_file_that_may_not_be_opened_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when rights are missing, or a folder stands where a file was."""
    jsonl(tmp_path / "1.jsonl", v1_rows(1))
    jsonl(tmp_path / "2.jsonl", v1_rows(2))

    def refused(path: str, *more: Any) -> Source:
        if path.endswith("1.jsonl"):
            raise PermissionError(13, "Permission denied", path)
        return Source(path, *more)

    monkeypatch.setattr("labs.reading.Source", refused)
    made = steps(tmp_path)
    assert [step.step for step in made if step.rows] == [2]
    assert "permission denied" in faults(made)[None]


@pytest.mark.parametrize(("encoding", "mark"), [("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")])
@pytest.mark.parametrize("array", [False, True])
def test_long_rows_in_utf_16(tmp_path: Path, encoding: str, mark: bytes, array: bool) -> None:
    rows = [{**row, "output": "\u010a\u0a0a" * (5 if array else 100_000)} for row in v1_rows(prompts=1)]
    content = json.dumps(rows, ensure_ascii=False) if array else "\n".join(
        json.dumps(row, ensure_ascii=False) for row in rows
    )  # fmt: skip
    (tmp_path / "12.jsonl").write_bytes(mark + content.encode(encoding))
    (step,) = steps(tmp_path / "12.jsonl")
    assert step.rows == 4


def test_rows_of_an_array_that_are_no_objects(tmp_path: Path) -> None:
    made = steps(text(json.dumps([v1_rows()[0], 7, v1_rows()[1]]))(tmp_path / "12.json"))
    assert made[0].rows == 2
    assert "no object" in faults(made)[2]


def test_errors_that_no_reader_foresaw_are_said_without_python() -> None:
    errors = (MemoryError("x"), RecursionError("x"), OSError(13, "X"), UnicodeError("x"), ValueError("x"), OSError("y"))
    said = [plain(error) for error in errors]
    assert len(set(said)) == len(said)
    assert not any("Error" in sentence for sentence in said)


def test_nothing_is_not_read_silently(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds nothing"):
        steps(text('{"step":1,"data":{"a":"text"}}\n')(tmp_path / "m.jsonl"))
