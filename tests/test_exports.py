"""Exports, each read back with its own library; MLflow and trackio are in the nightly tests."""

import json

import pyarrow.parquet
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labs.errors import InputError
from labs.exporting import Series, load
from labs.exports.parquet import parquet
from labs.exports.tensorboard import tensorboard
from labs.registry import exports
from tests.command_line import run


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A run of one seed and a run of two, with the rows that went in."""
    results = tmp_path_factory.mktemp("results")
    base = ("--experiment", "agent", "--results", str(results), "--no-figures", "--quiet")
    folders = []
    for seeds in (("--seed", "3"), ("--seeds", "3-4", "--jobs", "1")):
        said = run(*base, *seeds, "--set", "updates=5", "evaluation_episodes=20")
        assert said.code == 0, said.err
        folders.append(said.out.strip())
    return folders


def rows(folder):
    with open(f"{folder}/metrics.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_names_are_verls_where_verl_has_the_number(stored):
    (series,) = load(stored[0])
    there = rows(stored[0])
    assert [step for step, _ in series.steps] == [1, 2, 3, 4, 5]
    for row, (_, values) in zip(there, series.steps, strict=True):
        assert values["critic/score/mean"] == row["train_success_rate"]
        assert values["lab/mean_state_entropy"] == row["mean_state_entropy"]
        assert "lab/train_success_rate" not in values
    assert "lab/headline/success_rate" in series.steps[-1][1]


def test_a_row_with_both_names_keeps_both(tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    which = {"experiment": "agent", "fingerprint": "f", "seed": 0, "config": {}, "headline": {}}
    (folder / "result.json").write_text(json.dumps(which))
    row = {"update": 2, "train_success_rate": 0.5, "critic/score/mean": 0.25, "text": "x", "nothing": None, "yes": True}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (series,) = load(str(folder))
    assert series.steps == [(2, {"lab/train_success_rate": 0.5, "critic/score/mean": 0.25})]


@pytest.mark.parametrize("which", [0, 1])
def test_parquet_comes_back(stored, tmp_path, which):
    series = load(stored[which])
    assert len(series) == 1 + which
    said = run("export", stored[which], "--to", "parquet", "--output", str(tmp_path / "x.parquet"), whole=True)
    assert said.code == 0, said.err
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    want = [(s.seed, *point) for s in series for point in s.points()]
    got = list(zip(*(table[name].to_pylist() for name in ("seed", "step", "name", "value")), strict=True))
    assert got == want
    assert json.loads(table.schema.metadata[b"config"])["updates"] == 5


@pytest.mark.parametrize("which", [0, 1])
def test_tensorboard_comes_back(stored, tmp_path, which):
    said = run("export", stored[which], "--to", "tensorboard", "--output", str(tmp_path / "tb"), whole=True)
    assert said.code == 0, said.err
    for series in load(stored[which]):
        events = EventAccumulator(str(tmp_path / "tb" / "agent" / series.name), size_guidance={"scalars": 0}).Reload()
        want = {}
        for step, name, value in series.points():
            want.setdefault(name, []).append((step, pytest.approx(value, rel=1e-6)))
        got = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        assert got == want


def test_the_same_run_gives_the_same_bytes(stored, tmp_path):
    series = load(stored[0])
    for name, write, file in (("a.parquet", parquet, ""), ("tb", tensorboard, None)):
        texts = []
        for at in ("one", "two"):
            (tmp_path / at).mkdir(exist_ok=True)
            write(series, str(tmp_path / at / name))
            path = tmp_path / at / name
            path = path if file == "" else next(path.rglob("events*"))
            texts.append(path.read_bytes())
        assert texts[0] == texts[1]


@pytest.mark.parametrize(("arguments", "words"), [
    (("{run}", "--to", "parque", "--output", "x"), "did you mean parquet"),
    (("{tmp}", "--to", "parquet", "--output", "{tmp}/x"), "is no folder of a complete run"),
    (("{run}", "--to", "parquet", "--output", "{tmp}"), "is a folder; give a file"),
    (("{run}", "--to", "tensorboard", "--output", "{run}/result.json"), "is a file"),
    (("{run}", "--to", "parquet", "--output", "{tmp}/no/x"), "there is no folder"),
])  # fmt: skip
def test_bad_input_is_one_sentence(stored, tmp_path, arguments, words):
    said = run("export", *(a.format(run=stored[0], tmp=tmp_path) for a in arguments), whole=True)
    assert said.code == 2
    assert words in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("name", sorted(exports))
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, name):
    import builtins

    real = builtins.__import__

    def refuse(wanted, *rest):
        if wanted.split(".")[0] in ("pyarrow", "tensorboard", "mlflow", "trackio") and (len(rest) < 4 or not rest[3]):
            raise ImportError(wanted)
        return real(wanted, *rest)

    write = exports[name]
    monkeypatch.setattr(builtins, "__import__", refuse)
    for module in ("pyarrow", "tensorboard", "mlflow", "trackio"):
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)
    series = Series(experiment="e", fingerprint="f", seed=0, config={}, steps=[(1, {"x": 1.0})])
    with pytest.raises(InputError, match=rf"not installed; pip install -e '\.\[{name}\]'"):
        write([series], "x")
