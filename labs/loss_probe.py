"""Policy losses on small seeded cases: their values, gradients, and the properties that those show.

Nothing here knows the name of a loss. Everything is float64.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labs.masked import AGG_MODES, agg_loss
from labs.properties import Extremes, LossProperties, Pull

#: Settings that have no default in verl but that a case must give.
CONFIG: Mapping[str, Any] = {"policy_loss": {"dro_beta": 0.3}}
EXTREME = 6.0  # nats
_SIZE = (4, 6)


@dataclass(frozen=True)
class Case:
    """The inputs of one call."""

    old_log_prob: Tensor
    log_prob: Tensor
    advantages: Tensor
    response_mask: Tensor
    rollout_is_weights: Tensor | None = None
    loss_agg_mode: str = "token-mean"
    seed: int = 0

    def inside(self, values: Tensor) -> Tensor:
        """`values` with 0 outside the mask."""
        return torch.where(self.response_mask.bool(), values, 0.0)


class Probe:
    """A policy loss that is called on cases."""

    def __init__(self, function: Callable[..., Any], config: Any = CONFIG) -> None:
        self.function, self.config = function, config
        self.takes_generator = "generator" in inspect.signature(function).parameters

    def call(self, case: Case, config: Any = None, **columns: Any) -> tuple[Tensor, Mapping[str, Any]]:
        """The raw call, with every random choice seeded."""
        extra = {"generator": torch.Generator().manual_seed(case.seed)} if self.takes_generator else {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(case.seed)
            given = {
                "old_log_prob": case.old_log_prob, "log_prob": case.log_prob, "advantages": case.advantages,
                "response_mask": case.response_mask, "loss_agg_mode": case.loss_agg_mode,
                "config": self.config if config is None else config,
                "rollout_is_weights": case.rollout_is_weights, **columns,
            }  # fmt: skip
            return self.function(**given, **extra)  # type: ignore[no-any-return]

    def loss(self, case: Case) -> float:
        """The value."""
        return float(self.call(case)[0])

    def gradient(self, case: Case) -> Tensor:
        """Derivative of the loss with respect to `log_prob`, as autograd has it."""
        leaf = case.log_prob.clone().requires_grad_()
        self.call(replace(case, log_prob=leaf))[0].backward()  # type: ignore[no-untyped-call]
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def slope(self, case: Case, step: float = 1e-6) -> Tensor:
        """The derivative of the value by central differences at the valid tokens."""
        out = torch.zeros_like(case.log_prob)
        for row, token in case.response_mask.nonzero().tolist():
            shift = torch.zeros_like(out)
            shift[row, token] = step
            up, down = (self.loss(replace(case, log_prob=case.log_prob + s)) for s in (shift, -shift))
            out[row, token] = (up - down) / (2 * step)
        return out


def draw(seed: int, drift: float, *, rows: int = _SIZE[0], width: int = _SIZE[1], empty_row: bool = False) -> Case:
    """A random case: log-probabilities in [-3, -0.2], log-ratios of size `drift`, a mask with holes and padding."""
    g = torch.Generator().manual_seed(seed)
    shape = (rows, width)
    log_prob = -0.2 - 2.8 * torch.rand(shape, generator=g, dtype=torch.float64)
    old = (log_prob - drift * torch.randn(shape, generator=g, dtype=torch.float64)).clamp(max=-0.05)
    mask = torch.rand(shape, generator=g) < 0.7
    mask[:, 0] = True
    for row in range(rows):
        mask[row, max(2, width - row) :] = False
    if empty_row:
        mask[-1] = False
    return Case(old, log_prob, torch.randn(shape, generator=g, dtype=torch.float64), mask.double(), seed=seed)


def _by_row(case: Case, value: float | None = None) -> Case:
    """Constant advantages in each row: the first of the row, or `value` everywhere."""
    first = case.advantages[:, :1] if value is None else torch.full_like(case.advantages[:, :1], value)
    return replace(case, advantages=first.expand_as(case.advantages).clone())


def _on_policy(case: Case) -> Case:
    return replace(case, old_log_prob=case.log_prob.clone())


def _reinforce(case: Case, aggregation: str) -> Tensor:
    """The gradient of -A log_prob under an aggregation, `row-mean` and `row-sum` included."""
    leaf = case.log_prob.clone().requires_grad_()
    per_token = -case.advantages * leaf
    if aggregation in AGG_MODES:
        loss = agg_loss(per_token, case.response_mask, aggregation)
    else:
        rows = (per_token * case.response_mask).sum(-1)
        counts = case.response_mask.sum(-1).clamp(min=1.0) if aggregation == "row-mean" else 1.0
        loss = (rows / counts).mean()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


def close(a: Tensor, b: Tensor, tolerance: float = 1e-6) -> bool:
    scale = max(float(b.abs().max()), 1e-12)
    return bool((a - b).abs().max() <= tolerance * scale)


def measure(function: Callable[..., Any], config: Any = CONFIG) -> LossProperties:
    """The properties of a policy loss as its answers show them (`needs_config` is `("?",)` if None is refused)."""
    probe = Probe(function, config)
    random = any(
        not close(probe.gradient(replace(wide(), seed=s)), probe.gradient(replace(wide(), seed=0))) for s in range(1, 5)
    )
    aggregation = _aggregation(probe)
    small = draw(3, 0.05)
    corners = {"good_up": (1, 1), "good_down": (1, -1), "bad_up": (-1, 1), "bad_down": (-1, -1)}
    return LossProperties(
        old_log_probs=_reach(probe),  # type: ignore[arg-type]
        aggregation=aggregation,
        on_policy=_policy_gradient(probe, aggregation),  # type: ignore[arg-type]
        stop_gradient=not close(probe.slope(small), probe.gradient(small), 1e-5),
        extremes=Extremes(**{name: _pull(probe, *corner) for name, corner in corners.items()}),
        all_masked=_all_masked(probe),  # type: ignore[arg-type]
        is_weights=_weights(probe),  # type: ignore[arg-type]
        row_order=_row_order(probe),
        random=random,
        needs_config=("?",) if _refuses_none(probe) else (),
    )  # fmt: skip


def wide() -> Case:
    """A case with covariances, clips and holes of every kind."""
    case = draw(11, 0.3, rows=6, width=8)
    return replace(case, advantages=3.0 * case.advantages)


def _aggregation(probe: Probe) -> str:
    case = _by_row(_on_policy(draw(5, 0.0, empty_row=True)), 1.0)
    gradients = {mode: probe.gradient(replace(case, loss_agg_mode=mode)) for mode in AGG_MODES}
    for like in (close, _parallel):
        if all(like(found, _reinforce(case, mode)) for mode, found in gradients.items()):
            return "honoured"
        for mode in (*AGG_MODES, "row-mean", "row-sum"):
            if all(like(found, _reinforce(case, mode)) for found in gradients.values()):
                return mode
    return "unknown"


def _parallel(found: Tensor, wanted: Tensor) -> bool:
    """Equal up to a factor, which the largest wanted entry fixes."""
    at = wanted.abs().argmax()
    divisor = float(found.reshape(-1)[at])
    return divisor != 0 and close(found * (float(wanted.reshape(-1)[at]) / divisor), wanted)


def _policy_gradient(probe: Probe, aggregation: str) -> str:
    case = _by_row(_on_policy(wide()))
    wanted = _reinforce(case, case.loss_agg_mode if aggregation in ("honoured", "unknown") else aggregation)
    found = probe.gradient(case)
    if close(found, wanted):
        return "reinforce"
    return "scaled" if _parallel(found, wanted) else "partial"


def _reach(probe: Probe) -> str:
    case = _by_row(draw(3, 0.05), 1.0)
    shift = torch.zeros_like(case.old_log_prob)
    shift[0, 0] = 0.02
    moved = replace(case, old_log_prob=case.old_log_prob + shift)
    changed = (probe.gradient(moved) - probe.gradient(case)).abs() > 1e-9
    if changed[0, 1:].any():
        return "row"
    if changed.any():
        return "token"
    before, after = probe.call(case)[1], probe.call(moved)[1]
    return "metrics" if any(before[n] != after[n] for n in before) else "unused"


def _pull(probe: Probe, sign: int, direction: int) -> Pull:
    shape = (2, 3)
    high, low = torch.full(shape, -0.1, dtype=torch.float64), torch.full(shape, -0.1, dtype=torch.float64)
    high[1] = low[1] = -1.0
    low[0] = -0.1 - EXTREME
    now, before = (high, low) if direction > 0 else (low, high)
    case = Case(
        before, now, torch.full(shape, float(sign), dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
    )
    unit = probe.gradient(_on_policy(case))[0].abs().median()
    size = float(probe.gradient(case)[0].abs().median() / unit)
    if size < 1e-9:
        return "zero"
    return "vanishes" if size < 0.1 else "bounded" if size <= 20 else "grows"


def _all_masked(probe: Probe) -> str:
    case = draw(7, 0.1)
    nothing = replace(case, response_mask=torch.zeros_like(case.response_mask))
    try:
        value = probe.loss(nothing)
    except ValueError:
        return "raises"
    if probe.gradient(nothing).abs().max() != 0:
        return "leaks"
    return "nan" if math.isnan(value) else "zero" if value == 0 else "other"


def _weights(probe: Probe) -> str:
    case = _by_row(_on_policy(draw(9, 0.0)), 1.0)
    weights = 0.5 + torch.rand(_SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain, weighted = probe.gradient(case), probe.gradient(replace(case, rollout_is_weights=weights))
    if close(weighted, plain):
        return "ignored"
    if close(weighted, plain * weights):
        return "token"
    # Constant in each row: a multiple of the plain gradient row by row.
    factor = weighted.sum(-1, keepdim=True) / plain.sum(-1, keepdim=True)
    return "row" if close(weighted, plain * factor) else "other"


def _row_order(probe: Probe) -> bool:
    order = torch.arange(5, -1, -1)
    for seed in range(5):
        case = replace(wide(), seed=seed)
        permuted = replace(
            case, old_log_prob=case.old_log_prob[order], log_prob=case.log_prob[order],
            advantages=case.advantages[order], response_mask=case.response_mask[order],
        )  # fmt: skip
        if not close(probe.gradient(permuted), probe.gradient(case)[order]):
            return False
    return True


def _refuses_none(probe: Probe) -> bool:
    case = draw(3, 0.05)
    try:
        # `Probe.call` reads None as "the battery's settings", so the empty mapping stands for "no settings given".
        probe.call(case, config={})
    except ValueError:
        return True
    return False
