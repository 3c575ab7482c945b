"""Killed, interrupted, continued, in many processes or in one: the same bytes, and only the missing work is done."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.command_line import QUICK, environment, files, process

#: About a tenth of a second a seed, so that a signal arrives in the middle.
SLOW = ("--experiment", "agent", "--set", "updates=150", "--no-figures")


def start(*arguments, cwd):
    """The command in a session of its own, so that a signal reaches it and its workers as from a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "labs.run", *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def rows(folder):
    found = list(folder.rglob("seeds.jsonl"))
    return found[0].read_text().count("\n") if found else 0


def workers(folder):
    """Processes that still work in `folder`, where the system tells."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(folder):
                found.append(pid)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_run_goes_on_where_it_stopped(tmp_path, jobs):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir(), whole.mkdir()
    command = (*SLOW, "--seeds", "0-11")
    running = start(*command, "--jobs", jobs, cwd=killed)
    wait_for(lambda: rows(killed) >= 3)
    running.kill()
    running.communicate()
    wait_for(lambda: not workers(killed))  # no worker outlives a killed parent
    done = rows(killed)
    assert 3 <= done < 12
    assert not list(killed.rglob("result.json"))
    (path,) = killed.rglob("seeds.jsonl")
    with path.open("a") as file:
        file.write('{"seed": 11, "headline": {"succ')  # what a kill in the middle of a line leaves
    said = process(*command, "--jobs", jobs, cwd=killed)
    assert said.code == 0, said.err
    assert "other code" not in said.err
    (timing,) = killed.rglob("timing.jsonl")
    assert len(timing.read_text().splitlines()) == 12 - done
    assert process(*command, "--jobs", "1", cwd=whole).out == said.out
    assert files(killed) == files(whole)


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_bytes(tmp_path):
    found = []
    for jobs in ("1", "2", "3"):
        folder = tmp_path / jobs
        folder.mkdir()
        said = process(*QUICK, "--seeds", "0-6", "--jobs", jobs, cwd=folder)
        assert said.code == 0, said.err
        found.append((said, files(folder)))
    assert found[0] == found[1] == found[2]
    assert sum(name.endswith(".png") for name in found[0][1]) == 2


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    found = []
    for number in ("1", "2"):
        folder = tmp_path / number
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "labs.run", *QUICK, "--svg", "--output", "o.json", "--trajectories", "t.jsonl"],
            cwd=folder,
            env=environment(PYTHONHASHSEED=number, TZ=("UTC", "Asia/Tokyo")[int(number) - 1], COLUMNS=number * 2),
            capture_output=True,
            check=True,
        )
        found.append((done.stdout, files(folder)))
    assert found[0] == found[1]
    assert len(found[0][1]) == 10


@pytest.mark.parametrize("more", [(), ("--seeds", "0-199", "--jobs", "1"), ("--seeds", "0-199", "--jobs", "2")])
def test_ctrl_c(tmp_path, more):
    arguments = (*SLOW, *more) if more else ("--experiment", "agent", "--set", "updates=1000000", "--no-figures")
    running = start(*arguments, cwd=tmp_path)
    wait_for(lambda: rows(tmp_path) >= 2 if more else any((tmp_path / "results").glob("agent/*")))
    time.sleep(0.2)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == ""
    assert err.splitlines()[1:] == ["interrupted; what was complete is kept, nothing else was written"]
    assert not list(tmp_path.rglob("result.json"))
    wait_for(lambda: not workers(tmp_path))
    if more:
        (path,) = tmp_path.rglob("seeds.jsonl")
        kept = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(kept) >= 2
    else:
        assert not (tmp_path / "results").exists()


def test_a_worker_that_dies_is_said_and_the_rest_is_kept(tmp_path):
    running = start(*SLOW, "--seeds", "0-199", "--jobs", "2", cwd=tmp_path)
    wait_for(lambda: rows(tmp_path) >= 2)
    for pid in workers(tmp_path):
        if int(pid) != running.pid and b"spawn_main" in open(f"/proc/{pid}/cmdline", "rb").read():  # noqa: SIM115
            os.kill(int(pid), signal.SIGKILL)
            break
    _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert "a worker process was killed" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert rows(tmp_path) >= 2


def test_two_runs_of_the_same_seeds_at_once(tmp_path):
    first = start(*SLOW, "--seeds", "0-199", "--jobs", "1", cwd=tmp_path)
    wait_for(lambda: rows(tmp_path) >= 1)
    second = process(*SLOW, "--seeds", "0-199", "--jobs", "1", cwd=tmp_path)
    assert second.code == 2
    assert "another process is writing" in second.err
    assert first.poll() is None
    first.kill()
    first.communicate()


def test_going_on_with_other_code_says_so(tmp_path):
    running = start(*SLOW, "--seeds", "0-5", "--jobs", "1", cwd=tmp_path)
    wait_for(lambda: rows(tmp_path) >= 1)
    running.kill()
    running.communicate()
    (stamp,) = tmp_path.rglob("stamp.json")
    stamp.write_text('{"commit": "other", "dirty": false, "source": null}')
    said = process(*SLOW, "--seeds", "0-5", "--jobs", "1", cwd=tmp_path)
    assert said.code == 0
    assert "made by other code" in said.err
