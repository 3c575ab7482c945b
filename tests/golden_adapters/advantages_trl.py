"""Advantages of TRL, torchrl and OpenRLHF, called in the lab."""

import torch

from labs import recursion, trl
from labs.kl import kl_penalty
from labs.masked import masked_mean, masked_sum
from labs.registry import estimators

VALUE = "torchrl.objectives.value."
OPENRLHF = "openrlhf.trainer.ppo_utils.experience_maker."


def scored(config, inputs):
    """What both TRL trainers share: rewards placed on the first token, group labels, token mask, loss mask."""
    mask = inputs["response_mask"] * inputs.get("tool_mask", 1)
    components, weights = inputs["rewards_per_func"], inputs["reward_weights"]
    rewards = trl.combine(components, weights)
    placed = torch.zeros(mask.shape, dtype=rewards.dtype)
    placed[:, 0] = rewards
    index = torch.arange(len(rewards)) // int(inputs["group_size"])
    kept = inputs["response_mask"]
    if config["mask_truncated_completions"]:
        kept = kept * ~inputs["truncated"][:, None]
    return mask, rewards, placed, index, kept


def grpo(config, inputs):
    mask, rewards, placed, index, kept = scored(config, inputs)
    options = (config["scale_rewards"], config["multi_objective_aggregation"])
    advantages, _returns = estimators["trl_grpo"](
        placed,
        torch.ones_like(mask),
        index,
        *options,
        reward_components=inputs["rewards_per_func"],
        reward_weights=inputs["reward_weights"],
    )
    _scores, std = trl.grpo_scores(inputs["rewards_per_func"], index, inputs["reward_weights"], *options)
    out = {
        "advantages": advantages[:, 0],
        "completion_mask_out": kept,
        "num_items_in_batch": (kept * inputs.get("tool_mask", 1)).sum(),
        **{f"metric_{n}": v for n, v in trl.reward_metrics(rewards, std).items()},
    }
    if config["use_vllm"]:
        out["importance_sampling_ratio"] = trl.importance_ratio(
            inputs["old_logps"],
            inputs["sampling_logps"],
            mask,
            config["vllm_importance_sampling_mode"],
            config["vllm_importance_sampling_clip_min"],
            config["vllm_importance_sampling_clip_max"],
        )
    return out


def rloo(config, inputs):
    mask, rewards, placed, index, kept = scored(config, inputs)
    clip = config["reward_clip_range"]
    advantages, _returns = estimators["trl_rloo"](
        placed,
        mask,
        index,
        reward_clip_range=clip,
        normalize_advantages=config["normalize_advantages"],
        beta=config["beta"],
        old_log_probs=inputs["old_logps"],
        ref_log_prob=inputs.get("ref_logps"),
    )
    clipped = rewards if clip is None else rewards.clamp(*clip)
    out = {
        "advantages": advantages[:, 0],
        "completion_mask_out": kept,
        "old_seq_logps": masked_sum(inputs["old_logps"], mask, axis=-1),
        **{f"metric_{n}": v for n, v in trl.reward_metrics(rewards, trl.group_std(clipped, index)).items()},
    }
    if "ref_logps" in inputs:
        out["metric_kl"] = masked_mean(kl_penalty(inputs["old_logps"], inputs["ref_logps"], "k1"), mask)
    return out


def flat(inputs):
    """torchrl carries a last axis of one."""
    return {n: x.squeeze(-1) for n, x in inputs.items()}


def gae(config, inputs):
    x = flat(inputs)
    advantage = recursion.gae(
        x["reward"],
        x["state_value"],
        x["next_state_value"],
        config["gamma"],
        config["lmbda"],
        x["done"],
        x["terminated"],
    )
    return {"advantage": advantage[..., None], "value_target": (advantage + x["state_value"])[..., None]}


def td0(config, inputs):
    return {"advantage": gae({**config, "lmbda": 0.0}, inputs)["advantage"]}


def td_lambda(config, inputs):
    x = flat(inputs)
    returns = recursion.td_lambda(
        x["reward"], x["next_state_value"], config["gamma"], config.get("lmbda", 1.0), x["done"], x["terminated"]
    )
    return {"ret": returns[..., None]}


def vtrace(config, inputs):
    x = flat(inputs)
    advantage, vs = recursion.vtrace(
        x["reward"],
        x["state_value"],
        x["next_state_value"],
        x["log_pi"] - x["log_mu"],
        config["gamma"],
        config["rho_thresh"],
        config["c_thresh"],
        x["done"],
        x["terminated"],
    )
    return {"advantage": advantage[..., None], "vs": vs[..., None]}


def reward2go(config, inputs):
    return {"ret": recursion.discounted(inputs["reward"], config["gamma"], inputs["done"])}


def standardize(config, inputs):
    x = inputs["x"][:, None]
    advantages, _returns = estimators["standardize_by_group"](
        x, torch.ones_like(x), inputs["groups"], epsilon=config["eps"]
    )
    return {"y": advantages[:, 0]}


def openrlhf_gae(config, inputs):
    advantages, returns = estimators["gae_step"](
        inputs["rewards"], inputs["values"], inputs["action_mask"], config["gamma"], config["lambd"]
    )
    return {"advantages": advantages, "returns": returns}


def openrlhf_returns(config, inputs):
    _advantages, returns = estimators["reward_to_go"](inputs["rewards"], inputs["action_mask"], config["gamma"])
    return {"returns": returns}


ADAPTERS = {
    "trl.trainer.grpo_trainer.GRPOTrainer._generate_and_score_completions": grpo,
    "trl.trainer.rloo_trainer.RLOOTrainer._generate_and_score_completions": rloo,
    f"{VALUE}functional.generalized_advantage_estimate": gae,
    f"{VALUE}functional.vec_generalized_advantage_estimate": gae,
    f"{VALUE}functional.td0_advantage_estimate": td0,
    f"{VALUE}functional.td1_return_estimate": td_lambda,
    f"{VALUE}functional.td_lambda_return_estimate": td_lambda,
    f"{VALUE}functional.vtrace_advantage_estimate": vtrace,
    f"{VALUE}functional.reward2go": reward2go,
    f"{VALUE}advantages._standardize_by_group": standardize,
    f"{OPENRLHF}get_advantages_and_returns": openrlhf_gae,
    f"{OPENRLHF}get_cumulative_returns": openrlhf_returns,
}

EXCUSED = {
    "torchrl_vec_gae_lambda0": "torchrl raises IndexError at lambda 0; the lab returns TD(0), as the scalar loop does",
}
