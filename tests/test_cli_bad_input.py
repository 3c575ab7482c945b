"""Every option given wrongly: one sentence on standard error, exit code 2, no traceback, nothing written."""

import os
import subprocess
import sys

import pytest

from tests.command_line import QUICK, environment, process, run

AGENT = ("--experiment", "agent")

RUN = [
    ([], "--experiment NAME", "agent"),
    (["--experiment"], "--experiment", "requires an argument"),
    (["--experiment", "agnet"], "'agnet'", "did you mean agent?"),
    (["--experiment", ""], "''", "agent"),
    (["--experiment", "../agent"], "'../agent'", "agent"),
    (["--experiment", "agent.py"], "'agent.py'", "did you mean agent?"),
    (["--experiment", "__init__"], "'__init__'", "agent"),
    (["--experimen", "agent"], "--experimen", "--experiment"),
    (["agent"], "unexpected", "an experiment is chosen by --experiment agent"),
    ([*AGENT, "--seed", "x"], "--seed", "'x'"),
    ([*AGENT, "--seed", "1.5"], "--seed", "'1.5'"),
    ([*AGENT, "--seed", "-1"], "seed is -1", "0 to 4294967295"),
    ([*AGENT, "--seed", "4294967296"], "4294967296", "0 to 4294967295"),
    ([*AGENT, "--seed", "1", "--seeds", "0-3"], "--seed", "--seeds"),
    ([*AGENT, "--seeds", "3-1"], "--seeds", "3-1"),
    ([*AGENT, "--seeds", "a"], "--seeds", "0-31"),
    ([*AGENT, "--seeds", "1,1"], "--seeds", "twice"),
    ([*AGENT, "--seeds", ""], "--seeds", "0-31"),
    ([*AGENT, "--jobs", "2"], "--jobs", "--seeds"),
    ([*AGENT, "--seeds", "0-3", "--jobs", "0"], "--jobs is 0", "at least 1"),
    ([*AGENT, "--seeds", "0-3", "--trajectories", "t"], "--trajectories", "--seeds"),
    ([*AGENT, "--json", "--output", "o"], "--json", "--output"),
    ([*AGENT, "--no-figures", "--svg"], "--no-figures", "--svg"),
    ([*AGENT, "--results", ""], "--results", "folder"),
    ([*AGENT, "--results", "file"], "file is a file", "--results"),
    ([*AGENT, "--output", "."], "--output .", "is a folder"),
    ([*AGENT, "--output", ""], "--output", "is empty; give a file"),
    ([*AGENT, "--seed", "9" * 5000], "--seed", "(5000 digits)"),
    ([*AGENT, "--seeds", "0-" + "9" * 5000], "--seeds has 0-999", "no seed is above 4294967295"),
    ([*AGENT, "--results", "file/x"], "file is a file", "--results"),
    ([*AGENT, "--config", "long.json"], "--config long.json", "no JSON"),
    ([*AGENT, "--config", "large.json"], "learning_rate is ", "(400 digits)"),
    ([*AGENT, "--output", "none/o.json"], "--output none/o.json", "no folder"),
    ([*AGENT, "--trajectories", "none/t.jsonl"], "--trajectories none/t.jsonl", "no folder"),
    ([*AGENT, "--config", "none.json"], "none.json", "No such file"),
    ([*AGENT, "--config", "."], "--config .", "directory"),
    ([*AGENT, "--config", "file"], "--config file", "no JSON"),
    ([*AGENT, "--config", "list.json"], "--config list.json", "one JSON object"),
    ([*AGENT, "--config", "typo.json"], "--config typo.json", "did you mean updates?"),
    ([*AGENT, "--config", "text.json"], 'updates is "3"', "an integer"),
    ([*AGENT, "--config", "seed.json"], "seed", "--seed"),
    ([*AGENT, "--set", "updates"], "'updates'", "key=value"),
    ([*AGENT, "--set", "update=3"], "'update'", "did you mean updates?"),
    ([*AGENT, "--set", "updates=three"], 'updates is "three"', "an integer at least 1"),
    ([*AGENT, "--set", "updates="], 'updates is ""', "an integer at least 1"),
    ([*AGENT, "--set", "updates=0"], "updates is 0", "at least 1"),
    ([*AGENT, "--set", "updates=1.5"], 'updates is "1.5"', "an integer"),
    ([*AGENT, "--set", "updates=3", "updates=4"], "updates", "twice"),
    ([*AGENT, "--set", "seed=3"], "seed", "--seed"),
    ([*AGENT, "--set", "groups_per_update=0"], "groups_per_update is 0", "at least 1"),
    ([*AGENT, "--set", "group_size=-1"], "group_size is -1", "at least 1"),
    ([*AGENT, "--set", "max_steps=0"], "max_steps is 0", "at least 1 or none"),
    ([*AGENT, "--set", "learning_rate=nan"], "learning_rate is NaN", "at least 0"),
    ([*AGENT, "--set", "learning_rate=-0.1"], "learning_rate is -0.1", "at least 0"),
    ([*AGENT, "--set", "learning_rate=1e9"], "learning_rate is 1000000000.0", "at most 1,000"),
    ([*AGENT, "--set", "entropy_coefficient=inf"], "entropy_coefficient is Infinity", "a number"),
    ([*AGENT, "--set", "evaluation_episodes=0"], "evaluation_episodes is 0", "at least 1"),
    ([*AGENT, "--set", "environment=arithmetik"], "'arithmetik'", "did you mean arithmetic"),
    ([*AGENT, "--set", "train_operands=1"], "train_operands is [1]", "smallest,largest"),
    ([*AGENT, "--set", "train_operands=5,1"], "train_operands is [5, 1]", "smallest,largest"),
    ([*AGENT, "--set", "evaluation_operands=1,5000"], "evaluation_operands is [1, 5000]", "1000"),
    ([*AGENT, "--set", "train_operands=1,x"], 'train_operands is "x"', "an integer"),
    ([*AGENT, "--set", "updates=3", "--set", "nonsense"], "'nonsense'", "key=value"),
]

WHOLE = [
    (["rnu"], "'rnu'", "did you mean run?"),
    (["../run"], "'../run'", "run"),
    (["--nope"], "--nope", ""),
    (["list", "estimater"], "'estimater'", "did you mean estimators?"),
    (["list", "a", "b"], "b", "unexpected"),
    (["show"], "NAME", "Missing"),
    (["show", "grop"], "'grop'", "did you mean"),
    (["show", "losses/vanila"], "'vanila'", "did you mean vanilla?"),
    (["show", "loses/vanilla"], "'loses'", "did you mean losses?"),
    (["show", "losses/"], "''", "vanilla"),
    (["show", "."], ".", "no folder of a complete run"),
    (["new"], "KIND", "Missing"),
    (["new", "estimator"], "NAME", "Missing"),
    (["new", "estimater", "mine"], "'estimater'", "did you mean estimator?"),
    (["new", "estimator", "My-Estimator"], "'My-Estimator'", "lower case"),
    (["new", "estimator", "class"], "'class'", "Python name"),
    (["new", "estimator", "../mine"], "'../mine'", "Python name"),
    (["new", "estimator", "_mine"], "'_mine'", "lower case"),
    (["new", "estimator", "grpo"], "'grpo'", "there already"),
    (["doctor", "me"], "me", "unexpected"),
]


@pytest.fixture(autouse=True)
def _in_a_folder_with_bad_files(tmp_path, monkeypatch):
    contents = {
        "file": "{",
        "list.json": "[1]",
        "typo.json": '{"updaets": 3}',
        "text.json": '{"updates": "3"}',
        "seed.json": '{"seed": 3}',
        "long.json": '{"updates": ' + "9" * 5000 + "}",
        "large.json": '{"learning_rate": ' + "9" * 400 + "}",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)


def refused(said, words):
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err


@pytest.mark.parametrize(("arguments", "what", "hint"), RUN, ids=[" ".join(row[0])[:60] or "nothing" for row in RUN])
def test_run(arguments, what, hint, tmp_path):
    before = sorted(os.listdir(tmp_path))
    refused(run(*arguments), (what, hint))
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(("arguments", "what", "hint"), WHOLE, ids=[" ".join(row[0]) for row in WHOLE])
def test_other_commands(arguments, what, hint, tmp_path):
    before = sorted(os.listdir(tmp_path))
    refused(run(*arguments, whole=True), (what, hint))
    assert sorted(os.listdir(tmp_path)) == before


def test_a_process_says_the_same(tmp_path):
    for module, arguments in (("labs.run", ("--experiment", "agnet")), ("labs", ("rnu",))):
        said = process(*arguments, cwd=tmp_path, module=module)
        assert said == run(*arguments, whole=module == "labs")
        refused(said, ("did you mean",))


def test_an_experiment_that_does_not_fit_is_named(tmp_path, monkeypatch):
    from labs.registry import experiments

    monkeypatch.setattr(type(experiments), "_path", lambda self, name: str(tmp_path / name))
    monkeypatch.setattr("importlib.import_module", lambda name: object())
    refused(run("--experiment", "mine"), ("mine", "does not define Config, run, figures"))


class TestTheSystemRefuses:
    """One sentence and exit code 1 where disk, folder or pipe give out; what is on disk never looks whole."""

    def failed(self, said, *words):
        assert said.code == 1
        assert "Traceback" not in said.err
        last = said.err.splitlines()[-1]
        assert last.startswith("error: ")
        for word in words:
            assert word in last

    def test_a_read_only_folder(self, tmp_path, monkeypatch):
        def refuse(path, mode=0o777):
            raise PermissionError(13, "Permission denied", path)

        monkeypatch.setattr(os, "mkdir", refuse)
        for more in ((), ("--seeds", "0-3", "--jobs", "1")):
            self.failed(run(*QUICK, *more), "results: Permission denied")
            assert not (tmp_path / "results").exists()

    def test_a_folder_that_is_there_but_cannot_be_written(self, tmp_path, monkeypatch):
        import builtins

        real = open

        def refuse(path, mode="r", **options):
            if "w" in mode or "a" in mode:
                raise PermissionError(30, "Read-only file system", path)
            return real(path, mode, **options)

        monkeypatch.setattr(builtins, "open", refuse)
        said = run(*QUICK)
        monkeypatch.undo()
        self.failed(said, "Read-only file system")
        assert not (tmp_path / "results").exists()

    def test_a_disk_that_is_full_in_the_middle(self, tmp_path):
        """A limit on the size of files stands for the full disk: the first file over it fails, as on a real one."""
        limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))"
        code = f"{limit}; import sys; sys.argv[0] = 'x'; from labs.run import main; sys.exit(main())"
        arguments = ("--experiment", "agent", "--no-figures")
        for more in (("--results", "one"), ("--seeds", "0-3", "--jobs", "1", "--results", "many")):
            done = subprocess.run(
                [sys.executable, "-c", code, *arguments, *more],
                cwd=tmp_path,
                env=environment(),
                capture_output=True,
                text=True,
            )
            assert done.returncode == 1
            assert done.stdout == ""
            assert "Traceback" not in done.stderr
            assert "File too large" in done.stderr.splitlines()[-1]
            assert not list((tmp_path / more[-1]).rglob("result.json"))
            assert not list(tmp_path.rglob("*.tmp"))
            assert run(*arguments, *more).code == 0
            assert len(list((tmp_path / more[-1]).rglob("result.json"))) == 1

    def test_output_to_a_full_device(self, tmp_path):
        said = process(*QUICK, "--no-figures", "--output", "/dev/full", cwd=tmp_path)
        self.failed(said, "/dev/full: No space left on device")
        assert not os.path.isfile("/dev/full")

    def test_standard_output_on_a_full_device(self, tmp_path):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "labs.run", *QUICK, "--no-figures", "--json"],
                cwd=tmp_path,
                env=environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "error: cannot write: No space left on device"
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr

    @pytest.mark.parametrize(("module", "arguments"), [("labs.run", ("--list",)), ("labs", ("list",))])
    def test_a_pipe_whose_reader_has_gone(self, module, arguments, tmp_path):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            env=environment(),
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write)
        assert done.returncode == 1
        assert done.stderr == "error: standard output was closed by its reader\n"
