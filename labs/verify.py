"""Hold an estimator or a loss, the lab's or a user's own, to its contract, and say which known one it is.

Four questions, in this order:

1. Does it keep the contract and its own declaration? (`labs.contract`, `labs.contract_losses`)
2. Which registered entries does it equal, on random batches, in value and (a loss) in gradient?
3. If it equals none: which is nearest, on which smallest batch do they differ, and is it one with a common mistake in
   it? (`labs.mistakes`)
4. Does it reproduce the rows that verl recorded for what it equals or claims to be?
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.contract import FATAL, check_estimator, measure
from labs.contract_cases import Case, RunError, draw_case
from labs.contract_losses import check_loss
from labs.errors import InputError, one_of
from labs.golden import Row, difference, rows, tensors
from labs.loss_probe import Case as LossCase
from labs.loss_probe import Probe, draw
from labs.mistakes import recognise
from labs.registry import KINDS, Registry, estimators, load_file, losses

#: Batches on which two functions must agree to be called equal, and how closely (relative and absolute).
TRIALS, TOLERANCE = 24, 1e-6

#: Two functions in; for every batch its columns and what each gave (tensors, or the name of what it raised).
Pairs = Callable[[Any, Any], Iterator[tuple[dict[str, Any], Any, Any]]]


@dataclass(frozen=True)
class Difference:
    """Where two functions part: the smallest batch found, and what each gave there."""

    other: str
    batch: dict[str, Any]
    mine: Any
    theirs: Any
    share: float


@dataclass
class Report:
    """What `verify` found.

    Attributes:
        name, kind: which function, `estimator` or `loss`.
        findings: broken clauses of the contract or the declaration, each with the smallest batch that shows it.
        equals: registered entries that it cannot be told from.
        nearest: the registered entry that agrees most often (of several, the one closest in value), where `equals` is
            empty.
        measured: an undeclared estimator's properties, as measured.
        resembles: where `equals` is empty, the entries with a common mistake in them that it cannot be told from.
        passed_over: files of the registry that could not be imported, each with the reason.
        doubts: what is seldom meant among those, in sentences; no clause is broken.
        golden: rows tried and matched, by recorded function; `mismatches` has the sentences.
    """

    name: str
    kind: str
    findings: list[Any] = field(default_factory=list)
    equals: list[str] = field(default_factory=list)
    nearest: Difference | None = None
    measured: dict[str, Any] = field(default_factory=dict)
    resembles: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    golden: dict[str, tuple[int, int]] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """True when the contract, the declaration and the recorded rows hold."""
        return not self.findings and not self.mismatches


def find(target: str) -> tuple[Callable[..., Any], str, Registry]:
    """The function called `target` (a registered name, `losses/gpg`, or a Python file), its name and its registry.

    A file must define a function with the parameters of an estimator (`token_level_rewards`, `response_mask`) or of a
    loss (`old_log_prob`, `log_prob`); where it has several, the one with the name of the file.

    Raises:
        InputError: no such name or file, or no such function in it.
    """
    kind, slash, name = target.rpartition("/")
    if target.endswith(".py"):
        return _from_file(Path(target))
    for registry in (estimators, losses):
        if name in registry and (not slash or kind == next(k for k, r in KINDS.items() if r is registry)):
            return registry[name], name, registry
    raise one_of("estimator or loss (or a .py file)", target, [*estimators, *losses])


def _from_file(path: Path) -> tuple[Callable[..., Any], str, Registry]:
    module = load_file(path)
    found: dict[str, Registry] = {}
    for name, value in vars(module).items():
        if not inspect.isfunction(value) or getattr(value, "__module__", "") != module.__name__:
            continue
        parameters = inspect.signature(value).parameters
        if {"token_level_rewards", "response_mask"} <= set(parameters):
            found[name] = estimators
        elif {"old_log_prob", "log_prob"} <= set(parameters):
            found[name] = losses
    if path.stem in found:
        return getattr(module, path.stem), path.stem, found[path.stem]
    if len(found) != 1:
        what = "several candidates" if found else "no function with the parameters of an estimator or of a loss"
        raise InputError(f"{path} has {what}; name the one to verify {path.stem}")
    ((name, registry),) = found.items()
    return getattr(module, name), name, registry


def verify(target: str, *, seed: int = 0) -> Report:
    """All four questions about `target`; see the module. `seed` is of the random batches."""
    function, name, registry = find(target)
    generator = torch.Generator().manual_seed(seed)
    report = Report(name, registry.kind)
    if registry is estimators:
        report.findings = _first_of_each(check_estimator(function, generator))
        broken = {f.what for f in report.findings}
        if FATAL.isdisjoint(broken) and "properties" not in getattr(function, "meta", {}):
            report.measured = measure(function, generator)[0]
            report.doubts = _doubts(report.measured, inspect.signature(function).parameters)
        compare = estimator_pairs(seed)
    else:
        report.findings = _first_of_each(check_loss(function))
        compare = loss_pairs(seed)
    if any(f.what in ("runs", "result", "shape", "returns") for f in report.findings):
        return report
    candidates: list[tuple[float, Difference]] = []
    entries: dict[str, Callable[..., Any]] = {}
    for other in registry:
        try:
            theirs = registry[other]
        except InputError as error:  # another file of the user's that cannot be imported
            report.passed_over.append(str(error))
            continue
        if theirs is function:
            continue
        entries[other] = theirs
        parted = [(batch, a, b) for batch, a, b in compare(function, theirs) if not agree(a, b)]
        if not parted:
            report.equals.append(other)
        else:
            batch, a, b = min(parted, key=lambda p: _size(p[0]))
            gap = sum(_gap(a, b) for _, a, b in parted) / TRIALS
            candidates.append((gap, Difference(other, batch, a, b, 1 - len(parted) / TRIALS)))
    if not report.equals and candidates:
        report.nearest = max(candidates, key=lambda c: (c[1].share, -c[0]))[1]
        masked = report.measured.get("zero_where_masked", True)
        report.resembles = recognise(function, entries, compare, agree, masked=masked)
    _golden(function, name, registry, report)
    return report


def _first_of_each(findings: list[Any]) -> list[Any]:
    """One finding a clause: the first, which has the smallest batch."""
    return list({finding.what: finding for finding in reversed(findings)}.values())[::-1]


def agree(a: Any, b: Any) -> bool:
    """Equal within `TOLERANCE`, or raised the same."""
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    return all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        for x, y in zip(a, b, strict=True)
    )


def _gap(a: Any, b: Any) -> float:
    """How far two answers are apart, from 0 to 1; 1 where they cannot be compared."""
    if isinstance(a, str) or isinstance(b, str) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return 1.0
    apart = max(float((x.double() - y.double()).abs().max()) for x, y in zip(a, b, strict=True))
    return apart / (1 + apart) if math.isfinite(apart) else 1.0


def _doubts(measured: dict[str, Any], parameters: Any) -> list[str]:
    """What hardly any estimator does on purpose."""
    rules = (
        (not measured["zero_where_masked"], "the advantage is not 0 on masked positions (tool replies, padding)"),
        (
            "index" in parameters and not measured["groups"],
            "it takes index, but which rows form a group is all the same",
        ),
        ("values" in parameters and not measured["critic"], "it takes values, but they change nothing"),
        (not measured["permutation"], "the order of the rows matters"),
        (not measured["crosses_tools"], "a reward behind a tool's reply does not reach the tokens before the reply"),
        (measured["group_of_one"] == "other", "a row alone in its group gets neither 0 nor its score"),
        (measured["equal_group"] == "other", "a group of equal scores does not get 0"),
    )
    return [sentence for wrong, sentence in rules if wrong]


def _size(batch: dict[str, Any]) -> int:
    return sum(c.numel() for c in batch.values() if isinstance(c, Tensor))


def _unusual(case: Case, number: int) -> Case:
    """A batch made to tell variants apart: a lone row, an all-masked row, equal scores, scores near epsilon."""
    rewards, mask = case.token_level_rewards.double(), case.response_mask.clone()
    index = list(case.index)
    if number % 4 == 1:
        index[-1] = "alone"
    if number % 4 == 2 and len(index) > 4:
        mask[0] = 0
    if number % 4 == 3:
        rewards = rewards * 1e-3
    columns = {n: c.double() if isinstance(c, Tensor) and c.is_floating_point() else c for n, c in case.columns.items()}
    return Case(columns).but(token_level_rewards=rewards, response_mask=mask, index=np.array(index, dtype=object))


def estimator_pairs(seed: int) -> Pairs:
    """`TRIALS` small batches on which the advantages of two estimators are compared."""
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = [_unusual(draw_case(generator, 1 + i // 4, holes=i % 8 >= 4), i) for i in range(TRIALS)]

    def run(function: Any, case: Case) -> Any:
        try:
            return case.run(function)[:1]
        except RunError as error:
            return type(error.cause).__name__

    def pairs(mine: Any, theirs: Any) -> Iterator[tuple[dict[str, Any], Any, Any]]:
        for case in drawn:
            yield dict(case.columns), run(mine, case), run(theirs, case)

    return pairs


def loss_pairs(seed: int) -> Pairs:
    """`TRIALS` small batches on which two losses are compared, in value and in gradient."""
    drifts = (0.0, 0.1, 0.3, 1.0)
    drawn = [
        draw(seed * TRIALS + i, drifts[i % 4], rows=2 + i // 8, width=2 + i // 6, empty_row=i % 5 == 4)
        for i in range(TRIALS)
    ]

    def run(function: Any, case: LossCase) -> Any:
        probe = Probe(function)
        try:
            return probe.call(case)[0].detach().reshape(1), probe.gradient(case)
        except Exception as error:  # whatever a user's function does is an answer
            return type(error).__name__

    def pairs(mine: Any, theirs: Any) -> Iterator[tuple[dict[str, Any], Any, Any]]:
        for case in drawn:
            columns = {n: getattr(case, n) for n in ("old_log_prob", "log_prob", "advantages", "response_mask")}
            yield columns, run(mine, case), run(theirs, case)

    return pairs


def _recorded(function: Any, name: str, registry: Registry, equals: list[str]) -> set[str]:
    """Last parts of the recorded functions that this one claims to be; without a claim, of those it equals."""
    wanted: set[str] = set()
    claims = getattr(function, "meta", {}).get("verl")
    for entry in [function] if claims else [registry[n] for n in equals]:
        claimed = str(getattr(entry, "meta", {}).get("verl", ""))
        if claimed and " " not in claimed:
            wanted.add(claimed if claimed.startswith("compute_") else f"compute_policy_loss_{claimed}")
    return wanted


def _golden(function: Any, name: str, registry: Registry, report: Report) -> None:
    wanted = _recorded(function, name, registry, report.equals)
    parameters = inspect.signature(function).parameters
    for row in rows():
        recorded = row.function.rsplit(".", 1)[-1]
        if recorded not in wanted or row.raises is not None or not set(row.inputs) <= set(parameters):
            continue
        ran, matched = report.golden.get(recorded, (0, 0))
        sentence = _row_difference(function, row, parameters)
        report.golden[recorded] = (ran + 1, matched + (sentence is None))
        if sentence is not None:
            report.mismatches.append(sentence)


def _row_difference(function: Any, row: Row, parameters: Any) -> str | None:
    settings = {n: v for n, v in row.config.get("kwargs", {}).items() if n in parameters}
    if "config" in parameters:
        if "old_log_prob" in parameters:
            from labs.actor_config import actor_settings

            settings["config"] = actor_settings(row.config.get("actor") or {})
        else:
            settings["config"] = row.config.get("algo")
    if "loss_agg_mode" in parameters and "loss_agg_mode" in row.config:
        settings["loss_agg_mode"] = row.config["loss_agg_mode"]
    inputs = tensors(row.inputs)
    tracked = {}
    for output in row.outputs:
        if output.startswith("grad_") and output[5:] in inputs:
            tracked[output] = inputs[output[5:]] = inputs[output[5:]].requires_grad_()
    try:
        result = function(**inputs, **settings)
    except Exception as error:
        return f"{row.case}: raised {type(error).__name__}: {error}"
    names = [n for n in row.outputs if not n.startswith(("grad_", "metric"))]
    got: dict[str, Any] = dict(zip(names, result, strict=False))
    for output, leaf in tracked.items():
        (got[output],) = torch.autograd.grad(result[0], leaf, retain_graph=True, allow_unused=True)
    for output, value in got.items():
        sentence = None if value is None else difference(row, output, value)
        if sentence:
            return sentence.split(": array")[0]
    return None
