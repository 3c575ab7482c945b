"""The recorded rows of verl, TRL, torchrl and OpenRLHF: load them, and compare an output with a recorded one.

The rows are in `tests/golden` of the checkout; the environment variable `GOLDEN_ROOT` names another recording with the
same layout. Tolerances are those of its provenance note, `README.md` there.
"""

from __future__ import annotations

import builtins
import json
import os
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labs.errors import InputError

ROOT = Path(os.environ.get("GOLDEN_ROOT") or Path(__file__).resolve().parent.parent / "tests" / "golden")

# Metrics that amplify rounding (exponentials of sums, second moments): the wider tolerance of the provenance note.
_WIDE = ("ppl", "k3", "chi2", "eff_sample", "variance", "proxy")
# Functions that compute in float32 whatever comes in.
_FLOAT32_INSIDE = ("grpo_vectorized", "group_mean_std", "gdpo", "entropy_from_logits", "compute_entropy_loss")


@dataclass(frozen=True)
class Row:
    """One recorded call."""

    case: str
    function: str
    config: dict[str, Any]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    raises: str | None
    metric_keys: dict[str, list[str]]


@cache
def rows() -> tuple[Row, ...]:
    """Every row of both manifests under ROOT; raises `InputError` when there is none."""
    if not (ROOT / "verl" / "manifest.json").is_file():
        raise InputError(f"{ROOT} holds no recorded rows; set GOLDEN_ROOT to a folder with verl/manifest.json")
    found = []
    verl = json.loads((ROOT / "verl" / "manifest.json").read_text(encoding="utf-8"))
    files: dict[str, dict[str, Any]] = {}
    for row in verl["cases"]:
        if row["file"] not in files:
            path = ROOT / "verl" / row["file"]
            files[row["file"]] = dict(np.load(path)) if path.exists() else {}
        arrays = files[row["file"]]
        found.append(
            Row(
                row["case"],
                row["function"],
                row["config"],
                {n: arrays[f"{row['case']}/in/{n}"] for n in row["inputs"]},
                {n: arrays[f"{row['case']}/out/{n}"] for n in row["outputs"]},
                row["raises"],
                row.get("metric_keys", {}),
            )
        )
    for row in json.loads((ROOT / "trl" / "manifest.json").read_text(encoding="utf-8")):
        path = ROOT / "trl" / row["file"]
        arrays = dict(np.load(path)) if path.exists() else {}
        inputs, outputs = ({n: arrays[n] for n in row[kind]} for kind in ("inputs", "outputs"))
        found.append(
            Row(row["case"], row["function"], row["config"], inputs, outputs, row["raises"], row.get("metric_keys", {}))
        )
    return tuple(found)


def by_function() -> dict[str, list[Row]]:
    """Rows grouped by the peer's function."""
    table: dict[str, list[Row]] = defaultdict(list)
    for row in rows():
        table[row.function].append(row)
    return dict(table)


def tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    """Numeric arrays as torch tensors, labels (strings) as numpy object arrays of `str`."""
    return {
        n: (np.array([str(x) for x in a.ravel()], dtype=object) if a.dtype.kind in "US" else torch.from_numpy(a.copy()))
        for n, a in inputs.items()
    }


def exception_type(name: str) -> type[BaseException]:
    """The builtin (or well-known library) exception a row names."""
    if hasattr(builtins, name):
        found: type[BaseException] = getattr(builtins, name)
        return found
    return {"OutOfMemoryError": MemoryError}.get(name, Exception)


def difference(row: Row, name: str, got: Any, *, gradient: bool = False) -> str | None:
    """None when `got` equals the recorded output `name` within the provenance note's tolerance, else a sentence."""
    want = row.outputs[name]
    if name in row.metric_keys:
        return _metric_difference(row, name, got, want)
    if isinstance(got, torch.Tensor):
        got = got.detach().cpu()
        got = got.float().numpy() if got.dtype == torch.bfloat16 else got.numpy()
    got = np.asarray(got)
    if got.shape != want.shape:
        return f"{row.case}: {name} has shape {got.shape}, recorded {want.shape}"
    if want.dtype.kind in "US" or got.dtype.kind in "USO":
        same = [str(x) for x in got.ravel()] == [str(x) for x in want.ravel()]
        return None if same else f"{row.case}: {name} is {got.tolist()}, recorded {want.tolist()}"
    if want.ndim and got.dtype != want.dtype:
        return f"{row.case}: {name} has dtype {got.dtype}, recorded {want.dtype}"
    if want.dtype.kind in "iub":
        return None if np.array_equal(got, want) else f"{row.case}: {name} differs: {got.tolist()} != {want.tolist()}"
    rtol, atol = tolerance(row, name, want.dtype, gradient=gradient or name.startswith("grad_"))
    return _far(f"{row.case}: {name}", got.astype(np.float64), want.astype(np.float64), rtol, atol)


def tolerance(row: Row, name: str, dtype: Any, *, gradient: bool) -> tuple[float, float]:
    """(rtol, atol) of the provenance note for one output."""
    if dtype == np.float16:
        return 5e-3, 5e-3
    if name.startswith("metric"):
        return (2e-4, 2e-6) if any(w in name for w in _WIDE) else (2e-5, 2e-6)
    if dtype == np.float32:
        return (5e-5, 1e-7) if gradient else (2e-5, 2e-6)
    if any(w in row.function for w in _FLOAT32_INSIDE):
        return 2e-6, 1e-6
    floats = [a.dtype for a in row.inputs.values() if a.dtype.kind == "f"]
    masks = [a.dtype for n, a in row.inputs.items() if "mask" in n]
    if any(d == np.float32 for d in floats):
        return 2e-5, 2e-6
    if any(d.kind in "iub" for d in masks):
        return 2e-7, 1e-7
    return 1e-9, 1e-12


def _metric_difference(row: Row, name: str, got: dict[str, Any], want: Any) -> str | None:
    keys = row.metric_keys[name]
    if set(got) != set(keys):
        return f"{row.case}: {name} lacks {sorted(set(keys) - set(got))} and adds {sorted(set(got) - set(keys))}"
    for key, value in zip(keys, want.tolist(), strict=True):
        wide = any(w in key for w in _WIDE)
        rtol, atol = (2e-4, 2e-6) if wide else (2e-5, 2e-6)
        far = _far(f"{row.case}: {name}[{key}]", np.float64(float(got[key])), np.float64(value), rtol, atol)
        if far:
            return far
    return None


def _far(label: str, got: Any, want: Any, rtol: float, atol: float) -> str | None:
    if np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        return None
    with np.errstate(all="ignore"):
        worst = np.nanmax(np.abs(got - want)) if np.size(want) else 0.0
    return f"{label} differs by up to {worst:.3g} (rtol {rtol:g}, atol {atol:g}): {got!r:.200} != {want!r:.200}"
