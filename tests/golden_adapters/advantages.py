"""verl's estimators, helpers and aggregation, called in the lab."""

import numpy as np
import torch

from labs.batch import TokenBatch
from labs.correction import compute_rollout_correction_and_add_to_batch
from labs.dispatch import compute_advantage, compute_advantage_for_multi_trajectories
from labs.kl import apply_kl_penalty, get_kl_controller
from labs.masked import (
    agg_loss,
    as_torch_index,
    get_response_mask,
    group_mean_std,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from labs.pf_ppo import compute_pf_ppo_reweight_data, pf_ppo_rows, pf_ppo_weights
from labs.registry import estimators

CORE = "verl.trainer.ppo.core_algos."
NAMES = {
    "gae_advantage_return": "gae",
    "grpo_outcome_advantage": "grpo",
    "grpo_vectorized_outcome_advantage": "grpo_vectorized",
    "grpo_passk_outcome_advantage": "grpo_passk",
    "rloo_outcome_advantage": "rloo",
    "rloo_vectorized_outcome_advantage": "rloo_vectorized",
    "reinforce_plus_plus_outcome_advantage": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline_outcome_advantage": "reinforce_plus_plus_baseline",
    "remax_outcome_advantage": "remax",
    "opo_outcome_advantage": "opo",
    "gpg_outcome_advantage": "gpg",
    "optimal_token_baseline_advantage": "optimal_token_baseline",
    "multi_turn_optimal_token_baseline_advantage": "tir_optimal_token_baseline",
}


def both(result):
    advantages, returns = result
    return {"advantages": advantages, "returns": returns}


def estimator(name):
    def adapter(config, inputs):
        return both(estimators[name](**inputs, **config.get("kwargs", {}), config=config.get("algo")))

    return adapter


def gdpo(config, inputs):
    components = {n[5:]: inputs.pop(n).numpy() for n in list(inputs) if n.startswith("comp_")}
    columns = {n: inputs.pop(n) for n in ("attention_mask",) if n in inputs}
    if columns:
        rows = len(columns["attention_mask"])
        columns["prompts"] = torch.zeros(rows, config["prompt_len"], dtype=torch.int64)
        inputs |= {"non_tensor_batch": components, "batch": columns}
    return both(estimators["gdpo"](**inputs, **config.get("kwargs", {}), config=config.get("algo")))


def means(config, inputs):
    values, mask = inputs["values"], inputs["mask"]
    return {
        "all": masked_mean(values, mask),
        "rows": masked_mean(values, mask, axis=-1),
        "sum": masked_sum(values, mask),
    }


def whiten(config, inputs):
    return {
        "whitened": masked_whiten(**inputs),
        "unshifted": masked_whiten(**inputs, shift_mean=False),
        "var": masked_var(**inputs),
        "var_biased": masked_var(**inputs, unbiased=False),
    }


def groups(config, inputs):
    index = inputs["index"]
    ids = as_torch_index(index if isinstance(index, np.ndarray) else index.numpy())
    mean, std, count = group_mean_std(inputs["scores"], ids)
    return {"gidx": ids, "mean": mean, "std": std, "count": count}


def response_mask(config, inputs):
    return {
        "single": get_response_mask(inputs["ids"], 2, dtype=torch.int64),
        "multi": get_response_mask(inputs["ids"], [2, 3], dtype=torch.int64),
    }


def aggregate(config, inputs):
    loss_mat = inputs["loss_mat"].requires_grad_()
    loss = agg_loss(loss_mat, inputs["loss_mask"], **config)
    loss.backward()
    return {"loss": loss, "grad_loss_mat": loss_mat.grad}


def batch_of(inputs):
    renamed = {"index": "uid"}
    return TokenBatch({renamed.get(n, n): c for n, c in inputs.items()})


def settings(config):
    """Arguments of the dispatcher: what a row gives, else the defaults of the dispatcher."""
    named = {n: config[n] for n in ("adv_estimator", "gamma", "lam") if n in config}
    if "norm" in config:
        named["norm_adv_by_std_in_grpo"] = config["norm"]
    return named


def dispatch(config, inputs):
    batch = compute_advantage(batch_of(inputs), **settings(config), config=config.get("algo"))
    return {"advantages": batch["advantages"], "returns": batch["returns"]}


def sessions(config, inputs):
    keys = config["batch_keys"]
    batch = compute_advantage_for_multi_trajectories(batch_of(inputs), keys, **settings(config))
    return {"advantages": batch["advantages"], "returns": batch["returns"]}


def v1_chain(config, inputs):
    """KL in the reward under the original mask, then correction, then advantages: verl's V1 order."""
    batch, out = batch_of(inputs), {}
    if "kl_ctrl" in config:
        controller = get_kl_controller(config["kl_ctrl"])
        batch, out["kl_metrics"] = apply_kl_penalty(batch, controller, config.get("kl_penalty", "kl"))
    else:
        batch = batch.replace(token_level_rewards=batch["token_level_scores"])
    batch, out["rollout_metrics"] = compute_rollout_correction_and_add_to_batch(batch, config["rollout_correction"])
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(batch["uid"])]
    batch = compute_advantage_for_multi_trajectories(batch, keys, **settings(config), config=config)
    return dict(batch) | out


def pf_ppo(config, inputs):
    weights = pf_ppo_weights(inputs["token_level_scores"].sum(dim=-1), config["method"], config["pow"])
    torch.manual_seed(config["torch_seed"])
    drawn = pf_ppo_rows(weights)
    torch.manual_seed(config["torch_seed"])
    numbered = TokenBatch(
        inputs | {"responses": torch.arange(len(weights))[:, None].expand(inputs["token_level_scores"].shape)}
    )
    resampled = compute_pf_ppo_reweight_data(numbered, config["method"], config["pow"])
    return {"weights": weights, "sample_indices": drawn, "resampled_rows": resampled["responses"][:, 0]}


ADAPTERS = {
    "verl.trainer.ppo.ray_trainer.compute_advantage": dispatch,
    "verl.trainer.ppo.v1.utils.compute_advantage_for_multi_trajectories": sessions,
    "verl V1 trainer order (apply_kl_penalty -> compute_rollout_correction_and_add_to_batch"
    " -> compute_advantage_for_multi_trajectories)": v1_chain,
    f"{CORE}compute_pf_ppo_reweight_data": pf_ppo,
    **{f"{CORE}compute_{verl}": estimator(name) for verl, name in NAMES.items()},
    "verl==0.8.0 compute_reinforce_plus_plus_outcome_advantage": estimator("reinforce_plus_plus_reset"),
    f"{CORE}compute_gdpo_outcome_advantage": gdpo,
    f"{CORE}agg_loss": aggregate,
    "verl.utils.torch_functional.masked_mean": means,
    "verl.utils.torch_functional.masked_whiten": whiten,
    "verl.utils.torch_functional.get_response_mask": response_mask,
    "verl.utils.groupwise.group_mean_std": groups,
}

EXCUSED = {
    "dispatch.gae_config_none": "verl reads config.get behind gae though config is None; the lab takes None as empty",
}
