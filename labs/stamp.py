"""Where a result came from: version, commit, packages, machine, command, times.

Made without a single heavy import, since every run needs one: git works in the background while the experiment runs,
and package versions are read off the names of the installed `.dist-info` folders.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import labs

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

#: The folders whose code decides a result.
CODE = ("labs", "envs", "experiments")

#: Packages that can change a number, and the ones a run may have used.
PACKAGES = ("click", "matplotlib", "numpy", "scipy", "simpy", "torch", "tensordict", "verl")


class Stamp:
    """Started before a run and finished after it.

    Args:
        command: what was typed.
    """

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._started = time.time()
        self._clock = time.perf_counter()
        self._git = _Git()

    def finish(self, **which: Any) -> dict[str, Any]:
        """The stamp, with `which` (experiment, seed, fingerprint) first."""
        seconds = time.perf_counter() - self._clock
        return {
            **which,
            "command": self._command,
            "lab": labs.__version__,
            **code(self._git),
            "python": sys.version.split()[0],
            "packages": packages(),
            "cpu": cpu(),
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "system": f"{os.uname().sysname} {os.uname().release}" if hasattr(os, "uname") else sys.platform,
            "started": _utc(self._started),
            "finished": _utc(time.time()),
            "seconds": round(seconds, 6),
        }


def _utc(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


class _Git:
    """`git status` of the code's folders, started at once and read at the end.

    The answer has `commit` and `dirty` (changed or new files among the code); both are None outside a checkout, without
    git, and where git refuses.
    """

    def __init__(self) -> None:
        self._pid = None
        if not os.path.exists(os.path.join(ROOT, ".git")) or not hasattr(os, "posix_spawnp"):
            return
        command = ["git", "-C", ROOT, "status", "--porcelain=v2", "--branch", "--", *CODE]
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        self._read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, null, 2), (os.POSIX_SPAWN_DUP2, null, 0)]
        try:
            self._pid = os.posix_spawnp("git", command, environment, file_actions=actions)
        except OSError:
            os.close(self._read)
        finally:
            os.close(write)
            os.close(null)

    def answer(self) -> dict[str, Any]:
        unknown = {"commit": None, "dirty": None}
        if self._pid is None:
            return unknown
        with os.fdopen(self._read, encoding="utf-8", errors="replace") as pipe:
            said = pipe.read().splitlines()
        _, status = os.waitpid(self._pid, 0)
        self._pid = None
        commit = [line.split()[2] for line in said if line.startswith("# branch.oid ")]
        if status != 0 or not commit:
            return unknown
        return {"commit": commit[0], "dirty": any(not line.startswith("#") for line in said)}


def code(git: _Git | None = None) -> dict[str, Any]:
    """What identifies the code: `commit` and `dirty`, and `source` wherever the commit alone does not say it."""
    said = (git or _Git()).answer()
    return {**said, "source": None if said["dirty"] is False else source()}


def source() -> str:
    """Twelve hexadecimal digits over every Python file of the code: they tell changed checkouts of one commit apart."""
    import hashlib

    digest = hashlib.sha256()
    waiting = [os.path.join(ROOT, name) for name in reversed(CODE)]
    while waiting:
        folder = waiting.pop()
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            if entry.name.endswith(".py"):
                with open(entry.path, "rb") as file:
                    digest.update(entry.path[len(ROOT) :].encode() + b"\0" + file.read() + b"\0")
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                waiting.append(entry.path)
    return digest.hexdigest()[:12]


def packages() -> dict[str, str]:
    """Installed versions of `PACKAGES`, from the first folder on `sys.path` that has each."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith(".dist-info"):
                package, _, version = name.removesuffix(".dist-info").partition("-")
                if package.lower() in PACKAGES:
                    found.setdefault(package.lower(), version)
    return dict(sorted(found.items()))


def cpu() -> str:
    """The processor's name where the system tells it, otherwise its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file.read(4096).splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return os.uname().machine if hasattr(os, "uname") else sys.platform
