"""Every format is known by its content, read into verl's names, and refused in one sentence when it is broken."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labs.errors import InputError
from labs.evidence import Step
from labs.reading import expand, read, reader_of
from labs.registry import dumps
from labs.sources import Source
from tests.dump_examples import CSV, EXAMPLES, METRICS, VERL_LINE, jsonl, legacy_rows, npz, text, v1_rows


def steps(path: Path | str, **facts: Any) -> list[Step]:
    return list(read([str(path)], facts))


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_format_is_recognised_by_content_and_by_one_reader_only(tmp_path: Path, name: str) -> None:
    file, write = EXAMPLES[name]
    path = write(tmp_path / file)
    source = Source(str(path))
    assert [each for each in dumps if dumps[each].recognise(source)] == [name]
    made = steps(path)
    assert {step.format for step in made} == {name}
    assert any(step.rows or step.scalars for step in made)
    assert not [finding for step in made for finding in step.found]


def test_every_reader_has_an_example_or_refuses(tmp_path: Path) -> None:
    assert set(dumps) == set(EXAMPLES) | {"pickled"}
    for name in dumps:
        assert dumps[name].__doc__
        assert isinstance(dumps[name].LOG, dict)


def test_verl_v1_ids_split_from_the_right(tmp_path: Path) -> None:
    rows = [*v1_rows(), {**v1_rows()[0], "uid": "pad_0_0"}]
    (step,) = steps(jsonl(tmp_path / "x.jsonl", rows))
    assert step.step == 12
    assert step.rows == 12
    assert list(step.columns["uid"][:5]) == ["id_0"] * 4 + ["id_1"]
    assert step.columns["session"][:4].tolist() == [0, 1, 2, 3]
    assert step.columns["index"].max() == 0
    assert step.columns["score"][:4].tolist() == [1, 0, 1, 0]
    assert "padding" in step.notes[0]


def test_legacy_rows_keep_the_reward_parts_and_have_no_group(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "12.jsonl", legacy_rows())
    (step,) = steps(path)
    assert step.columns["parts/acc"].tolist() == [1, 0, 1, 0] * 2
    assert step.columns["parts/overlong"].sum() == 2
    assert step.columns["extra/pred"][0] == "42"
    assert "uid" not in step.columns
    assert "groups unknown" in step.notes[0]
    assert "2 of 4" in step.notes[0]
    assert "--n 4 fits" in step.notes[0]
    (stated,) = steps(path, n=4)
    assert list(stated.columns["uid"]) == ["block0"] * 4 + ["block1"] * 4
    assert stated.facts["n"] == 4


def test_stated_groups_follow_the_text_when_rows_are_shuffled(tmp_path: Path) -> None:
    rows = legacy_rows()
    (step,) = steps(jsonl(tmp_path / "12.jsonl", [rows[i] for i in (0, 4, 1, 5, 2, 6, 3, 7)]), n=4)
    assert list(step.columns["uid"]) == ["prompt0", "prompt1"] * 4
    assert "prompt text" in step.notes[0]
    twice = [{**row, "input": "the same"} for row in rows]
    (step,) = steps(jsonl(tmp_path / "13.jsonl", twice), n=4)
    assert sorted(set(step.columns["uid"])) == ["block0", "block1"]


def test_oldest_generation_and_the_number_in_the_name(tmp_path: Path) -> None:
    rows = [{"input": "q", "output": "a", "score": 1.0}, {"input": "q", "output": "", "score": 0.0}]
    (step,) = steps(jsonl(tmp_path / "7.jsonl", rows))
    assert step.step == 7
    assert step.columns["characters"].tolist() == [1, 0]


def test_validation_rows_are_no_training_data(tmp_path: Path) -> None:
    rows = [{**row, "reward": row["score"]} for row in v1_rows(step=0)]
    (step,) = steps(jsonl(tmp_path / "0.jsonl", rows))
    assert step.facts["validation"]
    assert "parts/reward" not in step.columns
    folder = tmp_path / "val_dumps"
    folder.mkdir()
    (step,) = steps(jsonl(folder / "5.jsonl", v1_rows(step=5)))
    assert step.facts["validation"]
    (step,) = steps(folder / "5.jsonl", validation=False)
    assert not step.facts["validation"]


def test_a_folder_of_steps_in_the_order_of_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 100):
        jsonl(tmp_path / f"{number}.jsonl", v1_rows(step=number))
    (tmp_path / "figure.png").write_bytes(b"x")
    (tmp_path / "notes.log").write_text("nothing of use\n")
    *made, words = steps(tmp_path)
    assert [step.step for step in made] == [9, 10, 100]
    assert "notes.log" in words.notes[0]
    assert [name for _, name in expand([str(tmp_path)])] == [False] * 4


def test_broken_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    good = [json.dumps(row) for row in v1_rows()]
    lines = [good[0], good[1][:40], "[1, 2]", good[2] + good[3], good[4] + good[5][:30], *good[6:]]
    path = tmp_path / "12.jsonl"
    path.write_bytes("\n".join(lines).encode() + b"\n\n" + good[0].replace("sum", "s\u00fcm").encode("latin-1"))
    made = steps(path)
    found = {finding.where.line: finding.what for step in made for finding in step.found}
    assert sum(step.rows for step in made) == 11
    assert "skipped" in found[2]
    assert "and 1 more" in found[2]
    assert "no object" in found[3]
    assert "several" in found[4]
    assert "UTF-8" in found[13]
    assert made[-1].rows == 0


def test_one_array_of_rows(tmp_path: Path) -> None:
    (step,) = steps(text(json.dumps(v1_rows(prompts=900), indent=1))(tmp_path / "x.json"))
    assert step.rows == 3600


def test_rows_of_half_a_megabyte(tmp_path: Path) -> None:
    rows = [{**row, "output": row["output"] * 40_000} for row in v1_rows(prompts=1)]
    (step,) = steps(jsonl(tmp_path / "x.jsonl", rows))
    assert step.rows == 4
    assert step.columns["characters"].min() > 500_000


def test_missing_columns_numbers_that_are_none_and_null(tmp_path: Path) -> None:
    rows = v1_rows()
    del rows[2]["output"]
    rows[3]["score"] = "0.5"
    rows[4]["score"] = {"x": 1}
    rows[5]["score"] = float("nan")
    made = steps(jsonl(tmp_path / "x.jsonl", rows))
    score = made[0].columns["score"]
    assert score[3] == 0.5
    assert np.isnan(score[4:6]).all()
    assert {f.where.line: f.what for f in made[-1].found} == {
        3: "line 3 has no output, which other lines have",
        4: "line 4 holds score that is no number; it counts as NaN, and 1 more",
    }


def test_scattered_steps_are_joined_and_large_ones_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for pair in zip(v1_rows(1), v1_rows(2), strict=True) for row in pair]
    assert [(s.step, s.rows) for s in steps(jsonl(tmp_path / "x.jsonl", rows))] == [(1, 12), (2, 12)]
    monkeypatch.setattr("labs.gathering.BUDGET", 4000)
    parts = steps(jsonl(tmp_path / "y.jsonl", v1_rows(1, prompts=20)))
    assert len(parts) > 1
    assert sum(step.rows for step in parts) == 80
    assert all(step.rows % 4 == 0 for step in parts)  # never inside a group
    assert "in parts" in parts[0].notes[0]
    late = [*v1_rows(1, prompts=9), *v1_rows(2, prompts=9), *v1_rows(3), *v1_rows(1, prompts=1)]
    made = steps(jsonl(tmp_path / "z.jsonl", late))
    assert "had ended before" in made[-1].found[0].what


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be-bom", "gzip"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in v1_rows()).replace("sum", "süm 中")
    data = content.encode("utf-8")
    if encoding == "gzip":
        data = gzip.compress(data)
    elif encoding == "utf-16-be-bom":
        data = b"\xfe\xff" + content.encode("utf-16-be")
    else:
        data = content.encode(encoding)
    path = tmp_path / "12.jsonl"
    path.write_bytes(data)
    (step,) = steps(path)
    assert step.rows == 12
    assert "süm 中" in step.columns["output"][0]


def test_a_cut_gzip_gives_what_could_be_read(tmp_path: Path) -> None:
    path = tmp_path / "12.jsonl.gz"
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in v1_rows(prompts=8000)).encode())
    path.write_bytes(data[: len(data) * 3 // 4])
    made = steps(path)
    assert made[0].rows > 1000
    assert "damaged" in " ".join(f.what for f in made[-1].found)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"", "is empty"), (b"\n \n", "is empty"), (b"\x00\x01garbage", "no format"), (b"hello\n", "no format"),
     (b'{"input": "x", "out', "no format"), (b"PK\x03\x04 numpy.npy", "no whole .npz"),
     (b"PK\x03\x04archive/data.pkl", "no whole file of torch.save"), (b"PAR1xxxx", "no whole Parquet"),
     (b'\x40\0\0\0\0\0\0\0{"a": {"data_offsets"', "no whole safetensors"), (b'{"log_history": [', "no whole JSON"),
     (b"[[1, 2]]", "no format"), (b"\x93NUMPY", "no format")],
)  # fmt: skip
def test_unreadable_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence) as caught:
        steps(path)
    assert "\n" not in str(caught.value)


def test_one_bad_file_among_others_is_a_finding(tmp_path: Path) -> None:
    jsonl(tmp_path / "1.jsonl", v1_rows(1))
    (tmp_path / "2.jsonl").write_text("")
    made = steps(tmp_path)
    assert made[0].rows == 12
    assert "is empty" in made[-1].found[0].what
    with pytest.raises(InputError, match="no file or folder"):
        steps(tmp_path / "nowhere")


def test_pasted_lines(tmp_path: Path) -> None:
    hugging_face = ["{'loss': 0.01, 'kl': nan, 'step': 9}", "{'loss': 0.02}", "{'a': __import__('os')}"]
    made = steps(text("\n".join(["Traceback...", VERL_LINE, *hugging_face]))(tmp_path / "x.txt"))
    assert [step.step for step in made] == [7, 9, 10]
    assert made[0].scalars == {"critic/score/mean": 0.3, "actor/pg_loss": -1e-05, "a/b": 2.0}
    assert np.isnan(made[1].scalars["kl"])


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, form in ((VERL_LINE.encode(), "console"), (npz(tmp_path / "x.npz").read_bytes(), "npz")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        (step,) = steps("-")
        assert (step.format, step.source) == (form, "standard input")


def test_metrics(tmp_path: Path) -> None:
    rows = [{"step": 7, "data": {"a": 1.5, "b": "NaN", "c": "text"}}, {"step": 8}, {"step": 9, "data": {"a": True}}]
    made = steps(jsonl(tmp_path / "log.jsonl", rows))
    assert [step.step for step in made if step.scalars] == [7, 9]
    assert made[0].scalars["a"] == 1.5
    assert np.isnan(made[0].scalars["b"])
    assert "has no data" in made[-1].found[0].what
    history, evaluation = steps(EXAMPLES["trainer_state"][1](tmp_path / "s.json"))
    assert history.scalars == {"loss": 0.0, "kl": 0.1}
    assert evaluation.facts["validation"]


def test_steps_say_which_run_they_belong_to(tmp_path: Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        for number in (1, 2):
            jsonl(tmp_path / run / f"{number}.jsonl", v1_rows(number))
        jsonl(tmp_path / f"{run}.log", METRICS)
    files = [str(tmp_path / "a" / "1.jsonl"), str(tmp_path / "a" / "2.jsonl"), str(tmp_path / "b")]
    logs = [str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    origins = [step.facts["origin"] for step in read([*files, *logs])]
    assert origins == [str(tmp_path / "a")] * 2 + [str(tmp_path / "b")] * 2 + [logs[0]] * 2 + [logs[1]] * 2


def test_csv_runs_do_not_mix(tmp_path: Path) -> None:
    made = steps(text(CSV + "x,1,1,1,1\n2,bad,,,0.5\n")(tmp_path / "x.csv"))
    runs = [(step.facts["run"], step.step, step.scalars) for step in made if step.scalars]
    assert runs == [("a", 0, {"loss": 0.5}), ("b", 0, {"loss": 0.7}), ("b", 1, {"loss": 0.6}), ("b", 2, {"loss": 0.5})]
    assert {finding.where.line for finding in made[-1].found} == {4, 5}


def test_the_labs_own_run(tmp_path: Path) -> None:
    first, second, held_out = steps(EXAMPLES["lab_run"][1](tmp_path / "run"))
    assert (first.step, second.step) == (1, 2)
    assert first.facts["n"] == 16
    assert second.scalars["critic/score/mean"] == 0.2
    assert held_out.facts["validation"]
    assert list(held_out.columns["finish_reason"]) == ["length"]


def test_areals_shifted_prompts_and_nemos_masks(tmp_path: Path) -> None:
    (step,) = steps(EXAMPLES["areal"][1](tmp_path / "a"))
    assert list(step.columns["uid"]) == ["311"] * 4
    assert "1 rows have another prompt_len" in step.notes[0]
    (step,) = steps(EXAMPLES["nemo_rl"][1](tmp_path / "train_data_step7.jsonl"), n=2)
    assert step.step == 7
    assert step.columns["response_mask"].tolist() == [[0, 1, 1]] * 3 + [[0, 0, 0]]
    assert list(step.columns["uid"]) == ["block0", "block0", "block1", "block1"]
    (step,) = steps(EXAMPLES["prime_rl"][1](tmp_path / "r"))
    assert np.isnan(step.columns["rollout_log_probs"][0, 2])


def test_an_unknown_file_says_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="verl_rollout"):
        reader_of(Source(str(text("x = 1\n")(tmp_path / "x.py"))))
