"""Recursions that run from the last response position to the first, and the packing that removes holes.

Everything here is `x_t = a_t + c_t * x_{t+1}` for some `a` and `c`. A loop over the columns of a `[B, T]` tensor
touches one number per cache line; the loops here run over blocks that were transposed first, so that each step reads
contiguous memory, and they keep the order of operations of the plain loop: the results are equal to its bits.

Notation: `r` reward, `V` value, `V'` value of the next state, `g` gamma, `l` lambda. `terminated` ends the value of
the future; `done` ends the trace (a truncated episode is done and not terminated).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labs.errors import InputTypeError, ShapeError

#: Columns of one transposed block; two or three blocks of a thousand rows fit the second-level cache.
BLOCK = 256


def blocks_back(inputs: Sequence[Tensor], out: Tensor, body: Callable[..., Tensor]) -> Tensor:
    """Fill `out` `[B, T]` block by block from the right: `body(*blocks)` gets and returns `[width, B]`, time first."""
    width = out.shape[1]
    for stop in range(width, 0, -BLOCK):
        start = max(0, stop - BLOCK)
        # Two copies are five times faster than one: torch transposes quickly only what is contiguous.
        blocks = [x[:, start:stop].contiguous().t().clone(memory_format=torch.contiguous_format) for x in inputs]
        out[:, start:stop] = body(*blocks).t().contiguous()
    return out


def sweep_(a: Tensor, c: Tensor | float, last: Tensor) -> Tensor:
    """In place, `a[k] += c[k] * a[k + 1]` from the bottom row up, with `last` below the bottom row; returns row 0.

    A tensor `c` is used as working memory.
    """
    rows = a.unbind(0)
    if isinstance(c, Tensor):
        for row, factor in zip(reversed(rows), reversed(c.unbind(0)), strict=True):
            last = row.add_(factor.mul_(last))
    elif c == 1:
        for row in reversed(rows):
            last = row.add_(last)
    else:
        for row in reversed(rows):
            last = row.add_(last * c)
    return last


def linear(a: Tensor, c: Tensor | float, last: Tensor | None = None) -> Tensor:
    """`x_t = a_t + c_t * x_{t+1}` along the second axis of `a` `[B, T]`, with `x_T = last` (default 0)."""
    state = a.new_zeros(a.shape[0]) if last is None else last

    def body(part: Tensor, *factor: Tensor) -> Tensor:
        nonlocal state
        state = sweep_(part, factor[0] if factor else float(c), state).clone()
        return part

    out = torch.empty_like(a, memory_format=torch.contiguous_format)
    return blocks_back((a, c.expand_as(a)) if isinstance(c, Tensor) else (a,), out, body)


def numbers(**scalars: Any) -> None:
    """Refuse discounts that are no numbers; a tensor of one element will do.

    Raises:
        InputTypeError: text, None, a list.
    """
    for name, value in scalars.items():
        if not hasattr(value, "__float__"):
            raise InputTypeError(f"{name} is {value!r}; it must be a number, usually from 0 to 1")


def carried_gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """GAE that neither looks at nor spends anything on a masked position: value and trace are carried across it.

    `V' = m V + (1 - m) V'_next` and `A = m (delta + g l A_next) + (1 - m) A_next`, all `[B, T]` of one dtype.
    """
    numbers(gamma=gamma, lam=lam)
    rows = rewards.shape[0]
    ahead, trace = rewards.new_zeros(rows), rewards.new_zeros(rows)
    decay = gamma * lam

    def body(r: Tensor, v: Tensor, m: Tensor) -> Tensor:
        nonlocal ahead, trace
        hole = 1 - m
        following = torch.empty((v.shape[0] + 1, rows), dtype=v.dtype, device=v.device)
        following[-1] = ahead
        torch.mul(v, m, out=following[:-1])
        ahead = sweep_(following[:-1], hole.clone(), following[-1]).clone()
        delta = following[1:].mul_(gamma).add_(r).sub_(v).mul_(m)
        trace = sweep_(delta, 1.0 if decay == 1 else hole.add_(m, alpha=decay), trace).clone()
        return delta

    return blocks_back((rewards, values, mask), torch.empty_like(rewards), body)


def carried_return(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Discounted return `G = m (r + g G_next) + (1 - m) G_next`; what it holds on a masked position is the carry."""
    numbers(gamma=gamma)
    state = rewards.new_zeros(rewards.shape[0])

    def body(r: Tensor, m: Tensor) -> Tensor:
        nonlocal state
        r.mul_(m)
        state = sweep_(r, 1.0 if gamma == 1 else m.mul(gamma).add_(1 - m), state).clone()
        return r

    return blocks_back((rewards, mask), torch.empty_like(rewards), body)


def discounted(rewards: Tensor, gamma: float, done: Tensor | None = None) -> Tensor:
    """Reward to go `G_t = r_t + g (1 - done) G_{t+1}` on every position of `[B, T]`."""
    numbers(gamma=gamma)
    return linear(rewards, gamma if done is None else gamma * (~done).to(rewards.dtype))


def ahead(x: Tensor, last: Tensor | float = 0.0) -> Tensor:
    """`x` shifted one position to the left along the second axis, with `last` in the column that becomes free."""
    out = torch.empty_like(x)
    out[:, :-1] = x[:, 1:]
    out[:, -1] = last
    return out


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    gamma: float,
    lam: float,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
) -> Tensor:
    """`A_t = r + g (1 - terminated) V' - V + g l (1 - done) A_{t+1}` on every position of `[B, T]`."""
    numbers(gamma=gamma, lam=lam)
    future = next_values if terminated is None else next_values * (~terminated)
    delta = rewards + gamma * future - values
    return linear(delta, gamma * lam if done is None else gamma * lam * (~done).to(delta.dtype))


def td_lambda(
    rewards: Tensor,
    next_values: Tensor,
    gamma: float,
    lam: float,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
) -> Tensor:
    """Lambda-return `G_t = r + g (1 - terminated) [(1 - l_t) V' + l_t G_{t+1}]` with `l_t = l (1 - done)`.

    The last position bootstraps as if it were done: nothing is known behind it but `V'`.
    """
    numbers(gamma=gamma, lam=lam)
    trace = torch.full_like(rewards, lam) if done is None else lam * (~done).to(rewards.dtype)
    trace[:, -1] = 0.0
    discount = gamma * torch.ones_like(rewards) if terminated is None else gamma * (~terminated).to(rewards.dtype)
    return linear(rewards + discount * (1 - trace) * next_values, discount * trace)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    log_ratio: Tensor,
    gamma: float,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    done: Tensor | None = None,
    terminated: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """V-trace policy-gradient advantages and targets `vs`; `log_ratio` is target minus behaviour log-probability.

    `delta = min(rho, rho_max) (r + g (1 - terminated) V' - V)`, `vs - V = delta + g (1 - done) min(rho, c_max)
    (vs - V)_{t+1}`, `A = min(rho, rho_max) (r + g (1 - terminated) vs_{t+1} - V)`, with `V'` for `vs_{t+1}` where done
    and in the last column.
    """
    numbers(gamma=gamma, rho_max=rho_max, c_max=c_max)
    rho = log_ratio.exp()
    clipped = rho.clamp(max=rho_max)
    live = torch.ones_like(rewards) if terminated is None else (~terminated).to(rewards.dtype)
    trace = torch.ones_like(rewards) if done is None else (~done).to(rewards.dtype)
    delta = clipped * (rewards + gamma * live * next_values - values)
    vs = linear(delta, gamma * trace * rho.clamp(max=c_max)) + values
    next_vs = ahead(vs, next_values[:, -1])
    if done is not None:
        next_vs = torch.where(done, next_values, next_vs)
    return clipped * (rewards + gamma * live * next_vs - values), vs


class Packing:
    """Moves the policy tokens of each row to its front, in order, and back: recursions then see no holes.

    Args:
        mask: [B, T]; every position whose mask is not 0 is kept.

    Attributes:
        lengths: [B] int64, number of policy tokens.
        ends: [B, L] bool, true on the last token of every row that has one; L is the largest length, at least 1.
    """

    def __init__(self, mask: Tensor) -> None:
        rows, width = mask.shape
        self._shape = rows, width
        # One search for the positions; everything else copies whole stretches of memory.
        self._at = mask.reshape(-1).nonzero().squeeze(1)
        bounds = torch.searchsorted(self._at, torch.arange(rows + 1, device=mask.device) * width)
        self.lengths = bounds.diff()
        self._sizes: list[int] = self.lengths.tolist()
        self._width = max(1, *self._sizes)
        self.ends = torch.arange(self._width, device=mask.device)[None] == self.lengths[:, None] - 1

    def pack(self, x: Tensor) -> Tensor:
        """`[B, T]` to `[B, L]`, zero behind the last token."""
        out = x.new_zeros((self._shape[0], self._width))
        kept = torch.split(x.reshape(-1).index_select(0, self._at), self._sizes)
        for row, tokens in zip(out.unbind(0), kept, strict=True):
            row[: tokens.shape[0]] = tokens
        return out

    def unpack(self, packed: Tensor) -> Tensor:
        """`[B, L]` to `[B, T]`, zero on masked positions."""
        kept = torch.cat([row[:size] for row, size in zip(packed.unbind(0), self._sizes, strict=True)])
        return packed.new_zeros(self._shape[0] * self._shape[1]).scatter_(0, self._at, kept).reshape(self._shape)

    def following(self, packed: Tensor, bootstrap: Tensor | None) -> Tensor:
        """`packed` one token ahead; behind the last token `bootstrap` `[B]` (default 0)."""
        out = ahead(packed)
        if bootstrap is not None:
            out[self.ends] = bootstrap.to(out.dtype)[self.lengths > 0]
        return out


def behind(truncated: Tensor | None, bootstrap: Tensor | None) -> Tensor | None:
    """Value behind the last token of each row: `bootstrap` where truncated, else 0; None when no row is truncated.

    Raises:
        ShapeError: a truncated row and no `bootstrap`.
    """
    if truncated is None or not bool(truncated.any()):
        return None
    if bootstrap is None:
        raise ShapeError(
            f"{int(truncated.sum())} rows are truncated and bootstrap_values is None; give one value a row"
        )
    return torch.where(truncated.bool(), bootstrap, 0.0)
