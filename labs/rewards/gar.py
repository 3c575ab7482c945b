"""Graded advantage redistribution: among the passes of a group, credit moves to the better ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from labs.errors import InputError
from labs.masked import as_torch_index
from labs.registry import rewards


@rewards.entry(
    needs=("index", "quality"),
    paper="MiMo-V2.6 report, section 4.3",
    properties={"per": "row", "groups": True, "sum_zero": True, "use_with": "grpo, norm_adv_by_std_in_grpo=False"},
)
def gar(
    *,
    scores: Tensor,
    index: Any,
    quality: Tensor,
    cap: float | None = None,
    leaked: Tensor | None = None,
    success: float = 1.0,
) -> tuple[Tensor, dict[str, Any]]:
    """Per group: `A = R - mean R`; on passes `A' = lambda f A`, `lambda = sum A / sum f A`; then `A' - mean A'`.

    The result is an advantage and sums to 0 in every group, so that an estimator that subtracts the group mean
    and does not divide by the standard deviation returns it unchanged.

    Args:
        scores: [B] rewards; a pass is `scores >= success` and counts 1, everything else 0.
        index: [B] group of each row.
        quality: [B] the grader's f in (0, 1] (read on passes only). A NaN on a pass is an unusable grade: that
            group keeps its plain A.
        cap: largest lambda. Uncapped, the positive mass of the group is conserved and failures keep their A;
            capped, recentring makes the failures *less* negative. The report does not publish its value.
        leaked: [B] bool, rows caught cheating: they count as failures before anything else is computed.

    A group without passes, or of passes only, has A = 0: nothing to redistribute. How a ranking becomes f is not
    published either, hence f is an input.

    Raises:
        ValueError: a quality outside (0, 1], or a cap not above 0.
    """
    if cap is not None and not cap > 0:
        raise InputError(f"gar: cap is {cap}; it must be above 0, or None for no cap")
    passed = scores >= success
    if leaked is not None:
        passed = passed & ~leaked.bool()
    grades = quality[passed]
    if bool(((grades <= 0) | (grades > 1)).any()):
        raise InputError("gar: quality of a passing row is outside (0, 1]; NaN marks a grade that is unusable")
    groups, factors = as_torch_index(index), torch.full_like(scores, math.nan)
    advantage = torch.zeros_like(scores)
    for group in sorted(set(groups.tolist())):
        rows = groups == group
        winners = rows & passed
        advantage[rows] = passed[rows].to(scores.dtype) - passed[rows].to(scores.dtype).mean()
        f = quality[winners].to(scores.dtype)
        if winners.sum() in (0, rows.sum()) or f.isnan().any():
            continue
        # All passes of a group have the same A, so that lambda is the inverse of the mean grade.
        factor = advantage[winners].sum() / (f * advantage[winners]).sum()
        factor = factor if cap is None else factor.clamp(max=cap)
        advantage[winners] *= factor * f
        advantage[rows] -= advantage[rows].mean()
        factors[rows] = factor
    return advantage, {"gar_lambda": factors}
