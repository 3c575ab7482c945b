"""Rewards: placement, the DAPO manager, TRL's length and repetition penalties."""

import torch

from labs import scores
from labs.batch import TokenBatch
from labs.registry import rewards


def _batch(config, inputs):
    mask = inputs["attention_mask"]
    rows, prompt = len(mask), config["prompt_len"]
    responses = torch.zeros(rows, mask.shape[1] - prompt, dtype=torch.int64)
    return TokenBatch({"prompts": mask[:, :prompt].long(), "responses": responses, "attention_mask": mask})


def _dapo(config, inputs):
    options = {"max_resp_len": config["max_resp_len"], "overlong_buffer_cfg": config["overlong"]}
    shaped, extra = scores.shape(_batch(config, inputs), inputs["score"], [("dapo", options)])
    return {"reward_score": shaped, **extra}


def _assemble(config, inputs):
    return {"rm_scores": scores.assemble_rm_scores(_batch(config, inputs), inputs["score"])}


def _agent_loop(config, inputs):
    mask = inputs["response_mask"]
    return {"response_mask": mask, "rm_scores": scores.stream_rm_scores(mask, config["reward_score"])}


def _overlong(config, inputs):
    lengths = inputs["lengths"]
    zero = torch.zeros(len(lengths), dtype=torch.float64)
    shaped, _ = rewards["soft_overlong"](scores=zero, response_lengths=lengths, **config)
    return {"reward": shaped}


def _repetition(config, inputs):
    ids = inputs["completion_ids"]
    zero = torch.zeros(len(ids), dtype=torch.float64)
    lengths = torch.full((len(ids),), ids.shape[1])
    shaped, _ = rewards["repetition"](scores=zero, responses=ids, response_lengths=lengths, **config)
    return {"reward": shaped}


ADAPTERS = {
    "verl.experimental.reward_loop.reward_manager.dapo.DAPORewardManager.run_single": _dapo,
    "verl.experimental.reward_loop.reward_manager.base.RewardManagerBase.assemble_rm_scores": _assemble,
    "verl.experimental.agent_loop.agent_loop.AgentLoopOutput.as_dict": _agent_loop,
    "trl.rewards.get_soft_overlong_punishment": _overlong,
    "trl.rewards.get_repetition_penalty_reward": _repetition,
}
