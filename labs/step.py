r"""The order of one training step, written once: a generator of `(stage, batch)`.

| stage | reads | writes |
|---|---|---|
| score | scores | rm_scores, token_level_scores |
| kl | token_level_scores, old_log_probs, ref_log_prob | token_level_rewards |
| correction | old_log_probs, rollout_log_probs | rollout_is_weights, rejected |
| mask | rejected, truncated, what the mask rules need | response_mask |
| advantage | token_level_rewards, response_mask, uid, what the estimator needs | advantages, returns |
| mask | advantages (only when a rule reads them) | response_mask |
| loss | advantages, log_prob, old_log_probs, response_mask, loss_mask | loss_weights |

verl 0.9.1's order: KL is charged on the original mask, rejection comes before the baseline, the loss divides by
counts of the original `loss_mask`. Only the mask stage writes `response_mask`; `loss_mask` never changes. Batches are
frozen, so that the list of stages shows how every entry came to be. `labs.trainer` goes on with update and metrics;
`labs.exact` runs the same stages on enumerated batches.

    gradient of the objective = sum over [i, t] of loss_weights[i, t] * grad log pi(token i, t)

with `loss_weights = -d loss / d log_prob`, taken by autograd from the registered loss. The entropy bonus is not in it:
it is a function of whole rows of the policy and has no log-probability to go through.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labs import kl, scores, truncation
from labs.actor_loss import ppo_loss
from labs.batch import TokenBatch
from labs.correction import apply_bypass_mode, compute_rollout_correction_and_rejection_mask
from labs.dispatch import compute_advantage, compute_advantage_for_multi_trajectories
from labs.errors import InputError
from labs.registry import call, estimators, losses, masks
from labs.step_config import Choice, StepConfig, required

__all__ = ["STAGES", "StepConfig", "loss", "required", "stages"]

STAGES = ("score", "kl", "correction", "mask", "advantage", "loss")

#: Columns of the batch that a loss may take beyond those.
_LOSS_COLUMNS = ("ref_log_prob", "rollout_log_probs", "entropy")


def stages(
    batch: TokenBatch,
    config: StepConfig,
    *,
    controller: kl.KLController | None = None,
    metrics: dict[str, float] | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[tuple[str, TokenBatch]]:
    """Run the stages up to `loss` and yield the batch after each one.

    Args:
        batch: the columns of `required(config)`, and `scores` [B] (or `token_level_scores` [B, T], which are then
            taken as they are). `log_prob` is the current policy's, by default `old_log_probs` (the first minibatch
            of a step). Without `loss_mask` the `response_mask` of the start is it.
        config: what to do.
        controller: of the KL in reward; it is updated in place. None makes a new one of `config.kl_ctrl`.
        metrics: gets the metrics of every stage.
        generator: for a loss that draws, and for PF-PPO.

    Yields:
        `(stage, batch)` in the order of the module's table. The last batch has `loss_weights` [B, T].

    Raises:
        InputError: a missing column; whatever the entries refuse.
    """
    note = {} if metrics is None else metrics
    if config.correction is not None and config.correction.bypass_mode:
        batch = apply_bypass_mode(batch)
    lacking = sorted(n for n in required(config) if n not in batch)
    if lacking:
        raise InputError(f"the step needs the columns {', '.join(lacking)}; the batch has {', '.join(sorted(batch))}")
    if "loss_mask" not in batch:
        batch = batch.replace(loss_mask=batch["response_mask"])
    batch = _truncate("episodes", batch, config)
    batch = _truncate("score", _score(batch, config), config)
    yield "score", batch
    batch = _kl(batch, config, controller, note)
    yield "kl", batch
    batch = _correct(batch, config, note)
    yield "correction", batch
    before = [choice for choice in config.masks if "advantages" not in masks[choice[0]].needs]
    after = [choice for choice in config.masks if choice not in before]
    batch = _mask(_truncate("mask", _reject(batch), config), before)
    yield "mask", batch
    if not config.estimator_bootstraps:
        batch = _truncate("advantage", batch, config)
    batch = _advantage(batch, config, generator)
    yield "advantage", batch
    if after:
        batch = _mask(batch, after)
        yield "mask", batch
    yield "loss", _weigh(batch, config, note, generator)


def _truncate(stage: str, batch: TokenBatch, config: StepConfig) -> TokenBatch:
    if config.truncation is None:
        return batch
    return truncation.at_stage(stage, batch, config.truncation, config.gamma)


def _score(batch: TokenBatch, config: StepConfig) -> TokenBatch:
    if "scores" in batch:
        shaped, extra = scores.shape(batch, batch["scores"], config.rewards)
        placed = scores.assemble_rm_scores(batch, shaped, dtype=shaped.dtype)
        rows = {n: c for n, c in extra.items() if isinstance(c, Tensor) and c.shape[:1] == (batch.rows,)}
        return batch.replace(**rows, rm_scores=placed, token_level_scores=placed)
    if "token_level_scores" not in batch:
        raise InputError("the step needs the column scores [B] or token_level_scores [B, T]")
    return batch


def _kl(
    batch: TokenBatch, config: StepConfig, controller: kl.KLController | None, note: dict[str, float]
) -> TokenBatch:
    if not config.use_kl_in_reward:
        return batch.replace(token_level_rewards=batch["token_level_scores"])
    controller = kl.get_kl_controller(config.kl_ctrl) if controller is None else controller
    batch, found = kl.apply_kl_penalty(batch, controller, config.kl_penalty)
    note.update(found)
    return batch


def _correct(batch: TokenBatch, config: StepConfig, note: dict[str, float]) -> TokenBatch:
    block = config.correction
    if block is None or block.bypass_mode:
        return batch
    weights, kept, found = compute_rollout_correction_and_rejection_mask(
        batch["old_log_probs"],
        batch["rollout_log_probs"],
        batch["response_mask"],
        block.rollout_is,
        block.rollout_is_threshold,
        block.rollout_is_batch_normalize,
        block.rollout_rs,
        block.rollout_rs_threshold,
    )
    note.update(found)
    rejected = batch["response_mask"].bool() & ~kept.bool()
    return batch.replace(rollout_is_weights=weights, rejected=rejected)


def _reject(batch: TokenBatch) -> TokenBatch:
    if "rejected" not in batch:
        return batch
    mask = batch["response_mask"]
    return batch.replace(response_mask=mask * (~batch["rejected"]).to(mask.dtype))


def _mask(batch: TokenBatch, chain: list[Choice]) -> TokenBatch:
    for name, options in chain:
        entry = masks[name]
        known = {"log_prob": batch.get("log_prob", batch["old_log_probs"]), **batch}
        columns = {n: known[n] for n in entry.needs}
        kept = call(entry, response_mask=batch["response_mask"], **columns, **options)
        batch = batch.replace(response_mask=kept)
    return batch


def _advantage(batch: TokenBatch, config: StepConfig, generator: torch.Generator | None) -> TokenBatch:
    if config.pf_ppo is not None and generator is None:
        raise InputError("pf_ppo resamples rows and needs a generator")
    # verl keeps reward components outside the tensors; gdpo looks for them there.
    keys = config.gdpo_reward_keys if "non_tensor_batch" in estimators[config.estimator].needs else ()
    data = batch.replace(**{n: np.asarray(batch[n]) for n in keys})
    could = "bootstrap_values" in inspect.signature(estimators[config.estimator]).parameters
    ends = ("truncated", "bootstrap_values") if could and not config.estimator_bootstraps else ()
    hidden = {n: batch[n] for n in ends if n in batch}
    data = data.replace(**dict.fromkeys(hidden))
    settings: dict[str, Any] = {
        "gamma": config.gamma,
        "lam": config.lam,
        "norm_adv_by_std_in_grpo": config.norm_adv_by_std_in_grpo,
        "config": config.algorithm(),
        "generator": generator,
        "options": config.estimator_options,
    }
    if "session_keys" in batch:
        data = compute_advantage_for_multi_trajectories(data, batch["session_keys"], config.estimator, **settings)
    else:
        data = compute_advantage(data, config.estimator, **settings)
    return data.replace(**hidden, **{n: torch.as_tensor(data[n]) for n in keys})


def _weigh(
    batch: TokenBatch, config: StepConfig, note: dict[str, float], generator: torch.Generator | None
) -> TokenBatch:
    log_prob = batch.get("log_prob", batch["old_log_probs"]).detach().clone().requires_grad_()
    value, found = loss(batch, log_prob, config, generator=generator)
    note.update(found)
    (gradient,) = torch.autograd.grad(value, log_prob)
    return batch.replace(log_prob=log_prob.detach(), loss_weights=-gradient)


def loss(
    batch: TokenBatch,
    log_prob: Tensor,
    config: StepConfig,
    *,
    entropy: Tensor | None = None,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The scalar loss of a batch after the advantage stage, and its metrics.

    Args:
        batch: after `stages`; `advantages`, `old_log_probs`, `response_mask`, `loss_mask`.
        log_prob: `[B, T]` of the current policy, carries the gradient.
        config: what to do.
        entropy: `[B, T]` of the current policy in nats, for `entropy_coeff`.
        batch_num_tokens, global_batch_size: denominators; by default, under `denominators="loss_mask"`, the tokens
            of `loss_mask` and the rows of this batch. Give those of the whole minibatch to split it up.
        generator: for a loss that draws; required there, because no global generator is ever used.

    Raises:
        InputError: a missing column, or no generator for a loss that draws.
    """
    settings = config.actor()
    parameters = inspect.signature(losses[config.loss]).parameters
    extra = {n: batch[n] for n in _LOSS_COLUMNS if n in parameters and n in batch}
    if entropy is not None and "entropy" in parameters:
        extra["entropy"] = entropy
    if "generator" in parameters:
        if generator is None:
            raise InputError(f"loss {config.loss} draws random numbers and needs a generator")
        extra["generator"] = generator
    if extra:
        block = settings.policy_loss
        settings = replace(settings, policy_loss=replace(block, options={**extra, **block.options}))
    if config.denominators == "loss_mask":
        batch_num_tokens = float(batch["loss_mask"].sum()) if batch_num_tokens is None else batch_num_tokens
        global_batch_size = float(batch.rows) if global_batch_size is None else global_batch_size
    return ppo_loss(
        batch,
        log_prob,
        settings,
        entropy=entropy,
        batch_num_tokens=batch_num_tokens,
        global_batch_size=global_batch_size,
    )
