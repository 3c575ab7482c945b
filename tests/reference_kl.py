"""KL written as loops over numbers with `math`, from the formulas alone."""

import math


def k1(lp, ref):
    return lp - ref


def absolute(lp, ref):
    return abs(lp - ref)


def k2(lp, ref):
    return (lp - ref) ** 2 / 2


def k3(lp, ref):
    u = min(max(ref - lp, -20.0), 20.0)
    return min(max(math.exp(u) - u - 1, -10.0), 10.0)


BY_NAME = {"kl": k1, "k1": k1, "abs": absolute, "mse": k2, "k2": k2, "low_var_kl": k3, "k3": k3}


def kl_in_reward(scores, old, ref, mask, coefficient, name):
    """Rewards, and the mean over rows of the row means."""
    rewards, row_means = [], []
    for score_row, old_row, ref_row, mask_row in zip(scores, old, ref, mask, strict=True):
        row, total, count = [], 0.0, 0
        for s, o, r, m in zip(score_row, old_row, ref_row, mask_row, strict=True):
            value = BY_NAME[name](o, r) if m else 0.0
            row.append(s - coefficient * value)
            total, count = total + value, count + bool(m)
        rewards.append(row)
        row_means.append(total / count if count else 0.0)
    return rewards, sum(row_means) / len(row_means)
