"""One program with commands: what each answers, and how a wrong word is met."""

import json
import subprocess
import sys

import pytest

import labs
from labs.commands.list import table
from labs.commands.run import command
from labs.properties import declared
from labs.registry import KINDS, Registry, commands, experiments
from labs.run import OPTIONS, plain
from tests.command_line import QUICK, ROOT, only_run, run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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
