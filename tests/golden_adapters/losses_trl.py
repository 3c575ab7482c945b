"""The losses, reductions and masks of TRL, torchrl and OpenRLHF."""

import torch

from labs.critic import openrlhf_value_loss
from labs.entropy import AdaptiveEntropyController
from labs.masks.high_entropy import keep_high_entropy
from labs.masks.off_policy_sequence import keep_on_policy
from labs.registry import losses
from labs.surrogates import vespo_weight

TRL = "trl.trainer.grpo_trainer.GRPOTrainer."
_NOT_PASSED = (
    "use_vllm",
    "vllm_importance_sampling_mode",
    "use_adaptive_entropy",
    "entropy_target",
    "last_world_entropy",
)
_COLUMNS = {"ref_log_prob": "ref_logps", "entropy": "entropies", "rollout_log_probs": "sampling_logps"}


def _leaves(inputs, *names):
    return {n: inputs[n].requires_grad_() for n in names if n in inputs}


def _grads(leaves):
    return {f"grad_{n}": leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for n, leaf in leaves.items()}


def _mask(inputs):
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _named(metrics):
    return {f"metric_{n.replace('/', '_')}": v for n, v in metrics.items()}


def _grpo(config, inputs):
    options = {n: v for n, v in config.items() if n not in _NOT_PASSED}
    controller = None
    if config["use_adaptive_entropy"]:
        controller = AdaptiveEntropyController(
            config["entropy_coef"], config["entropy_target"], last_entropy=config["last_world_entropy"]
        )
        options["entropy_coef"] = controller
    leaves = _leaves(inputs, "logps", "entropies")
    loss, metrics = losses["trl_grpo"](
        inputs.get("old_logps"), inputs["logps"], inputs["advantages"], _mask(inputs),
        rollout_is_weights=inputs.get("importance_sampling_ratio"),
        **{n: inputs[column] for n, column in _COLUMNS.items() if column in inputs}, **options,
    )  # fmt: skip
    loss.backward()
    out = {"loss": loss, **_grads(leaves), **_named(metrics)}
    if controller is not None:
        controller.update(metrics["entropy_bonus"])
        out |= {"metric_entropy_coef": controller.coefficient, "entropy_coef_after": controller.coefficient}
    return out


_GMPO = ("epsilon", "epsilon_high", "beta", "top_entropy_quantile", "gradient_accumulation_steps")


def _gmpo(config, inputs):
    leaves = _leaves(inputs, "logps")
    loss, metrics = losses["gmpo"](
        inputs["old_logps"], inputs["logps"], inputs["advantages"], _mask(inputs), entropy=inputs["entropies"],
        ref_log_prob=inputs.get("ref_logps"), **{n: config[n] for n in _GMPO},
    )  # fmt: skip
    loss.backward()
    return {"loss": loss, **_grads(leaves), **_named(metrics)}


def _rloo(config, inputs):
    leaves = _leaves(inputs, "logps")
    high = config["epsilon"] if config["epsilon_high"] is None else config["epsilon_high"]
    loss, _ = losses["sequence_ppo"](
        inputs["old_seq_logps"], inputs["logps"], inputs["advantages"], inputs["completion_mask"],
        config={"clip_ratio_low": config["epsilon"], "clip_ratio_high": high},
    )  # fmt: skip
    loss.backward()
    return {"loss": loss, **_grads(leaves)}


def _torchrl(objective):
    def run(config, inputs):
        leaves = _leaves(inputs, "logps")
        clip = config["clip_epsilon"]
        low, high = clip if isinstance(clip, list) else (clip, clip)
        loss, metrics = losses["torchrl_grpo"](
            inputs["old_logps"], inputs["logps"], inputs["advantages"], inputs["mask"], objective=objective,
            config={"clip_ratio_low": low, "clip_ratio_high": high}, prompt_mean=config["aggregation"] == "prompt_mean",
        )  # fmt: skip
        loss.backward()
        return {"loss": loss, **metrics, **_grads(leaves)}

    return run


_DENOMINATORS = ("dp_size", "batch_num_tokens", "global_batch_size")
_CLIPS = {"clip_eps_low": "clip_ratio_low", "clip_eps_high": "clip_ratio_high"}


def _openrlhf(config, inputs):
    leaves = _leaves(inputs, "logps")
    taken = (*_DENOMINATORS, *_CLIPS, "token_level_loss")
    loss, metrics = losses["openrlhf_ppo"](
        inputs["old_logps"], inputs["logps"], inputs["advantages"], inputs["mask"],
        loss_agg_mode="token-mean" if config.get("token_level_loss", True) else "seq-mean-token-mean",
        config={
            "global_batch_info": {n: config[n] for n in _DENOMINATORS if n in config},
            **{ours: config[theirs] for theirs, ours in _CLIPS.items() if theirs in config},
        },
        rollout_log_probs=inputs.get("rollout_logps"), **{n: v for n, v in config.items() if n not in taken},
    )  # fmt: skip
    loss.backward()
    return {"loss": loss, **metrics, **_grads(leaves)}


def _openrlhf_value(config, inputs):
    leaves = _leaves(inputs, "values")
    loss = openrlhf_value_loss(inputs["values"], inputs["old_values"], inputs["returns"], inputs["mask"], **config)
    loss.backward()
    return {"loss": loss, **_grads(leaves)}


_TORCHRL = "torchrl.objectives.llm.{}._compute_policy_objective+_aggregate_loss_value"

ADAPTERS = {
    "trl.experimental.gmpo.gmpo_trainer.GMPOTrainer._compute_loss": _gmpo,
    "trl.trainer.rloo_trainer.RLOOTrainer._compute_loss": _rloo,
    _TORCHRL.format("GRPOLoss"): _torchrl("grpo"),
    _TORCHRL.format("DAPO"): _torchrl("grpo"),
    _TORCHRL.format("CISPOLoss"): _torchrl("cispo"),
    "openrlhf.models.loss.PolicyLoss": _openrlhf,
    "openrlhf.models.loss.ValueLoss": _openrlhf_value,
    f"{TRL}_compute_loss": _grpo,
    f"{TRL}get_gamma_weights": lambda config, inputs: {
        "phi": vespo_weight(
            inputs["advantages"], inputs["log_ratio"], inputs["mask"], inputs.get("importance_sampling_ratio"), **config
        )
    },
    f"{TRL}get_high_entropy_mask": lambda config, inputs: {
        "keep": keep_high_entropy(inputs["entropies"], inputs["mask"], config["threshold"])
    },
    f"{TRL}get_off_policy_mask": lambda config, inputs: {
        "keep": keep_on_policy(
            inputs["advantages"],
            inputs["logps"],
            inputs["sampling_logps"],
            inputs["mask"],
            config["off_policy_threshold"],
        )
    },
}
