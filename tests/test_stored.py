"""Stored runs that somebody damaged, places and streams that are not there: one sentence, exit code 2, no traceback."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from labs.errors import InputError
from labs.stored import document, fits, results
from tests.command_line import QUICK, environment, files, run

LONG = "9" * 5000
READERS = [("report", "{run}"), ("report", "{run}", "--no-replay"), ("replay", "{run}"),
           ("replay", "{run}", "--held-out"), ("explain", "{run}"), ("compare", "{run}", "{run}"), ("show", "{run}"),
           ("export", "{run}", "--to", "parquet", "--output", "{tmp}/x.parquet")]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders of a run of one seed, of two seeds and of a pipeline."""
    folder = tmp_path_factory.mktemp("made")
    pipeline = ("--experiment", "rollout", "--set", "tasks=16")
    found = []
    for command in ((*QUICK,), (*QUICK, "--seeds", "0-1", "--jobs", "1"), pipeline):
        said = run(*command, "--no-figures", "--quiet", "--results", str(folder))
        assert said.code == 0, said.err
        found.append(said.out.strip())
    return found


@pytest.fixture
def stored(made, tmp_path):
    """Copies of them, to be damaged, in a folder of their own."""
    for path in made:
        relative = os.path.join("results", *path.split(os.sep)[-2:])
        shutil.copytree(path, tmp_path / relative)
    return [tmp_path / "results" / os.path.join(*path.split(os.sep)[-2:]) for path in made]


def refused(said, *words):
    assert said.code == 2, said
    *_, last = said.err.splitlines()
    assert last.startswith("error: "), said.err
    assert said.err.count("error: ") == 1
    assert "Traceback" not in said.err
    assert len(last) < 700
    for word in words:
        assert word in last


def read(folder, tmp_path, *words, readers=READERS):
    for reader in readers:
        refused(run(*(part.format(run=folder, tmp=tmp_path) for part in reader), whole=True), *words)


DAMAGE = [
    ("{}", "it has no experiment"), ("[1]", "it is a list"), ("null", "it is null"), ("", "no JSON"), ("{", "no JSON"),
    ("[" * 200_000, "nested too deep"), ('{"seed": ' + LONG + "}", "no JSON"), ("\xff", "no JSON"),
]  # fmt: skip

ODD = [
    ("experiment", []), ("experiment", {}), ("experiment", 1), ("experiment", "../x"), ("config", []), ("config", None),
    ("fingerprint", None), ("fingerprint", "../x"), ("headline", None), ("headline", []),
    ("headline", {"success_rate": None}), ("headline", {"success_rate": "x"}), ("headline", {"success_rate": True}),
    ("headline", {"success_rate": float("inf")}), ("headline", {"success_rate": 10**400}), ("seed", "x"), ("seed", -1),
    ("seed", 10**30), ("seed", 1.5), ("seed", None), ("summary", 5), ("summary", [5]), ("conclusion", {}), ("next", 5),
]  # fmt: skip


@pytest.mark.parametrize(("text", "word"), DAMAGE, ids=range(len(DAMAGE)))
def test_a_result_that_is_none(stored, tmp_path, text, word):
    (stored[0] / "result.json").write_bytes(text.encode("latin-1"))
    read(stored[0], tmp_path, "result.json is damaged", word, "--fresh")


@pytest.mark.parametrize(("key", "value"), ODD)
def test_a_result_of_other_types(stored, tmp_path, key, value):
    path = stored[0] / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(InputError, match=r"result\.json is damaged: .*--fresh"):
        document(str(stored[0]))
    read(stored[0], tmp_path, "result.json is damaged", readers=READERS[4:6])


def test_a_result_of_an_unknown_experiment_or_without_its_settings(stored, tmp_path):
    path = stored[0] / "result.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "experiment": "agnet"}))
    read(stored[0], tmp_path, "did you mean agent", readers=READERS[:5])
    path.write_text(json.dumps({**whole, "config": {"updates": "x"}}))
    read(stored[0], tmp_path, "", readers=READERS[:3])


@pytest.mark.parametrize(("old", "new"), [
    (None, "{}"), (None, '{"experiment": "pipeline"}'), (None, "[" * 200_000), (None, "\0"),
    ('"headline": {', '"headline": null, "other": {'), ('"seed": 7', '"seed": 8'), ('"agent"', '"train"'),
])  # fmt: skip
def test_a_damaged_result_is_computed_again(stored, tmp_path, monkeypatch, old, new):
    monkeypatch.chdir(tmp_path)
    before = files(stored[0])
    path = stored[0] / "result.json"
    text = path.read_text()
    path.write_text(new if old is None else text.replace(old, new))
    assert path.read_text() != text
    said = run(*QUICK, "--no-figures")
    assert said.code == 0, said.err
    assert "stored by an earlier run" not in said.out
    assert "success" in said.out
    assert files(stored[0]) == before


BAD_ROWS = {"missing": None, "torn": '{"update": 1}\n{"upd', "list": "[1]\n2\n", "deep": "[" * 200_000 + "\n",
            "long": LONG + "\n", "other": "\xff\n"}  # fmt: skip


@pytest.mark.parametrize("which", BAD_ROWS)
def test_rows_that_are_none(stored, tmp_path, monkeypatch, which):
    monkeypatch.chdir(tmp_path)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        path, text = stored[0] / name, BAD_ROWS[which]
        before = path.read_bytes()
        if text is not None:
            path.write_bytes(text.encode("latin-1"))
        elif name == "metrics.jsonl":
            path.unlink()
        else:
            continue
        read(stored[0], tmp_path, name, "--fresh", readers=[READERS[i] for i in (0, 2, 3, 7)])
        refused(run(*QUICK), name, "--fresh")
        path.write_bytes(before)
    (stored[0] / "metrics.jsonl").write_bytes(b"\xff\n")
    assert run(*QUICK, "--fresh", "--no-figures").code == 0


@pytest.mark.parametrize("text", ["", '{"x": 1}\n', '{"update": "x", "train_success_rate": "y"}\n'])
def test_rows_that_do_not_fit_their_experiment(stored, tmp_path, text):
    (stored[0] / "metrics.jsonl").write_text(text)
    read(stored[0], tmp_path, "is damaged, or of another version", readers=READERS[1:2])


@pytest.mark.parametrize(
    "text", ['{"steps": [1, 2]}\n', '{"steps": 5}\n', '{"steps": [{}]}\n', '{"steps": [{"observation": 1}]}\n']
)
def test_trajectories_that_do_not_fit(stored, tmp_path, text):
    (stored[0] / "trajectories.jsonl").write_text(text)
    read(stored[0], tmp_path, "is damaged, or of another version", readers=[READERS[1], READERS[3]])


ROW = {"seed": 0, "headline": {}, "data": {}, "metrics": []}


@pytest.mark.parametrize("row", [
    "[1]", "\xff", "{}", '"x"', *(json.dumps({**ROW, **odd}) for odd in (
        {"seed": "x"}, {"seed": [1]}, {"headline": None}, {"headline": {"success_rate": None}}, {"data": 1},
        {"metrics": [1]},
    )),
])  # fmt: skip
def test_odd_rows_of_seeds(stored, tmp_path, monkeypatch, row):
    monkeypatch.chdir(tmp_path)
    path = stored[1] / "seeds.jsonl"
    path.write_bytes(row.encode("latin-1") + b"\n" + path.read_bytes())
    read(stored[1], tmp_path, "seeds.jsonl", "--fresh", readers=[READERS[0], READERS[7]])
    command = (*QUICK, "--seeds", "0-1", "--jobs", "1", "--no-figures")
    refused(run(*command), "seeds.jsonl", "--fresh")
    assert (stored[1] / "result.json").exists()
    assert run(*command, "--fresh").code == 0


def test_seeds_that_disagree(stored):
    path = stored[1] / "seeds.jsonl"
    first = path.read_bytes().split(b"\n")[0] + b"\n"
    for text, word in ((first, "other seeds"), (first * 2, "twice"), (b"", "no row")):
        path.write_bytes(text)
        with pytest.raises(InputError, match=word):
            results(str(stored[1]))


def test_numbers_that_are_not_finite_are_not_exported(stored, tmp_path):
    rows = '{"update": 1, "a": NaN, "b": -Infinity, "c": 2, "d": DIGITS}\n{"update": DIGITS, "c": 3}\n'
    (stored[0] / "metrics.jsonl").write_text(rows.replace("DIGITS", "9" * 400))
    from labs.exporting import load

    (series,) = load(str(stored[0]))
    assert [(step, values.get("lab/c")) for step, values in series.steps] == [(1, 3.0)]
    assert "lab/d" not in series.steps[0][1]


def test_folders_in_the_way_of_files(stored, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (stored[0] / "result.json").unlink()
    (stored[0] / "result.json").mkdir()
    for more in ((), ("--fresh",)):
        refused(run(*QUICK, "--no-figures", *more), "result.json is a folder", "move it")
    read(stored[0], tmp_path, "result.json cannot be read: Is a directory", readers=READERS[4:6])


@pytest.mark.parametrize(("arguments", "words"), [
    (("replay", "{lanes}", "--to", "nan"), "--to is nan"),
    (("replay", "{lanes}", "--to", "inf"), "--to is inf"),
    (("replay", "{lanes}", "--from", "nan"), "--from is nan"),
    (("replay", "{lanes}", "--from", "inf"), "--from is inf"),
    (("replay", "{lanes}", "--from", "1e300"), "ends after"),
    (("replay", "{run}", "--schedule", "x"), "which has none"),
    (("replay", "{run}", "--to", "3"), "which has none"),
    (("replay", "{run}", "--update", "1", "--held-out"), "exclude each other"),
    (("explain", "{run}", "--at", ""), "row,position"),
    (("explain", "{run}", "--at", f"{LONG},0"), "(5000 digits)"),
    (("explain", "{many}"), "has 2 seeds"),
    (("replay", "{many}"), "has 2 seeds"),
    (("export", "{run}", "--to", "tensorboard", "--output", ""), "--output is empty; give a folder"),
    (("export", "{run}", "--to", "tensorboard", "--output", "/dev/null/x"), "/dev/null is a file"),
    (("export", "{run}", "--to", "parquet", "--output", "http://x/y"), "there is no folder"),
    (("export", "{run}", "--to", "parquet", "--output", ""), "--output is empty; give a file"),
    (("run", *QUICK, "--results", "/proc/x"), "/proc/x cannot be made"),
    (("run", *QUICK, "--report", ""), "--report is empty; give a file"),
])  # fmt: skip
def test_arguments(made, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    names = {"run": made[0], "many": made[1], "lanes": made[2]}
    refused(run(*(each.format(**names) for each in arguments), whole=True), words)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["[]", "5", "{}", "[" * 200_000, ""])
def test_a_stamp_that_is_none_is_code_not_known(stored, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (stored[0] / "stamp.json").write_text(text)
    said = run(*QUICK, "--no-figures")
    assert said.code == 0, said.err
    assert "made by other code" in said.err
    assert run("report", str(stored[0]), "--no-replay", whole=True).code == 0


def test_errors_of_a_run_just_made_stay_bugs():
    with pytest.raises(KeyError), fits(None):
        raise KeyError("x")
    with pytest.raises(InputError, match=r"r is damaged.*KeyError at test_stored.py:\d+: 'x'.*--fresh"), fits("r"):
        raise KeyError("x")


def shell(command, cwd):
    line = f"{sys.executable} -m {command}"
    return subprocess.run(["sh", "-c", line], cwd=cwd, env=environment(), capture_output=True, text=True)


CLOSED = "error: standard output is closed; send it to a file, or to /dev/null\n"


@pytest.mark.parametrize(("command", "code", "err"), [
    ("labs --version >&-", 2, CLOSED),
    ("labs.run --experiment agent >&-", 2, CLOSED),
    ("labs --version >&- 2>&-", 2, ""),
    ("labs --version >&- 2>&- <&-", 2, ""),
    ("labs --version 2>&-", 0, ""),
    ("labs --nope 2>&-", 2, ""),
    ("labs --version <&-", 0, ""),
])  # fmt: skip
def test_closed_streams(tmp_path, command, code, err):
    done = shell(command, tmp_path)
    assert (done.returncode, done.stderr) == (code, err)
    assert os.listdir(tmp_path) == []


def test_standard_input_that_is_closed(tmp_path):
    done = shell("labs diagnose - <&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_files_on_standard_output(tmp_path):
    """A pipe and a file behind `/dev/stdout` both get the result where it stands, before the receipt."""
    command = f"labs.run {' '.join(QUICK)} --no-figures --output /dev/stdout"
    piped = shell(f"{command} --trajectories /dev/stdout | cat", tmp_path)
    assert "error" not in piped.stderr
    shell(f"{command} > file", tmp_path)
    for text in (piped.stdout, (tmp_path / "file").read_text()):
        *_, receipt = text.splitlines()
        assert json.loads(receipt)["output"] == "/dev/stdout"
    assert json.loads((tmp_path / "file").read_text().rpartition("\n{")[0])["experiment"] == "agent"
    first, rest = piped.stdout.split("\n{\n", 1)
    assert all("steps" in json.loads(row) for row in first.splitlines())
    assert rest.startswith('  "experiment": "agent"')
    with contextlib.suppress(FileNotFoundError):
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
