"""What a whole process costs beside the imports that it cannot do without, in one interleaved run.

    python -m pytest tests/benchmarks/test_bench_cli.py -n0 -s

Ratios of CPU time, the children's included, so that a busy machine does not matter; the median of pairs that ran one
after the other. Bytecode is neither read nor written, as on a machine that forbids it: the worst case for a checkout.
"""

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import environment

pytestmark = pytest.mark.slow

JOB = ("-m", "labs.run", "--experiment", "agent", "--seed", "7", "--quiet", "--fresh")
BARE = ("-c", "import click, random, json")
PYPLOT = ("-c", "import matplotlib.pyplot")


def cost(arguments: tuple[str, ...], cwd: Path, code: int = 0) -> float:
    """CPU seconds of one process and its children."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert done.returncode == code
    return spent() - before


def pairs(one: tuple[str, ...], other: tuple[str, ...], cwd: Path, rounds: int) -> list[tuple[float, float]]:
    """The costs of two commands that ran in turn."""
    cost(one, cwd), cost(other, cwd)
    return [(cost(one, cwd), cost(other, cwd)) for _ in range(rounds)]


def test_the_default_job_beside_its_imports(tmp_path):
    found = pairs((*JOB, "--no-figures"), BARE, tmp_path, 21)
    ratio = statistics.median(a / b for a, b in found)
    job, bare = (1e3 * statistics.median(column) for column in zip(*found, strict=True))
    print(f"\nagent without figures {job:.0f} ms, click, random and json {bare:.0f} ms: {ratio:.2f} times (wanted 2.5)")
    assert ratio <= 2.5


def test_figures_beside_the_import_of_pyplot(tmp_path):
    found = pairs(JOB, PYPLOT, tmp_path, 5)
    job, bare = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"\nagent with figures {job:.2f} s, import matplotlib.pyplot {bare:.2f} s (wanted {1.5 * bare + 1.5:.2f} s)")
    assert job <= 1.5 * bare + 1.5


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-m", "labs.run", "--help"), 0),
        (("-m", "labs.run", "--list"), 0),
        (("-m", "labs.run", "--experiment", "agnet"), 2),
        (("-m", "labs", "--help"), 0),
        (("-m", "labs", "list", "estimators"), 0),
    ],
)
def test_answers_without_work(arguments, code, tmp_path):
    best = min(cost(arguments, tmp_path, code) for _ in range(7))
    print(f"\n{' '.join(arguments)}: {1e3 * best:.0f} ms (wanted under 300)")
    assert best < 0.3
    assert os.listdir(tmp_path) == []
