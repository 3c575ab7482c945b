"""`TokenBatch`: the frozen columns that every stage reads and every stage copies.

Columns carry verl's names. Shapes: `P` prompt positions, `T` response positions, `B` rows.

| column | shape | meaning |
|---|---|---|
| prompts | [B, P] int | token ids, left-padded |
| responses | [B, T] int | sampled and observed token ids, right-padded |
| attention_mask | [B, P + T] int | 1 on every real token, tool text included |
| response_mask | [B, T] int | 1 on tokens the policy chose *and* that still count (rejection shrinks it) |
| loss_mask | [B, T] int | 1 on tokens the policy chose; never changes, it is the denominator |
| rollout_log_probs, old_log_probs, ref_log_prob | [B, T] float | behaviour, proximal and reference policy |
| rm_scores, token_level_scores, token_level_rewards | [B, T] float | placed score, the same, score minus KL |
| values, advantages, returns | [B, T] float | critic and estimator |
| rollout_is_weights | [B, T] float | importance weights |
| sum_pi_squared | [B, T] float | sum over actions of the squared probability |
| reward_baselines | [B] float | score of the greedy rollout (ReMax) |
| terminated, truncated | [B] bool | ended by the environment; cut by the step limit; never merged |
| versions | [B, T] int | policy version that chose the token, -1 elsewhere |
| uid | [B] str | group of rollouts of one task |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs.errors import InputError

_ROW = {"reward_baselines", "terminated", "truncated", "uid"}
_INTEGER = {"prompts", "responses", "versions"}
_MASK = {"attention_mask", "response_mask", "loss_mask"}


class TokenBatch(Mapping[str, Any]):
    """An immutable mapping of column name to tensor (or, for `uid` and other labels, numpy array).

    Args:
        columns: must hold `responses` or `response_mask`, which fix B and T.

    Raises:
        InputError: a column with the wrong shape or dtype, a mask with values other than 0 and 1, an empty
            batch, NaN in a mask. The message names column, shape found and shape wanted.
    """

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = MappingProxyType(dict(columns))
        self._validate()

    def __getitem__(self, name: str) -> Any:
        if name not in self._columns:
            raise KeyError(f"the batch has no column {name!r}; it has {', '.join(sorted(self._columns))}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        return f"TokenBatch(B={self.rows}, T={self.width}, columns={sorted(self._columns)})"

    @property
    def rows(self) -> int:
        """B, the number of rows."""
        return int(self._anchor().shape[0])

    @property
    def width(self) -> int:
        """T, the number of response positions."""
        return int(self._anchor().shape[1])

    def replace(self, **columns: Any) -> TokenBatch:
        """A copy with these columns set; a column given as None is left out."""
        merged = {**self._columns, **columns}
        return TokenBatch({name: value for name, value in merged.items() if value is not None})

    def select(self, rows: Any) -> TokenBatch:
        """The batch of these rows (index list, slice or bool array), every column along."""
        index = np.arange(self.rows)[rows]
        picked = torch.as_tensor(index)
        return TokenBatch({n: (c[picked] if isinstance(c, Tensor) else c[index]) for n, c in self._columns.items()})

    def save(self, path: Path) -> None:
        """Write all columns to an `.npz` file, whole or not at all."""
        arrays: dict[str, Any] = {
            name: column.detach().cpu().numpy() if isinstance(column, Tensor) else np.asarray(column).astype(str)
            for name, column in self.items()
        }
        part = path.with_name(path.name + ".part")
        with part.open("wb") as stream:
            np.savez_compressed(stream, **arrays)
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> TokenBatch:
        """Read what `save` wrote; labels come back as numpy string arrays. Nothing is ever unpickled."""
        with np.load(path, allow_pickle=False) as data:
            return cls({n: (data[n] if data[n].dtype.kind in "US" else torch.from_numpy(data[n])) for n in data.files})

    def _anchor(self) -> Tensor:
        for name in ("responses", "response_mask", "loss_mask"):
            if name in self._columns:
                return self._columns[name]  # type: ignore[no-any-return]
        raise InputError("a batch needs the column responses, response_mask or loss_mask, which fix its shape [B, T]")

    def _validate(self) -> None:
        anchor = self._anchor()
        if anchor.ndim != 2 or 0 in anchor.shape:
            raise InputError(f"the batch is empty or not [B, T]: its shape is {tuple(anchor.shape)}")
        rows, width = anchor.shape
        prompts = self._columns.get("prompts")
        for name, column in self._columns.items():
            shape = tuple(column.shape)
            wanted: tuple[int, ...] = (rows, width)
            if name in _ROW or not isinstance(column, Tensor) or column.ndim == 1:
                wanted, shape = (rows,), shape[:1]
            elif name == "prompts":
                wanted = (rows, shape[1] if len(shape) > 1 else 0)
            elif name == "attention_mask":
                wanted = (rows, width + (prompts.shape[1] if prompts is not None else 0))
                if prompts is None and len(shape) > 1:
                    wanted = (rows, max(width, shape[1]))
            if shape != wanted:
                raise InputError(f"column {name} has shape {tuple(column.shape)}, the batch needs {wanted}")
            if name in _MASK and not bool(((column == 0) | (column == 1)).all()):
                raise InputError(f"column {name} is a mask and holds values other than 0 and 1")
            if name in _INTEGER and column.dtype.is_floating_point:
                raise InputError(f"column {name} has dtype {column.dtype}, it holds integers")
