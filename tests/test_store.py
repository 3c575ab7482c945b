"""Files whole or not at all, rows that survive a torn line, seeds as they are written, and what a stamp says."""

import json
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import stamp
from labs.errors import InputError
from labs.experiment import Result
from labs.seeds import SeedRows, parse_seeds, spell
from labs.store import RunFolder, check_writable, dumps, lines, read_rows, write


def test_write_replaces_a_file_at_once(tmp_path):
    path = tmp_path / "a.txt"
    write(str(path), "old")
    write(str(path), b"new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write(str(path), "old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left") as error:
        write(str(path), "new")
    assert error.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_write_follows_a_link_and_never_replaces_a_device(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    write(str(link), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write(str(pipe), "through")
    reader.join(10)
    assert read == ["through"]
    assert not pipe.is_file()


@pytest.mark.parametrize(
    ("place", "word"), [(".", "is a folder"), ("none/a.json", "no folder"), ("f/a.json", "no folder")]
)
def test_places_that_cannot_be_written_are_known_before(tmp_path, place, word):
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match=word):
        check_writable(str(tmp_path / place), "--output")


def test_a_place_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="permission denied"):
        check_writable(str(tmp_path / "a.json"), "--output")


def test_json_has_no_nan():
    value = {"a": [1.5, float("nan")], "b": float("inf")}
    assert json.loads(dumps(value)) == {"a": [1.5, None], "b": None}
    assert dumps({"a": 1}, compact=True) == '{"a": 1}'


def test_a_torn_last_line_is_dropped_and_any_other_bad_line_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    assert read_rows(str(path)) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(InputError, match="line 2"):
        read_rows(str(path))
    assert read_rows(str(tmp_path / "none.jsonl")) == []


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5) | st.integers(), max_size=2), max_size=4),
    st.data(),
)
def test_rows_cut_anywhere_give_back_the_whole_ones(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    content = lines(rows).encode()
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    found = read_rows(str(path))
    assert found == rows[: content[:cut].count(b"\n")]


class TestRunFolder:
    def folder(self, tmp_path):
        return RunFolder(str(tmp_path / "results"), "agent", "abc", "7")

    def test_a_run_is_complete_only_with_its_result(self, tmp_path):
        folder = self.folder(tmp_path)
        assert folder.document() is None
        folder.prepare()
        assert folder.document() is None
        result = Result(
            data={"x": 1}, metrics=[{"m": 2}], trajectories=[{"t": 3}], experiment="agent", seed=7, fingerprint="abc"
        )
        files = {"metrics.jsonl": lines(result.metrics), "trajectories.jsonl": lines(result.trajectories)}
        folder.save(files, result.document())
        back = folder.result()
        assert (back.data, back.metrics, back.trajectories) == (result.data, result.metrics, result.trajectories)
        assert back.document() == result.document()

    def test_half_a_result_is_no_result(self, tmp_path):
        folder = self.folder(tmp_path)
        folder.prepare()
        for content in ("", '{"seed": 7', "[]"):
            write(folder.file("result.json"), content)
            assert folder.document() is None

    def test_the_result_is_written_last_and_the_old_one_goes_first(self, tmp_path, monkeypatch):
        folder = self.folder(tmp_path)
        folder.prepare()
        folder.save({}, {"seed": 7})
        real = os.replace

        def fail(source, target):
            if target.endswith("metrics.jsonl"):
                raise OSError(28, "No space left on device")
            real(source, target)

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="space"):
            folder.save({"config.json": "{}", "metrics.jsonl": "{}"}, {"seed": 7})
        assert sorted(os.listdir(folder.path)) == ["config.json"]

    def test_abandon_takes_back_the_folders_it_made_and_no_other(self, tmp_path):
        (tmp_path / "results").mkdir()
        folder = self.folder(tmp_path)
        folder.prepare()
        folder.abandon()
        assert os.listdir(tmp_path / "results") == []
        folder.prepare()
        write(folder.file("kept"), "")
        folder.abandon()
        assert os.path.exists(folder.file("kept"))

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "results").write_text("")
        with pytest.raises(InputError, match="is a file"):
            self.folder(tmp_path).prepare()

    def test_figures_come_as_a_whole(self, tmp_path, monkeypatch):
        folder = self.folder(tmp_path)
        folder.prepare()
        assert not folder.has_figures(svg=False)
        folder.save_figures({"a.png": b"1"})
        assert folder.has_figures(svg=False)
        assert not folder.has_figures(svg=True)
        folder.save_figures({"b.png": b"2", "b.svg": b"3"})
        assert [os.path.basename(path) for path in folder.figures()] == ["b.png", "b.svg"]
        assert folder.has_figures(svg=True)
        real = os.replace
        monkeypatch.setattr(
            os, "replace", lambda a, b: real(a, b) if b.endswith("c.png") else (_ for _ in ()).throw(OSError)
        )
        with pytest.raises(OSError):  # noqa: PT011 - whatever it says, the figures stay
            folder.save_figures({"c.png": b"4", "d.png": b"5"})
        assert [os.path.basename(path) for path in folder.figures()] == ["b.png", "b.svg"]
        assert os.listdir(folder.path) == ["figures"]


class TestSeeds:
    @pytest.mark.parametrize(
        ("text", "seeds"), [("0-3", [0, 1, 2, 3]), ("7", [7]), ("5-6, 0,2", [0, 2, 5, 6]), ("4294967295", [4294967295])]
    )
    def test_written(self, text, seeds):
        assert parse_seeds(text) == seeds

    @pytest.mark.parametrize(
        "text", ["", "a", "3-1", "-1", "1,1", "0-3,2", "1.5", "0-", "0--3", "4294967296", "0-1000000", "1,,2", "٣-x"]
    )
    def test_refused(self, text):
        with pytest.raises(InputError, match="--seeds"):
            parse_seeds(text)

    @given(st.sets(st.integers(0, 60), min_size=1))
    def test_spelled_and_read_back(self, seeds):
        assert parse_seeds(spell(seeds)) == sorted(seeds)

    def test_rows_append_and_come_back_in_order(self, tmp_path):
        path = str(tmp_path / "seeds.jsonl")
        rows = SeedRows(path)
        rows.append({"seed": 2})
        assert read_rows(path) == [{"seed": 2}]  # on its way to the disk before the file is closed
        rows.close()
        with open(path, "a") as file:
            file.write('{"seed": 1, "torn')
        again = SeedRows(path)
        assert again.rows == [{"seed": 2}]
        again.append({"seed": 1})
        again.close(order=[1, 2])
        assert read_rows(path) == [{"seed": 1}, {"seed": 2}]
        fresh = SeedRows(path, fresh=True)
        assert fresh.rows == []
        fresh.close()

    def test_a_second_writer_is_refused(self, tmp_path):
        path = str(tmp_path / "seeds.jsonl")
        first = SeedRows(path)
        first.append({"seed": 1})
        with pytest.raises(InputError, match="another process"):
            SeedRows(path)
        first.close()
        assert read_rows(path) == [{"seed": 1}]


class TestStamp:
    def test_it_says_where_a_result_came_from(self):
        made = stamp.Stamp(["labs.run", "--seed", "7"]).finish(seed=7)
        assert made["command"] == ["labs.run", "--seed", "7"]
        assert made["seed"] == 7
        assert made["seconds"] >= 0
        assert made["started"] <= made["finished"]
        assert made["cpu"]

    def test_versions_are_those_that_python_reports(self):
        from importlib import metadata

        found = stamp.packages()
        assert {"click", "numpy", "torch"} <= set(found)
        assert all(metadata.version(name) == version for name, version in found.items())

    def checkout(self, tmp_path, monkeypatch):
        for name in stamp.CODE:
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.py").write_text("x = 1\n")
        monkeypatch.setattr(stamp, "ROOT", str(tmp_path))

        def git(*arguments):
            identity = ("-c", "user.name=a", "-c", "user.email=a@b")
            return subprocess.run(
                ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
            )

        git("init", "-q")
        git("add", ".")
        git("commit", "-q", "-m", "first")
        return git("rev-parse", "HEAD").stdout.strip()

    def test_commit_and_dirty_flag(self, tmp_path, monkeypatch):
        commit = self.checkout(tmp_path, monkeypatch)
        assert stamp.code() == {"commit": commit, "dirty": False, "source": None}
        (tmp_path / "notes.txt").write_text("not code")
        assert stamp.code()["dirty"] is False
        (tmp_path / "labs" / "new.py").write_text("")
        found = stamp.code()
        assert (found["commit"], found["dirty"]) == (commit, True)
        (tmp_path / "labs" / "new.py").unlink()
        (tmp_path / "envs" / "a.py").write_text("x = 2\n")
        assert stamp.code()["dirty"] is True
        assert stamp.code()["source"] != found["source"]

    def test_no_checkout_and_no_git(self, tmp_path, monkeypatch):
        self.checkout(tmp_path, monkeypatch)
        monkeypatch.setenv("PATH", "")
        found = stamp.code()
        assert (found["commit"], found["dirty"]) == (None, None)
        assert len(found["source"]) == 12

    def test_source_sees_every_python_file_and_nothing_else(self, tmp_path, monkeypatch):
        self.checkout(tmp_path, monkeypatch)
        before = stamp.source()
        (tmp_path / "labs" / "__pycache__").mkdir()
        (tmp_path / "labs" / "__pycache__" / "a.py").write_text("")
        (tmp_path / "labs" / "text.md").write_text("")
        assert stamp.source() == before
        (tmp_path / "labs" / "deep").mkdir()
        (tmp_path / "labs" / "deep" / "b.py").write_text("")
        assert stamp.source() != before


def test_python_can_read_a_stamp_without_git_on_the_way():
    """The stamp of a process costs no import that the lab promises to do without."""
    dear = "{'subprocess', 'importlib.metadata'}"
    code = f"import sys, labs.stamp as s; s.Stamp([]).finish(); print(sorted({dear} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
