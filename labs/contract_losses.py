"""One battery over every policy loss: the conditions that all must meet, and what each declares about itself.

`check_loss` takes any function with the signature of a policy loss, a registered one or a user's, and returns what is
wrong, in sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from labs.contract import Breach
from labs.loss_probe import Probe, close, draw, measure, wide
from labs.properties import LossProperties


def check_loss(function: Callable[..., Any], declared: LossProperties | None = None) -> list[Breach]:
    """Everything that is wrong with a policy loss; an empty list when nothing is.

    Args:
        function: `(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights) ->
            (loss, metrics)`.
        declared: its declaration; by default the one that its registry entry carries, if any. Without a declaration
            only the conditions on every loss are checked.
    """
    meta = getattr(function, "meta", {})
    declared = declared or meta.get("properties")
    probe = Probe(function)
    checks: list[Callable[[], str | None]] = [
        lambda: _returns(probe, meta.get("metrics")),
        lambda: _pure(probe),
        lambda: _blind_outside_mask(probe),
        lambda: _mask_dtypes(probe),
        lambda: _refuses(probe),
    ]
    names = ["returns", "pure", "blind outside the mask", "mask dtype", "refuses bad shapes"]
    if declared is not None:
        checks.append(lambda: _derivative(probe, declared))
        names.append("gradient")
    found = []
    for name, check in zip(names, checks, strict=True):
        try:
            sentence = check()
        except Exception as error:
            sentence = f"it raised {type(error).__name__}: {error}"
        if sentence:
            found.append(Breach(name, sentence))
    return found + ([] if declared is None else _declaration(function, declared))


def _returns(probe: Probe, declared: Any) -> str | None:
    for dtype in (torch.float64, torch.float32):
        case = wide()
        columns: dict[str, Any] = {
            f.name: v.to(dtype) for f in fields(case) if isinstance(v := getattr(case, f.name), Tensor)
        }
        answer: Any = probe.call(replace(case, **columns))
        if not (isinstance(answer, tuple) and len(answer) == 2):
            return f"it returned {type(answer).__name__}; a loss returns (loss, metrics)"
        loss, metrics = answer
        if not isinstance(loss, Tensor) or loss.ndim != 0 or loss.dtype != dtype:
            shape = f"shape {tuple(loss.shape)} and {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
            return f"the loss has {shape}; for {dtype} columns it must be a scalar of that dtype"
        known = None if declared is None else {m.name: m for m in declared}
        for name, value in metrics.items():
            if not isinstance(value, float):
                return f"metric {name} is {type(value).__name__}; metrics are floats"
            if known is not None and name not in known:
                return f"metric {name} is not declared"
            if known is not None and not known[name].holds(value):
                return f"metric {name} is {value}, outside the declared [{known[name].low}, {known[name].high}]"
    return None


def _pure(probe: Probe) -> str | None:
    case = wide()
    columns = {f.name: v for f in fields(case) if isinstance(v := getattr(case, f.name), Tensor)}
    copies = {name: column.clone() for name, column in columns.items()}
    first, second = probe.loss(case), probe.loss(case)
    changed = [name for name, column in columns.items() if not torch.equal(column, copies[name])]
    if changed:
        return f"it changed its input {changed[0]} in place"
    return None if first == second else f"two equal calls with one seed gave {first} and {second}"


def _blind_outside_mask(probe: Probe) -> str | None:
    case, noise = wide(), torch.Generator().manual_seed(5)
    outside = ~case.response_mask.bool()
    dirty: dict[str, Any] = {
        name: torch.where(
            outside, -torch.rand(outside.shape, generator=noise, dtype=torch.float64), getattr(case, name)
        )
        for name in ("old_log_prob", "log_prob", "advantages")
    }
    other = replace(case, **dirty)
    if not math.isclose(probe.loss(case), probe.loss(other), rel_tol=1e-9):
        return f"values outside the mask moved the loss from {probe.loss(case)} to {probe.loss(other)}"
    leak = probe.gradient(case)[outside].abs().max()
    return f"a masked token has a gradient of {float(leak)}" if leak > 0 else None


def _mask_dtypes(probe: Probe) -> str | None:
    case = wide()
    answers = {
        str(dtype): probe.loss(replace(case, response_mask=case.response_mask.to(dtype)))
        for dtype in (torch.float64, torch.float32, torch.int64, torch.bool)
    }
    wanted = answers["torch.float64"]
    off = [d for d, value in answers.items() if not math.isclose(value, wanted, rel_tol=1e-6)]
    return f"a mask of {off[0]} gives {answers[off[0]]}, one of float64 gives {wanted}" if off else None


def _refuses(probe: Probe) -> str | None:
    case = draw(3, 0.05)
    for name in ("advantages", "response_mask", "old_log_prob"):
        try:
            probe.call(case, **{name: getattr(case, name)[:, :3]})
        except ValueError:
            continue
        except Exception as error:
            return f"{name} of the wrong width raised {type(error).__name__}; a ValueError with a sentence is wanted"
        return f"{name} of the wrong width was accepted"
    return None


def _derivative(probe: Probe, declared: LossProperties) -> str | None:
    if declared.stop_gradient or declared.random:
        return None
    for drift in (0.05, 0.5):
        case = draw(13, drift)
        found, wanted = probe.gradient(case), probe.slope(case)
        if not close(found, wanted, 1e-5):
            row, token = divmod(int((found - wanted).abs().argmax()), found.shape[1])
            return (
                f"at log-ratios of size {drift} the gradient of row {row}, token {token} is "
                f"{float(found[row, token]):.6g}, the derivative of the value there {float(wanted[row, token]):.6g}"
            )
    return None


def _declaration(function: Callable[..., Any], declared: LossProperties) -> list[Breach]:
    try:
        measured = measure(function)
    except Exception as error:
        return [Breach("declaration", f"it cannot be measured: {type(error).__name__}: {error}")]
    found = []
    for name in (f.name for f in fields(declared)):
        said, seen = getattr(declared, name), getattr(measured, name)
        if name == "needs_config":
            if bool(said) != bool(seen):
                found.append(Breach(name, f"declared {said!r}; without settings it {'raises' if seen else 'works'}"))
        elif said != seen:
            found.append(Breach(name, f"declared {said!r}, measured {seen!r}"))
    return found
