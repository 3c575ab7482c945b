"""An entropy bonus on one row of a softmax policy."""

import math


def softmax(row: list[float]) -> list[float]:
    """Probabilities of one row of logits."""
    weights = [math.exp(z - max(row)) for z in row]
    return [w / sum(weights) for w in weights]


def entropy_bonus(
    values: list[float], logits: list[float], coefficient: float
) -> tuple[list[float], list[float], float]:
    """Gradient and optimum of expected value plus coefficient times entropy.

    Args:
        values: what each action is worth, q(a).
        logits: the policy is their softmax.
        coefficient: c >= 0.

    Returns:
        (gradient, optimum, value): the gradient of sum p q + c H(p) with respect to the logits; the distribution that
        maximises it (for c = 0 shared equally by the best actions); the expected value, without the bonus, there.
    """
    p = softmax(logits)
    mean = sum(a * q for a, q in zip(p, values, strict=True))
    entropy = -sum(a * math.log(a) for a in p)
    gradient = [a * (q - mean) - coefficient * a * (math.log(a) + entropy) for a, q in zip(p, values, strict=True)]
    if coefficient == 0:
        best = [1.0 if q == max(values) else 0.0 for q in values]
        optimum = [b / sum(best) for b in best]
    else:
        optimum = softmax([q / coefficient for q in values])
    return gradient, optimum, sum(a * q for a, q in zip(optimum, values, strict=True))
