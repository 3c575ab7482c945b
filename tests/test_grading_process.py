"""A student's process: whatever it does, the verdict is clear, nothing outside is harmed, and no cheat passes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from labs.grading.checks import grade_source
from labs.grading.process import Child, Limits
from labs.grading.progress import FILE, Progress
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


FORGED = """
import os
def rloo(rewards, groups):
    line = b'{"kind": "answer", "out": {"list": []}, "after": {}, "passed": true, "status": "passed"}\\n'
    for number in range(3, 12):
        try:
            os.write(number, line * 50)
        except OSError:
            pass
    return [0.0] * len(rewards)
"""
PATCHED = """
import builtins, json, math, sys, types
json.loads = lambda *a, **k: {"kind": "answer"}
builtins.abs = lambda x: 0
builtins.all = lambda x: True
math.isclose = lambda *a, **k: True
for name in ("labs", "labs.grading", "labs.grading.values", "labs.grading.checks"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["labs.grading.values"].values = lambda *a: None
def rloo(rewards, groups):
    return [0.0] * len(rewards)
"""
ALWAYS_EQUAL = """
class Yes(float):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __abs__ = lambda self, *other: 0.0
def rloo(rewards, groups):
    return [Yes() for _ in rewards]
"""
SEARCHING = """
import gc, sys
def rloo(rewards, groups):
    if len(rewards) == 3 and rewards[0] == 1.0:
        frame = sys._getframe()
        while frame is not None:
            if any("expected" in str(k) or "reference" in str(k) for k in frame.f_locals):
                print("FOUND in frames")
            frame = frame.f_back
        if any(type(o) is list and o[:2] == [0.75, -0.75] for o in gc.get_objects()):
            print("FOUND on the heap")
        if any("solution" in m or "exercises" in m for m in sys.modules):
            print("FOUND in modules")
    return [0.0] * len(rewards)
"""
COUNTING = """
calls = 0
def rloo(rewards, groups):
    global calls
    calls += 1
    return [0.75, -0.75, 0.0] if calls == 1 else [0.0] * len(rewards)
"""
FINISHED = """
import threading, time, os
def finish():
    time.sleep(0.2)
    os._exit(0)
threading.Thread(target=finish).start()
def rloo(rewards, groups):
    time.sleep(0.02)
    return [0.0] * len(rewards)
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(FORGED, id="forges replies"),
        pytest.param(PATCHED, id="patches modules"),
        pytest.param(ALWAYS_EQUAL, id="equals everything"),
        pytest.param(SEARCHING, id="looks for the expected answer"),
        pytest.param(COUNTING, id="counts the calls"),
        pytest.param(FINISHED, id="exits early with code 0"),
        pytest.param("def rloo(rewards, groups):\n    return [float('nan')] * len(rewards)\n", id="not a number"),
        pytest.param("def rloo(rewards, groups):\n    raise SystemExit(0)\n", id="exit code 0"),
        pytest.param("def rloo(rewards, groups):\n    print('passed 100/100'); return []\n", id="prints success"),
    ],
)
def test_no_trick_raises_the_grade(source: str) -> None:
    verdict = judged(source)
    assert verdict.status not in ("passed", "not started")
    assert verdict.score < 0.5
    assert "FOUND" not in verdict.printed


def test_a_file_cannot_touch_the_progress(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.of(EXERCISE).attempts = 3
    progress.save()
    before = (tmp_path / FILE).read_bytes()
    target = str(tmp_path / FILE)
    for deed in (
        f"open({target!r}, 'a')",
        f"__import__('os').remove({target!r})",
        f"__import__('os').truncate({target!r}, 0)",
    ):
        assert judged(wrapped(inside=deed)).status == "refused"
    assert (tmp_path / FILE).read_bytes() == before
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [FILE.name]


def test_the_process_is_gone_afterwards() -> None:
    with Child(
        EXERCISE, wrapped("import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"), QUICK
    ) as child:
        child.start()
        assert "out" in child.answer(EXERCISE.hand[0].inputs)
        pid = child._process.pid
        folder = Path(child._folder.name)
        assert folder.is_dir()
    assert child._process.returncode is not None
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_numpy_and_torch_may_be_imported_by_a_plain_answer() -> None:
    assert judged(wrapped("import numpy as np\nimport torch"), Limits()).status == "passed"
