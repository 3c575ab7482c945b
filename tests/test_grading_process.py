"""A student's process: whatever it does, the verdict is clear, nothing outside is harmed, and no cheat passes."""

from __future__ import annotations

import time

import pytest

from labs.grading.checks import grade_source
from labs.grading.process import Limits
from labs.grading.spec import get
from labs.grading.text import render
from labs.grading.verdict import Verdict

EXERCISE = get("rloo")
RIGHT = EXERCISE.solution_source()
ZERO = "def rloo(rewards, groups):\n    return [0.0] * len(rewards)\n"
QUICK = Limits(load=2.0, call=1.0, total=20.0)


def judged(source: str, limits: Limits = QUICK) -> Verdict:
    return grade_source(EXERCISE, source, limits=limits)


def wrapped(before: str = "", inside: str = "") -> str:
    """The right answer that also does something else, at import or at every call."""
    body = "".join(f"    {line}\n" for line in inside.splitlines())
    renamed = RIGHT.replace("def rloo(", "def right(")
    return f"{before}\n{renamed}\ndef rloo(rewards, groups):\n{body}    return right(rewards, groups)\n"


def test_the_right_answer_passes_and_every_check_ran() -> None:
    verdict = judged(RIGHT)
    passed, ran, exist = verdict.count()
    assert verdict.status == "passed"
    assert passed == ran == exist > 10
    assert verdict.exit_code == 0
    assert verdict.score == 1.0


@pytest.mark.parametrize(
    ("source", "status", "code"),
    [
        pytest.param(EXERCISE.stub_source(), "not started", 2, id="stub"),
        pytest.param(ZERO, "failed", 1, id="zero"),
        pytest.param("x = 1\n", "missing", 3, id="no function"),
        pytest.param("rloo = 3\n", "failed", 1, id="not callable"),
        pytest.param("def rloo(:\n", "broken", 3, id="syntax"),
        pytest.param("", "missing", 3, id="empty"),
        pytest.param("1 / 0\n" + RIGHT, "broken", 3, id="raises at import"),
        pytest.param("import sys; sys.exit(0)\n", "broken", 3, id="exits at import"),
        pytest.param(wrapped(inside="import sys; sys.exit(0)"), "failed", 1, id="exits when called"),
        pytest.param(wrapped("import os", "os._exit(0)"), "died", 3, id="leaves without a word"),
        pytest.param(wrapped("import os", "os.abort()"), "died", 3, id="aborts"),
        pytest.param("while True: pass\n", "timeout", 3, id="hangs at import"),
        pytest.param(wrapped(inside="while True: pass"), "timeout", 3, id="hangs when called"),
        pytest.param(wrapped("import time", "time.sleep(100)"), "timeout", 3, id="sleeps"),
        pytest.param(wrapped(inside="input()"), "failed", 1, id="waits for input"),
        pytest.param("def rloo(rewards, groups):\n    return rloo(rewards, groups)\n", "failed", 1, id="recursion"),
        pytest.param("def rloo(rewards, groups):\n    return [0.0] * 10**6\n", "failed", 1, id="huge answer"),
        pytest.param("def rloo(rewards, groups):\n    return 10**100000\n", "failed", 1, id="huge number"),
        pytest.param("def rloo(rewards, groups):\n    return ' ' * 10**6\n", "failed", 1, id="huge text"),
        pytest.param(
            "def rloo(rewards, groups):\n    x = []\n    x.append(x)\n    return x\n", "failed", 1, id="endless"
        ),
        pytest.param("def rloo(rewards, groups):\n    return bytearray(1 << 34)\n", "failed", 1, id="memory"),
        pytest.param("def rloo(rewards, groups):\n    return object()\n", "failed", 1, id="no value"),
        pytest.param("def rloo(rewards, groups):\n    yield 1.0\n", "failed", 1, id="generator"),
        pytest.param("def rloo(rewards):\n    return rewards\n", "failed", 1, id="wrong parameters"),
        pytest.param("def rloo(rewards, groups):\n    return None\n", "failed", 1, id="none"),
        pytest.param("def rloo(rewards, groups):\n    return tuple(rewards)\n", "failed", 1, id="its input"),
    ],
)
def test_every_way_to_go_wrong_has_its_verdict(source: str, status: str, code: int) -> None:
    verdict = judged(source)
    assert (verdict.status, verdict.exit_code) == (status, code)
    for lang in ("en", "zh"):
        text = render(verdict, lang)
        assert "Traceback" not in text
        assert EXERCISE.name in text
    assert verdict.score < 0.5


def test_a_hang_costs_the_limit_and_not_more() -> None:
    begin = time.monotonic()
    judged(wrapped(inside="while True: pass"))
    assert time.monotonic() - begin < 6.0


def test_what_the_file_prints_is_shown_and_bounded() -> None:
    verdict = judged(wrapped(inside="print('look', sum(rewards)); print('x' * 1000000)"))
    assert verdict.status == "passed"
    assert verdict.printed.startswith("look 1.5")
    assert len(verdict.printed) <= 2000


@pytest.mark.parametrize("where", ["import", "call"])
@pytest.mark.parametrize(
    "deed",
    [
        "import labs.grading.checks",
        "import labs.exercises.rloo.solution",
        "from labs.advantages import rloo as other",
        "import labs.registry",
        "import verl",
        "import experiments",
        f"open({str(EXERCISE.folder / 'solution.py')!r}).read()",
        f"import os; os.open({str(EXERCISE.folder / 'en.md')!r}, os.O_RDONLY)",
        f"import os; os.chdir({str(EXERCISE.folder.parent)!r}); open('rloo/solution.py')",
        f"import linecache; open({str(EXERCISE.folder / '..' / 'rloo' / 'solution.py')!r})",
        "open('found.txt', 'w').write('x')",
        "import pathlib; pathlib.Path('found.txt').write_text('x')",
        "import os; os.open('found.txt', os.O_WRONLY | os.O_CREAT)",
        "import os; os.remove('/tmp/nothing-of-this-name')",
        "import os; os.rename('a', 'b')",
        "import os; os.symlink('/etc/hostname', 'b')",
        "import os; os.fork()",
        "import os; os.system('true')",
        "import subprocess; subprocess.run(['true'])",
        "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.execv('/bin/true', ['true'])",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import ctypes; ctypes.CDLL(None)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    ],
)
def test_a_refused_deed_is_reported_although_the_answer_is_right(deed: str, where: str) -> None:
    """The exception is caught by the student's code, and the answer is right all the same."""
    quiet = f"try:\n    {deed}\nexcept BaseException:\n    pass"
    verdict = judged(wrapped(before=quiet) if where == "import" else wrapped(inside=quiet))
    assert verdict.status == "refused"
    assert verdict.score == 0.0
    assert verdict.exit_code == 1
    assert "may not" in render(verdict, "en")
