"""The command line as a process: what is imported before it answers, templates, and Python instead of a shell."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import labs
from labs.registry import KINDS
from tests.command_line import QUICK, ROOT, environment, files, process, run

HEAVY = {
    *("numpy", "torch", "matplotlib", "scipy", "simpy", "rich", "pydantic", "asyncio", "importlib.metadata"),
    *("click", "subprocess", "concurrent.futures", "multiprocessing", "difflib", "pathlib", "tempfile", "logging"),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class TestPython:
    def test_the_module_is_a_function(self):
        result = labs.run("agent", seed=7, updates=3, evaluation_episodes=20)
        assert result.config["updates"] == 3
        assert len(result.metrics) == 3
        assert sorted(result.figures()) == ["learning", "policy"]
        assert result.folder is None
        assert os.listdir() == []

    def test_it_stores_on_demand_what_the_command_line_stores(self, tmp_path):
        labs.run("agent", seed=7, updates=3, evaluation_episodes=20, results="a")
        run(*QUICK, "--results", "b")
        assert files(tmp_path / "a") == files(tmp_path / "b")

    def test_many_seeds(self, tmp_path):
        sweep = labs.run("agent", seeds=range(3), updates=3, evaluation_episodes=20)
        assert sweep.seeds == [0, 1, 2]
        stored = labs.run("agent", seeds=range(3), updates=3, evaluation_episodes=20, results="a")
        assert stored.headline == sweep.headline
        assert stored.folder.startswith("a")

    @pytest.mark.parametrize("wrong", [{"updates": 0}, {"update": 3}, {"seed": -1}, {"seeds": [1, -1]}])
    def test_wrong_input(self, wrong):
        with pytest.raises(labs.errors.InputError):
            labs.run("agent", **wrong)
        with pytest.raises(labs.errors.InputError, match="agent"):
            labs.run("agnet")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout, so that nothing lands in the real one."""
    place = tmp_path_factory.mktemp("checkout")
    for name in ("labs", "envs", "experiments"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


class TestTemplates:
    """`labs new` writes what runs, is listed, and passes the style check."""

    def labs(self, copy, *arguments):
        start = f"import sys; sys.path.insert(0, {str(copy)!r}); sys.argv = ['labs', *sys.argv[1:]]"
        return subprocess.run(
            [sys.executable, "-c", f"{start}; from labs.__main__ import main; sys.exit(main())", *arguments],
            cwd=copy,
            env=environment(PYTHONPATH=str(copy)),
            capture_output=True,
            text=True,
        )

    @pytest.mark.parametrize("kind", ["environment", "estimator", "experiment", "loss"])
    def test_it_works_as_it_is(self, copy, kind):
        plural = next(plural for plural, registry in KINDS.items() if registry.kind == kind)
        made = self.labs(copy, "new", kind, f"my_{kind}")
        assert made.returncode == 0, made.stderr
        path = made.stdout.splitlines()[0].removeprefix("wrote ")
        assert "{{" not in (copy / path).read_text()
        assert f"my_{kind}" in self.labs(copy, "list", plural).stdout
        shown = self.labs(copy, "show", f"{plural}/my_{kind}")
        assert shown.returncode == 0, shown.stderr
        assert (
            subprocess.run([sys.executable, "-m", "ruff", "check", path], cwd=copy, capture_output=True).returncode == 0
        )
        formatted = subprocess.run(
            [sys.executable, "-m", "ruff", "format", "--diff", path], cwd=copy, capture_output=True, text=True
        )
        assert formatted.returncode == 0, formatted.stdout
        if kind in ("environment", "experiment"):
            words = made.stdout.splitlines()[1].split("python -m labs.run ")[1].split()
            done = self.labs(copy, "run", *words, "--results", "r")
            assert done.returncode == 0, done.stderr
        again = self.labs(copy, "new", kind, f"my_{kind}")
        assert again.returncode == 2
        assert "there already" in again.stderr


class TestLightStart:
    """Nothing heavy is imported before it is needed."""

    def loaded(self, *arguments, tmp_path, module="labs.run"):
        call = f"sys.argv = ['x', *sys.argv[1:]]; import {module} as m; code = m.main()"
        code = f"import sys; {call}; print(code, *sorted(sys.modules), file=sys.stderr)"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True
        )
        exit_code, *modules = done.stderr.splitlines()[-1].split()
        return int(exit_code), set(modules)

    def test_the_default_job(self, tmp_path):
        code, modules = self.loaded(
            "--experiment", "agent", "--seed", "7", "--quiet", "--no-figures", tmp_path=tmp_path
        )
        assert code == 0
        assert not modules & HEAVY

    @pytest.mark.parametrize(
        ("module", "arguments", "expected"),
        [
            ("labs.run", ["--help"], 0),
            ("labs.run", ["--list"], 0),
            ("labs.run", ["--experiment", "agnet"], 2),
            ("labs.run", ["--experiment", "agent", "--set", "updates=0"], 2),
            ("labs.run", ["--sed", "7"], 2),
            ("labs.__main__", ["--help"], 0),
            ("labs.__main__", ["list"], 0),
            ("labs.__main__", ["shwo"], 2),
        ],
    )
    def test_help_lists_and_errors(self, module, arguments, expected, tmp_path):
        code, modules = self.loaded(*arguments, tmp_path=tmp_path, module=module)
        assert code == expected
        assert not modules & {"numpy", "torch", "matplotlib", "scipy", "simpy"}

    def test_a_run_with_figures_does_without_torch_and_pyplot(self, tmp_path):
        code, modules = self.loaded(*QUICK, tmp_path=tmp_path)
        assert code == 0
        assert "matplotlib" in modules
        assert not modules & {"torch", "matplotlib.pyplot", "simpy"}


def test_the_imported_packages_are_this_checkouts():
    import envs
    import experiments as e

    assert [os.path.dirname(os.path.dirname(m.__file__)) for m in (labs, envs, e)] == [str(ROOT)] * 3


def test_a_process_agrees_with_the_function(tmp_path):
    assert process(*QUICK, "--no-figures", "--compact", "--results", "a", cwd=tmp_path) == run(
        *QUICK, "--no-figures", "--compact", "--results", "b"
    )


def test_a_process_that_ends_at_once_has_said_everything(tmp_path):
    said = process("--experiment", "agent", "--no-figures", "--json", cwd=tmp_path)
    assert json.loads(said.out)["after"]["success_rate"] == 0.975
    assert said.err == "agent, seed 7, default settings\n"
