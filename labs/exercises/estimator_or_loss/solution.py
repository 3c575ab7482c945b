"""Two advantage estimators times two losses on one group."""

import torch
from torch import Tensor


def loss_table(rewards: Tensor, old_log_prob: Tensor, log_prob: Tensor, mask: Tensor) -> Tensor:
    """The token mean of each combination.

    Args:
        rewards: float64 [B], B >= 2 trajectories of one group.
        old_log_prob, log_prob: float64 [B, T].
        mask: int64 [B, T].

    Returns:
        float64 [2, 2]; rows: advantages centred in the group, leave-one-out; columns: REINFORCE loss -A log pi,
        ratio loss -A exp(log pi - log pi_old).
    """
    count = len(rewards)
    centred = rewards - rewards.mean()
    left_out = rewards - (rewards.sum() - rewards) / (count - 1)
    ratio = torch.exp(log_prob - old_log_prob)
    cells = []
    for advantages in (centred, left_out):
        for term in (log_prob, ratio):
            loss = -advantages[:, None] * term
            cells.append(torch.where(mask.bool(), loss, 0.0).sum() / mask.sum())
    return torch.stack(cells).reshape(2, 2)
