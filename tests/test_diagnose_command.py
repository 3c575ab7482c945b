"""`python -m labs diagnose`: what it prints, its exit codes, and that any input ends in words."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labs.registry import checks
from tests.command_line import ROOT, Said, environment, run
from tests.dump_examples import EXAMPLES, VERL_LINE, batch_arrays, jsonl, legacy_rows, text, v1_rows


def diagnose(*arguments: str | Path) -> Said:
    return run("diagnose", *map(str, arguments), whole=True)


def healthy_rows(step: int, prompts: int = 8, n: int = 4) -> list[dict[str, Any]]:
    draw = random.Random(step)
    return [
        {"input": f"user\n{p}+{step}?", "output": f"It is {value}.", "gts": str(p + step),
         "score": float(value == p + step), "step": step, "uid": f"u{step}x{p}_{i}_0"}
        for p in range(prompts) for i in range(n) for value in [p + step + (draw.random() < 0.5)]
    ]  # fmt: skip


def test_a_clean_folder(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        jsonl(tmp_path / f"{step}.jsonl", healthy_rows(step))
    said = diagnose(tmp_path)
    assert said.code == 0
    assert said.out.startswith("read verl_rollout (3 steps): 96 rows in 3 files\n")
    assert said.out.endswith("nothing wrong found\n")
    assert "\nran     " in said.out
    assert "not run C" in said.out
    assert said.err == ""


def test_a_finding_says_what_where_how_much_why_and_what_to_try(tmp_path: Path) -> None:
    """I01: each repeat has an id of its own."""
    rows = [{**row, "uid": f"t{i}_0_0"} for i, row in enumerate(healthy_rows(12))]
    said = diagnose(jsonl(tmp_path / "12.jsonl", rows), "--n", "4")
    assert said.code == 1
    finding = said.out.split("\nC4 ")[1].split("\n\n")[0]
    for lead in ("FAIL", "what", "where", "share", "why", "try"):
        assert f"{lead} " in finding
    assert "12.jsonl" in finding
    assert "step 12" in finding
    machine = diagnose(tmp_path / "12.jsonl", "--n", "4", "--json")
    assert machine.code == 1
    document = json.loads(machine.out)
    assert not document["clean"]
    assert document["facts"] == {"n": 4}
    (kind,) = [kind for kind in document["kinds"] if kind["code"] == "C4"][:1]
    assert kind["findings"][0]["where"]["step"] == 12


def test_the_group_size_is_asked_for_and_not_guessed(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "12.jsonl", legacy_rows())
    asked = " ".join(diagnose(path).out.split())
    assert "groups unknown" in asked
    assert "2 of 4" in asked
    assert "not run C5 equal_groups" in asked
    stated = " ".join(diagnose(path, "--n", "4").out.split())
    assert "groups as stated by --n 4: blocks of 4 consecutive rows" in stated
    assert "not run C5 equal_groups" not in stated


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_format_ends_in_words(tmp_path: Path, name: str) -> None:
    file, write = EXAMPLES[name]
    said = diagnose(write(tmp_path / file))
    assert said.code in (0, 1)
    assert name in said.out
    assert "broke " not in said.out
    assert "not run" in said.out


@pytest.mark.parametrize("seed", range(12))
def test_damaged_files_end_in_words(tmp_path: Path, seed: int) -> None:
    """Bytes lost, doubled or overwritten anywhere in any format."""
    draw = random.Random(seed)
    for name in draw.sample(sorted(set(EXAMPLES) - {"lab_run"}), 5):
        file, write = EXAMPLES[name]
        path = write(tmp_path / file)
        data = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            kind = draw.choice(("cut", "flip", "double", "drop"))
            if kind == "cut":
                del data[max(at, 1) :]
            elif kind == "flip":
                data[at] = draw.randrange(256)
            elif kind == "double":
                data[at:at] = data[at // 2 : at]
            else:
                del data[at : at + 20]
        path.write_bytes(bytes(data or b" "))
        said = diagnose(path)
        assert said.code in (0, 1, 2), (name, said.err)
        assert "Traceback" not in said.err
        assert "broke " not in said.out, (name, said.out)


def test_rows_that_break_sums_do_not_break_checks(tmp_path: Path) -> None:
    rows = healthy_rows(3)
    for i, value in enumerate((None, "x", float("inf"), float("nan"), 1e308, -1e308, [1], {"a": 1})):
        rows[4 * i]["score"] = value
    rows[1]["output"], rows[2]["gts"], rows[3]["uid"] = None, ["a", "b"], 7
    del rows[5]["uid"], rows[6]["input"]
    rows += rows[8:12]  # a group written twice
    random.Random(0).shuffle(rows)
    arrays = batch_arrays()
    arrays["advantages"] = arrays["advantages"].copy()
    arrays["advantages"][0, 0] = np.nan
    arrays["response_mask"] = arrays["response_mask"].copy()
    arrays["response_mask"][1] = 0
    np.savez(tmp_path / "batch.npz", **arrays)
    for path in (jsonl(tmp_path / "3.jsonl", rows), tmp_path / "batch.npz"):
        said = diagnose(path)
        assert said.code == 1, said
        assert "broke " not in said.out


@pytest.mark.parametrize(
    ("content", "sentence"), [("", "is empty"), ("hello", "no format"), ('{"input": "q", "out', "no format")]
)
def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    said = diagnose(text(content)(tmp_path / "x.jsonl"))
    assert (said.code, said.out) == (2, "")
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "12.jsonl", v1_rows())
    for arguments, sentence in (
        ((), "Missing argument"), ((tmp_path / "no",), "no file or folder"), ((path, "--n", "0"), "--n"),
        ((path, "--state", "betta=1"), "did you mean beta"), ((path, "--state", "beta=x"), "takes a value like"),
        ((path, "--show", "best"), "worst"), ((path, "--state", "estimator=grop"), "did you mean grpo"),
        ((path, "--state", "loss_mode=vanila"), "did you mean vanilla"),
        ((path, "--state", "loss_agg_mode=zzz"), "allowed: token-mean"),
        ((path, "--state", "kl_loss_type=k9"), "low_var_kl"), ((path, "--state", "max_lag=-9"), "at least 0"),
        ((path, "--state", "actions=0"), "at least 1"), ((path, "--state", "beta=nan"), "a number of at least 0"),
        ((path, "--state", "beta=inf"), "a number"), ((path, "--state", "eos=-1"), "at least 0"),
    ):  # fmt: skip
        said = diagnose(*arguments)
        assert said.code == 2, arguments
        assert sentence in said.err


def test_facts_that_can_be(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "12.jsonl", healthy_rows(12))
    stated = {"estimator": "rloo", "loss_agg_mode": "token-sum", "kl_loss_type": "k3+", "beta": 0.0, "pad": -100}
    said = diagnose(path, *(word for key, value in stated.items() for word in ("--state", f"{key}={value}")), "--json")
    assert json.loads(said.out)["facts"] == stated


def test_text_of_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J\x1b]0;title\x07\r\u202e\ud800"
    rows = [{**row, "output": evil, "extra": evil, "gts": "\x9b31m"} for row in healthy_rows(12)]
    path = text("".join(json.dumps(row) + "\n" for row in rows))(tmp_path / "12.jsonl")
    shown = diagnose(path, "--show", "worst")
    assert "\\x1b[2J\\x1b]0;title\\x07\\r\\u202e\\ud800" in shown.out
    name = tmp_path / "a\x1b[2J.csv"
    found = diagnose(text("step,a\x1b[2Jb\n1,nan\n2,x\n")(name), "--n", "4")
    assert found.code == 1
    refused = diagnose(text("nothing")(tmp_path / "b\x1b[2J"))
    for said in (shown.out, found.out, refused.err):
        assert "\\x1b[2J" in said
        assert not set(said) & {chr(c) for c in (*range(9), *range(11, 32), *range(127, 160), 0x202E, 0xD800)}


def test_numbers_that_overflow_are_found_and_not_warned_about(tmp_path: Path) -> None:
    arrays = batch_arrays()
    arrays["advantages"] = np.where(arrays["response_mask"] > 0, 1e308, 0.0)
    arrays["token_level_scores"] = np.where(arrays["response_mask"] > 0, 1e308, -1e308)
    np.savez(tmp_path / "batch.npz", **arrays)
    said = diagnose(tmp_path / "batch.npz", "--show", "odd", "--json")
    assert said.code == 1
    assert said.err == ""


def test_rows_are_shown(tmp_path: Path) -> None:
    rows = healthy_rows(12)
    rows[5] = {**rows[5], "score": 0.0, "output": f"the answer: {rows[5]['gts']}"}
    path = jsonl(tmp_path / "12.jsonl", rows)
    said = diagnose(path, "--show", "odd", "--k", "1")
    assert said.out.count("\n-- ") == 1
    assert "is in the output, score 0" in said.out
    assert "line 6, step 12, row 5" in said.out
    machine = json.loads(diagnose(path, "--show", "worst", "--k", "2", "--json").out)
    assert [row["fields"]["score"] for row in machine["rows_shown"]] == [0.0, 0.0]


def test_the_same_fault_is_reproduced_in_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is written, and the run it asks for is the run that was summed up."""
    monkeypatch.chdir(tmp_path)
    small = {"experiment": "agent", "set": {"updates": 3, "evaluation_episodes": 20}}
    monkeypatch.setattr(checks["group_sizes"], "reproduce", lambda finding: small)
    rows = [{**row, "uid": f"t{i}_0_0"} for i, row in enumerate(healthy_rows(12))]
    path = jsonl(tmp_path / "12.jsonl", rows)
    said = diagnose(path, "--n", "4", "--reproduce", "--report", "page.html")
    command = "python -m labs.run --experiment agent --config reproduce-group_sizes.json --seed 7"
    assert f"reproduces group_sizes: {command}" in said.out
    assert json.loads(Path("reproduce-group_sizes.json").read_text()) == small["set"]
    again = run("--experiment", "agent", "--config", "reproduce-group_sizes.json", "--no-figures")
    success = next(line for line in again.out.splitlines() if line.startswith("success"))
    assert success.split() == next(line for line in said.out.splitlines() if line.startswith("  success")).split()
    page = Path("page.html").read_text()
    assert "group_sizes" in page
    assert "reproduce-group_sizes.json" in page
    assert diagnose(path, "--report", tmp_path / "no" / "page.html").code == 2


def test_what_to_switch_on_is_named_for_the_software_that_wrote_the_file(tmp_path: Path) -> None:
    rollouts = " ".join(diagnose(jsonl(tmp_path / "12.jsonl", healthy_rows(12))).out.split())
    assert "unlock verl_rollout: save the batch as tensors" in rollouts
    assert "add `file` to trainer.logger" in rollouts
    assert rollouts.count("not run ") == 2  # one line for all that two switches unlock, one for what is alone
    assert "not run E2 reward_parts: return the parts" in rollouts
    assert "not run C2 kl_shaping, C2 kl_sign, C3 mask_stages" in rollouts
    table = json.loads(diagnose(EXAMPLES["trl_completions"][1](tmp_path / "x.parquet"), "--json").out)
    (said,) = [each for each in table["unlocks"] if "numpy.savez of completion_mask" in each]
    assert "mask_stages" in table["unlocks"][said]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in checks if hasattr(checks[name], "reproduce")])
def test_every_reproduction_can_be_run(tmp_path: Path, name: str) -> None:
    from labs.diagnosis import diagnose as look
    from labs.reproduction import reproduce

    done = []
    for example in checks[name].BAD.values():
        found = [kind for kind in look(example()).faults if kind.check == name]
        done = [run for kind in found for run in [reproduce(kind.findings[0], str(tmp_path))] if run is not None]
        if done:
            break
    assert done, f"no bad example of {name} is reproduced"
    assert done[0]["lines"]
    assert done[0]["headline"]


def test_pasted_text_on_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "labs", "diagnose", "-"], input=f"noise\n{VERL_LINE}\n", capture_output=True, text=True,
        cwd=ROOT, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("read console (1 step): 0 rows in 1 file")


def test_where_no_check_ran_nothing_is_said_to_be_right(tmp_path: Path) -> None:
    said = diagnose(text("step:7 - a:1.5\n")(tmp_path / "log.txt"))
    assert said.code == 0
    assert "ran     no check" in said.out
    assert said.out.endswith("no check could run: nothing is known to be right or wrong\n")


def test_help_answers_without_numpy() -> None:
    code = "import sys; from labs.commands.diagnose import command; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=False).returncode == 0
    assert "Exit code 0" in diagnose("--help").out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["steps", "shuffled", "one"])
def test_two_hundred_megabytes_stream_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    """Steps one after the other, rows of all steps mixed, and everything one step: at most 300 MB resident."""
    path, padding = tmp_path / "all.jsonl", "x" * 3100
    rows = [{**row, "uid": f"s{step}{row['uid']}"} for step in range(2000) for row in healthy_rows(step)]
    if kind == "shuffled":
        random.Random(0).shuffle(rows)
    with path.open("w") as file:
        for row in rows:
            number = 1 if kind == "one" else row["step"]
            file.write(json.dumps({**row, "output": row["output"] + padding, "step": number}) + "\n")
    assert path.stat().st_size > 200e6
    # Not `ru_maxrss`: on Linux a process starts with what its parent held when it forked.
    code = (
        "import sys; from labs.__main__ import group; from labs.console import guard; "
        "from labs.terminal import invoke; guard(invoke, group, 'labs', sys.argv[1:]); "
        "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", str(path)], capture_output=True, text=True, cwd=ROOT,
        env=environment(), check=True,
    )  # fmt: skip
    assert "64,000 rows in 1 file" in done.stdout
    assert int(done.stdout.split()[-1]) < 300 * 1024
