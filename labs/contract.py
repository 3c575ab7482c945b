"""The battery that every advantage estimator goes through, built in or a user's own.

`check_estimator` draws small batches from a generator and returns what is wrong, in sentences, each with the batch that
shows it. Two layers: a contract without choices (shapes, dtypes, no writing into inputs, the same answer twice, columns
it does not know, both mask dtypes, a finite answer or a `ValueError` where groups or masks degenerate), and the entry's
own declaration (`labs.properties.Properties`), which is measured and must agree in both directions. `unbiased` alone is
not measured here: it needs exact enumeration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.contract_cases import Case, Estimator, RunError, cases, draw_case, terminal
from labs.masked import masked_whiten
from labs.properties import Properties

#: What a probe that compares two results calls equal: rounding, and epsilon over the smallest spread that is drawn.
RTOL, ATOL = 2e-3, 2e-4

#: Broken clauses that stop the battery: what comes behind them could not be measured.
FATAL = frozenset({"runs", "result", "pure", "shape", "dtype", "finite", "deterministic"})


@dataclass(frozen=True)
class Breach:
    """One clause of a contract or a declaration that a function breaks.

    Attributes:
        what: the field of `Properties`, or the clause of the contract.
        text: one sentence.
        batch: the smallest batch found that shows it; empty where none is needed.
    """

    what: str
    text: str
    batch: Mapping[str, Any] = field(default_factory=dict)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal up to `RTOL` and `ATOL`; NaN equals NaN."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=RTOL, atol=ATOL, equal_nan=True)


def _contract(function: Estimator, generator: torch.Generator, trials: int) -> Iterator[Breach]:
    for case in cases(generator, trials):
        try:
            yield from _contract_on(function, case)
        except RunError as error:
            yield Breach("runs", f"raises {error}", case.columns)
            return


def _at_corners(function: Estimator, generator: torch.Generator) -> Iterator[Breach]:
    for size in range(3):
        case = draw_case(generator, size)
        for what, columns in _corners(case).items():
            yield from _survives(function, what, case.but(**columns))


def _corners(case: Case) -> dict[str, dict[str, Any]]:
    """What real batches hold sooner or later, made from an ordinary one."""
    mask, rows = case.response_mask, len(case.index)
    empty = mask.clone()
    empty[0] = 0
    return {
        "a group of one": {"index": np.array(["alone", *case.index[1:]], dtype=object)},
        "equal scores": {"token_level_rewards": terminal(torch.full((rows,), 1.5), mask)},
        "rewards on masked positions": {"token_level_rewards": case.token_level_rewards + 0.5 * (mask == 0)},
        "a row without policy tokens": {"response_mask": empty},
    }


def _survives(function: Estimator, what: str, case: Case) -> Iterator[Breach]:
    """A corner may be refused with a `ValueError`; an answer must be finite, and leave its input alone."""
    kept = {n: c.clone() for n, c in case.columns.items() if isinstance(c, Tensor)}
    try:
        result = case.run(function)
    except RunError as error:
        if not isinstance(error.cause, ValueError):
            yield Breach(what, f"raises {error}; a ValueError with a sentence may be raised here", case.columns)
        return
    written = [n for n, c in kept.items() if not torch.equal(c, case.columns[n])]
    if written:
        yield Breach("pure", f"writes into its input {written[0]} ({what})", {**case.columns, **kept})
    if not all(bool(tensor.isfinite().all()) for tensor in result):
        yield Breach(what, "gives NaN or inf", {**case.columns, **kept})


def _contract_on(function: Estimator, case: Case) -> Iterator[Breach]:
    kept = {n: c.clone() for n, c in case.columns.items() if isinstance(c, Tensor)}
    result: object = case.run(function)
    if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(x, Tensor) for x in result)):
        yield Breach("result", f"returns {type(result).__name__}, not a tuple of two tensors", case.columns)
        return
    written = [n for n, c in kept.items() if not torch.equal(c, case.columns[n])]
    if written:
        yield Breach("pure", f"writes into its input {written[0]}", case.columns)
        return
    shape, again = tuple(case.response_mask.shape), case.run(function)
    for name, tensor, second in zip(("advantages", "returns"), result, again, strict=True):
        if tuple(tensor.shape) != shape:
            yield Breach("shape", f"{name} has shape {tuple(tensor.shape)}, needed {shape}", case.columns)
            return
        if tensor.dtype != torch.float32:
            yield Breach("dtype", f"{name} is {tensor.dtype} for float32 rewards and an int64 mask", case.columns)
        if not bool(tensor.isfinite().all()):
            yield Breach("finite", f"{name} holds NaN or inf for finite input", case.columns)
        if not torch.equal(tensor, second):
            yield Breach("deterministic", f"{name} differs between two calls on the same batch", case.columns)
    if not same(case.but(response_mask=case.response_mask.float()).run(function)[0], result[0]):
        yield Breach("mask dtype", "a float32 mask gives other advantages than an int64 mask", case.columns)
    tracked = case.but(token_level_rewards=case.token_level_rewards.clone().requires_grad_())
    if tracked.run(function)[0].requires_grad:
        yield Breach("no gradient", "advantages carry a gradient; compute them under torch.no_grad", case.columns)


def _probe_zero_where_masked(function: Estimator, case: Case, _: torch.Generator) -> bool:
    return bool((case.run(function)[0][case.response_mask == 0] == 0).all())


def _probe_permutation(function: Estimator, case: Case, generator: torch.Generator) -> bool:
    order = torch.randperm(len(case.response_mask), generator=generator)
    return same(case.rows(order).run(function)[0], case.run(function)[0][order])


def _probe_group_shift(function: Estimator, case: Case, generator: torch.Generator) -> bool:
    constants = {label: float(k) for k, label in enumerate(dict.fromkeys(case.index), start=1)}
    shift = torch.tensor([constants[label] for label in case.index])
    moved = case.but(token_level_rewards=case.token_level_rewards + terminal(shift, case.response_mask))
    return same(moved.run(function)[0], case.run(function)[0])


def _probe_scale_invariant(function: Estimator, case: Case, _: torch.Generator) -> bool:
    return same(case.scaled(4.0).run(function)[0], case.run(function)[0])


def _probe_scale_linear(function: Estimator, case: Case, _: torch.Generator) -> bool:
    return same(case.scaled(4.0).run(function)[0], 4.0 * case.run(function)[0])


def _probe_all_masked_row(function: Estimator, case: Case, _: torch.Generator) -> bool:
    mask = case.response_mask.clone()
    mask[0] = 0
    return bool((case.but(response_mask=mask).run(function)[0][0] == 0).all())


def _probe_reward_on_masked(function: Estimator, case: Case, _: torch.Generator) -> bool:
    """True when a reward on masked positions is lost."""
    policy = case.response_mask.bool()
    moved = case.but(token_level_rewards=case.token_level_rewards + (~policy).float())
    return all(same(a[policy], b[policy]) for a, b in zip(moved.run(function), case.run(function), strict=True))


def _probe_reward_behind(function: Estimator, case: Case, _: torch.Generator) -> bool:
    """True when a reward behind a row's last policy token is lost."""
    policy = case.response_mask.bool()
    behind = policy.flip(1).cumsum(1).flip(1) == 0
    moved = case.but(token_level_rewards=case.token_level_rewards + behind.float())
    return all(same(a[policy], b[policy]) for a, b in zip(moved.run(function), case.run(function), strict=True))


def _probe_crosses_tools(function: Estimator, case: Case, _: torch.Generator) -> bool:
    """True when nothing crosses: returns before a hole do not see the reward behind it."""
    mask = torch.ones((len(case.response_mask), 4), dtype=torch.int64)
    mask[:, 2] = 0
    wide = {n: torch.cat([c, c, c, c], dim=1)[:, :4] for n, c in case.columns.items() if getattr(c, "ndim", 0) == 2}
    scores = case.token_level_rewards.sum(dim=-1)
    case = case.but(**{**wide, "response_mask": mask})
    with_reward = case.but(token_level_rewards=terminal(scores, mask)).run(function)[1]
    without = case.but(token_level_rewards=torch.zeros(mask.shape)).run(function)[1]
    return same(with_reward[:, :2], without[:, :2])


def _probe_groups(function: Estimator, case: Case, _: torch.Generator) -> bool:
    """True when the labels do not matter."""
    rows = len(case.index)
    dealt = np.array([f"task{row % (rows // 2)}" for row in range(rows)], dtype=object)
    return same(case.but(index=dealt).run(function)[0], case.but(index=np.full(rows, "task")).run(function)[0])


def _probe_critic(function: Estimator, case: Case, generator: torch.Generator) -> bool:
    """True when values do not matter."""
    other = torch.randn(case.values.shape, generator=generator)
    return same(case.but(values=other).run(function)[0], case.run(function)[0])


def _probe_trajectory(function: Estimator, case: Case, _: torch.Generator) -> bool:
    advantages, mask = case.run(function)[0], case.response_mask.bool()
    return all(
        same(row[keep], row[keep][:1].expand(int(keep.sum()))) for row, keep in zip(advantages, mask, strict=True)
    )


def _probe_returns_advantages(function: Estimator, case: Case, _: torch.Generator) -> bool:
    advantages, returns = case.run(function)
    return same(advantages, returns)


def _probe_returns_to_go(function: Estimator, case: Case, _: torch.Generator) -> bool:
    """Without holes: what a return does at a tool's reply is another question."""
    mask = case.response_mask.flip(1).cumsum(1).flip(1).clamp(max=1)
    case = case.but(response_mask=mask)
    to_go = case.token_level_rewards.flip(1).cumsum(1).flip(1)
    return same(case.run(function)[1][mask.bool()], to_go[mask.bool()])


def _probe_equal_group(function: Estimator, case: Case, _: torch.Generator) -> bool:
    """Only the first group is made equal: whitening would hide a batch without any contrast."""
    first = torch.from_numpy(case.index == case.index[0])
    scores = torch.where(first, torch.tensor(1.5), case.token_level_rewards.sum(dim=-1))
    case = case.but(token_level_rewards=terminal(scores, case.response_mask))
    return bool(case.run(function)[0][first].abs().max() < ATOL)


def _lone(case: Case) -> Case:
    rewards = (case.token_level_rewards.abs() + 0.25) * case.response_mask
    return case.but(index=np.array([f"task{row}" for row in range(len(case.index))]), token_level_rewards=rewards)


def _lone_result(case: Case, function: Estimator, want: Callable[[Case], Tensor]) -> bool:
    case = _lone(case)
    policy = case.response_mask.bool()
    return same(case.run(function)[0][policy], want(case)[policy])


def _lone_score(case: Case) -> Tensor:
    rewards: Tensor = case.token_level_rewards
    return rewards.sum(dim=1, keepdim=True).expand_as(rewards)


def _lone_whitened(case: Case) -> Tensor:
    return masked_whiten(_lone_score(case) * case.response_mask, case.response_mask)


def _lone_raises(function: Estimator, case: Case, _: torch.Generator) -> bool:
    return _refuses(function, _lone(case))


def _single_token_raises(function: Estimator, case: Case, _: torch.Generator) -> bool:
    mask = torch.zeros_like(case.response_mask)
    mask[0, 0] = 1
    return _refuses(function, case.but(response_mask=mask, token_level_rewards=terminal(torch.ones(len(mask)), mask)))


def _refuses(function: Estimator, case: Case) -> bool:
    try:
        case.run(function)
    except RunError as error:
        return isinstance(error.cause, ValueError)
    return False


Probe = Callable[[Estimator, Case, torch.Generator], bool]

_LONE: dict[str, Probe] = {
    "zero": lambda f, c, _: _lone_result(c, f, lambda case: torch.zeros_like(case.token_level_rewards)),
    "score": lambda f, c, _: _lone_result(c, f, _lone_score),
    "return": lambda f, c, _: _lone_result(c, f, lambda case: case.token_level_rewards.flip(1).cumsum(1).flip(1)),
    "whitened": lambda f, c, _: _lone_result(c, f, _lone_whitened),
    "raises": _lone_raises,
}

#: Field -> (kind of batch, value -> probe that must hold on every batch, value when none holds).
PROBES: dict[str, tuple[dict[str, bool], dict[Any, Probe], Any]] = {
    "credit": ({"dense": True}, {"trajectory": _probe_trajectory}, "token"),
    "groups": ({}, {False: _probe_groups}, True),
    "critic": ({}, {False: _probe_critic}, True),
    "zero_where_masked": ({}, {True: _probe_zero_where_masked}, False),
    "permutation": ({}, {True: _probe_permutation}, False),
    "group_shift": ({}, {True: _probe_group_shift}, False),
    "scale": ({}, {"invariant": _probe_scale_invariant, "linear": _probe_scale_linear}, "other"),
    "group_of_one": ({"dense": True}, _LONE, "other"),
    "equal_group": ({}, {"zero": _probe_equal_group}, "other"),
    "all_masked_row": ({}, {True: _probe_all_masked_row}, False),
    "single_token": ({}, {"raises": _single_token_raises}, "works"),
    "reward_on_masked": ({}, {False: _probe_reward_on_masked, "between choices": _probe_reward_behind}, True),
    "crosses_tools": ({}, {False: _probe_crosses_tools}, True),
    "returns": (
        {"dense": True},
        {"advantages": _probe_returns_advantages, "reward to go": _probe_returns_to_go},
        "other",
    ),
}


def measure(
    function: Estimator, generator: torch.Generator, trials: int = 12
) -> tuple[dict[str, Any], dict[str, Mapping[Any, Case]]]:
    """What the battery finds for every field, and for each value that was ruled out the batch that did it.

    An exception on one of the unusual batches rules a value out as a wrong number does.
    """
    found: dict[str, Any] = {}
    witnesses: dict[str, Mapping[Any, Case]] = {}
    for name, (kind, probes, otherwise) in PROBES.items():
        broken: dict[Any, Case] = {}
        for case in cases(generator, trials, **kind):
            for value, probe in probes.items():
                if value not in broken and not _holds(probe, function, case, generator):
                    broken[value] = case
        found[name] = next((value for value in probes if value not in broken), otherwise)
        witnesses[name] = broken
    if not found["groups"]:
        found |= {"group_of_one": "no groups", "equal_group": "no groups"}
    if found["critic"] and found["returns"] == "reward to go":
        found["returns"] = "value target"
    return found, witnesses


def _holds(probe: Probe, function: Estimator, case: Case, generator: torch.Generator) -> bool:
    try:
        return probe(function, case, generator)
    except RunError:
        return False


def check_estimator(
    function: Estimator, generator: torch.Generator, *, declared: Properties | None = None, trials: int = 12
) -> list[Breach]:
    """What is wrong with an estimator; empty when nothing is.

    Args:
        function: called by keyword; `function.needs` names the columns beyond rewards, mask, index and config.
        generator: every batch is drawn from it.
        declared: default `function.meta["properties"]`; without a declaration only the contract is checked.
        trials: batches per property, from 4 rows of 2 positions up.
    """
    findings = list(itertools.islice(_contract(function, generator, trials), 20))
    if FATAL.isdisjoint(f.what for f in findings):
        findings += _at_corners(function, generator)
    if declared is None:
        declared = getattr(function, "meta", {}).get("properties")
    if declared is None or not FATAL.isdisjoint(f.what for f in findings):
        return findings
    needs = getattr(function, "needs", ())
    for name, column in (("groups", "index"), ("critic", "values")):
        if getattr(declared, name) != (column in needs):
            said = getattr(declared, name)
            findings.append(Breach(name, f"declares {name}={said}, but needs={needs!r} says otherwise ({column})"))
    measured, witnesses = measure(function, generator, trials)
    for name, value in measured.items():
        said = getattr(declared, name)
        if said == value:
            continue
        witness = witnesses[name].get(said)
        findings.append(
            Breach(
                name,
                f"declares {name}={said!r}, measured {value!r} on {trials} batches",
                {} if witness is None else witness.columns,
            )
        )
    return findings
