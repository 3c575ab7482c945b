"""What TRL's GRPO and RLOO trainers compute between generation and loss (TRL 1.16).

TRL and verl agree on the idea and differ on every constant: epsilon is 1e-4, a lone row is worth 0, a rollout that no
reward function could score (NaN) leaves the statistics of its group and gets advantage 0, and importance weights are
sequence products by default. Scores here are [B], one number a rollout; std is taken with n - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labs.errors import ShapeError, one_of
from labs.grouping import map_groups

#: Added to every standard deviation.
EPSILON = 1e-4
SCALES = ("group", "batch", "none")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")
RATIO_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def combine(components: Tensor, weights: Sequence[float] | Tensor | None = None) -> Tensor:
    """Weighted sum over the reward functions of `[B, K]`, NaN ones left out; NaN where all K are NaN."""
    scale = torch.ones(components.shape[1]) if weights is None else torch.as_tensor(weights)
    if scale.shape != components.shape[1:]:
        raise ShapeError(f"reward_weights holds {scale.numel()} numbers for {components.shape[1]} reward functions")
    total = (components * scale.to(components)).nansum(dim=1)
    return torch.where(components.isnan().all(dim=1), torch.full_like(total, torch.nan), total)


def nan_std(x: Tensor, dim: int) -> Tensor:
    """Standard deviation with n - 1 over the numbers along `dim` (kept); 0 where there are fewer than two."""
    count = (~x.isnan()).sum(dim=dim, keepdim=True)
    squares = (x - x.nanmean(dim=dim, keepdim=True)).square().nansum(dim=dim, keepdim=True)
    return torch.where(count > 1, (squares / (count - 1).clamp(min=1)).sqrt(), torch.zeros_like(squares))


def group_std(scores: Tensor, index: Any) -> Tensor:
    """`nan_std` of each row's group, `[B]`."""
    return map_groups(lambda x: nan_std(x, 1).expand_as(x), index, scores)


def grpo_scores(
    components: Tensor,
    index: Any,
    weights: Sequence[float] | Tensor | None = None,
    scale_rewards: str = "group",
    aggregation: str = "sum_then_normalize",
) -> tuple[Tensor, Tensor]:
    """Advantages `[B]` and the standard deviations `[B]` that TRL watches.

    `sum_then_normalize`: R minus the group's mean, over the group's (`group`), the batch's (`batch`) or no (`none`)
    standard deviation + 1e-4. `normalize_then_sum` (GDPO): each component over its group's standard deviation, then
    the weighted sum whitened over the batch.

    Args:
        components: [B, K] one column a reward function, NaN where it could not score.
        index: [B] group labels.
        weights: [K], default 1 each.
        scale_rewards: see above; not read under `normalize_then_sum`.
        aggregation: see above.

    Raises:
        InputError: unknown `scale_rewards` or `aggregation`.
    """
    if aggregation not in AGGREGATIONS:
        raise one_of("multi_objective_aggregation", aggregation, AGGREGATIONS)
    if scale_rewards not in SCALES:
        raise one_of("scale_rewards", scale_rewards, SCALES)
    rewards = combine(components, weights)
    if aggregation == "normalize_then_sum":
        normal = torch.stack(
            [
                map_groups(lambda x: (x - x.nanmean(dim=1, keepdim=True)) / (nan_std(x, 1) + EPSILON), index, column)
                for column in components.unbind(1)
            ],
            dim=1,
        )
        rewards = combine(normal, weights)
        std = nan_std(rewards, 0).expand_as(rewards)
        advantages = (rewards - rewards.nanmean()) / (std + EPSILON)
    else:
        std = nan_std(rewards, 0).expand_as(rewards) if scale_rewards == "batch" else group_std(rewards, index)
        advantages = map_groups(lambda x: x - x.nanmean(dim=1, keepdim=True), index, rewards)
        if scale_rewards != "none":
            advantages = advantages / (std + EPSILON)
    return advantages.nan_to_num(nan=0.0), std


def rloo_scores(rewards: Tensor, index: Any, normalize: bool = False) -> Tensor:
    """`R_i` minus the mean of the other rows of its group, `[B]`; `normalize` whitens over the batch (1e-4 on std).

    A lone row, or the only scored row of its group, gets 0.
    """

    def rule(scores: Tensor) -> Tensor:
        others = (~scores.isnan()).sum(dim=1, keepdim=True) - 1
        rest = (scores.nansum(dim=1, keepdim=True) - scores) / others.clamp(min=1)
        return torch.where(others > 0, scores - rest, torch.zeros_like(scores))

    advantages = torch.where(rewards.isnan(), rewards, map_groups(rule, index, rewards))
    if normalize:
        advantages = (advantages - advantages.nanmean()) / (nan_std(advantages, 0) + EPSILON)
    return advantages.nan_to_num(nan=0.0)


def importance_ratio(
    old_log_probs: Tensor,
    rollout_log_probs: Tensor,
    mask: Tensor,
    mode: str = "sequence_mask",
    clip_min: float | None = None,
    clip_max: float | None = 3.0,
) -> Tensor:
    """Ratio of trainer to rollout engine: `[B, T]` for the token modes, `[B, 1]` (a product) for the sequence modes.

    `truncate` clamps to the bounds, `mask` puts 0 where a bound is passed. A masked token, and one whose rollout
    log-probability is NaN, has ratio 1. Under the default, long rows are dropped once their product exceeds 3.

    Raises:
        InputError: unknown mode.
    """
    if mode not in RATIO_MODES:
        raise one_of("vllm_importance_sampling_mode", mode, RATIO_MODES)
    log_ratio = torch.where(mask.bool(), (old_log_probs - rollout_log_probs).nan_to_num(nan=0.0), 0.0)
    if mode.startswith("sequence"):
        log_ratio = log_ratio.sum(dim=-1, keepdim=True)
    ratio = log_ratio.exp()
    if mode.endswith("truncate"):
        return ratio if clip_min is clip_max is None else ratio.clamp(min=clip_min, max=clip_max)
    kept = torch.ones_like(ratio, dtype=torch.bool)
    if clip_max is not None:
        kept &= ratio <= clip_max
    if clip_min is not None:
        kept &= ratio >= clip_min
    return torch.where(kept, ratio, 0.0)


def reward_metrics(rewards: Tensor, std: Tensor) -> dict[str, Tensor]:
    """`reward` and `reward_std` over the scored rows, and the fraction of rows whose `std` is 0 (to 1e-8)."""
    return {
        "reward": rewards.nanmean(),
        "reward_std": nan_std(rewards, 0).squeeze(0),
        "frac_reward_zero_std": torch.isclose(std, torch.zeros_like(std)).float().mean().to(rewards.dtype),
    }
