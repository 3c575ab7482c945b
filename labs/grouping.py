"""Rows that share a label, as matrices of row numbers, and the statistics verl takes inside a group.

verl keeps a dictionary from label to a list of scores and reduces one list at a time. The lists of equal length are
stacked here and reduced together, with the same bits: `torch.mean` of one list and of one row of a matrix agree;
`torch.std` does not, so `bessel_std` follows the two passes in double precision that torch uses for a lone list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labs.errors import InputTypeError, ShapeError

#: Columns of `expect` that may be None; any other must be a tensor.
OPTIONAL = frozenset({"rollout_is_weights", "ref_log_prob"})


def labels(index: Any, rows: int) -> list[Any]:
    """The `rows` group labels as Python objects that compare by value; raises `ShapeError` on another number."""
    if index is None:
        raise ShapeError(f"index is None; it takes the group labels of the {rows} rows")
    found: list[Any] = index.tolist() if hasattr(index, "tolist") else list(index)
    if found and isinstance(found[0], list):
        raise ShapeError(f"index holds a list for each row; it takes one label a row, [{rows}]")
    if len(found) != rows:
        raise ShapeError(f"index holds {len(found)} group labels, the batch has {rows} rows")
    return found


def group_ids(index: Any, rows: int) -> Tensor:
    """Group numbers 0, 1, ... `[B]` in order of first appearance; labels are equal as Python objects are."""
    seen: dict[Any, int] = {}
    return torch.tensor([seen.setdefault(label, len(seen)) for label in labels(index, rows)], dtype=torch.int64)


def members(index: Any, rows: int) -> dict[Any, list[int]]:
    """Row numbers of every group, in order of first appearance."""
    table: dict[Any, list[int]] = {}
    for row, label in enumerate(labels(index, rows)):
        table.setdefault(label, []).append(row)
    return table


def by_size(index: Any, rows: int) -> list[Tensor]:
    """One matrix of row numbers `[groups, n]` for every group size n."""
    sizes: dict[int, list[list[int]]] = {}
    for group in members(index, rows).values():
        sizes.setdefault(len(group), []).append(group)
    return [torch.tensor(groups, dtype=torch.int64) for groups in sizes.values()]


def map_groups(rule: Callable[..., Tensor], index: Any, *columns: Tensor) -> Tensor:
    """`rule(*[c[rows] for c in columns])` for every matrix of `by_size`, put back in row order as `[B]`."""
    out = torch.empty_like(columns[0])
    for rows in by_size(index, out.shape[0]):
        rows = rows.to(out.device)
        out[rows] = rule(*(column[rows] for column in columns)).to(out.dtype)
    return out


def bessel_std(x: Tensor) -> Tensor:
    """Standard deviation (n - 1) of every row of `[groups, n]`, as `[groups, 1]`, in the bits of `torch.std(row)`."""
    if x.dtype not in (torch.float32, torch.float64):
        return x.std(dim=1, keepdim=True)
    squares = (x.double() - x.mean(dim=1, keepdim=True).double()).square_()
    # cumsum adds from left to right, as the reduction of a lone list does; sum does not.
    return (squares.cumsum(dim=1)[:, -1:] / (x.shape[1] - 1)).sqrt().to(x.dtype)


def mean_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and Bessel standard deviation `[groups, 1]` of `[groups, n]`; a group of one has mean 0 and std 1.

    Those two constants are float32, as in verl: with float64 scores `1 + epsilon` is rounded to float32.
    """
    if x.shape[1] == 1:
        return torch.tensor(0.0, device=x.device), torch.tensor(1.0, device=x.device)
    return x.mean(dim=1, keepdim=True), bessel_std(x)


def spread(scores: Tensor, response_mask: Tensor) -> Tensor:
    """`scores[:, None] * response_mask`, `[B]` to `[B, T]`, in the bits of that product.

    An integer mask is converted first: a product of two dtypes takes half as long again.
    """
    column = scores.unsqueeze(-1)
    if response_mask.is_floating_point():
        return column * response_mask
    return response_mask.to(column.dtype).mul_(column)


def expect(response_mask: Tensor, *, rows: Sequence[tuple[str, Any]] = (), **tokens: Tensor | None) -> None:
    """Check that columns belong to one batch: `tokens` are floating `[B, T]` like the mask, `rows` hold B entries.

    A column of `OPTIONAL` may be None. Values are not looked at (that costs a pass over memory): NaN goes through.

    Raises:
        InputTypeError: something that is no tensor.
        ShapeError: another shape, an empty batch, rewards that are no floating-point numbers.
    """
    if not isinstance(response_mask, Tensor):
        raise InputTypeError(f"response_mask is {type(response_mask).__name__}; it must be a tensor [B, T]")
    if response_mask.ndim != 2 or 0 in response_mask.shape:
        raise ShapeError(f"response_mask has shape {tuple(response_mask.shape)}; needed [B, T] with B and T at least 1")
    for name, column in tokens.items():
        if column is None and name in OPTIONAL:
            continue
        if not isinstance(column, Tensor):
            raise InputTypeError(f"{name} is {type(column).__name__}; it must be a tensor [B, T] of floats")
        if column.shape != response_mask.shape:
            raise ShapeError(
                f"{name} has shape {tuple(column.shape)}, response_mask has {tuple(response_mask.shape)}; "
                "both must be the same [B, T]"
            )
        if not column.dtype.is_floating_point:
            raise ShapeError(f"{name} has dtype {column.dtype}, it must hold floating-point numbers")
    for name, column in rows:
        if column is not None and (shape := tuple(column.shape)) != response_mask.shape[:1]:
            raise ShapeError(f"{name} has shape {shape}, the batch needs [{response_mask.shape[0]}]")
