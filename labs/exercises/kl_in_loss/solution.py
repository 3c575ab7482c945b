"""What k1, k2 and k3 do in a loss, exactly, for one softmax row."""

import math


def softmax(row: list[float]) -> list[float]:
    """Probabilities of one row of logits."""
    weights = [math.exp(z - max(row)) for z in row]
    return [w / sum(weights) for w in weights]


def kl_in_loss(logits: list[float], ref_logits: list[float]) -> dict[str, list[float] | list[list[float]]]:
    """Expected value and expected gradient of three KL estimators, by enumeration of the actions.

    Args:
        logits: of the policy p, which is also the policy that samples.
        ref_logits: of the reference q.

    Returns:
        values: [E k1, E k2, E k3].
        gradients: for each of the three, the expectation under p of the derivative of k(a) with respect to the
            logits; the sampling distribution itself is not differentiated, as in a loss on sampled tokens.
        true: the gradient of KL(p, q) with respect to the logits.
    """
    p, q = softmax(logits), softmax(ref_logits)
    d = [math.log(a / b) for a, b in zip(p, q, strict=True)]
    kl = sum(a * x for a, x in zip(p, d, strict=True))
    value = [
        kl,
        sum(a * x * x / 2 for a, x in zip(p, d, strict=True)),
        sum(a * (math.exp(-x) - 1 + x) for a, x in zip(p, d, strict=True)),
    ]
    slopes = [[1.0 for _ in d], d, [1 - math.exp(-x) for x in d]]
    gradients = []
    for slope in slopes:
        mean = sum(a * s for a, s in zip(p, slope, strict=True))
        gradients.append([a * (s - mean) for a, s in zip(p, slope, strict=True)])
    return {"values": value, "gradients": gradients, "true": [a * (x - kl) for a, x in zip(p, d, strict=True)]}
