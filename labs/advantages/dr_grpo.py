"""Dr. GRPO: the score minus the group's mean, without the division by its spread.

    A_it = (R_i - mean_g) * m_it           [B, T]; `returns` is the same tensor

verl's `grpo` with `norm_adv_by_std_in_grpo=False`, under a name of its own. The other half of the paper is a constant
denominator in the loss (`loss_agg_mode="seq-mean-token-sum-norm"`, in TRL `loss_type="dr_grpo"`), which no estimator
can set. Group of one: the raw score. All-masked row: 0. No epsilon.

Paper: arXiv:2503.20783.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from labs.advantages.grpo import grpo
from labs.properties import Properties
from labs.registry import estimators


@estimators.entry(
    needs=("index",),
    paper="arXiv:2503.20783",
    verl="compute_grpo_outcome_advantage with norm_adv_by_std_in_grpo=False",
    properties=Properties(
        credit="trajectory",
        groups=True,
        group_shift=True,
        group_of_one="score",
        equal_group="zero",
        reward_on_masked=True,
        bias="(n - 1) / n times the gradient, because the mean contains the row itself; otherwise unbiased",
    ),
)
def dr_grpo(token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: Any) -> tuple[Tensor, Tensor]:
    """Group-centred scores; see the module.

    Args:
        token_level_rewards: [B, T] float.
        response_mask: [B, T], 1 on policy tokens.
        index: [B] group labels.

    Raises:
        ShapeError: columns of different batches, an empty batch.
    """
    return grpo(token_level_rewards, response_mask, index, norm_adv_by_std_in_grpo=False)
