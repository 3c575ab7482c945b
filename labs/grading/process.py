"""Runs an answer: in a process of its own for a student's file, in this one for the reference.

What can happen to a student's process, and the status it gets:

| status | what happened |
|---|---|
| missing | the file does not define the function |
| broken | importing the file raises |
| timeout | no answer within the limit |
| died | the process ended: it exited, was killed, ran out of memory in native code |
| garbage | what came back was no answer, or larger than any right one |
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from labs.grading import worker
from labs.grading.spec import Exercise, Inputs
from labs.grading.values import plain

_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds for starting (before the student's code runs), importing, one call, everything; bytes of memory
    beyond what the libraries use; bytes of one reply.
    """

    start: float = 120.0
    load: float = 10.0
    call: float = 5.0
    total: float = 120.0
    memory: int = 1 << 30
    reply: int = 8 << 20


class Stopped(Exception):  # noqa: N818 - it is the student's process that stopped, not an error of the lab
    """The process can answer no more; `status` is one of the table above."""

    def __init__(self, status: str, detail: str = "", error: dict[str, Any] | None = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.error = error


class Raised(Exception):  # noqa: N818 - the student's function raised
    """The function under test raised; `error` has type, text and line."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['type']}: {error['text']}")
        self.error = error


class Runner(Protocol):
    """Something that answers inputs."""

    refused: list[str]
    printed: str

    def answer(self, inputs: Inputs, gradient: bool = False) -> dict[str, Any]:
        """The encoded answer (see `worker.answer`); raises `Stopped` when there can be none."""


def call(runner: Runner, inputs: Inputs) -> Any:
    """The plain value for one input; raises `Raised` when the function does."""
    reply = runner.answer(inputs)
    if "error" in reply:
        raise Raised(reply["error"])
    return plain(reply["out"])


def _request(exercise: Exercise, inputs: Inputs, gradient: bool) -> dict[str, Any]:
    return {
        "inputs": inputs,
        "kinds": dict(exercise.kinds),
        "library": exercise.library,
        "gradient": list(exercise.gradient) if gradient else [],
    }


class InProcess:
    """Trusted code in this process. Arguments take the way through JSON all the same, so that nothing is shared."""

    def __init__(self, exercise: Exercise, function: Callable[..., Any]) -> None:
        self.refused: list[str] = []
        self.printed = ""
        self._exercise = exercise
        self._function = function

    @classmethod
    def of_source(cls, exercise: Exercise, source: str) -> InProcess:
        """Runner of a file given as text."""
        space: dict[str, Any] = {"__name__": exercise.name}
        exec(compile(source, f"<answer {exercise.name}>", "exec"), space)
        return cls(exercise, space[exercise.function])

    def answer(self, inputs: Inputs, gradient: bool = False) -> dict[str, Any]:
        """See `Runner`."""
        request = json.loads(json.dumps(_request(self._exercise, inputs, gradient)))
        reply: dict[str, Any] = json.loads(json.dumps(worker.answer(self._function, request)))
        return reply


class Child:
    """A student's file in a process of its own; a context manager, at whose end the process is gone."""

    def __init__(self, exercise: Exercise, source: str, limits: Limits | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self.refused: list[str] = []
        self.printed = ""
        self._exercise = exercise
        self._source = source
        self._stopped: Stopped | None = None
        self._replies: queue.Queue[bytes] = queue.Queue()

    def __enter__(self) -> Child:
        self._folder = tempfile.TemporaryDirectory(prefix="answer-")
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "SYSTEMROOT", "LANG", "LC_ALL", "LD_LIBRARY_PATH")}
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-B", str(Path(worker.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder.name,
            env={**kept, "HOME": self._folder.name, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        for target in (self._read_replies, self._read_printed):
            threading.Thread(target=target, daemon=True).start()
        self._deadline = time.monotonic() + self.limits.start + self.limits.total
        return self

    def start(self) -> None:
        """Load the libraries, then the student's file; raises `Stopped` when that does not work."""
        names = ("labs", "envs", "experiments", "tests")
        job = {
            "source": self._source,
            "module": Path(self._exercise.file_name).stem,
            "function": self._exercise.function,
            "library": self._exercise.library,
            "path": [*(p for p in sys.path if p and Path(p).is_absolute()), str(_PACKAGE.parent)],
            "base": str(_PACKAGE.parent),
            "roots": [str(_PACKAGE.parent / name) for name in names],
            "allow": list(self._exercise.allow),
            "memory": self.limits.memory,
            "cpu": int(self.limits.start + self.limits.total) + 1,
        }
        self._send(job)
        if self._exercise.library == "torch":
            import torch  # noqa: F401 - the reference needs it; both processes load it at the same time
        self._receive(self.limits.start)
        reply = self._receive(self.limits.load)
        self._deadline = time.monotonic() + self.limits.total
        if reply["kind"] == "failed":
            error = reply["error"]
            self._stop("missing" if error["type"] == "Missing" else "broken", error=error)

    def answer(self, inputs: Inputs, gradient: bool = False) -> dict[str, Any]:
        """See `Runner`."""
        if self._stopped:
            raise self._stopped
        self._send(_request(self._exercise, inputs, gradient))
        reply = self._receive(self.limits.call)
        if reply["kind"] != "answer" or not ({"out", "after"} <= reply.keys() or "error" in reply):
            self._stop("garbage")
        return reply

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._ended()

    def _receive(self, seconds: float) -> dict[str, Any]:
        until = min(time.monotonic() + seconds, self._deadline)
        while True:
            try:
                line = self._replies.get(timeout=max(until - time.monotonic(), 0.001))
            except queue.Empty:
                self._stop("timeout", f"{seconds:g}")
            if not line:
                self._ended()
            try:
                if len(line) >= self.limits.reply:
                    raise ValueError("too long")
                reply = json.loads(line)
                if not isinstance(reply, dict) or "kind" not in reply:
                    raise ValueError("no message")
                _well_formed(reply)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self._stop("garbage")
            if reply["kind"] != "refused":
                return dict(reply)
            self.refused.append(str(reply.get("what", ""))[:300])

    def _ended(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        code = self._process.poll()
        self._stop("died", "" if code is None else str(code))

    def _stop(self, status: str, detail: str = "", error: dict[str, Any] | None = None) -> None:
        self._stopped = Stopped(status, detail, error)
        self._kill()
        raise self._stopped

    def _read_replies(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(self.limits.reply):
            self._replies.put(line)
            if len(line) >= self.limits.reply:
                break
        self._replies.put(b"")

    def _read_printed(self) -> None:
        assert self._process.stderr is not None
        while chunk := self._process.stderr.read1(65536):  # type: ignore[attr-defined]
            if len(self.printed) < 2000:
                self.printed = (self.printed + chunk.decode("utf-8", "replace"))[:2000]

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(OSError):
            self._folder.cleanup()


def _well_formed(reply: dict[str, Any]) -> None:
    """Raise unless a message from the student's process can be read: nothing in it is trusted."""
    if "error" in reply:
        error = reply["error"]
        for name in ("type", "text"):
            error[name] = str(error[name])[:400]
        error["line"] = error["line"] if isinstance(error["line"], int) else None
    if "out" in reply:
        plain(reply["out"])
        for part in ("after", "gradients"):
            for value in reply.get(part, {}).values():
                plain(value)
