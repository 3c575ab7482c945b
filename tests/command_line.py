"""Run the command line in this process, or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from labs.__main__ import group
from labs.console import guard
from labs.run import start
from labs.terminal import invoke

ROOT = Path(__file__).resolve().parent.parent

#: Settings under which one agent run takes milliseconds.
QUICK = ("--experiment", "agent", "--set", "updates=3", "evaluation_episodes=20")

#: Files that may differ from one run of a command to the next.
VARYING = {"stamp.json", "timing.jsonl"}


class Said(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: str, whole: bool = False) -> Said:
    """`python -m labs.run ARGUMENTS`, or `python -m labs ARGUMENTS` when `whole`, in this process and folder."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guard(invoke, group, "labs", arguments) if whole else guard(start, arguments)
    return Said(code, out.getvalue(), err.getvalue())


def process(*arguments: str, cwd: Path, module: str = "labs.run", **options) -> Said:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: this checkout first, no thread settings inherited from a test before."""
    kept = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def files(folder: Path) -> dict[str, bytes]:
    """Every file under a folder that the same command must write with the same bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in VARYING
    }


def only_run(tmp_path, experiment="agent"):
    """The folder of the one run below a folder where a test has run one."""
    (folder,) = (tmp_path / "results" / experiment).iterdir()
    return folder
