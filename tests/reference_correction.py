"""Rollout correction as loops over numbers, from the formulas alone."""

import math


def _clip(x):
    return min(max(x, -20.0), 20.0)


def weights(lr, mask, level, lower, upper, normalize):
    """Rows of weights; `lower` None truncates, else zeroes outside the window."""
    out = []
    for row, valid in zip(lr, mask, strict=True):
        total = _clip(sum(x for x, m in zip(row, valid, strict=True) if m))
        line = []
        for x, m in zip(row, valid, strict=True):
            w = math.exp(_clip(x) if level == "token" else total) if m else 0.0
            if lower is None:
                w = min(w, upper)
            elif not lower <= w <= upper:
                w = 0.0
            line.append(w)
        out.append(line)
    if normalize:
        if level == "token":
            valid_weights = [
                w for line, valid in zip(out, mask, strict=True) for w, m in zip(line, valid, strict=True) if m
            ]
        else:
            valid_weights = [line[valid.index(True)] for line, valid in zip(out, mask, strict=True) if any(valid)]
        mean = sum(valid_weights) / len(valid_weights)
        if mean > 1e-8:
            out = [[w / mean for w in line] for line in out]
    return out


def divergence(kind, x):
    x = _clip(x)
    return {"k1": -x, "k2": x * x / 2, "k3": math.exp(x) - 1 - x}[kind]


def keep(option, row, valid, lower, upper):
    """Which positions of a row an option keeps (valid or not)."""
    stats = [divergence(option[-2:], x) for x in row]
    if option.startswith("seq"):
        inside = [s for s, m in zip(stats, valid, strict=True) if m]
        reduce = {"sum": sum, "mean": lambda v: sum(v) / len(v), "max": max}[option.split("_")[1]]
        stats = [reduce(inside) if inside else 0.0] * len(row)
    if option.endswith("k1"):
        return [math.log(lower) <= s <= math.log(upper) for s in stats]
    return [s <= upper for s in stats]
