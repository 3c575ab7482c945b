"""The policy gradient of a table of logits, in closed form."""

import math


def softmax(row: list[float]) -> list[float]:
    """Probabilities of one row of logits."""
    weights = [math.exp(z - max(row)) for z in row]
    return [w / sum(weights) for w in weights]


def policy_gradient(
    logits: list[list[float]], episodes: list[list[list[int]]], advantages: list[float]
) -> list[list[float]]:
    """Gradient of the mean over episodes of advantage times log-probability of the episode.

    Args:
        logits: [S][A]; the policy in state s is the softmax of row s.
        episodes: each a list of [state, action].
        advantages: one per episode.

    Returns:
        The gradient with respect to the logits, [S][A].
    """
    table = [softmax(row) for row in logits]
    gradient = [[0.0] * len(row) for row in logits]
    count = len(episodes)
    for episode, advantage in zip(episodes, advantages, strict=True):
        for state, action in episode:
            for a, p in enumerate(table[state]):
                chosen = 1.0 if a == action else 0.0
                gradient[state][a] += advantage * (chosen - p) / count
    return gradient
