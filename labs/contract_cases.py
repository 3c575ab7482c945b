"""Small random batches with every column that an advantage estimator may ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.errors import InputError

Estimator = Callable[..., tuple[Tensor, Tensor]]


class RunError(Exception):
    """An estimator raised; `cause` is what it raised. Anything else that a probe raises is the probe's own fault."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause


@dataclass(frozen=True)
class Case:
    """A batch with every column that an estimator may need; `run` calls an estimator on it."""

    columns: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def but(self, **columns: Any) -> Case:
        """A copy with these columns replaced."""
        return Case({**self.columns, **columns})

    def run(self, function: Estimator) -> tuple[Tensor, Tensor]:
        """Call `function` by keyword with rewards, mask, index, config and the columns it needs.

        A function that declares no `needs` (a user's own) needs its parameters without a default.

        Raises:
            InputError: it needs a column that no case has.
            RunError: it raised.
        """
        names = ["token_level_rewards", "response_mask", "index", "config"]
        needs = getattr(function, "needs", None)
        names += [n for n in (_required(function) if needs is None else needs) if n not in names]
        columns = {**self.columns, **_components(self)}
        missing = [n for n in names if n not in columns]
        if missing:
            raise InputError(f"the contract knows no column {missing[0]!r}; known: {', '.join(sorted(columns))}")
        try:
            return function(**{n: columns[n] for n in names})
        except Exception as error:
            raise RunError(error) from error

    def scaled(self, factor: float) -> Case:
        """Rewards, and everything that is measured in rewards, times `factor`."""
        names = ("token_level_rewards", "values", "reward_baselines", "bootstrap_values")
        return self.but(**{n: self.columns[n] * factor for n in names})

    def rows(self, order: Tensor) -> Case:
        """The rows in this order."""
        pick = order.numpy()
        return Case(
            {n: c[order] if isinstance(c, Tensor) else c[pick] if n == "index" else c for n, c in self.columns.items()}
        )


def _required(function: Estimator) -> list[str]:
    """Parameters without a default."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters
    return [n for n, p in parameters.items() if p.kind in named and p.default is inspect.Parameter.empty]


def _components(case: Case) -> dict[str, Any]:
    mask = case.columns["response_mask"]
    ones = torch.ones((mask.shape[0], mask.shape[1] + 1), dtype=torch.int64)
    return {
        "non_tensor_batch": {"score": case.columns["token_level_rewards"].detach().sum(dim=-1).numpy()},
        "batch": {"prompts": ones[:, :1], "attention_mask": ones},
    }


def draw_mask(generator: torch.Generator, rows: int, width: int, holes: bool) -> Tensor:
    """`[rows, width]` int64: a first and a last policy token in every row, with holes between them if wanted."""
    last = torch.randint(0, width, (rows, 1), generator=generator)
    position = torch.arange(width)
    mask = (position <= last).to(torch.int64)
    if holes:
        gap = torch.rand((rows, width), generator=generator) < 0.4
        mask[gap & (position > 0) & (position < last)] = 0
    return mask


def last_token(mask: Tensor) -> Tensor:
    """Column of each row's last policy token (0 for a row without one)."""
    return (mask * torch.arange(mask.shape[1])).argmax(dim=1)


def terminal(scores: Tensor, mask: Tensor) -> Tensor:
    """Token rewards with each row's score on its last policy token."""
    rewards = torch.zeros(mask.shape, dtype=scores.dtype)
    rewards[torch.arange(len(scores)), last_token(mask)] = scores
    return rewards


def draw_case(generator: torch.Generator, size: int, *, holes: bool = True, dense: bool = False) -> Case:
    """A batch of 2 groups of at least 2 rows, larger with `size`; scores are halves, so that means are exact.

    Rewards are terminal, or with `dense` on every policy token.
    """
    per_group, width = 2 + size % 3, 2 + size // 2
    rows = 2 * per_group
    mask = draw_mask(generator, rows, width, holes)
    halves = torch.randint(-3, 6, (rows, width), generator=generator) / 2
    logits = torch.randn((rows, width, 4), generator=generator)
    pi = logits.softmax(dim=-1)
    action = torch.multinomial(pi.reshape(-1, 4), 1, generator=generator).reshape(rows, width, 1)
    return Case(
        {
            "token_level_rewards": halves * mask if dense else terminal(halves[:, 0], mask),
            "response_mask": mask,
            "index": np.array([f"task{row // per_group}" for row in range(rows)], dtype=object),
            "config": {"gamma": 1.0, "lam": 1.0, "gdpo_reward_keys": ["score"]},
            "values": torch.randn((rows, width), generator=generator),
            "reward_baselines": torch.randn((rows,), generator=generator),
            "old_log_probs": pi.gather(2, action).squeeze(-1).log(),
            "rollout_log_probs": pi.gather(2, action).squeeze(-1).log(),
            "sum_pi_squared": pi.square().sum(dim=-1),
            "truncated": torch.zeros(rows, dtype=torch.bool),
            "bootstrap_values": torch.randn((rows,), generator=generator),
        }
    )


def cases(generator: torch.Generator, trials: int, **kind: Any) -> Iterator[Case]:
    """`trials` batches, small ones first."""
    return (draw_case(generator, size, **kind) for size in range(trials))
