"""GDPO: GRPO on every reward component, summed with weights, then whitened over the batch.

    A_k = grpo(component k placed on the last attended token)        k over `config.gdpo_reward_keys`
    X = sum_k w_k A_k                      w from `config.gdpo_reward_weights`, default 1 each
    A = (X - mean) / sqrt(var + 1e-8) * m  masked mean and variance (n - 1) over the whole batch

Shapes: [B, T]; `returns` is the same tensor. Inside: std with n - 1, epsilon 1e-6, a lone row keeps its score.
All-masked row: 0. One policy token in the batch raises. Without `config`, `batch` and `non_tensor_batch` the only
component is `token_level_rewards`.

Surprising, and verl's: components are float32, so the result is float32 for float64 rewards too; the dispatcher does
not forward `norm_adv_by_std_in_grpo`; verl's V1 trainer does not pass what the components need and stops there.

Paper: arXiv:2601.05242.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labs.advantages.grpo import grpo
from labs.errors import AssertedError, InputIndexError
from labs.grouping import expect
from labs.masked import masked_whiten
from labs.properties import Properties
from labs.registry import estimators, opt


@estimators.entry(
    needs=("index", "non_tensor_batch", "batch"),
    paper="arXiv:2601.05242",
    verl="compute_gdpo_outcome_advantage",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        scale="invariant",
        group_of_one="whitened",
        equal_group="other",
        single_token="raises",
        reward_on_masked=True,
        bias="divides each component by its spread in the group, and whitens over the batch",
    ),
)
@torch.no_grad()
def gdpo(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    batch: Mapping[str, Any] | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Weighted sum of group-normalised components; see the module.

    Args:
        token_level_rewards: [B, T] float; the component when there is no batch.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.
        epsilon: added to each standard deviation.
        norm_adv_by_std_in_grpo: divide each component by its standard deviation.
        config: mapping or object with `gdpo_reward_keys` and optionally `gdpo_reward_weights`.
        non_tensor_batch: one array of B numbers for each key.
        batch: `prompts` [B, P] and `attention_mask` [B, P + T].

    Raises:
        AssertedError: no `gdpo_reward_keys`, or a key that `non_tensor_batch` lacks.
        InputIndexError: fewer weights than keys.
        InputError: fewer than two policy tokens in the batch.
        ShapeError: columns of different batches, an empty batch.
    """
    expect(response_mask, token_level_rewards=token_level_rewards)
    components, weights = [token_level_rewards], [1.0]
    if config is not None and non_tensor_batch is not None and batch is not None:
        keys = opt(config, "gdpo_reward_keys")
        if not keys:
            raise AssertedError("gdpo needs algorithm.gdpo_reward_keys, the names of the reward components")
        missing = [key for key in keys if key not in non_tensor_batch]
        if missing:
            raise AssertedError(
                f"gdpo_reward_keys names {missing[0]!r}, the batch has the components {sorted(non_tensor_batch)}"
            )
        weights = list(opt(config, "gdpo_reward_weights") or [1.0] * len(keys))
        if len(weights) < len(keys):
            raise InputIndexError(f"gdpo_reward_weights has {len(weights)} numbers for {len(keys)} gdpo_reward_keys")
        prompt_length = batch["prompts"].shape[1]
        last = batch["attention_mask"][:, prompt_length:].sum(dim=1) - 1
        components = [_placed(non_tensor_batch[key], last, response_mask) for key in keys]
    total: Any = 0
    for weight, component in zip(weights, components, strict=False):
        advantage, _same = grpo(component, response_mask, index, epsilon, norm_adv_by_std_in_grpo)
        total = total + weight * advantage
    advantages = masked_whiten(total, response_mask) * response_mask
    return advantages, advantages


def _placed(component: Any, last: Tensor, like: Tensor) -> Tensor:
    """One number a row on its last attended token; an empty response takes the last column, as index -1 does."""
    placed = torch.zeros_like(like, dtype=torch.float32)
    rows = torch.arange(like.shape[0], device=like.device)
    placed[rows, last] = torch.as_tensor(component, device=like.device).to(torch.float32)
    return placed
