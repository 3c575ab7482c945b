"""verl's policy losses, value loss, entropy and the two composite losses."""

from unittest import mock

import torch

from labs.actor_config import ActorConfig, CriticConfig, PolicyLossConfig
from labs.actor_loss import compute_policy_loss, get_policy_loss_fn, ppo_loss
from labs.critic import compute_value_loss, value_loss
from labs.entropy import (
    compute_entropy_loss,
    entropy_from_logits,
    entropy_from_logits_with_chunking,
    logprobs_from_logits,
)
from labs.registry import losses

CORE = "verl.trainer.ppo.core_algos."


def _actor(fields):
    fields = dict(fields)
    return ActorConfig(policy_loss=PolicyLossConfig(**fields.pop("policy_loss", {})), **fields)


def _policy(name):
    def run(config, inputs):
        if "torch_seed" in config:
            torch.manual_seed(config["torch_seed"])
        leaf = inputs["log_prob"].requires_grad_()
        mode = {"loss_agg_mode": config["loss_agg_mode"]} if "loss_agg_mode" in config else {}
        drawn, original = [], torch.randperm

        def randperm(*args, **kwargs):
            drawn.append(original(*args, **kwargs))
            return drawn[-1]

        function = losses[name] if name else get_policy_loss_fn(config["loss_mode"])
        with mock.patch.object(torch, "randperm", randperm):
            loss, metrics = function(
                inputs["old_log_prob"], leaf, inputs["advantages"], inputs["response_mask"],
                config=_actor(config["actor"]), rollout_is_weights=inputs.get("rollout_is_weights"), **mode,
            )  # fmt: skip
        loss.backward()
        return {
            "loss": loss,
            "metrics": metrics,
            "grad_log_prob": leaf.grad,
            **({"randperm": drawn[0]} if drawn else {}),
        }

    return run


def _deprecated(config, inputs):
    leaf = inputs["log_prob"].requires_grad_()
    loss, clipfrac, kl, lower = compute_policy_loss(
        inputs["old_log_prob"], leaf, inputs["advantages"], inputs["response_mask"], **config
    )
    loss.backward()
    return {"loss": loss, "grad_log_prob": leaf.grad, "pg_clipfrac": clipfrac, "ppo_kl": kl, "pg_clipfrac_lower": lower}


def _value(config, inputs):
    leaf = inputs["vpreds"].requires_grad_()
    loss, clipfrac = compute_value_loss(leaf, inputs["returns"], inputs["values"], inputs["response_mask"], **config)
    loss.backward()
    return {"loss": loss, "vf_clipfrac": clipfrac, "grad_vpreds": leaf.grad}


def _token_entropy(config, inputs):
    return {
        "token_entropy": entropy_from_logits(inputs["logits"]),
        "logprobs": logprobs_from_logits(inputs["logits"], inputs["labels"]),
    }


def _entropy(config, inputs):
    leaf = inputs["logits"].requires_grad_()
    loss = compute_entropy_loss(leaf, inputs["response_mask"], **config)
    loss.backward()
    flat = leaf.detach().reshape(-1, leaf.shape[-1])
    chunked = entropy_from_logits_with_chunking(flat, chunk_size=3).reshape(leaf.shape[:-1])
    return {
        "entropy_loss": loss, "grad_logits": leaf.grad, "token_entropy": entropy_from_logits(leaf),
        "token_entropy_chunked": chunked, "logprobs": logprobs_from_logits(inputs["logits"], inputs["labels"]),
    }  # fmt: skip


def _ppo_loss(config, inputs):
    leaves = {n: inputs[n].requires_grad_() for n in ("log_prob", "entropy") if n in inputs}
    loss, metrics = ppo_loss(
        inputs, leaves["log_prob"], _actor(config["actor"]), entropy=leaves.get("entropy"), **config["global"]
    )
    loss.backward()
    return {"loss": loss, "metrics": metrics, **{f"grad_{n}": leaf.grad for n, leaf in leaves.items()}}


def _value_loss(config, inputs):
    leaf = inputs["vpreds"].requires_grad_()
    loss, metrics = value_loss(inputs, leaf, CriticConfig(**config["critic"]), **config["global"])
    loss.backward()
    return {"loss": loss, "metrics": metrics, "grad_vpreds": leaf.grad}


_NAMES = (
    "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo",
    "bypass_mode", "reinforce",
)  # fmt: skip

ADAPTERS = {
    **{f"{CORE}compute_policy_loss_{name}": _policy(name) for name in _NAMES},
    "verl==0.8.0 compute_policy_loss_gspo": _policy("gspo_080"),
    f"{CORE}get_policy_loss_fn": _policy(None),
    f"{CORE}compute_policy_loss": _deprecated,
    f"{CORE}compute_value_loss": _value,
    f"{CORE}compute_entropy_loss": _entropy,
    "verl.utils.torch_functional.entropy_from_logits": _token_entropy,
    "verl.workers.utils.losses.ppo_loss": _ppo_loss,
    "verl.workers.utils.losses.value_loss": _value_loss,
}
