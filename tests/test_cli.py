"""The command line: what each option does, what stands on which stream, and what a run leaves on disk."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import labs
from labs.commands.list import table
from labs.commands.run import command
from labs.properties import declared
from labs.registry import KINDS, Registry, commands, experiments
from labs.run import OPTIONS, plain
from tests.command_line import QUICK, ROOT, environment, files, process, run

HEAVY = {
    *("numpy", "torch", "matplotlib", "scipy", "simpy", "rich", "pydantic", "asyncio", "importlib.metadata"),
    *("click", "subprocess", "concurrent.futures", "multiprocessing", "difflib", "pathlib", "tempfile", "logging"),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def only_run(tmp_path, experiment="agent"):
    (folder,) = (tmp_path / "results" / experiment).iterdir()
    return folder


class TestRun:
    def test_summary_files_and_next_commands(self, tmp_path):
        said = run("--experiment", "agent", "--seed", "7")
        folder = only_run(tmp_path)
        assert said.code == 0
        assert said.err == "agent, seed 7, default settings\n"
        lines = said.out.splitlines()
        assert lines[0] == ("success  0.0200 -> 0.9750 of 400 held-out tasks (95 % Wilson interval 0.9546 to 0.9864)")
        assert lines[1].startswith("exact    0.0156 -> 0.9642")
        assert len(lines) == 9
        assert f"results/agent/{folder.name}/ (2 figures)" in said.out
        assert [line[7:] for line in lines[-2:]] == [
            "python -m labs.run --experiment agent --seeds 0-31",
            "python -m labs show agent",
        ]

    def test_every_command_it_suggests_is_one(self, tmp_path):
        said = run(*QUICK, "--no-figures")
        for line in said.out.splitlines()[-2:]:
            words = line[7:].removeprefix("python -m ").replace("0-31", "0-2").split()
            assert (
                run(*words[1:], *(("--no-figures",) if words[0] == "labs.run" else ()), whole=words[0] == "labs").code
                == 0
            )

    def test_what_lies_in_the_folder(self, tmp_path):
        run(*QUICK, "--svg", "--seed", "3")
        folder = only_run(tmp_path)
        assert folder.name.endswith("-s3")
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        assert names == sorted(
            [
                *("config.json", "metrics.jsonl", "result.json", "stamp.json", "timing.jsonl", "trajectories.jsonl"),
                *(f"figures/{name}.{kind}" for name in ("learning", "policy") for kind in ("png", "svg")),
            ]
        )
        result = json.loads((folder / "result.json").read_text())
        assert (result["experiment"], result["seed"]) == ("agent", 3)
        assert json.loads((folder / "config.json").read_text()) == result["config"]
        assert result["config"]["updates"] == 3
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
        rows = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
        assert rows == result["trajectories"]
        stamp = json.loads((folder / "stamp.json").read_text())
        assert stamp["fingerprint"] == result["fingerprint"] == folder.name.split("-")[0]
        assert {"lab", "commit", "dirty", "packages", "cpu", "seed", "command", "started", "finished"} <= set(stamp)
        stages = [json.loads(line)["stage"] for line in (folder / "timing.jsonl").read_text().splitlines()]
        assert stages == ["run", "figures"]

    def test_output_gets_the_result_and_stdout_one_receipt(self, tmp_path):
        said = run(*QUICK, "--seed", "5", "--output", "out.json", "--trajectories", "t.jsonl")
        assert json.loads(said.out) == {"experiment": "agent", "seed": 5, "output": "out.json"}
        assert said.out.count("\n") == 1
        document = json.loads((tmp_path / "out.json").read_text())
        assert document["seed"] == 5
        assert (tmp_path / "out.json").read_text().count("\n") > 10
        rows = (tmp_path / "t.jsonl").read_text().splitlines()
        assert [json.loads(row) for row in rows] == document["trajectories"]
        assert (tmp_path / "out.json").read_text() == (only_run(tmp_path) / "result.json").read_text()

    def test_json_on_stdout_and_on_one_line(self):
        said = run(*QUICK, "--no-figures", "--json")
        assert json.loads(said.out)["experiment"] == "agent"
        short = run(*QUICK, "--no-figures", "--compact")
        assert short.out.count("\n") == 1
        assert json.loads(short.out) == json.loads(said.out)
        run(*QUICK, "--no-figures", "--compact", "--output", "out.json")
        with open("out.json") as file:
            assert file.read() == short.out

    def test_quiet_prints_the_folder_and_nothing_else(self, tmp_path):
        said = run(*QUICK, "--no-figures", "--quiet")
        assert said == (0, f"results/agent/{only_run(tmp_path).name}\n", "")

    def test_results_goes_elsewhere(self, tmp_path):
        run(*QUICK, "--no-figures", "--results", "a/b")
        assert os.listdir(tmp_path) == ["a"]
        assert os.listdir(tmp_path / "a" / "b") == ["agent"]

    def test_config_file_and_set_over_it(self, tmp_path):
        (tmp_path / "c.json").write_text('{"updates": 2, "group_size": 4, "evaluation_episodes": 10}')
        said = run("--experiment", "agent", "--config", "c.json", "--set", "updates=5", "--no-figures", "--json")
        config = json.loads(said.out)["config"]
        assert (config["updates"], config["group_size"]) == (5, 4)
        assert said.err == "agent, seed 7, updates=5, group_size=4, evaluation_episodes=10\n"

    def test_several_pairs_after_one_set_and_several_sets(self):
        one = run("--experiment", "agent", "--set", "updates=2", "group_size=4", "--set", "max_steps=3", "--compact")
        two = run(
            "--experiment",
            "agent",
            *(x for p in ("max_steps=3", "group_size=4", "updates=2") for x in ("--set", p)),
            "--compact",
        )
        assert one.code == 0
        assert one.out == two.out

    def test_a_value_may_look_like_a_pair(self):
        said = run("--experiment", "agent", "--set", "environment=a=b")
        assert said.code == 2
        assert "a=b" in said.err

    def test_the_stored_run_answers_and_fresh_computes(self, tmp_path):
        first = run(*QUICK, "--no-figures")
        result = only_run(tmp_path) / "result.json"
        before = result.stat().st_mtime_ns
        again = run(*QUICK, "--no-figures")
        assert again.code == 0
        assert result.stat().st_mtime_ns == before
        assert "stored by an earlier run" in again.out
        assert again.out.splitlines()[:6] == first.out.splitlines()[:6]
        assert run(*QUICK, "--no-figures", "--fresh").out == first.out
        assert result.stat().st_mtime_ns > before

    def test_the_stored_run_serves_every_form_of_output(self):
        first = run(*QUICK, "--no-figures", "--json")
        assert run(*QUICK, "--no-figures", "--json").out == first.out
        run(*QUICK, "--no-figures", "--output", "out.json", "--trajectories", "t.jsonl")
        with open("out.json") as file:
            assert file.read() == first.out
        with open("t.jsonl") as file:
            assert len(file.readlines()) == 8

    def test_figures_that_are_missing_are_drawn_from_what_is_stored(self, tmp_path):
        run(*QUICK, "--no-figures")
        folder = only_run(tmp_path)
        assert not (folder / "figures").exists()
        run(*QUICK)
        assert sorted(os.listdir(folder / "figures")) == ["learning.png", "policy.png"]
        drawn = files(folder)
        run(*QUICK, "--svg")
        assert len(os.listdir(folder / "figures")) == 4
        run(*QUICK, "--fresh", "--results", "other")
        assert {k: v for k, v in files(folder).items() if not k.endswith(".svg")} == drawn
        assert files(tmp_path / "other" / "agent" / folder.name) == drawn

    def test_a_run_of_other_code_says_so(self, tmp_path):
        run(*QUICK, "--no-figures")
        stamp = only_run(tmp_path) / "stamp.json"
        stamp.write_text(stamp.read_text().replace('"commit": ', '"commit": "other", "before": '))
        said = run(*QUICK, "--no-figures")
        assert said.code == 0
        assert "made by other code" in said.err

    def test_progress_only_on_a_terminal_and_only_after_a_second(self, monkeypatch):
        from labs import console

        clock = [0.0]
        monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
        drawn = []
        monkeypatch.setattr(console.Bar, "_draw", staticmethod(drawn.append))
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        bar = console.Bar()
        bar(1, 10)
        assert drawn == []
        clock[0] = 2.0
        bar(2, 10)
        bar(3, 10)  # too soon after the last
        assert drawn == ["[######........................] 2/10, 0:08 left "]
        bar.close()
        assert drawn[1].strip() == ""
        monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
        other = console.Bar()
        clock[0] = 9.0
        other(5, 10)
        other.close()
        assert len(drawn) == 2


class TestSeeds:
    def test_one_folder_with_a_row_a_seed_and_intervals(self, tmp_path):
        said = run(*QUICK, "--seeds", "0-4", "--jobs", "1")
        folder = only_run(tmp_path)
        assert folder.name.endswith("-s0-4")
        assert sorted(os.listdir(folder)) == [
            "config.json",
            "figures",
            "result.json",
            "seeds.jsonl",
            "stamp.json",
            "timing.jsonl",
        ]
        rows = [json.loads(line) for line in (folder / "seeds.jsonl").read_text().splitlines()]
        assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]
        result = json.loads((folder / "result.json").read_text())
        head = result["headline"]["success_rate"]
        values = [row["headline"]["success_rate"] for row in rows]
        assert head["value"] == pytest.approx(sum(values) / 5)
        assert head["n"] == 5
        assert head["name"] == "95 % t interval"
        assert "n = 5" in said.out
        assert "95 % t interval" in said.out
        assert said.err.startswith("agent, seeds 0-4, updates=3")

    def test_a_row_is_the_run_of_that_seed(self, tmp_path):
        run(*QUICK, "--seeds", "2-3", "--jobs", "1", "--no-figures")
        row = json.loads((only_run(tmp_path) / "seeds.jsonl").read_text().splitlines()[1])
        single = json.loads(run(*QUICK, "--seed", "3", "--no-figures", "--results", "one", "--json").out)
        assert row["headline"] == single["headline"]
        assert all(single[key] == value for key, value in row["data"].items())

    def test_output_and_receipt(self, tmp_path):
        said = run(*QUICK, "--seeds", "0,2", "--jobs", "1", "--no-figures", "--output", "o.json")
        assert json.loads(said.out) == {"experiment": "agent", "seeds": [0, 2], "output": "o.json"}
        written = json.loads((tmp_path / "o.json").read_text())
        assert [row["seed"] for row in written["per_seed"]] == [0, 2]
        rates = {row["seed"]: row["success_rate"] for row in written["per_seed"]}
        worst = min(rates, key=rates.__getitem__)
        assert f"lowest {rates[worst]:.4g} at seed {worst}" in written["conclusion"]

    def test_one_seed_has_no_interval_and_says_so(self):
        said = run(*QUICK, "--seeds", "4", "--no-figures")
        assert "no interval, n = 1" in said.out
        assert "says nothing about others" in said.out

    def test_stored_seeds_answer(self, tmp_path):
        first = run(*QUICK, "--seeds", "0-1", "--jobs", "1")
        again = run(*QUICK, "--seeds", "0-1", "--jobs", "1")
        assert "stored by an earlier run" in again.out
        assert again.out.splitlines()[:5] == first.out.splitlines()[:5]


class TestOneProgram:
    def test_version(self):
        for arguments, whole in ((("--version",), False), (("--version",), True), (("run", "--version"), True)):
            assert run(*arguments, whole=whole).out == f"tabular-agent-rl-lab {labs.__version__}\n"

    def test_list_of_experiments(self):
        lines = run("--list").out.splitlines()
        assert [line.split()[0] for line in lines] == sorted(experiments)
        assert all(line.split(maxsplit=1)[1] for line in lines)

    def test_help_names_every_option_and_every_command(self):
        text = run("--help").out
        for option, (_, metavar, about) in OPTIONS.items():
            assert f"{option} {metavar}".strip() in text
            assert about in " ".join(text.split())
        assert all(name.replace("_", "-") in run(whole=True).out for name in commands)

    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            ["--experiment", "agent", "--seed", "7", "--quiet", "--no-figures"],
            ["--experiment", "agent", "--set", "a=1", "b=2", "--fresh", "--set", "c=x y", "--svg"],
            ["--experiment", "agent", "--set", "nonsense", "--json", "--compact"],
            ["--experiment", "a b", "--config", "c", "--output", "o", "--trajectories", "t", "--results", "r"],
            ["--experiment", "agent", "--seeds", "0-3", "--jobs", "007"],
            ["--list"],
            ["--version"],
        ],
    )
    def test_plain_reading_is_clicks(self, arguments):
        params = command.make_context("x", list(arguments)).params
        assert plain(arguments) == {key: value for key, value in params.items() if value not in (None, (), False)}

    @pytest.mark.parametrize(
        "arguments",
        [
            ["-h"],
            ["--help"],
            ["--seed=7"],
            ["--seed", "x"],
            ["--seed", "-1"],
            ["--seed", "٣"],
            ["--seed"],
            ["--set"],
            ["--set", "--json"],
            ["--experiment", "a", "--experiment", "b"],
            ["--experiment", "agent", "extra"],
            ["--quiet", "--quiet"],
            ["--output", "-"],
        ],
    )
    def test_anything_else_is_left_to_click(self, arguments):
        assert plain(arguments) is None

    def test_the_last_of_two_counts_and_an_equals_sign_will_do(self):
        said = run("--experiment=agent", "--seed", "1", "--seed=2", *QUICK[2:], "--compact", "--no-figures")
        assert json.loads(said.out)["seed"] == 2

    def test_run_is_the_same_command(self):
        one = run(*QUICK, "--no-figures", "--compact", "--results", "a")
        two = run("run", *QUICK, "--no-figures", "--compact", "--results", "b", whole=True)
        assert one == two

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_list(self, kind):
        said = run("list", kind, whole=True)
        assert [line.split()[0] for line in said.out.split("\n\n")[0].splitlines()] == sorted(KINDS[kind])
        assert json.loads(run("list", kind, "--json", whole=True).out) == {
            n: KINDS[kind].describe(n) for n in KINDS[kind]
        }

    @pytest.mark.parametrize("kind", ["estimators", "losses"])
    def test_list_prints_what_each_declares(self, kind):
        rows = run("list", kind, whole=True).out.split("\n\n")[1].splitlines()[1:]
        assert [row.split()[0] for row in rows[1:]] == sorted(KINDS[kind]), "all of them, below a line of headings"
        cells = {row.split()[0]: row for row in rows[1:]}
        if kind == "estimators":
            assert "critic" in rows[0]
            assert cells["gae"].split()[1:4] == ["token", "no", "yes"]
            assert cells["gae"].endswith("values")
            assert cells["rloo"].split()[1:6] == ["trajectory", "yes", "no", "score", "zero"]
        else:
            assert "aggregation" in rows[0]
            assert cells["kl_cov"].split()[1:4] == ["token", "honoured", "reinforce"]

    def test_the_table_imports_no_entry(self):
        code = (
            "import sys; from labs.commands.list import table; from labs.registry import estimators, losses;"
            "rows = table(estimators) + table(losses);"
            "print(len(rows) > 40, [m for m in sys.modules if m in ('torch', 'numpy') or m.startswith('labs.adv')])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout == "True []\n"

    @pytest.mark.parametrize("kind", ["estimators", "losses"])
    def test_the_table_says_what_the_entries_carry(self, kind):
        for name, entry in KINDS[kind].items():
            assert declared(KINDS[kind], name) == (entry.needs, entry.meta["properties"])

    def test_what_a_file_does_not_write_out_is_imported(self, tmp_path, monkeypatch):
        (tmp_path / "made_here").mkdir()
        text = "from labs.properties import Properties\nfrom labs.registry import Registry\nWHO = 'token'\n"
        entry = "@Registry('estimator', 'made_here').entry({})\ndef {}(**_):\n    pass\n"
        for name, given in {"odd": "properties=Properties(credit=WHO)", "none": "paper='x'"}.items():
            (tmp_path / "made_here" / f"{name}.py").write_text(text + entry.format(given, name))
        (tmp_path / "made_here" / "typo.py").write_text("def typo(:\n")
        monkeypatch.setattr("labs.registry._ROOT", str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path))
        rows = table(Registry("estimator", "made_here"))
        assert [row.split()[:2] for row in rows[1:]] == [["odd", "token"]]

    def test_list_everything(self):
        said = run("list", whole=True)
        assert all(f"{kind} (" in said.out for kind in KINDS)
        assert set(json.loads(run("list", "--json", whole=True).out)) == set(KINDS)

    @pytest.mark.parametrize("name", [f"{kind}/{name}" for kind in sorted(KINDS) for name in sorted(KINDS[kind])])
    def test_show_every_entry(self, name):
        said = run("show", name, whole=True)
        assert said.code == 0, said.err
        kind, _, entry = name.partition("/")
        assert said.out.startswith(f"{KINDS[kind].kind} {entry} ")

    def test_show_settings_and_numbers(self):
        text = run("show", "agent", whole=True).out
        assert "learning_rate          0.8 " in text
        assert "a number at least 0 and at most 1,000" in text
        assert "[nat] mean over (family, stage)" in text

    def test_show_declarations(self):
        text = run("show", "rloo", whole=True).out
        assert "2402.14740" in text
        assert "group_of_one" in text
        assert "needs       index" in text

    def test_show_a_run(self, tmp_path):
        first = run(*QUICK, "--no-figures")
        text = run("show", str(only_run(tmp_path)), whole=True).out
        assert text.startswith("agent, seed 7, made ")
        assert first.out.splitlines()[0] in text
        run(*QUICK, "--seeds", "0-1", "--jobs", "1", "--no-figures", "--results", "many")
        (folder,) = (tmp_path / "many" / "agent").iterdir()
        assert "2 seeds" in run("show", str(folder), whole=True).out

    def test_doctor_on_a_healthy_machine(self):
        said = run("doctor", whole=True)
        assert said.code == 0, said.out
        assert "all is well" in said.out

    def test_doctor_says_what_is_missing_and_how_to_get_it(self, monkeypatch):
        from importlib import metadata

        real = metadata.version

        def version(name):
            if name == "simpy":
                raise metadata.PackageNotFoundError(name)
            return "0.1" if name == "click" else real(name)

        monkeypatch.setattr(metadata, "version", version)
        said = run("doctor", whole=True)
        assert said.code == 1
        assert "simpy        missing; run pip install 'simpy>=" in said.out
        assert "click        0.1 is too old" in said.out


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
