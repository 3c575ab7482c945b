"""One score per row, placed on a token."""


def place_scores(
    scores: list[float], response_mask: list[list[int]], attention_mask: list[list[int]]
) -> list[list[float]]:
    """Token-level scores: the score of each row on the last token the policy chose, 0 elsewhere.

    Args:
        scores: one per row.
        response_mask: [B][T]; 1 on tokens the policy chose.
        attention_mask: [B][T]; 1 on real tokens, tool text included.

    Returns:
        [B][T].
    """
    placed = []
    for score, mask, _real in zip(scores, response_mask, attention_mask, strict=True):
        row = [0.0] * len(mask)
        counted = [t for t, m in enumerate(mask) if m]
        if counted:
            row[counted[-1]] = score
        placed.append(row)
    return placed
