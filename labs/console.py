"""What a command says and how it ends: the progress bar, and one sentence for whatever went wrong."""

from __future__ import annotations

import errno
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

from labs.errors import InputError


def say(text: str) -> None:
    """One line on standard error, where it does not mix with results."""
    sys.stderr.write(printable(text) + "\n")


def printable(text: str) -> str:
    r"""The text with control characters as escapes, so that text of a file cannot steer the terminal.

    Line breaks and tabs stay. Escaped are the other controls, marks that reverse the order of text, and halves of
    surrogate pairs, which no terminal can be sent.

    >>> printable(chr(27) + "[2J" + chr(7) + " ok")
    '\\x1b[2J\\x07 ok'
    """
    return re.sub(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]",
        lambda found: found[0].encode("unicode_escape").decode(),
        text,
    )


class Bar:
    """A progress bar on standard error: only on a terminal, only for work that takes longer than a second."""

    WIDTH = 30

    def __init__(self, quiet: bool = False) -> None:
        self._start = time.monotonic()
        self._next = self._start + 1.0
        self._shown = False
        self._on = not quiet and sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._on or now < self._next or done <= 0:
            return
        self._next, self._shown = now + 0.1, True
        share = min(done / total, 1.0) if total else 1.0
        left = (now - self._start) * (1 - share) / share
        full = round(self.WIDTH * share)
        minutes, seconds = divmod(round(left), 60)
        bar = "#" * full + "." * (self.WIDTH - full)
        self._draw(f"[{bar}] {done}/{total}, {minutes}:{seconds:02d} left ")

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._shown:
            self._draw(" " * (self.WIDTH + 40) + "\r")
        self._on = False

    @staticmethod
    def _draw(text: str) -> None:
        sys.stderr.write("\r" + text)
        sys.stderr.flush()


def guard(call: Callable[..., object], *arguments: object) -> int:
    """Call a command and return its exit code: what it returns if that is an integer, otherwise 0.

    1 the system refused (disk, permission, a closed pipe); 2 the input is wrong; 130 interrupted. Whatever goes wrong
    is said in one sentence on standard error, and so is a warning. A traceback means a bug in the lab.
    """
    # The lab's tensors are tiny: more threads only cost time, and one thread makes any number of processes agree.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    if not _streams():
        return _end(2, "standard output is closed; send it to a file, or to /dev/null")
    shown = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
    try:
        code = call(*arguments)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except InputError as error:
        return _end(2, str(error).replace("\n", " "))
    except KeyboardInterrupt:
        return _end(130, "interrupted; what was complete is kept, nothing else was written")
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _end(1, "standard output was closed by its reader")
        where = f"{error.filename}: " if error.filename else "cannot write: "
        return _end(1, f"{where}{error.strerror or error}")
    finally:
        warnings.showwarning = shown


def _streams() -> bool:
    """Put the null device where a standard stream was closed; False when that was standard output.

    Otherwise the next file that is opened takes the place of the stream and gets what was meant for it.
    """
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return True
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
    there = sys.stdout is not None
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open to the end
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    return there


def leave(code: int) -> NoReturn:
    """End the process; at once when it was a light one, whose orderly end costs a fifteenth of it and does nothing.

    Libraries that register something to be done at the end (files to remove, workers to wait for) get their turn.
    """
    if not {"logging", "multiprocessing", "numpy"} & sys.modules.keys():
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    sys.exit(code)


def _end(code: int, sentence: str) -> int:
    """Say the last sentence; make sure that Python has nothing left to complain about when it closes its streams."""
    import re

    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sentence = re.sub(r"\d{60,}", lambda digits: f"{digits[0][:10]}... ({len(digits[0])} digits)", sentence)
    try:
        say(f"error: {sentence}" if code != 130 else sentence)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return code
