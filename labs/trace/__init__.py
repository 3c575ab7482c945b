"""Where a number comes from: run tensor code and keep, for every entry, the arithmetic that made it.

`Tracer` is a torch dispatch mode. While it is active, every tensor has a shadow: a numpy array of `Number`, one for
each entry, that holds the value and the expression. An operation is applied to the shadows too, with numpy's own
broadcasting, views and reductions on object arrays, so that views share memory as the tensors do and in-place writes
are seen. Nothing is written per formula: whatever the traced code computes, its backward pass included, can be asked
for.

An operation without a rule (a sort, a unique, a random draw) gives entries without a past: its values appear as plain
numbers. After each rule the shadow's values are compared with the tensor's, so a wrong rule cannot explain anything.

>>> import torch
>>> x = torch.tensor([1.0, 0.0, 0.5])
>>> with Tracer() as tracer:
...     tracer.name(x, "score")
...     y = x - x.mean()
>>> print(tracer.explain(y, (0,), "y"))
y[0] = score[0] - (score[0] + score[1] + score[2]) / 3 = 0.5
  score[0] = 1
  score[1] = 0
  score[2] = 0.5
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labs.errors import InputError
from labs.trace.numbers import COMPARE, Number, binary, box_scalar, boxed, unary, values_of
from labs.trace.rules import RULES
from labs.trace.text import lines

_HERE = Path(__file__).resolve().parent
_PACKAGE = _HERE.parent


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active inside a `with` block; `name` tensors before use, ask with `explain` afterwards."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shadows: dict[int, Any] = {}
        self._alive: list[Tensor] = []

    def name(self, tensor: Tensor, name: str) -> None:
        """Call the entries of `tensor` `name[i,t]` in every explanation."""
        shadow = np.empty(tuple(tensor.shape), dtype=object)
        values = tensor.detach().cpu().numpy()
        for index in np.ndindex(*shadow.shape):
            where = f"[{','.join(map(str, index))}]" if index else ""
            shadow[index] = Number(values[index].item(), name=name + where)
        self._bind(tensor, shadow)

    def number(self, tensor: Tensor, index: tuple[int, ...]) -> Number:
        """The `Number` of one entry; raises `InputError` when the index is outside the tensor."""
        if len(index) != tensor.ndim or any(not -n <= i < n for i, n in zip(index, tensor.shape, strict=True)):
            raise InputError(f"index {index} is outside a tensor of shape {tuple(tensor.shape)}")
        found: Number = self._shadow(tensor)[index]
        return found

    def explain(self, tensor: Tensor, index: tuple[int, ...], label: str) -> str:
        """The arithmetic of one entry as text; every line reads `name = expression = value` and can be evaluated."""
        return "\n".join(lines(self.number(tensor, index), f"{label}[{','.join(map(str, index))}]"))

    def _bind(self, tensor: Tensor, shadow: Any) -> None:
        self._shadows[id(tensor)] = shadow
        self._alive.append(tensor)  # an id is only unique while its tensor lives

    def _shadow(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return boxed(np.asarray(value))
        if id(value) not in self._shadows:
            self._bind(value, boxed(_array(value)))
        return self._shadows[id(value)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        before = [self._shadow(a) for a in args if isinstance(a, Tensor)] if name.endswith("_") else []
        out = func(*args, **kwargs)
        try:
            with np.errstate(all="ignore"):
                shadow = self._rule(name, args, kwargs, out)
        except (KeyError, ValueError, IndexError, TypeError, AttributeError):
            shadow = None
        if name.endswith("_") and before:
            if shadow is None or not _agrees(shadow, args[0]):
                shadow = boxed(_array(args[0]))
            before[0][...] = np.broadcast_to(shadow, before[0].shape)
            return out
        for tensor, made in _outputs(out, shadow):
            if made is None or made.shape != tuple(tensor.shape) or not _agrees(made, tensor):
                made = boxed(_array(tensor))
            self._bind(tensor, self._stamp(made))
        return out

    def _stamp(self, shadow: Any) -> Any:
        """Note which line of the lab or of a user's file made new numbers."""
        source = None
        for number in shadow.flat:
            if number.op and number.source is None:
                if source is None:
                    source = _caller()
                number.source = source
        return shadow

    def _rule(self, name: str, args: Any, kwargs: Any, out: Any) -> Any:
        base = name.rstrip("_")
        s = self._shadow
        if base in ("true_divide", "divide"):
            base = "div"
        if base in binary:
            left, right = s(args[0]), s(args[1])
            if kwargs.get("alpha", 1) != 1:
                right = binary["mul"](right, Number(kwargs["alpha"]))
            return box_scalar(binary[base](left, right)) if not kwargs.get("rounding_mode") else None
        if base in unary:
            return box_scalar(unary[base](s(args[0])))
        if base in COMPARE:
            left, right = (np.asarray(values_of(s(a)), dtype=np.float64) for a in args[:2])
            return boxed(COMPARE[base](left, right))
        return RULES[base](s, args, kwargs, out)


def _array(tensor: Tensor) -> Any:
    values = tensor.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _outputs(out: Any, shadow: Any) -> list[tuple[Tensor, Any]]:
    if isinstance(out, Tensor):
        return [(out, shadow)]
    if isinstance(out, (tuple, list)):
        made = shadow if isinstance(shadow, (tuple, list)) else [None] * len(out)
        return [(o, m) for o, m in zip(out, made, strict=False) if isinstance(o, Tensor)]
    return []


def _agrees(shadow: Any, tensor: Tensor) -> bool:
    if tensor.numel() == 0:
        return True
    ours = np.broadcast_to(np.asarray(values_of(shadow), dtype=np.float64), tuple(tensor.shape))
    theirs = tensor.detach().cpu().to(torch.float64).numpy()
    # The shadow is float64 throughout; the code may go through float32 or less on the way.
    loose = {torch.float16: 2e-2, torch.bfloat16: 2e-2, torch.float32: 1e-4}.get(tensor.dtype, 1e-6)
    return bool(np.allclose(ours, theirs, rtol=loose, atol=loose, equal_nan=True))


def _caller() -> str:
    """The line of code outside this module and torch that asked for the operation."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.resolve().parent != _HERE and "torch" not in path.parts and path.exists():
            line = linecache.getline(str(path), frame.f_lineno).strip()
            shown = path.relative_to(_PACKAGE.parent) if path.is_relative_to(_PACKAGE.parent) else Path(path.name)
            return f"{shown.as_posix()}:{frame.f_lineno}  {line}"
        frame = frame.f_back
    return ""
