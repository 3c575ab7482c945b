r"""KL divergence to a reference policy: per-token estimators, controllers, and the KL in the reward.

With `d = logprob - ref_logprob` at a token sampled from the policy of `logprob`, the mean of k1 and of k3 is
KL(policy, reference). Their *gradients* are another matter (algorithms: Schulman 2020; Tang & Munos, 2025):
differentiated in a loss, on policy, k1 has mean gradient 0, k2 has the gradient of KL(policy, reference) and k3
that of KL(reference, policy). The `+` forms keep the value and take the gradient of k2.

Names without a prefix are verl 0.9.1's, number for number. `openrlhf_*` and `torchrl_*` are those libraries'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.errors import AssertedError, InputError, InputTypeError, UnsupportedError, one_of
from labs.masked import masked_mean
from labs.metrics import Metric
from labs.registry import opt

#: verl's caps on k3: on the log-ratio before the exponential, and on the value after it.
K3_INPUT_CAP = 20.0
K3_OUTPUT_CAP = 10.0
#: OpenRLHF's cap on the importance weight of the KL gradient.
OPENRLHF_WEIGHT_CAP = 10.0

METRICS = (
    Metric(
        name="actor/reward_kl_penalty",
        unit="nat/token",
        formula="mean over rows of masked_mean(kl_penalty(old_log_probs, ref_log_prob)); an empty row counts as 0",
        healthy="grows slowly from 0; below 0 only with the signed k1",
        text="How far the policy has moved from the reference on the tokens it sampled.",
    ),
    Metric(
        name="actor/reward_kl_penalty_coeff",
        unit="reward/nat",
        formula="the coefficient used in this step, before the controller's update",
        text="What one nat of divergence costs in reward.",
    ),
)


def _k1(logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    return logprob - ref_logprob


def _abs(logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    return (logprob - ref_logprob).abs()


def _k2(logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    return 0.5 * (logprob - ref_logprob).square()


def _k3(logprob: Tensor, ref_logprob: Tensor) -> Tensor:
    u = torch.clamp(ref_logprob - logprob, min=-K3_INPUT_CAP, max=K3_INPUT_CAP)
    return torch.clamp(torch.exp(u) - u - 1, min=-K3_OUTPUT_CAP, max=K3_OUTPUT_CAP)


#: Estimator name (verl's, with its aliases) -> function of (logprob, ref_logprob).
ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": _abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str) -> Tensor:
    """Per-token KL estimate, same shape and dtype as the inputs; `d = logprob - ref_logprob`.

    | kl_penalty | value |
    |---|---|
    | kl, k1 | d |
    | abs | abs(d) |
    | mse, k2 | d^2 / 2 |
    | low_var_kl, k3 | u = clip(-d, -20, 20); clip(exp(u) - u - 1, -10, 10) |
    | any of them with `+` | the same value, with the gradient of d^2 / 2 (straight-through) |

    k3 saturates at 10, where its gradient is 0. Two log-probabilities of -inf give NaN; `k3+` with an infinite
    d gives NaN where k3 gives 10 (inf - inf in the straight-through).

    Raises:
        NotImplementedError: any other name, `full` included (it needs the logits of the whole vocabulary).
        ValueError: shapes that differ.
    """
    base = kl_penalty.removesuffix("+") if isinstance(kl_penalty, str) else kl_penalty
    if base not in ESTIMATORS:
        raise UnsupportedError(str(one_of("kl_penalty", kl_penalty, [*ESTIMATORS, *(f"{n}+" for n in ESTIMATORS)])))
    _same_shape("kl_penalty", logprob=logprob, ref_logprob=ref_logprob)
    value = ESTIMATORS[base](logprob, ref_logprob)
    if base == kl_penalty:
        return value
    pathwise = _k2(logprob, ref_logprob)
    return pathwise - pathwise.detach() + value.detach()


class FixedKLController:
    """A coefficient that never changes; `update` exists so that both controllers are called alike."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Do nothing."""


class AdaptiveKLController:
    """`value *= 1 + clip(current_kl / target_kl - 1, -0.2, 0.2) * n_steps / horizon` (Ziegler et al., 1909.08593).

    verl's and OpenRLHF's controllers are this one. A target of 0 divides by zero, as in verl.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: float) -> None:
        self.value = init_kl_coef
        self.target = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Move the coefficient towards the target; `n_steps` is the number of rows of the batch."""
        error = min(max(current_kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon


KLController = FixedKLController | AdaptiveKLController


def get_kl_controller(kl_ctrl: Any) -> KLController:
    """The controller of verl's block `algorithm.kl_ctrl` (an object with attributes or a mapping).

    Fields and defaults: type fixed, kl_coef 0.001, horizon 10000, target_kl 0.1.

    Raises:
        AssertionError: an adaptive controller whose horizon is not positive.
        NotImplementedError: another type.
    """
    kind = opt(kl_ctrl, "type", "fixed")
    coefficient = opt(kl_ctrl, "kl_coef", 0.001)
    if kind == "fixed":
        return FixedKLController(kl_coef=coefficient)
    if kind == "adaptive":
        horizon = opt(kl_ctrl, "horizon", 10000)
        if not horizon > 0:
            raise AssertedError(f"kl_ctrl.horizon is {horizon}; an adaptive controller needs a number of rows above 0")
        return AdaptiveKLController(coefficient, opt(kl_ctrl, "target_kl", 0.1), horizon)
    raise UnsupportedError(str(one_of("kl_ctrl.type", kind, ("fixed", "adaptive"))))


def apply_kl_penalty(
    data: TokenBatch, kl_ctrl: KLController, kl_penalty: str = "kl"
) -> tuple[TokenBatch, dict[str, float]]:
    """KL in the reward: `token_level_rewards = token_level_scores - value * kl * response_mask`.

    Runs before any rejection, so the mask is the original one. The coefficient is the one from before this
    step; afterwards the controller sees the mean over rows of the masked mean KL (a row without tokens counts
    as 0) and `n_steps` = number of rows. Nothing checks its sign: a negative coefficient rewards divergence.

    Args:
        data: columns token_level_scores, response_mask, old_log_probs, ref_log_prob, each [B, T].
        kl_ctrl: its `value` is used, then updated in place.
        kl_penalty: an estimator name of `kl_penalty`.

    Returns:
        The batch with token_level_rewards, and the two metrics of `METRICS`.
    """
    mask = data["response_mask"]
    kld = _estimate(data["old_log_probs"], data["ref_log_prob"], kl_penalty) * mask
    used = kl_ctrl.value
    rewards = data["token_level_scores"] - used * kld
    current = torch.mean(masked_mean(kld, mask, axis=-1), dim=0).item()
    kl_ctrl.update(current_kl=current, n_steps=data.rows)
    metrics = {"actor/reward_kl_penalty": current, "actor/reward_kl_penalty_coeff": used}
    return data.replace(token_level_rewards=rewards), metrics


# `apply_kl_penalty` has a parameter of the name of this function, as in verl.
_estimate = kl_penalty


def compute_rewards(token_level_scores: Tensor, old_log_prob: Tensor, ref_log_prob: Tensor, kl_ratio: float) -> Tensor:
    """`scores - (old - ref) * kl_ratio` at *every* position: no mask is applied."""
    _same_shape("compute_rewards", scores=token_level_scores, old_log_prob=old_log_prob, ref_log_prob=ref_log_prob)
    return token_level_scores - (old_log_prob - ref_log_prob) * kl_ratio


def openrlhf_approx_kl(
    log_probs: Tensor,
    log_probs_base: Tensor,
    log_probs_old: Tensor | None = None,
    kl_estimator: str = "k1",
    unbiased_gradient: bool = False,
) -> Tensor:
    """OpenRLHF's `compute_approx_kl`: k1, k2 or k3 in float32, the *value* clamped to [-10, 10] for all three.

    `unbiased_gradient` keeps the value and takes the gradient `w * d` for every estimator, with the detached
    weight `w = min(exp(log_probs - log_probs_old), 10)` when the rollout policy's log-probabilities are given
    (off policy), else 1. It is verl's `+` form when `w` is 1.

    Raises:
        ValueError: another estimator.
    """
    d = log_probs.float() - log_probs_base.float()
    if kl_estimator == "k1":
        value = d
    elif kl_estimator == "k2":
        value = d**2 / 2.0
    elif kl_estimator == "k3":
        # Below -10 the value is above the cap already; an unbounded exponential would make the gradient 0 * inf.
        bounded = d.clamp(min=-10)
        value = (-bounded).exp() - 1 + bounded
    else:
        raise one_of("kl_estimator", kl_estimator, ("k1", "k2", "k3"))
    value = value.clamp(min=-10, max=10)
    if not unbiased_gradient:
        return value
    weight: Tensor | float = 1.0
    if log_probs_old is not None:
        weight = (log_probs.float() - log_probs_old.float()).exp().clamp(max=OPENRLHF_WEIGHT_CAP).detach()
    pathwise = weight * (d**2 / 2.0)
    return value.detach() + pathwise - pathwise.detach()


def openrlhf_compute_reward(
    r: Tensor,
    kl_coef: float,
    kl: Tensor,
    action_mask: Tensor,
    reward_clip_range: tuple[float, float] | None = None,
) -> Tensor:
    """OpenRLHF's `compute_reward`: the score at the last action token plus `-kl_coef * kl` at *every* position.

    `r` [B] is clamped to `reward_clip_range` first; a coefficient of 0 or less counts as 0. A row without
    action tokens gets its score in the last column.
    """
    _same_shape("openrlhf_compute_reward", kl=kl, action_mask=action_mask)
    if reward_clip_range:
        r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])
    last = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)
    placed = torch.zeros_like(kl).scatter_(dim=1, index=last, src=r.unsqueeze(1).to(kl.dtype))
    return placed - max(kl_coef, 0.0) * kl


def torchrl_kl_to_ref(logps: Tensor, ref_logps: Tensor, mask: Tensor, coeff: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return torchrl's `_kl_to_ref`: `(coeff * kl, kl)` with the uncapped k3, averaged over *all* positions.

    Masked positions are set to 0 but stay in the denominator (an oddity of torchrl 0.14: the more padding, the
    weaker the penalty).
    """
    _same_shape("torchrl_kl_to_ref", logps=logps, ref_logps=ref_logps, mask=mask)
    d = torch.where(mask.bool(), ref_logps - logps, 0.0)
    kl = (d.expm1() - d).mean()
    return coeff * kl, kl


def _same_shape(where: str, **tensors: Tensor) -> None:
    for name, each in tensors.items():
        if not isinstance(each, Tensor):
            raise InputTypeError(f"{where}: {name} is {type(each).__name__}; it must be a tensor")
    first = next(iter(tensors.values())).shape
    if any(t.shape != first for t in tensors.values()):
        shapes = {name: tuple(t.shape) for name, t in tensors.items()}
        raise InputError(f"{where}: shapes differ, {', '.join(f'{n} {s}' for n, s in shapes.items())}")
