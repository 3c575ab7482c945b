"""The process that runs a student's file: arguments come in as JSON lines, arrays go out, nothing is judged here.

Started as a script of its own (`python -I worker.py`), so it imports nothing of the lab: neither the reference nor
the comparison is ever in this process. Before the student's file runs, an audit hook refuses to import or open the
lab's sources (other than the modules an exercise allows), to write, rename or remove files, to start processes, to
send signals, to open connections and to load native code; every refusal is reported at once, so that catching the
exception does not hide it. Escape through native code is out of scope: this keeps honest people honest and makes a
cheat deliberate, it is no sandbox for hostile programs.

`answer` is also what the grading process calls for the reference and the named mistakes, so that both sides are
encoded by the same lines.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

#: An answer may hold this many numbers.
MOST_ENTRIES = 100_000

_REFUSED_EVENTS = {
    **dict.fromkeys(("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
                     "os.startfile", "subprocess.Popen", "_winapi.CreateProcess"), "start a process"),
    **dict.fromkeys(("os.kill", "os.killpg", "signal.pthread_kill"), "send a signal"),
    **dict.fromkeys(("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate",
                     "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr"), "change files"),
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"), "open a connection"),
    **dict.fromkeys(("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function", "ctypes.cdata",
                     "ctypes.string_at", "ctypes.wstring_at"), "use native code"),
    **dict.fromkeys(("resource.setrlimit", "resource.prlimit"), "change its limits"),
}  # fmt: skip

#: Other people's implementations of what the exercises ask for.
_REFUSED_LIBRARIES = frozenset({"verl", "trl", "torchrl", "openrlhf", "rlax"})


def build(value: Any, kind: str, library: str) -> Any:
    """The argument as the student's function gets it."""
    if kind == "plain" or library == "python" or value is None:
        return value
    if library == "torch":
        import torch

        dtype = {"float": torch.float64, "int": torch.int64, "bool": torch.bool}[kind]
        return torch.tensor(value, dtype=dtype)
    import numpy as np

    return np.array(value, dtype={"float": np.float64, "int": np.int64, "bool": np.bool_}[kind])


class TooLarge(Exception):  # noqa: N818 - its name is what the verdict quotes
    """The answer has more numbers than any right one."""


def encode(value: Any, budget: list[int] | None = None, depth: int = 0) -> Any:
    """A value as JSON that still tells a list from a tuple, and a tensor from an array; raises on anything else."""
    budget = [MOST_ENTRIES] if budget is None else budget
    budget[0] -= 1
    if budget[0] < 0 or depth > 20:
        raise TooLarge(f"the answer has more than {MOST_ENTRIES} entries or is nested more than 20 deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > 2000:
            raise TooLarge("the answer holds a whole number of more than 2000 bits")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value[:1000])
    if isinstance(value, list | tuple):
        label = "list" if isinstance(value, list) else "tuple"
        return {label: [encode(v, budget, depth + 1) for v in value]}
    if isinstance(value, Mapping):
        return {"dict": [[encode(k, budget, depth + 1), encode(v, budget, depth + 1)] for k, v in value.items()]}
    library = type(value).__module__.partition(".")[0]
    if library in ("torch", "numpy") and hasattr(value, "shape"):
        if library == "numpy" and not hasattr(value, "tolist"):
            raise TypeError(f"the answer holds a {type(value).__name__}")
        size = math.prod(value.shape)
        budget[0] -= size
        if budget[0] < 0:
            raise TooLarge(f"the answer has {size} entries; {MOST_ENTRIES} are allowed")
        data = value.detach().cpu().reshape(-1) if library == "torch" else value.reshape(-1)
        dtype = str(value.dtype).removeprefix("torch.")
        if library == "numpy" and not value.shape:
            return encode(value.item(), budget, depth)
        return {library: {"dtype": dtype, "shape": list(value.shape), "data": [_scalar(x) for x in data.tolist()]}}
    raise TypeError(f"the answer holds a {type(value).__name__}")


def _scalar(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    raise TypeError(f"an array in the answer holds a {type(value).__name__}")


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in _tensors(v)]
    return [value] if hasattr(value, "grad_fn") and value.is_floating_point() else []


def answer(function: Callable[..., Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Run `function` on one request and return the encoded answer.

    Args:
        function: the function under test.
        request: `inputs`, `kinds`, `library`, and `gradient`, the parameters to differentiate by: the scalar is the
            sum of all floating outputs times fixed, all different weights, so that no entry can hide another.

    Returns:
        `out`, `after` (the arguments as they are afterwards) and `gradients` (None where none flows); or `error`
        (type, text, line in the student's file).
    """
    try:
        kinds, library = request["kinds"], request["library"]
        leaves: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for name, value in request["inputs"].items():
            built = build(value, kinds[name], library)
            if name in request["gradient"]:
                leaves[name] = built.requires_grad_(True)
                built = built.clone()
            arguments[name] = built
        out = function(**arguments)
        reply: dict[str, Any] = {"out": encode(out)}
        reply["after"] = {n: encode(v) for n, v in arguments.items()}
        if leaves:
            reply["gradients"] = _gradients(out, leaves)
        return reply
    except BaseException as error:
        return {"error": describe(error)}


def _gradients(out: Any, leaves: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    total, place = torch.zeros((), dtype=torch.float64), 0
    for tensor in _tensors(out):
        positions = torch.arange(place, place + tensor.numel(), dtype=torch.float64)
        weights = 0.5 + torch.remainder(positions * 37, 101) / 101
        # A masked-out NaN must not turn every gradient into NaN: the forward value is compared anyway.
        flat = tensor.reshape(-1).double()
        total = total + torch.where(torch.isfinite(flat), flat, flat.detach().nan_to_num(0, 0, 0)).mul(weights).sum()
        place += tensor.numel()
    if not total.requires_grad:
        return dict.fromkeys(leaves)
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {n: None if g is None else encode(g) for n, g in zip(leaves, grads, strict=True)}


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as type, text and the line of the student's file it came through last."""
    line = None
    try:
        # Not extract_tb: it would open this very file, which the guard refuses.
        for frame, number in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename.startswith("<answer"):
                line = number
        if isinstance(error, SyntaxError):
            line = error.lineno
        return {"type": type(error).__name__, "text": str(error)[:400], "line": line}
    except BaseException:
        return {"type": "Exception", "text": "an exception that cannot be described", "line": None}


class _Guard:
    """The audit hook."""

    def __init__(self, job: Mapping[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        self._roots = [os.path.realpath(r) + os.sep for r in job["roots"]]
        self._base = os.path.realpath(job["base"])
        self._allow = frozenset({"labs", "envs", "labs.errors", *job["allow"]})
        self._tell = tell
        self._told = 0

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._open(*args[:3])
        elif event == "import":
            name = str(args[0])
            top = name.partition(".")[0]
            if top in _REFUSED_LIBRARIES or (top in ("labs", "envs", "experiments") and name not in self._allow):
                self._refuse(f"import {name}")
        elif event in _REFUSED_EVENTS:
            self._refuse(f"{_REFUSED_EVENTS[event]} ({event})")

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        name = os.fsdecode(path)
        writing = any(c in str(mode or "") for c in "wax+")
        if mode is None and isinstance(flags, int):
            writing = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        if writing and name != os.devnull:
            self._refuse(f"write the file {name}")
        real = os.path.realpath(name)
        if any(real.startswith(root) for root in self._roots):
            relative = os.path.relpath(real, self._base).replace(os.sep + "__pycache__", "")
            folder, file = os.path.split(relative)
            stem = file.partition(".")[0]
            parts = [p for p in (*folder.split(os.sep), "" if stem == "__init__" else stem) if p]
            if ".".join(parts) not in self._allow:
                self._refuse(f"open {relative}")

    def _refuse(self, what: str) -> None:
        self._told += 1
        if self._told <= 5:
            self._tell({"kind": "refused", "what": what[:300]})
        raise PermissionError(f"an answer may not {what}")


def _limit(job: Mapping[str, Any]) -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system: the time limits of the other side remain
        return
    # Address space is limited to what the libraries have mapped so far plus the allowance.
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            mapped = int(stream.read().split()[0]) * resource.getpagesize()
    except OSError:
        mapped = 4 << 30
    for what, amount in (("RLIMIT_AS", mapped + job["memory"]), ("RLIMIT_CPU", job["cpu"]), ("RLIMIT_CORE", 0)):
        kind = getattr(resource, what)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            amount = min(amount, hard)
        resource.setrlimit(kind, (amount, amount))


def main() -> None:
    """Read the job, run the student's file, answer requests until the input ends."""
    commands = os.fdopen(os.dup(0), "r", encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What the student prints goes to standard error, and there is nothing to read.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    lock = threading.RLock()

    def tell(message: dict[str, Any]) -> None:
        with lock:
            replies.write(json.dumps(message) + "\n")
            replies.flush()

    job = json.loads(commands.readline())
    sys.path.extend(p for p in job["path"] if p not in sys.path)
    # Libraries are loaded before the guard stands: they load native code themselves.
    if job["library"] == "torch" or re.search(r"^\s*(import|from) torch\b", job["source"], re.MULTILINE):
        import torch

        torch.set_num_threads(1)
        # Loads what autograd loads late.
        leaf = torch.ones(1, requires_grad=True)
        torch.autograd.grad(leaf.sum(), leaf)
    if job["library"] == "numpy" or re.search(r"^\s*(import|from) (numpy|scipy)\b", job["source"], re.MULTILINE):
        import numpy as np

        np.zeros(1)
    _limit(job)
    tell({"kind": "loaded"})
    sys.addaudithook(_Guard(job, tell))
    module = types.ModuleType(job["module"])
    sys.modules[job["module"]] = module
    try:
        exec(compile(job["source"], f"<answer {job['module']}>", "exec"), module.__dict__)
        function = module.__dict__[job["function"]]
    except KeyError:
        tell({"kind": "failed", "error": {"type": "Missing", "text": job["function"], "line": None}})
        return
    except BaseException as error:
        tell({"kind": "failed", "error": describe(error)})
        return
    tell({"kind": "ready"})
    for line in commands:
        reply = answer(function, json.loads(line))
        try:
            tell({"kind": "answer", **reply})
        except BaseException as error:
            tell({"kind": "answer", "error": describe(error)})
    os._exit(0)  # threads of the student's do not keep the process


if __name__ == "__main__":
    main()
