"""A tool environment, its verifier and its evaluation."""

import math

ACTIONS = ("read", "add", "subtract", "multiply", "submit")
FAMILIES = ("sum", "difference", "product")
STAGES = ("start", "ready", "computed")
SHAPE = (3, 3, 5)


def step(stage: str, action: str, left: int, right: int, scratchpad: int | None) -> tuple[str, int | None, str | None]:
    """One decision: the next stage, the scratchpad, and why the episode ended (None while it goes on)."""
    if stage == "start" and action == "read":
        return "ready", None, None
    if stage == "ready" and action == "add":
        return "computed", left + right, None
    if stage == "ready" and action == "subtract":
        return "computed", left - right, None
    if stage == "ready" and action == "multiply":
        return "computed", left * right, None
    if stage == "computed" and action == "submit":
        return stage, scratchpad, "submitted"
    return stage, scratchpad, "invalid_action"


def verify(family: str, left: int, right: int, answer: int | None) -> float:
    """1 when the submitted number is the right one, recomputed from the task; else 0."""
    if family == "product":
        expected = left * right
    elif family == "sum":
        expected = left + right
    else:
        expected = left - right
    return 1.0 if answer == expected else 0.0


def choose(logits: list[float], draw: float) -> str:
    """The action whose cumulative softmax probability first exceeds `draw`."""
    weights = [math.exp(z - max(logits)) for z in logits]
    total = 0.0
    for action, weight in zip(ACTIONS, weights, strict=True):
        total += weight / sum(weights)
        if draw < total:
            return action
    return ACTIONS[-1]


def evaluate(
    logits: list[list[list[float]]], tasks: list[list[str | int]], draws: list[list[float]]
) -> dict[str, list[int] | list[str] | list[float] | dict[str, float]]:
    """Run one episode per task and judge it.

    Args:
        logits: [family][stage][action], in the order of FAMILIES, STAGES and ACTIONS.
        tasks: each [family, left, right].
        draws: per task the numbers in [0, 1) that pick the actions; as many as the step limit.

    Returns:
        shape: the shape of a policy.
        ends: why each episode ended: submitted, invalid_action or timeout.
        rewards: what the verifier gave.
        success: family -> mean reward of its tasks, for every family that has tasks.
    """
    ends, rewards = [], []
    for (name, a, b), numbers in zip(tasks, draws, strict=True):
        family, left, right = str(name), int(a), int(b)
        stage, scratchpad, end = "start", None, None
        for draw in numbers:
            row = logits[FAMILIES.index(family)][STAGES.index(stage)]
            stage, scratchpad, end = step(stage, choose(row, draw), left, right, scratchpad)
            if end is not None:
                break
        ends.append(end or "timeout")
        rewards.append(verify(family, left, right, scratchpad) if end == "submitted" else 0.0)
    success = {}
    for family in FAMILIES:
        own = [r for r, task in zip(rewards, tasks, strict=True) if task[0] == family]
        if own:
            success[family] = sum(own) / len(own)
    return {"shape": list(SHAPE), "ends": ends, "rewards": rewards, "success": success}
