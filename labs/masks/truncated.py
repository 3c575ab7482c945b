"""Take truncated rows out of the loss and leave them in their group's baseline.

TRL's `mask_truncated_completions` (after DAPO's overlong filtering, arXiv:2503.14476). The row's score still shapes the
advantages of the others: what is estimated is the return *given that a row ends in time*, with a baseline that knows
about those that did not.
"""

from __future__ import annotations

from torch import Tensor

from labs.errors import InputError
from labs.registry import masks


@masks.entry(needs=("truncated",), level="row", paper="TRL 1.16 mask_truncated_completions; arXiv:2503.14476")
def truncated(*, response_mask: Tensor, truncated: Tensor) -> Tensor:
    """`response_mask` `[B, T]` with 0 in the rows whose `truncated` `[B]` bool is true."""
    if truncated.shape != response_mask.shape[:1]:
        raise InputError(
            f"truncated: the column has shape {tuple(truncated.shape)}, response_mask has {tuple(response_mask.shape)}"
        )
    return response_mask * (~truncated.bool()).unsqueeze(-1).to(response_mask.dtype)
