"""Masked sums, means and variances, and the five ways to turn `[B, T]` losses into a number.

Every function has verl 0.9.1's name, parameters, dtype promotions and order of operations, because its
advantages and losses are defined by them to the last bit. `mask` is 1 on a position that counts; it may be
bool, integer or float. Source: `verl.utils.torch_functional`, `verl.utils.groupwise`,
`verl.trainer.ppo.core_algos.agg_loss`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError, InputTypeError, ShapeError, one_of

AGG_MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
)


def masked_sum(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    r"""`sum(values * mask)` over `axis`, immune to NaN and inf outside the mask.

    A position where `bool(mask)` is false is replaced by 0 before the product; a fractional mask weights.
    """
    return _kept(values, mask, mask.bool()).sum(axis)


def _kept(values: Tensor, mask: Tensor, valid: Tensor) -> Tensor:
    """`values * mask` with 0 where not `valid`; a boolean mask weighs nothing, so its product is left out."""
    kept = torch.where(valid, values, 0.0)
    return kept if mask.dtype is torch.bool else weighed(kept, mask)


def weighed(kept: Tensor, mask: Tensor) -> Tensor:
    """`kept * mask`, written over `kept` where the dtype allows: a fresh tensor costs more than the product."""
    return kept.mul_(mask) if torch.result_type(kept, mask) == kept.dtype else kept * mask


def masked_mean(values: Tensor, mask: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """`masked_sum / (sum(mask) + 1e-8)`; an all-masked input gives 0, never NaN.

    With an integer mask the denominator is float32, so that 1e-8 vanishes from a count of 1 on.
    """
    return masked_sum(values, mask, axis) / (mask.sum(axis) + 1e-8)


def masked_var(values: Tensor, mask: Tensor, unbiased: bool = True) -> Tensor:
    """Variance over the mask, `mean((x - mean)^2) * n / (n - 1)` when `unbiased` (Bessel), else without the factor.

    Raises:
        ValueError: `unbiased` and the mask has no position or only one.
    """
    return _variance(values - masked_mean(values, mask), mask, mask.bool(), mask.sum(), unbiased)


def _variance(centred: Tensor, mask: Tensor, valid: Tensor, count: Tensor, unbiased: bool) -> Tensor:
    squares = torch.where(valid, centred, 0.0).square_()
    variance = (squares if mask.dtype is torch.bool else weighed(squares, mask)).sum() / (count + 1e-8)
    if unbiased:
        if count == 0:
            raise InputError("masked_var: the mask has no valid position, the unbiased variance needs at least 2")
        if count == 1:
            raise InputError("masked_var: the mask has 1 valid position, the unbiased variance needs at least 2")
        # The factor is a float32 number under an integer mask, so float64 whitening is good to 3e-8 there.
        variance = variance * (count / (count - 1))
    return variance


def masked_whiten(values: Tensor, mask: Tensor, shift_mean: bool = True) -> Tensor:
    """`(x - mean) * rsqrt(var + 1e-8)`, Bessel variance over the mask; without `shift_mean` the mean is added back.

    *Every* position is transformed, the masked ones too. A constant input gives 0.

    Raises:
        ValueError: the mask has no position or only one.
    """
    valid, count = mask.bool(), mask.sum()
    mean = _kept(values, mask, valid).sum() / (count + 1e-8)
    centred = values - mean
    scale = torch.rsqrt(_variance(centred, mask, valid, count, unbiased=True) + 1e-8)
    # In place where nothing is differentiated: the variance keeps no reference to what it squared.
    whitened = centred * scale if centred.requires_grad else centred.mul_(scale)
    if not shift_mean:
        whitened = whitened + mean
    return whitened


def get_response_mask(response_id: Tensor, eos_token: int | list[int] = 2, dtype: torch.dtype = torch.int64) -> Tensor:
    """1 up to and including the first `eos_token` (one id or several) of each row of `response_id` `[B, T]`."""
    ends = torch.isin(response_id, torch.as_tensor(eos_token, device=response_id.device)).to(torch.int64)
    return (ends.cumsum(dim=1) - ends == 0).to(dtype)


def as_torch_index(index: Any, device: torch.device | None = None) -> Tensor:
    """Map group labels to int64 ids as `verl.utils.groupwise.as_torch_index` does.

    Integers are kept as they are, floats within 1e-6 of an integer are rounded, strings that all parse as
    integers become those integers (`"7"` and `"07"` merge), anything else is numbered by `numpy.unique`.
    """
    import numpy as np

    if isinstance(index, Tensor):
        if index.dtype.is_floating_point:
            return _rounded(index.detach().cpu().numpy().ravel()).to(device)
        return index.detach().to(torch.int64).reshape(-1).to(device)
    array = np.asarray(index).ravel()
    if array.dtype.kind in "iub":
        return torch.from_numpy(array.astype(np.int64)).to(device)
    if array.dtype.kind == "f":
        return _rounded(array).to(device)
    try:
        numbers = np.array([int(str(x)) for x in array.tolist()], dtype=np.int64)
        return torch.from_numpy(numbers).to(device)
    except (ValueError, OverflowError):
        _, inverse = np.unique(np.array([str(x) for x in array.tolist()]), return_inverse=True)
        return torch.from_numpy(inverse.astype(np.int64)).to(device)


def _rounded(values: Any) -> Tensor:
    import numpy as np

    rounded = np.rint(values)
    if np.all(np.abs(values - rounded) <= 1e-6):
        return torch.from_numpy(rounded.astype(np.int64))
    _, inverse = np.unique(values, return_inverse=True)
    return torch.from_numpy(inverse.astype(np.int64))


def group_mean_std(scores: Tensor, gidx: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, Bessel standard deviation and size of every group id, in float32 whatever `scores` is.

    Two passes (centre, then squares); `std = sqrt(max(var, eps))` with `var = sum / max(n - 1, 1)`. A group of
    one, and an id that nobody holds, has mean 0 and std 1. The results have length `max(gidx) + 1`.

    Raises:
        IndexError: a negative id.
    """
    scores = scores.reshape(-1).to(torch.float32)
    gidx = gidx.reshape(-1).to(torch.int64)
    if gidx.numel() and int(gidx.min()) < 0:
        raise IndexError(f"group_mean_std: group id {int(gidx.min())} is negative; ids start at 0")
    groups = int(gidx.max()) + 1 if gidx.numel() else 0
    zeros = torch.zeros(groups, dtype=torch.float32, device=scores.device)
    count = zeros.index_add(0, gidx, torch.ones_like(scores))
    mean = zeros.index_add(0, gidx, scores) / count.clamp(min=1.0)
    squares = zeros.index_add(0, gidx, (scores - mean[gidx]) ** 2)
    std = torch.sqrt(torch.clamp(squares / (count - 1.0).clamp(min=1.0), min=eps))
    single = count <= 1
    mean = torch.where(single, torch.zeros_like(mean), mean)
    std = torch.where(single, torch.ones_like(std), std)
    return mean, std, count


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: float | Tensor | None = None,
    global_batch_size: float | Tensor | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Aggregate `loss_mat` `[B, T]` to a scalar.

    | mode | value |
    |---|---|
    | token-mean | masked sum / (`batch_num_tokens` or sum of mask) * dp_size |
    | token-sum | masked sum * dp_size |
    | seq-mean-token-sum | sum of row sums / (`global_batch_size` or rows with a token) * dp_size |
    | seq-mean-token-sum-norm | the one before / (`loss_scale_factor` or T) |
    | seq-mean-token-mean | sum of row means (count + 1e-8) / (`global_batch_size` or rows with a token) * dp_size |

    With an all-masked input token-mean and the seq modes are 0/0 = NaN with zero gradient, token-sum is 0. The
    seq modes multiply by the mask, so that a NaN outside it makes them NaN. With `dp_size` over 1 the local
    denominator is unknown to the other ranks, so the global one is required.

    Raises:
        InputTypeError, ShapeError: not two tensors of one shape.
        ValueError: unknown mode, or `dp_size > 1` without the denominator that the mode needs.
    """
    if loss_agg_mode not in AGG_MODES:
        raise one_of("loss_agg_mode", loss_agg_mode, AGG_MODES)
    if not (isinstance(loss_mat, Tensor) and isinstance(loss_mask, Tensor)):
        raise InputTypeError(
            f"agg_loss takes two tensors [B, T]; loss_mat is {type(loss_mat).__name__}, "
            f"loss_mask is {type(loss_mask).__name__}"
        )
    if loss_mat.shape != loss_mask.shape:
        raise ShapeError(f"agg_loss: loss_mat is {tuple(loss_mat.shape)}, loss_mask is {tuple(loss_mask.shape)}")
    if loss_agg_mode == "token-sum":
        return masked_sum(loss_mat, loss_mask) * dp_size
    if loss_agg_mode == "token-mean":
        if batch_num_tokens is None:
            if dp_size > 1:
                raise InputError(
                    "agg_loss: token-mean with dp_size > 1 needs batch_num_tokens, the token count over all ranks"
                )
            batch_num_tokens = loss_mask.sum()
        return masked_sum(loss_mat, loss_mask) / batch_num_tokens * dp_size
    counts = loss_mask.sum(dim=-1)
    rows = (loss_mat * loss_mask).sum(dim=-1)
    if loss_agg_mode == "seq-mean-token-mean":
        rows = rows / (counts + 1e-8)
    present = (counts > 0).float()
    if global_batch_size is None:
        if dp_size > 1:
            raise InputError(
                f"agg_loss: {loss_agg_mode} with dp_size > 1 needs global_batch_size, the row count over all ranks"
            )
        global_batch_size = present.sum()
    loss = masked_sum(rows, present) / global_batch_size * dp_size
    if loss_agg_mode == "seq-mean-token-sum-norm":
        loss = loss / (loss_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor)
    return loss
