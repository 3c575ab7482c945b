"""Every policy loss once more, as loops over floats: no tensors, no masks, no broadcasting.

A function gets lists `old`, `new`, `adv`, `mask` `[B][T]` and `held`, equal to `new`: whatever a loss holds constant is
computed from `held`, so that the derivative with respect to `new` is the gradient that training uses.
"""

import math
from dataclasses import dataclass, replace


@dataclass
class Batch:
    old: list
    new: list
    held: list
    adv: list
    mask: list
    weights: list | None = None

    def w(self, i, t):
        return 1.0 if self.weights is None else self.weights[i][t]

    def row_w(self, i):
        """The geometric mean of the row's weights."""
        return math.exp(sum(math.log(self.w(i, t)) for t in self.row(i)) / max(len(self.row(i)), 1))

    def tokens(self):
        """(row, token) of every valid position."""
        return [(i, t) for i, row in enumerate(self.mask) for t, m in enumerate(row) if m]

    def row(self, i):
        return [t for t, m in enumerate(self.mask[i]) if m]

    def d(self, i, t, bound=20.0):
        return max(-bound, min(bound, self.new[i][t] - self.old[i][t]))

    def d_held(self, i, t, bound=20.0):
        return max(-bound, min(bound, self.held[i][t] - self.old[i][t]))


def clip(x, low, high):
    return max(low, min(high, x))


def aggregate(batch, per_token, mode):
    """The five modes over the weighted per-token values of valid positions; empty rows do not count."""
    values = {place: per_token(*place) * batch.w(*place) for place in batch.tokens()}
    rows = [[values[i, t] for t in batch.row(i)] for i in range(len(batch.mask))]
    rows = [r for r in rows if r]
    if mode == "token-mean":
        return sum(values.values()) / len(values)
    if mode == "token-sum":
        return sum(values.values())
    if mode == "seq-mean-token-sum":
        return sum(sum(r) for r in rows) / len(rows)
    if mode == "seq-mean-token-sum-norm":
        return sum(sum(r) for r in rows) / len(rows) / len(batch.mask[0])
    return sum(sum(r) / len(r) for r in rows) / len(rows)


def vanilla(b, mode, low=0.2, high=0.2, dual=3.0):
    def per_token(i, t):
        a, r = b.adv[i][t], math.exp(b.d(i, t))
        larger = max(-a * r, -a * clip(r, 1 - low, 1 + high))
        return larger if a >= 0 or dual is None else min(larger, -a * dual)

    return aggregate(b, per_token, mode)


def bypass_mode(b, mode):
    """The default correction rejects nothing, and PPO's loss takes no weight."""
    return vanilla(replace(b, weights=None), mode)


def undualled(b, mode):
    return vanilla(b, mode, dual=None)


def gspo(b, mode):
    def per_token(i, t):
        mean = sum(b.held[i][u] - b.old[i][u] for u in b.row(i)) / len(b.row(i))
        s = math.exp(min(mean + b.new[i][t] - b.held[i][t], 10.0))
        return max(-b.adv[i][t] * s, -b.adv[i][t] * clip(s, 0.8, 1.2))

    return aggregate(b, per_token, mode)


def gspo_080(b, mode):
    return gspo(b, "seq-mean-token-mean")


def luspo(b, mode):
    def per_token(i, t):
        s = math.exp(sum(b.new[i][u] - b.old[i][u] for u in b.row(i)) / len(b.row(i)))
        return -min(s * b.adv[i][t], clip(s, 0.8, 1.2) * b.adv[i][t])

    return aggregate(b, per_token, mode)


def sapo(b, mode):
    def per_token(i, t):
        tau = 1.0 if b.adv[i][t] > 0 else 1.05
        return -b.adv[i][t] * 4 / tau / (1 + math.exp(-tau * (math.exp(b.d(i, t)) - 1)))

    return aggregate(b, per_token, "seq-mean-token-mean")


def reinforce(b, mode):
    return aggregate(b, lambda i, t: -b.adv[i][t] * b.new[i][t], mode)


def dro(b, mode):
    def per_token(i, t):
        return -b.adv[i][t] * b.new[i][t] + 0.3 / 2 * (b.new[i][t] - b.old[i][t]) ** 2

    return aggregate(b, per_token, mode)


def cispo(b, mode, low=0.8):
    def per_token(i, t):
        return -clip(math.exp(b.d_held(i, t)), low, 1.2) * b.adv[i][t] * b.new[i][t]

    return aggregate(b, per_token, mode)


def cispo_variant(b, mode):
    return cispo(b, mode, low=0.0)


def dppo(b, mode, keep):
    def per_token(i, t):
        p, q = math.exp(b.held[i][t]), math.exp(b.old[i][t])
        weight = min(math.exp(b.d_held(i, t)), 3.0)
        return -b.adv[i][t] * weight * b.new[i][t] if keep(b.adv[i][t], p, q) else 0.0

    return aggregate(b, per_token, mode)


def dppo_tv(b, mode):
    return dppo(b, mode, lambda a, p, q: p - q <= 0.2 if a > 0 else p - q >= -0.2)


def dppo_kl(b, mode):
    def keep(a, p, q):
        kl = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
        return kl <= 0.2 or (p <= q if a > 0 else p >= q)

    return dppo(b, mode, keep)


def kl_cov(b, mode):
    """At the default fraction exactly one token is penalised: the one with the largest covariance."""
    places = b.tokens()
    mean_a = sum(b.adv[i][t] for i, t in places) / len(places)
    mean_l = sum(b.held[i][t] for i, t in places) / len(places)
    top = max(places, key=lambda p: (b.adv[p[0]][p[1]] - mean_a) * (b.held[p[0]][p[1]] - mean_l))

    def per_token(i, t):
        d = b.new[i][t] - b.old[i][t]
        return -b.adv[i][t] * math.exp(d) + (0.1 * abs(d) if (i, t) == top else 0.0)

    return aggregate(b, per_token, mode)


def geometric(b, epsilon):
    total = 0.0
    for i in range(len(b.mask)):
        n = len(b.row(i))
        if n == 0:
            continue
        kept = []
        for t in b.row(i):
            d = b.new[i][t] - b.old[i][t]
            kept.append(min(d, epsilon) if b.adv[i][t] > 0 else max(d, -epsilon))
        total -= sum(b.adv[i][t] for t in b.row(i)) / n * math.exp(sum(kept) / n) * b.row_w(i)
    return total / len(b.mask)


def geo_mean(b, mode):
    return geometric(b, 0.2)


def gmpo(b, mode):
    return geometric(b, 0.4)


def sequence_ppo(b, mode):
    total = 0.0
    for i in range(len(b.mask)):
        row = b.row(i)
        a = sum(b.adv[i][t] for t in row) / max(len(row), 1)
        r = math.exp(sum(b.new[i][t] - b.old[i][t] for t in row))
        total -= min(r * a, clip(r, 0.8, 1.2) * a) * b.row_w(i)
    return total / len(b.mask)


def vespo(b, mode):
    def per_token(i, t):
        a = b.adv[i][t]
        log_w = sum(b.d_held(i, u) + math.log(b.w(i, u)) for u in b.row(i))
        log_w = clip(log_w, math.log(1e-8), 20.0)
        k, lam = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
        return -math.exp(lam + k * log_w - lam * math.exp(log_w)) * a * b.new[i][t]

    return aggregate(replace(b, weights=None), per_token, mode)


def trl_grpo(b, mode):
    return undualled(b, "token-mean")


#: clip_cov at its default settings draws no token on small advantages (no covariance reaches 1): PPO without dual clip.
LOSSES = {
    "bypass_mode": bypass_mode, "cispo": cispo, "cispo_variant": cispo_variant, "clip_cov": undualled,
    "dppo_kl": dppo_kl,
    "dppo_tv": dppo_tv, "dro": dro, "geo_mean": geo_mean, "gmpo": gmpo, "gpg": reinforce, "gspo": gspo,
    "gspo_080": gspo_080, "kl_cov": kl_cov, "luspo": luspo, "openrlhf_ppo": undualled, "reinforce": reinforce,
    "sapo": sapo, "sequence_ppo": sequence_ppo, "torchrl_grpo": undualled, "trl_grpo": trl_grpo, "vanilla": vanilla,
    "vespo": vespo,
}  # fmt: skip
