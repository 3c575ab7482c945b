"""How an episode of the three-step protocol ends, exactly."""


def outcome(
    read: float, right: float, wrong: float, submit: float, max_steps: int, group_size: int
) -> tuple[float, float, float, float, float]:
    """Probabilities of the four endings, and of a group without contrast.

    Args:
        read: probability of `read` in the first state.
        right, wrong: probabilities of the right and the wrong tool in the second state (the rest is invalid).
        submit: probability of `submit` in the third state.
        max_steps: limit on decisions, at least 1.
        group_size: rollouts per group.

    Returns:
        (success, wrong answer, invalid action, timeout, probability that all rewards of a group are equal).
    """
    finished = max_steps >= 3
    reached = read * (right + wrong)
    computed = read if finished else 0.0
    success = computed * right * submit
    wrong_answer = computed * wrong * submit
    alive = reached if max_steps == 2 else read
    if finished:
        alive = 0.0
    timeout = alive
    invalid = 1 - success - wrong_answer - timeout
    dead = success**group_size + (1 - success) ** group_size
    return success, wrong_answer, invalid, timeout, dead
