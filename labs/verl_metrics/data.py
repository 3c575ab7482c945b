"""Metrics of one batch: scores, lengths, off-policyness, mismatch of probabilities, variance proxies, timing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.errors import InputError
from labs.masked import masked_mean, masked_sum


def _lengths(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """Attended prompt and response tokens of each row, tool text included, as float32."""
    mask = batch["attention_mask"]
    return mask[:, : -batch.width].sum(-1).float(), mask[:, -batch.width :].sum(-1).float()


def _summary(name: str, values: Tensor) -> dict[str, float]:
    """mean, max and min under `name/`, NaN when there is nothing."""
    if values.numel() == 0:
        return {f"{name}/{what}": math.nan for what in ("mean", "max", "min")}
    return {
        f"{name}/mean": values.mean().item(),
        f"{name}/max": values.max().item(),
        f"{name}/min": values.min().item(),
    }


def _clip_ratio(lengths: Tensor, width: int) -> float:
    return torch.eq(lengths, width).float().mean().item()


def _explained(returns: Tensor, values: Tensor) -> float:
    if len(returns) < 2:
        return math.nan
    return (1.0 - torch.var(returns - values) / (torch.var(returns) + 1e-5)).item()


def compute_data_metrics(batch: TokenBatch, use_critic: bool = True) -> dict[str, float]:
    """The numbers `critic/*`, `response_length/*`, `prompt_length/*` and `num_turns/*` of one batch.

    Scores and rewards are row sums over rows with a response; advantages, returns and values are taken over
    `response_mask`, lengths over `attention_mask` (tool text counts). `clip_ratio` compares with the padded width
    of *this batch*: when rows are padded to the longest one, at least one row always counts as clipped.
    `vf_explained_var = 1 - var(returns - values) / (var(returns) + 1e-5)`, Bessel.

    Args:
        batch: token_level_scores, token_level_rewards, advantages, returns, prompts, responses, attention_mask,
            response_mask; values with `use_critic`; optional num_turns and tool_call_counts [B].
        use_critic: log the value metrics.

    Numbers over nothing (every response empty, mask all 0) are NaN.
    """
    mask = batch["response_mask"].bool()
    prompt, response = _lengths(batch)
    present = response != 0
    returns = torch.masked_select(batch["returns"], mask)
    metrics = {
        **_summary("critic/score", batch["token_level_scores"].sum(-1)[present]),
        **_summary("critic/rewards", batch["token_level_rewards"].sum(-1)[present]),
        **_summary("critic/advantages", torch.masked_select(batch["advantages"], mask)),
        **_summary("critic/returns", returns),
    }
    if use_critic:
        values = torch.masked_select(batch["values"], mask)
        metrics |= _summary("critic/values", values)
        metrics["critic/vf_explained_var"] = _explained(returns, values)
    width, kept = batch.width, response[present]
    metrics |= {
        **_summary("response_length", response),
        "response_length/clip_ratio": _clip_ratio(response, width),
        **_summary("response_length_non_aborted", kept),
        "response_length_non_aborted/clip_ratio": _clip_ratio(kept, width) if len(kept) else math.nan,
        "response/aborted_ratio": (~present).float().mean().item(),
        **_summary("prompt_length", prompt),
        "prompt_length/clip_ratio": _clip_ratio(prompt, batch["prompts"].shape[-1]),
    }
    for name in ("num_turns", "tool_call_counts"):
        if name in batch:
            metrics |= _summary(name, torch.as_tensor(batch[name]).double())
    return metrics


def compute_off_policy_metrics(versions: Tensor, global_steps: int) -> dict[str, float]:
    """The numbers `training/off_policy/trajectory_*`: mean, max and min over rows.

    With the row's oldest and newest policy version: spans = newest - oldest + 1, staleness = (step - 1) - newest,
    staleness_worst = (step - 1) - oldest; step - 1 is the version that training starts from.

    Args:
        versions: [B, T] version that chose each token, -1 elsewhere; rows without any are left out.
        global_steps: the training step.
    """
    chosen = versions >= 0
    rows = chosen.any(dim=1)
    newest = versions[rows].max(dim=1).values.double()
    oldest = versions[rows].masked_fill(~chosen[rows], torch.iinfo(versions.dtype).max).min(dim=1).values.double()
    prefix, current = "training/off_policy/trajectory", global_steps - 1
    return {
        **_summary(f"{prefix}_spans", newest - oldest + 1),
        **_summary(f"{prefix}_staleness", current - newest),
        **_summary(f"{prefix}_staleness_worst", current - oldest),
    }


def calculate_debug_metrics(batch: TokenBatch) -> dict[str, float]:
    """The numbers `training/rollout_probs_diff_*`: how far the engine's probabilities are from the trainer's.

    Differences of *probabilities* over the mask: mean, max, Bessel standard deviation, and their Pearson
    correlation. `_valid` is 0, and the rest NaN, when the mask is empty.

    Args:
        batch: rollout_log_probs, old_log_probs, and response_mask (else the tail of attention_mask, else everything).
    """
    rollout, actor = batch["rollout_log_probs"].exp(), batch["old_log_probs"].exp()
    if "response_mask" in batch:
        mask = batch["response_mask"].bool()
    elif "attention_mask" in batch:
        mask = batch["attention_mask"][:, -batch.width :].bool()
    else:
        mask = torch.ones_like(rollout, dtype=torch.bool)
    prefix = "training/rollout_probs_diff"
    a, b = torch.masked_select(actor, mask), torch.masked_select(rollout, mask)
    gap = (a - b).abs()
    if not len(gap):
        names = (f"{prefix}_max", f"{prefix}_mean", f"{prefix}_std", "training/rollout_actor_probs_pearson_corr")
        return {f"{prefix}_valid": 0, **dict.fromkeys(names, math.nan)}
    return {
        f"{prefix}_valid": 1,
        f"{prefix}_max": gap.max().item(),
        f"{prefix}_mean": gap.mean().item(),
        f"{prefix}_std": gap.std().item() if len(gap) > 1 else math.nan,
        "training/rollout_actor_probs_pearson_corr": torch.corrcoef(torch.stack([a, b]))[0, 1].item()
        if len(gap) > 1
        else math.nan,
    }


def compute_variance_proxy_metrics(batch: TokenBatch, gradient_norm: float | None = None) -> dict[str, float]:
    r"""The numbers `variance_proxy/*`, without a second backward pass.

    `W_t = 1 - 2 pi(y_t) + sum_a pi(a)^2` is the squared norm of the score in the logits; W is its sum over the row,
    a the masked mean advantage of the row.

    | metric | value |
    |---|---|
    | expected_a_squared | mean of a^2 |
    | expected_w | mean of W, each W_t times the squared importance weight where there is one |
    | proxy1_signal_strength | `gradient_norm`^2, or 0 |
    | proxy2_total_power | mean of a^2 max(W, 0), times the squared row mean weight where there is one |
    | proxy3_pure_noise | max(0, (proxy2 - proxy1) / (B - 1)); 0 without a norm or with one row |

    Returns an empty dictionary when advantages, old_log_probs or sum_pi_squared are not in the batch.
    """
    if any(name not in batch for name in ("sum_pi_squared", "old_log_probs", "advantages")):
        return {}
    mask = batch["response_mask"]
    w = 1 - 2 * torch.exp(batch["old_log_probs"]) + batch["sum_pi_squared"]
    a = masked_mean(batch["advantages"], mask, axis=-1)
    power = a**2
    weighted = w
    if "rollout_is_weights" in batch:
        weights = batch["rollout_is_weights"].detach()
        weighted = w * weights**2
        # verl divides the weights out again, with a floor, so that a row whose weights are 0 has W = 0.
        w = weighted / torch.clamp(weights**2, min=1e-10)
        power = masked_mean(weights, mask, axis=-1) ** 2 * power
    total = (power * torch.clamp(masked_sum(w, mask, axis=-1), min=0.0)).mean().item()
    signal = 0.0 if gradient_norm is None else gradient_norm**2
    noise = max(0.0, (total - signal) / (len(a) - 1)) if gradient_norm is not None and len(a) > 1 else 0.0
    return {
        "variance_proxy/proxy1_signal_strength": signal,
        "variance_proxy/proxy2_total_power": total,
        "variance_proxy/proxy3_pure_noise": noise,
        "variance_proxy/expected_a_squared": (a**2).mean().item(),
        "variance_proxy/expected_w": masked_sum(weighted, mask, axis=-1).mean().item(),
    }


#: Stages whose time is divided by all tokens; `gen` is divided by response tokens.
_ALL_TOKENS = ("ref", "values", "adv", "update_critic", "update_actor")


def compute_timing_metrics(batch: TokenBatch, timing_raw: Mapping[str, float]) -> dict[str, float]:
    """`timing_s/<stage>` and, for six stages, `timing_per_token_ms/<stage>` (0 without tokens).

    Args:
        batch: attention_mask, for the token counts.
        timing_raw: seconds by stage.
    """
    prompt, response = (float(x.sum()) for x in _lengths(batch))
    tokens = {"gen": response, **dict.fromkeys(_ALL_TOKENS, prompt + response)}
    metrics = {f"timing_s/{stage}": seconds for stage, seconds in timing_raw.items()}
    for stage in (s for s in tokens if s in timing_raw):
        count = tokens[stage]
        metrics[f"timing_per_token_ms/{stage}"] = timing_raw[stage] * 1000 / count if count > 0 else 0.0
    return metrics


def compute_throughput_metrics(batch: TokenBatch, timing_raw: Mapping[str, Any], n_gpus: int) -> dict[str, float]:
    """`perf/total_num_tokens`, `perf/time_per_step` and `perf/throughput` = tokens / (seconds * GPUs).

    verl's function of this purpose is spelt `compute_throughout_metrics`.

    Raises:
        InputError: no `step` in `timing_raw`, a time or number of GPUs that is not above 0.
    """
    seconds = timing_raw.get("step", 0.0)
    if not seconds > 0 or n_gpus < 1:
        raise InputError(f"throughput needs timing_raw['step'] above 0 and n_gpus from 1, got {seconds} and {n_gpus}")
    tokens = int(batch["attention_mask"].sum())
    return {
        "perf/total_num_tokens": tokens,
        "perf/time_per_step": seconds,
        "perf/throughput": tokens / (seconds * n_gpus),
    }
