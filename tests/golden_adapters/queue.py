"""Queue, limits, pause rule and switch threshold of verl's asynchronous trainers."""

import numpy as np

from labs import queue_rules


def _queue(config, _inputs):
    queue = queue_rules.MessageQueue(config["max_queue_size"])
    trace = []
    for operation, *item in config["ops"]:
        if operation == "put":
            trace.append(["put", item[0], str(queue.put(item[0])), str(len(queue))])
        elif operation == "get":
            trace.append(["get", str(queue.get()), "", str(len(queue))])
        else:
            queue.shutdown()
            trace.append(["shutdown", "", "", str(len(queue))])
    return {"trace": np.array(trace, dtype=object), "stats": queue.statistics()}


def _limits(config, _inputs):
    return {"limits": vars(queue_rules.fully_async_limits(**config))}


def _pause(config, inputs):
    pairs = zip(inputs["queue_size"].tolist(), inputs["staleness_samples"].tolist(), strict=True)
    return {"pause": np.array([queue_rules.should_pause(q, s, **config) for q, s in pairs])}


def _switch(config, inputs):
    switch = queue_rules.SwitchThreshold(
        config["train_batch_size"], config["sync"], config["ratio"], config["release"], config["up"], config["down"]
    )
    ratios, thresholds = [], []
    for idle in inputs["had_idle"].tolist():
        switch.observe(bool(idle))
        ratios.append(switch.ratio)
        thresholds.append(switch.threshold)
    return {"ratio": np.array(ratios), "threshold": np.array(thresholds, dtype=np.int64)}


_ROLLOUTER = "verl.experimental.fully_async_policy.fully_async_rollouter.FullyAsyncRollouter"

ADAPTERS = {
    "verl.experimental.fully_async_policy.message_queue.MessageQueue": _queue,
    f"{_ROLLOUTER}.set_max_required_samples": _limits,
    f"{_ROLLOUTER}._should_pause_generation": _pause,
    "verl.trainer.ppo.v1.trainer_separate_async.PPOTrainerSeparateAsync._adapt_switch_threshold": _switch,
}
