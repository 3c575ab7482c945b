"""Generalised advantage estimation of one row with tool replies in it."""


def gae(
    rewards: list[float], values: list[float], mask: list[int], last_value: float, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Advantages and returns of one row.

    Args:
        rewards, values: one per token; those under mask 0 mean nothing.
        mask: 1 on tokens the policy chose, 0 on tool text and padding.
        last_value: value of the state after the last token: 0 when the episode ended there, the critic's estimate
            when it was only cut off.
        gamma, lam: discount and lambda.

    Returns:
        (advantages, returns), each one number per token, 0 under mask 0.
    """
    advantages, returns = [0.0] * len(rewards), [0.0] * len(rewards)
    next_value, trace = last_value, 0.0
    for t in reversed(range(len(rewards))):
        if not mask[t]:
            continue
        delta = rewards[t] + gamma * next_value - values[t]
        trace = delta + gamma * lam * trace
        advantages[t] = trace
        returns[t] = trace + values[t]
        next_value = values[t]
    return advantages, returns
