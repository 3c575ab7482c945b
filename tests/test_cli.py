"""The command line: what each option does, what stands on which stream, and what a run leaves on disk."""

import json
import os

import pytest

from tests.command_line import QUICK, files, only_run, run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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
