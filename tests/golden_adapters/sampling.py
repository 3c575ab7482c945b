"""Replay buffer scenarios: prompts that finish at once, a refill list handed out in order."""

import numpy as np

from labs import sampling


def _group(spec):
    scores = spec["scores"]
    extra = {} if spec.get("nometric") else {"acc": spec.get("acc", scores)}
    return sampling.Group(uid=spec["uid"], step=spec["step"], status=spec["status"], scores=scores, extra=extra)


def _keys(group, prompt):
    return [group.uid] * prompt + [f"{group.uid}_{i}_0" for i in range(len(group.scores))]


def _buffer(config, calls):
    waiting = [_group(g) for g in config.get("refill", [])]

    def refill(count):
        calls.append(count)
        for group in waiting[:count]:
            buffer.add(group)
        del waiting[:count]

    kind = sampling.ReplayBuffer if config["mode"] == "sync" else sampling.ReplayBufferAsync
    buffer = kind(
        refill=refill,
        max_off_policy_threshold=config.get("threshold", 8),
        max_off_policy_strategy=config.get("strategy", "drop"),
        filter_groups_metric=config.get("metric"),
        train_batch_size=config["batch_size"],
        max_inflight_gen_batches=config.get("inflight", 1),
        sync_refill_failed_groups=config.get("refill_failed", False),
    )
    for spec in config["groups"]:
        buffer.add(_group(spec))
    return buffer


def _sample(config, _inputs):
    calls = []
    buffer = _buffer(config, calls)
    training = config.get("partition", "train") == "train"
    sample = buffer.sample(config["global_steps"], config["batch_size"], training)
    if sample is None:
        raise TimeoutError("the step has to wait for rollouts")
    batch = [k for g in sample.groups for k in _keys(g, False)]
    rest = [k for g in buffer.groups.values() for k in _keys(g, True)]
    values = sorted(sample.filtered)
    return {
        "batch_keys": np.array(sorted(batch), dtype=object),
        "remaining_keys": np.array(sorted(batch + rest), dtype=object),
        "refill_calls": np.array(calls, dtype=np.int64),
        "filtered_values": np.array(values, dtype=np.float64),
        "filtered_counts": np.array([sample.filtered[v] for v in values], dtype=np.int64),
        "metrics": sample.metrics,
    }


ADAPTERS = {
    "verl.trainer.ppo.v1.replay_buffer.ReplayBuffer.sample": _sample,
    "verl.trainer.ppo.v1.replay_buffer.ReplayBufferAsync.sample": _sample,
    "verl.trainer.ppo.v1.replay_buffer.ReplayBufferAsync": lambda config, _inputs: _buffer(config, []),
}
