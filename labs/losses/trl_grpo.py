"""TRL 1.16's whole GRPO loss: eight surrogates, its own reductions, KL, masks and entropy bonus, behind its options."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labs.entropy import AdaptiveEntropyController
from labs.errors import one_of
from labs.loss_terms import LossCall
from labs.losses.sapo import soft_gate
from labs.masks.high_entropy import keep_high_entropy
from labs.masks.off_policy_sequence import keep_on_policy
from labs.metrics import Metric
from labs.properties import Extremes, LossProperties
from labs.registry import losses
from labs.surrogates import clip_shares, k3, pessimistic, row_mean, token_share, vespo_weight

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
LEVELS = ("token", "sequence")
_CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

_SHARES = ("low_mean", "high_mean", "region_mean", "low_min", "high_max")
TRL_METRICS = (
    Metric(name="entropy", unit="nat", formula="token mean of entropy", low=0),
    Metric(name="kl", unit="nat", formula="token mean of k3, times the ratio if bias-corrected", low=0),
    *(
        Metric(
            name=f"clip_ratio/{n}", unit="1", formula="share of clipped tokens; min and max over rows", low=0, high=1
        )
        for n in _SHARES
    ),
    Metric(name="cispo_clip_ratio", unit="1", formula="share with A > 0 and ratio > epsilon_high", low=0, high=1),
    Metric(name="vespo/phi_seq_mean", unit="1", formula="mean of the weight phi", low=0),
    Metric(name="policy_loss", unit="1", formula="the loss before the entropy bonus and accumulation"),
    Metric(name="entropy_bonus", unit="nat", formula="mean entropy of the tokens the bonus acts on", low=0),
    Metric(name="entropy_coef", unit="1", formula="coefficient applied to the bonus"),
)


@losses.entry(
    paper="Shao et al. 2024, arXiv:2402.03300; TRL 1.16 GRPOTrainer",
    properties=LossProperties(
        aggregation="token-mean",
        extremes=Extremes(good_up="zero", good_down="vanishes", bad_up="grows", bad_down="zero"),
        all_masked="zero",
    ),
    metrics=TRL_METRICS,
)
def trl_grpo(
    old_log_prob: Tensor | None,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    *,
    loss_type: str = "dapo",
    importance_sampling_level: str = "token",
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    sapo_temperature_pos: float = 1.0,
    sapo_temperature_neg: float = 1.05,
    vespo_k_pos: float = 2.0,
    vespo_lambda_pos: float = 3.0,
    vespo_k_neg: float = 3.0,
    vespo_lambda_neg: float = 2.0,
    beta: float = 0.0,
    ref_log_prob: Tensor | None = None,
    use_bias_correction_kl: bool = True,
    entropy: Tensor | None = None,
    top_entropy_quantile: float = 1.0,
    off_policy_mask_threshold: float | None = None,
    rollout_log_probs: Tensor | None = None,
    entropy_coef: float | AdaptiveEntropyController = 0.0,
    max_completion_length: int | None = None,
    num_items_in_batch: float | None = None,
    gradient_accumulation_steps: int = 1,
    steps_per_generation: int = 1,
    training: bool = True,
) -> tuple[Tensor, dict[str, float]]:
    r"""`GRPOTrainer._compute_loss`, number for number; every option has TRL's name, meaning and default.

    With w = exp(log-ratio) per token, or of the row's mean log-ratio at the level `sequence`:

    | loss_type | per token | reduction |
    |---|---|---|
    | grpo | -min(min(w, delta) A, clip(w) A) | mean over all B rows of the row mean |
    | bnpo | same | local token mean |
    | dr_grpo | same | sum / (B `max_completion_length`) |
    | dapo | same | sum / `num_items_in_batch` (default: local tokens) |
    | luspo | same | mean over all B rows of the row sum |
    | cispo | -sg(min(w, `epsilon_high`)) A log_prob | as dapo |
    | sapo | as `labs.losses.sapo` | as grpo |
    | vespo | -`labs.surrogates.vespo_weight` A log_prob | as dapo |

    Things that surprise: the cap of cispo is `epsilon_high` **itself**, not 1 + it, so the default caps every weight
    at 0.2; no log-ratio is clamped; a row without a valid token counts in means over rows; a batch without one gives
    loss 0 with two NaN metrics; the entropy mask and the importance weights spare the KL term; with
    `use_bias_correction_kl` the k3 term is multiplied by w, which changes its gradient even on policy.

    Args:
        old_log_prob, log_prob, advantages, response_mask: `[B, T]`; advantages also `[B]` or `[B, 1]`.
        loss_agg_mode, config: accepted for the signature of a policy loss and ignored: the options below decide.
        rollout_is_weights: `[B, T]` or `[B, 1]`, TRL's `importance_sampling_ratio`.
        beta, ref_log_prob: coefficient of the KL and `[B, T]` reference.
        entropy: `[B, T]` in nats; needed by `top_entropy_quantile` < 1 and by `entropy_coef`.
        off_policy_mask_threshold, rollout_log_probs: see `labs.masks.off_policy_sequence`; without rollout
            log-probabilities the old ones are compared.
        entropy_coef: a number, or a controller whose `applied` coefficient is used; the caller feeds the metric
            `entropy_bonus` back to its `update`. The bonus is a token mean whatever `loss_type` is.
        gradient_accumulation_steps, steps_per_generation, training: divide the loss while training.

    Raises:
        InputError: an unknown `loss_type` or level, a missing column, bad shapes.
    """
    call = LossCall(
        "trl_grpo", old_log_prob, log_prob, advantages, response_mask, None, rollout_is_weights, by_row=True
    )
    if loss_type not in LOSS_TYPES:
        raise one_of("trl_grpo: loss_type", loss_type, LOSS_TYPES)
    if importance_sampling_level not in LEVELS:
        raise one_of("trl_grpo: importance_sampling_level", importance_sampling_level, LEVELS)
    advantages, mask = call.advantages, call.mask
    low, high = epsilon, epsilon if epsilon_high is None else epsilon_high
    log_ratio = call.log_ratio(bound=None)
    weight = log_ratio if importance_sampling_level == "token" else row_mean(log_ratio, mask).unsqueeze(-1)
    weight = weight.exp()

    metrics: dict[str, float] = {}
    if loss_type == "cispo":
        per_token = -weight.clamp(max=high).detach() * advantages * log_prob
        metrics["cispo_clip_ratio"] = token_share(((weight > high) & (advantages > 0)).float(), mask)
    elif loss_type == "sapo":
        per_token = soft_gate(weight, advantages, sapo_temperature_pos, sapo_temperature_neg)
    elif loss_type == "vespo":
        phi = vespo_weight(
            advantages,
            log_ratio,
            mask,
            rollout_is_weights,
            vespo_k_pos,
            vespo_lambda_pos,
            vespo_k_neg,
            vespo_lambda_neg,
        )
        per_token = -phi * advantages * log_prob
        metrics["vespo/phi_seq_mean"] = token_share(phi, mask)
    else:
        per_token = pessimistic(weight, advantages, low, high, delta)
        # TRL counts after the two-sided bound, which therefore hides nothing unless delta < 1 + epsilon_high.
        seen = weight if delta is None else weight.clamp(max=delta)
        metrics |= clip_shares((seen < 1 - low) & (advantages < 0), (seen > 1 + high) & (advantages > 0), mask)

    if off_policy_mask_threshold is not None:
        sampled = call.old if rollout_log_probs is None else call.needs("rollout_log_probs", rollout_log_probs)
        per_token = per_token * keep_on_policy(advantages, log_prob, sampled, mask, off_policy_mask_threshold)
    acting = mask
    if top_entropy_quantile < 1.0:
        certain = keep_high_entropy(call.needs("entropy", entropy), mask, 1 - top_entropy_quantile)
        per_token, acting = per_token * certain, mask * certain
    if rollout_is_weights is not None and loss_type != "vespo":
        per_token = per_token * rollout_is_weights
    if beta != 0.0:
        divergence = k3(log_prob, call.needs("ref_log_prob", ref_log_prob))
        divergence = divergence * weight if use_bias_correction_kl else divergence
        per_token = per_token + beta * divergence
        metrics["kl"] = token_share(divergence, mask)
    if entropy is not None:
        metrics["entropy"] = token_share(call.needs("entropy", entropy), mask)

    windows = float(gradient_accumulation_steps) if training else 1.0
    if loss_type in ("cispo", "dapo", "vespo"):
        items = torch.as_tensor(mask.sum() if num_items_in_batch is None else num_items_in_batch).clamp(min=1.0)
        loss = (per_token * mask).sum() / (items * windows / steps_per_generation if training else items)
        policy_loss = loss
    else:
        policy_loss = _reduced(per_token, mask, loss_type, max_completion_length)
        loss = policy_loss / windows
    adaptive = isinstance(entropy_coef, AdaptiveEntropyController)
    coefficient = entropy_coef.applied if isinstance(entropy_coef, AdaptiveEntropyController) else entropy_coef
    if adaptive or coefficient != 0.0:
        given = call.needs("entropy", entropy)
        bonus = (given * acting).sum() / acting.sum().clamp(min=1.0)
        loss = loss - coefficient * bonus / windows
        metrics |= {
            "policy_loss": float(policy_loss.detach()),
            "entropy_bonus": float(bonus.detach()),
            "entropy_coef": coefficient,
        }
    return call.finite(loss), metrics


def _reduced(per_token: Tensor, mask: Tensor, loss_type: str, max_completion_length: int | None) -> Tensor:
    if loss_type == "bnpo":
        return (per_token * mask).sum() / mask.sum().clamp(min=1.0)
    if loss_type == "dr_grpo":
        return (per_token * mask).sum() / (mask.shape[0] * (max_completion_length or mask.shape[1]))
    if loss_type == "luspo":
        return (per_token * mask).sum(-1).mean()
    return row_mean(per_token, mask).mean()
