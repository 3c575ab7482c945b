"""KL: estimators, controllers, KL in the reward; OpenRLHF's and torchrl's forms."""

import numpy as np

from labs import kl
from labs.batch import TokenBatch


def _with_gradient(gradient, leaf, call):
    """`call(leaf)` under "kl" and d(sum)/d(leaf) under the name `gradient`."""
    leaf = leaf.clone().requires_grad_(True)
    value = call(leaf)
    value.sum().backward()
    return {"kl": value.detach(), gradient: leaf.grad}


def _penalty(config, inputs):
    ref = inputs["ref_logprob"]
    return _with_gradient("grad_logprob", inputs["logprob"], lambda x: kl.kl_penalty(x, ref, config["kl_penalty"]))


def _adaptive(config, inputs):
    controller = kl.AdaptiveKLController(config["init_kl_coef"], config["target_kl"], config["horizon"])
    values = []
    for current, steps in zip(inputs["current_kl"].tolist(), inputs["n_steps"].tolist(), strict=True):
        controller.update(current, steps)
        values.append(controller.value)
    return {"values": np.array(values)}


def _openrlhf_adaptive(config, inputs):
    controller = kl.AdaptiveKLController(config["init_kl_coef"], config["target"], config["horizon"])
    values = []
    for current in inputs["current"].tolist():
        controller.update(current, config["n_steps"])
        values.append(controller.value)
    return {"value": np.array(values)}


def _in_reward(config, inputs):
    controller = kl.get_kl_controller(config["kl_ctrl"])
    batch, coefficients, metrics = TokenBatch(inputs), [], {}
    for _ in range(config["steps"]):
        batch, metrics = kl.apply_kl_penalty(batch, controller, config["kl_penalty"])
        coefficients.append(controller.value)
    return {
        "token_level_rewards": batch["token_level_rewards"],
        "kl_coef_after": np.array(coefficients),
        "metrics": metrics,
    }


def _rewards(config, inputs):
    return {"rewards": kl.compute_rewards(inputs["s"], inputs["a"], inputs["b"], config["kl_ratio"])}


def _approx(config, inputs):
    def call(x):
        return kl.openrlhf_approx_kl(x, inputs["ref_logps"], inputs.get("old_logps"), **config)

    return _with_gradient("grad_logps", inputs["logps"], call)


def _openrlhf_reward(config, inputs):
    rewards = kl.openrlhf_compute_reward(
        inputs["reward"], config["kl_coef"], inputs["kl"], inputs["action_mask"], config["reward_clip_range"]
    )
    return {"token_rewards": rewards}


def _torchrl(config, inputs):
    leaf = inputs["logps"].clone().requires_grad_(True)
    loss, value = kl.torchrl_kl_to_ref(leaf, inputs["ref_logps"], inputs["mask"], config["coeff"])
    loss.backward()
    return {"loss": loss.detach(), "kl": value.detach(), "grad_logps": leaf.grad}


ADAPTERS = {
    "verl.trainer.ppo.core_algos.kl_penalty": _penalty,
    "verl.trainer.ppo.core_algos.AdaptiveKLController.update": _adaptive,
    "verl.trainer.ppo.core_algos.compute_rewards": _rewards,
    "verl.trainer.ppo.ray_trainer.apply_kl_penalty": _in_reward,
    "openrlhf.models.utils.compute_approx_kl": _approx,
    "openrlhf.models.utils.compute_reward": _openrlhf_reward,
    "openrlhf.trainer.ppo_utils.kl_controller.AdaptiveKLController": _openrlhf_adaptive,
    "torchrl.objectives.llm.GRPOLoss._kl_to_ref": _torchrl,
}
