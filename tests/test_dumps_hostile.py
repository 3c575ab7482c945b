"""Files and folders that nobody meant to write: every one ends in a sentence, and the good ones beside it are read."""

from __future__ import annotations

import ast
import io
import json
import os
import pickle
import shlex
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labs.errors import InputError
from labs.evidence import Step
from labs.gathering import step_number
from labs.reading import plain, read
from labs.shown_rows import Showcase
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


def arrays(path: Path, **more: Any) -> Path:
    np.savez(path, **more)
    return path


@pytest.mark.parametrize(
    ("value", "word"),
    [(["a", "b"], "text"), ([1j, 2j], "complex"), (np.array(["2026-01-01"] * 2, "M8[D]"), "dates"),
     (np.zeros(2, [("x", "f4")]), "records")],
)  # fmt: skip
def test_columns_that_no_check_can_use_are_reported(tmp_path: Path, value: Any, word: str) -> None:
    path = arrays(tmp_path / "b.npz", advantages=np.array(value), score=np.zeros(2), uid=np.array(["a", "a"]))
    (step,) = steps(path)
    assert set(step.columns) == {"score", "uid"}
    assert word in step.found[0].what
    assert "advantage" in step.found[0].what
    for kind in ("worst", "odd", "same"):
        showcase = Showcase(kind, 1)
        showcase.look(step)
        assert "score" in showcase.rows()[0].text()


def test_rows_with_values_that_json_has_not_are_shown() -> None:
    odd = np.array([{"a": (b"x", np.float32(1.5))}, Decimal("1.5")], dtype=object)
    showcase = Showcase("worst", 2)
    showcase.look(Step(source="x", format="none", rows=2, columns={"score": np.zeros(2), "extra/a": odd}))
    shown = [row.document()["fields"]["extra/a"] for row in showcase.rows()]
    assert json.loads(json.dumps(shown)) == [{"a": ["b'x'", "1.5"]}, "1.5"]


def test_columns_of_a_wrong_shape_are_noted(tmp_path: Path) -> None:
    (step,) = steps(arrays(tmp_path / "b.npz", response_mask=np.ones(2), score=np.zeros((2, 3)), length=np.ones(2)))
    assert set(step.columns) == {"length"}
    assert {note.split(" of ")[0] for note in step.notes} >= {"column score", "column response_mask"}


def zipped(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", data)
    return path


def huge() -> bytes:
    """The header of an array of 745 GB, without the array."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "<f8", "fortran_order": False, "shape": (10**11,)})
    return made.getvalue()


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: zipped(path, b"garbage"), "a is no array"),
        (lambda path: zipped(path, huge()), "an array states more data than it has"),
        (lambda path: arrays(path, uid=np.array(["a", None], dtype=object)), "save it with .astype"),
        (lambda path: arrays(path, advantages=np.zeros((2, 3, 2))), "left out"),
        (lambda path: torch.save({}, path), "holds nothing"),
        (lambda path: torch.save({"samples": []}, path), "holds nothing"),
        (lambda path: torch.save({"samples": [1, 2]}, path), "no dictionary"),
        (lambda path: torch.save({"advantages": torch.empty(2, 3, device="meta")}, path), "no dense tensors"),
        (lambda path: torch.save({"advantages": torch.eye(3).to_sparse()}, path), "no dense tensors"),
    ],
)  # fmt: skip
def test_where_nothing_could_be_read_nothing_is_said_to_be_right(tmp_path: Path, write: Any, sentence: str) -> None:
    write(tmp_path / "x.npz")
    with pytest.raises(InputError, match=sentence) as caught:
        steps(tmp_path / "x.npz")
    assert "Error" not in str(caught.value)


def test_samples_with_odd_values_keep_the_others(tmp_path: Path) -> None:
    good = {"tokens": [1, 2, 3], "response_length": 2, "reward": 1.0, "group_index": 0, "response": "x"}
    odd = [{**good, "response_length": "z"}, 5, {**good, "loss_mask": 7}, {**good, "response_length": float("inf")}]
    odd[2]["remove_sample"] = odd[2]["truncated"] = torch.zeros(2)
    torch.save({"rollout_id": float("nan"), "samples": [good, *odd]}, tmp_path / "rollout_3.pt")
    made = steps(tmp_path / "rollout_3.pt")
    assert (made[0].step, made[0].rows) == (3, 4)
    assert made[0].columns["response_mask"].sum(1).tolist() == [2, 0, 2, 0]
    assert {2, 3, 4} == set(faults(made))


def test_a_quotation_mark_that_is_not_closed(tmp_path: Path) -> None:
    made = steps(text('step,a\n1,"2\n3,4\n4,"5"\n')(tmp_path / "m.csv"))
    assert [(step.step, step.scalars) for step in made if step.scalars] == [(3, {"a": 4.0}), (4, {"a": 5.0})]
    assert "quotation mark" in faults(made)[2]
    made = steps(text('Step,r - a,s - a\n1,1,1\n2,"2,2\n3,3,3\n')(tmp_path / "runs.csv"))
    assert [step.step for step in made if step.scalars] == [1, 3, 1, 3]
    assert [finding.share for finding in made[-1].found] == ["1 of 4 lines"]


@pytest.mark.parametrize("name", ["a.pkl", "quo'te.pkl", 'dou"ble.pkl', "new\nline.pkl", "{0}.pkl", "$x `id` \\n.pkl"])
def test_the_converter_can_be_pasted_whatever_the_file_is_called(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps([1]))
    with pytest.raises(InputError) as caught:
        steps(tmp_path / name)
    command = str(caught.value).split("run ", 1)[1].rsplit(" and diagnose", 1)[0]
    python, flag, program = shlex.split(command)
    assert (python, flag) == ("python", "-c")
    assert "\n" not in program
    named = [node.value for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Constant)]
    assert {name, f"{name}.npz"} <= set(named)
