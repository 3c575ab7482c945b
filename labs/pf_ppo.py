"""PF-PPO: resample the rows of a batch by their score, with replacement (arXiv:2409.06957).

verl offers it behind `gae` only (`algorithm.use_pf_ppo`), after the advantages have been computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.errors import one_of

METHODS = ("pow", "max_min", "max_random")


def pf_ppo_weights(scores: Tensor, reweight_method: str = "pow", weight_pow: float = 2.0) -> Tensor:
    """Sampling weights `[B]`, not normalised, at least 1e-8.

    `pow`: |score| to the power `weight_pow`; `max_min`: 1 for rows that hold the largest or the smallest score of the
    batch, else 0; `max_random`: 0.4 for rows that hold the largest, else 0.1. 1e-8 is added to each.

    Args:
        scores: [B] float.
        reweight_method: see above.
        weight_pow: read by `pow` only.

    Raises:
        InputError: another method.
    """
    if reweight_method == "pow":
        weights = scores.abs() ** weight_pow
    elif reweight_method == "max_min":
        weights = torch.where((scores == scores.max()) | (scores == scores.min()), 1.0, 0.0)
    elif reweight_method == "max_random":
        weights = torch.where(scores == scores.max(), 0.4, 0.1)
    else:
        raise one_of("pf_ppo.reweight_method", reweight_method, METHODS)
    return (weights + 1e-8).clamp(min=1e-8)


def pf_ppo_rows(weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """As many row numbers as there are weights, drawn with replacement; None draws from torch's global generator."""
    return torch.multinomial(weights, weights.shape[0], replacement=True, generator=generator)


def compute_pf_ppo_reweight_data(
    data: TokenBatch,
    reweight_method: str = "pow",
    weight_pow: float = 2.0,
    generator: torch.Generator | None = None,
) -> TokenBatch:
    """The batch with its rows resampled, every column along.

    Args:
        data: column token_level_scores, whose row sums are the scores.
        reweight_method, weight_pow: see `pf_ppo_weights`.
        generator: None draws from torch's global generator, as verl does.

    Raises:
        InputError: another method.
    """
    weights = pf_ppo_weights(data["token_level_scores"].sum(dim=-1), reweight_method, weight_pow)
    return data.select(pf_ppo_rows(weights, generator).tolist())
