"""What an operation of torch does to the shadows of its arguments, one rule an operation.

A rule takes `(shadow_of, args, kwargs, output)` and returns the shadow of the output, or a list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from labs.trace.numbers import (
    BINARY,
    Number,
    binary,
    box_scalar,
    boxed,
    fold,
    mean,
    reduce,
    total,
    unary,
    values_of,
    variance,
)


def _at(x: Any, dim: int) -> int:
    return int(dim % max(x.ndim, 1))


def _index(shadow: Any, indices: Sequence[Any]) -> Any:
    key = tuple(slice(None) if i is None else i.detach().cpu().numpy() for i in indices)
    return box_scalar(shadow[key])


def _written(shadow: Any, key: Any, values: Any) -> Any:
    copy = shadow.copy()
    copy[key] = values
    return copy


def _index_put(s: Any, a: Any, k: Any, o: Any) -> Any:
    key = tuple(slice(None) if i is None else i.detach().cpu().numpy() for i in a[1])
    accumulate = a[3] if len(a) > 3 else k.get("accumulate", False)
    if accumulate:
        copy = s(a[0]).copy()
        for target, value in zip(
            np.ndindex(*copy[key].shape), np.broadcast_to(s(a[2]), copy[key].shape).flat, strict=True
        ):
            where = tuple(i[target] if isinstance(i, np.ndarray) else target[j] for j, i in enumerate(key))
            copy[where] = BINARY["add"](copy[where], value)
        return copy
    return _written(s(a[0]), key, s(a[2]))


def _index_add(s: Any, a: Any, k: Any, o: Any) -> Any:
    copy = np.moveaxis(s(a[0]).copy(), a[1], 0)
    parts: dict[int, list[Any]] = {}
    for position, target in enumerate(a[2].tolist()):
        parts.setdefault(target, []).append(np.moveaxis(s(a[3]), a[1], 0)[position])
    for target, rows in parts.items():
        stacked = np.stack([copy[target], *rows])
        copy[target] = reduce(stacked, [0], False, total) if stacked.ndim > 1 else total(stacked)
    return np.moveaxis(copy, 0, a[1])


def _scatter_add(s: Any, a: Any, k: Any, o: Any) -> Any:
    copy, dim, index = s(a[0]).copy(), a[1] % a[0].ndim, a[2].cpu().numpy()
    parts: dict[tuple[int, ...], list[Number]] = {}
    for where in np.ndindex(*index.shape):
        target = tuple(int(index[where]) if d == dim else i for d, i in enumerate(where))
        parts.setdefault(target, []).append(s(a[3])[where])
    for target, items in parts.items():
        copy[target] = total([copy[target], *items])
    return copy


def _cumsum(s: Any, a: Any, k: Any, o: Any) -> Any:
    moved = np.moveaxis(s(a[0]).copy(), a[1], 0)
    for i in range(1, len(moved)):
        moved[i] = binary["add"](moved[i - 1], moved[i])
    return np.moveaxis(moved, 0, a[1])


def _where(s: Any, a: Any, k: Any, o: Any) -> Any:
    condition = np.asarray(values_of(s(a[0])), dtype=bool)
    shape = tuple(o.shape)
    return np.where(np.broadcast_to(condition, shape), np.broadcast_to(s(a[1]), shape), np.broadcast_to(s(a[2]), shape))


def _clamp(s: Any, a: Any, k: Any, o: Any) -> Any:
    low = a[1] if len(a) > 1 else k.get("min")
    high = a[2] if len(a) > 2 else k.get("max")
    x = s(a[0])
    x = x if low is None else binary["maximum"](x, s(low))
    return box_scalar(x if high is None else binary["minimum"](x, s(high)))


def _view(s: Any, a: Any, k: Any, o: Any) -> Any:
    return s(a[0]).reshape(tuple(o.shape))


def _select(s: Any, a: Any, k: Any, o: Any) -> Any:
    x = s(a[0])
    if x.ndim == 1:  # an element as a 0-d view, so that writes reach the parent
        return x[a[2] : a[2] + 1 or None].reshape(())
    return np.moveaxis(x, a[1], 0)[a[2]]


def _slice(s: Any, a: Any, k: Any, o: Any) -> Any:
    x = s(a[0])
    dim = a[1] if len(a) > 1 else 0
    start, end = (a[2] if len(a) > 2 else None), (a[3] if len(a) > 3 else None)
    key = [slice(None)] * x.ndim
    key[dim] = slice(start, None if end is None or end > x.shape[dim] else end, a[4] if len(a) > 4 else 1)
    return x[tuple(key)]


def _reduction(combine: Callable[[Iterable[Number]], Any]) -> Callable[..., Any]:
    def rule(s: Any, a: Any, k: Any, o: Any) -> Any:
        dims = a[1] if len(a) > 1 else k.get("dim")
        keep = a[2] if len(a) > 2 else k.get("keepdim", False)
        return box_scalar(reduce(s(a[0]), [dims] if isinstance(dims, int) else dims, bool(keep), combine))

    return rule


def _spread(root: bool) -> Callable[..., Any]:
    def rule(s: Any, a: Any, k: Any, o: Any) -> Any:
        correction = k.get("correction")
        dims = a[1] if len(a) > 1 else k.get("dim")
        dims = [dims] if isinstance(dims, int) else dims
        if isinstance(dims, bool):
            correction, dims = float(dims), None
        combine = variance(1.0 if correction is None else float(correction))
        spread = reduce(s(a[0]), dims, bool(k.get("keepdim", False)), combine)
        return box_scalar(unary["sqrt"](spread) if root else spread)

    return rule


def _log_softmax(s: Any, a: Any, k: Any, o: Any) -> Any:
    x, dim = s(a[0]), a[1]
    return binary["sub"](x, unary["log"](reduce(unary["exp"](x), [dim], True, total)))


def _softmax(s: Any, a: Any, k: Any, o: Any) -> Any:
    e = unary["exp"](s(a[0]))
    return binary["div"](e, reduce(e, [a[1]], True, total))


def _copy(s: Any, a: Any, k: Any, o: Any) -> Any:
    return np.broadcast_to(s(a[1]), tuple(a[0].shape)).copy() if len(a) > 1 else s(a[0])


def _masked_fill(s: Any, a: Any, k: Any, o: Any) -> Any:
    shape = tuple(o.shape)
    return np.where(
        np.broadcast_to(np.asarray(values_of(s(a[1])), dtype=bool), shape), np.broadcast_to(s(a[2]), shape), s(a[0])
    )


def _gather(s: Any, a: Any, k: Any, o: Any) -> Any:
    return np.take_along_axis(s(a[0]), a[2].cpu().numpy(), _at(s(a[0]), a[1]))


def _dot(s: Any, a: Any, k: Any, o: Any) -> Any:
    left, right = s(a[0]), s(a[1])
    result = np.empty(tuple(o.shape), dtype=object)
    for where in np.ndindex(*result.shape):
        row, column = left[where[:-1]], right[..., where[-1]] if right.ndim > 1 else right
        result[where] = total(binary["mul"](row, column))
    return result


RULES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "sum": _reduction(total), "mean": _reduction(mean),
    "amax": _reduction(fold("maximum")), "amin": _reduction(fold("minimum")),
    "std": _spread(True), "var": _spread(False), "cumsum": _cumsum,
    "rsqrt": lambda s, a, k, o: box_scalar(binary["div"](Number(1.0), unary["sqrt"](s(a[0])))),
    "reciprocal": lambda s, a, k, o: box_scalar(binary["div"](Number(1.0), s(a[0]))),
    "rsub": lambda s, a, k, o: box_scalar(binary["sub"](s(a[1]), s(a[0]))),
    "square": lambda s, a, k, o: box_scalar(binary["pow"](s(a[0]), Number(2))),
    "where": _where, "clamp": _clamp, "masked_fill": _masked_fill,
    "clamp_min": lambda s, a, k, o: box_scalar(binary["maximum"](s(a[0]), s(a[1]))),
    "clamp_max": lambda s, a, k, o: box_scalar(binary["minimum"](s(a[0]), s(a[1]))),
    "index": lambda s, a, k, o: _index(s(a[0]), a[1]), "index_put": _index_put, "index_add": _index_add,
    "scatter_add": _scatter_add, "gather": _gather,
    "index_select": lambda s, a, k, o: np.take(s(a[0]), a[2].cpu().numpy(), axis=_at(s(a[0]), a[1])),
    "masked_select": lambda s, a, k, o: s(a[0])[a[1].cpu().numpy()],
    "view": _view, "_unsafe_view": _view, "reshape": _view, "flatten": _view, "_reshape_alias": _view,
    "select": _select, "slice": _slice,
    "expand": lambda s, a, k, o: np.broadcast_to(s(a[0]), tuple(o.shape)),
    "unsqueeze": lambda s, a, k, o: np.expand_dims(s(a[0]), a[1]), "squeeze": _view,
    "t": lambda s, a, k, o: s(a[0]).T, "transpose": lambda s, a, k, o: np.swapaxes(s(a[0]), a[1], a[2]),
    "permute": lambda s, a, k, o: np.transpose(s(a[0]), a[1]),
    "flip": lambda s, a, k, o: np.flip(s(a[0]), a[1]),
    "cat": lambda s, a, k, o: np.concatenate([s(x) for x in a[0]], axis=a[1] if len(a) > 1 else k.get("dim", 0)),
    "stack": lambda s, a, k, o: np.stack([s(x) for x in a[0]], axis=a[1] if len(a) > 1 else k.get("dim", 0)),
    "unbind": lambda s, a, k, o: [x.squeeze(a[1] if len(a) > 1 else 0) for x in np.split(
        s(a[0]), a[0].shape[a[1] if len(a) > 1 else 0], axis=a[1] if len(a) > 1 else 0)],
    "split": lambda s, a, k, o: np.split(s(a[0]), np.cumsum([x.shape[a[2] if len(a) > 2 else 0] for x in o])[:-1],
                                         axis=a[2] if len(a) > 2 else 0),
    "clone": lambda s, a, k, o: s(a[0]).copy(), "_to_copy": lambda s, a, k, o: s(a[0]).copy(),
    "detach": lambda s, a, k, o: s(a[0]), "alias": lambda s, a, k, o: s(a[0]), "lift_fresh": lambda s, a, k, o: s(a[0]),
    "contiguous": lambda s, a, k, o: s(a[0]), "view_as": _view, "copy": _copy,
    "fill": lambda s, a, k, o: np.broadcast_to(s(a[1]), tuple(a[0].shape)),
    "_log_softmax": _log_softmax, "_softmax": _softmax,
    "logsumexp": lambda s, a, k, o: box_scalar(unary["log"](_reduction(total)(
        lambda x: unary["exp"](s(x)), a, k, o))),
    "mm": _dot, "bmm": _dot, "mv": _dot, "dot": lambda s, a, k, o: boxed(total(binary["mul"](s(a[0]), s(a[1])))),
    "addcmul": lambda s, a, k, o: binary["add"](s(a[0]), binary["mul"](binary["mul"](
        s(a[1]), s(a[2])), Number(k.get("value", 1)))),
}  # fmt: skip
