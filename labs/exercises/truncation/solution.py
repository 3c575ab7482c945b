"""What a rollout that ran out of steps is worth, under five rules."""


def truncation(
    scores: list[float], truncated: list[bool], values: list[float], finished: list[float], rule: str
) -> tuple[list[float], list[int]]:
    """Centred advantages of one group, and which rows stay in the loss.

    Args:
        scores: verifier's score of each rollout as it was cut or ended.
        truncated: whether it was cut off by the step limit.
        values: the critic's value of the state in which it was cut (read where truncated).
        finished: the score it would get if it went on to its end (read where truncated).
        rule: zero, drop, mask, bootstrap or continue.

    Returns:
        (advantages, kept): score minus the group's mean, 0 for rows that are not kept; 1 for rows in the loss, else 0.
    """
    worth = list(scores)
    for i, cut in enumerate(truncated):
        if cut and rule == "zero":
            worth[i] = 0.0
        if cut and rule == "bootstrap":
            worth[i] = scores[i] + values[i]
        if cut and rule == "continue":
            worth[i] = finished[i]
    kept = [0 if cut and rule in ("drop", "mask") else 1 for cut in truncated]
    counted = kept if rule == "drop" else [1] * len(scores)
    total = sum(counted)
    baseline = sum(w for w, c in zip(worth, counted, strict=True) if c) / total if total else 0.0
    return [(w - baseline) * k for w, k in zip(worth, kept, strict=True)], kept
