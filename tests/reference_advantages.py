"""Every estimator once more, transcribed from its formula: plain Python, one number at a time, lists of lists.

No tensor operation is shared with the lab. `verl_gae_loop` and `verl_return_loop` are the per-token tensor loops that
training libraries run; they define the bits the lab's recursions must have, and are the peer of the benchmarks.
"""

import math
import statistics

import torch


def rows_of(index):
    table = {}
    for row, label in enumerate(index):
        table.setdefault(label, []).append(row)
    return table.values()


def spread(scalars, mask):
    return [[a * m for m in row] for a, row in zip(scalars, mask, strict=True)]


def whiten(x, mask):
    kept = [v for row, keep in zip(x, mask, strict=True) for v, m in zip(row, keep, strict=True) if m]
    mean, var = statistics.fmean(kept), statistics.variance(kept)
    return [[(v - mean) / math.sqrt(var + 1e-8) for v in row] for row in x]


def times(x, mask):
    return [[v * m for v, m in zip(row, keep, strict=True)] for row, keep in zip(x, mask, strict=True)]


def by_group(rule, r, index):
    scores = [sum(row) for row in r]
    out = [0.0] * len(r)
    for rows in rows_of(index):
        for row, value in zip(rows, rule([scores[i] for i in rows]), strict=True):
            out[row] = value
    return out


def grpo(r, mask, index, epsilon=1e-6, normalise=True):
    def rule(s):
        if len(s) == 1:
            return [s[0] / (1 + epsilon) if normalise else s[0]]
        mean, std = statistics.fmean(s), statistics.stdev(s)
        return [(x - mean) / (std + epsilon) if normalise else x - mean for x in s]

    return spread(by_group(rule, r, index), mask)


def grpo_population(r, mask, index):
    def rule(s):
        if max(s) == min(s):
            return [0.0] * len(s)
        return [(x - statistics.fmean(s)) / statistics.pstdev(s) for x in s]

    return spread(by_group(rule, r, index), mask)


def grpo_passk(r, mask, index, epsilon=1e-6, normalise=True):
    def rule(s):
        second, best = sorted(s)[-2:]
        lead = (best - second) / (statistics.stdev(s) + epsilon) if normalise else best - second
        winner = s.index(best)
        return [lead if i == winner else 0.0 for i in range(len(s))]

    return spread(by_group(rule, r, index), mask)


def rloo(r, mask, index, lone="score"):
    def rule(s):
        if len(s) == 1:
            return [s[0] if lone == "score" else 0.0]
        return [x - (sum(s) - x) / (len(s) - 1) for x in s]

    return spread(by_group(rule, r, index), mask)


def opo(r, mask, index):
    lengths = [sum(row) for row in mask]
    scores = [sum(row) for row in r]
    out = [0.0] * len(r)
    for rows in rows_of(index):
        base = 0.0
        if len(rows) > 1:
            total = sum(lengths[i] for i in rows)
            base = sum(lengths[i] * scores[i] for i in rows) / total if total else math.nan
        for i in rows:
            out[i] = scores[i] - base
    return spread(out, mask)


def gpg(r, mask, index, f_norm=1.0):
    alpha = len(r) / max(sum(sum(row) != 0 for row in r), 1)

    def rule(s):
        mean = statistics.fmean(s) if len(s) > 1 else 0.0
        return [alpha * (x - mean) / f_norm for x in s]

    return spread(by_group(rule, r, index), mask)


def reinforce_plus_plus_baseline(r, mask, index):
    def rule(s):
        return [x - (statistics.fmean(s) if len(s) > 1 else 0.0) for x in s]

    return times(whiten(spread(by_group(rule, r, index), mask), mask), mask)


def gdpo(r, mask, index, components=None, weights=None):
    blank = [[0.0] * (len(row) - 1) for row in r]
    placed = [r]
    if components is not None:
        placed = [[[*row, c] for row, c in zip(blank, column, strict=True)] for column in components]
    weights = weights or [1.0] * len(placed)
    total = [[0.0] * len(row) for row in r]
    for weight, one in zip(weights, placed, strict=True):
        for i, row in enumerate(grpo(one, mask, index)):
            for t, a in enumerate(row):
                total[i][t] += weight * a
    return times(whiten(total, mask), mask)


def to_go(r, mask, gamma=1.0):
    """Carried: a masked position costs no gamma and its reward is lost; what it shows is the carry."""
    out = []
    for row, keep in zip(r, mask, strict=True):
        later, back = 0.0, []
        for reward, m in zip(reversed(row), reversed(keep), strict=True):
            if m:
                later = reward + gamma * later
            back.append(later)
        out.append(back[::-1])
    return out


def reinforce_plus_plus(r, mask, gamma=1.0):
    returns = times(to_go(r, mask, gamma), mask)
    return times(whiten(returns, mask), mask), returns


def reinforce_plus_plus_reset(r, mask, gamma=1.0):
    returns = []
    for row, keep in zip(r, mask, strict=True):
        later, back = 0.0, []
        for reward, m in zip(reversed(row), reversed(keep), strict=True):
            later = reward + gamma * later
            back.append(later)
            if not m:
                later = 0.0
        returns.append(back[::-1])
    return times(whiten(returns, mask), mask), returns


def remax(r, mask, baselines):
    returns = to_go(r, mask)
    advantages = [
        [g - b * m for g, m in zip(row, keep, strict=True)]
        for row, keep, b in zip(returns, mask, baselines, strict=True)
    ]
    return advantages, returns


def reward_to_go(r, mask, gamma=1.0):
    returns = []
    for row, keep in zip(r, mask, strict=True):
        later, back = 0.0, []
        for reward, m in zip(reversed(row), reversed(keep), strict=True):
            later = reward * m + gamma * later
            back.append(later)
        returns.append(back[::-1])
    return times(returns, mask), returns


def gae(r, values, mask, gamma=1.0, lam=1.0, bootstrap=None):
    """Before whitening, carried over masked positions; `bootstrap` is the value behind the last token of each row."""
    out = []
    for i, (row, value, keep) in enumerate(zip(r, values, mask, strict=True)):
        ahead, trace, back = (0.0 if bootstrap is None else bootstrap[i]), 0.0, []
        for reward, v, m in zip(reversed(row), reversed(value), reversed(keep), strict=True):
            if m:
                trace = reward + gamma * ahead - v + gamma * lam * trace
                ahead = v
            back.append(trace)
        out.append(back[::-1])
    return out


def gae_plain(r, values, gamma=1.0, lam=1.0):
    """No mask at all: every position is a state."""
    return gae(r, values, [[1] * len(row) for row in r], gamma, lam)


def vtrace(r, values, mask, old, rollout, gamma=1.0, rho_max=1.0, c_max=1.0, bootstrap=None):
    advantages = [[0.0] * len(row) for row in r]
    targets = [[0.0] * len(row) for row in r]
    for i, keep in enumerate(mask):
        ahead = ahead_target = 0.0 if bootstrap is None else bootstrap[i]
        for t in reversed(range(len(keep))):
            if not keep[t]:
                continue
            rho = math.exp(old[i][t] - rollout[i][t])
            delta = min(rho, rho_max) * (r[i][t] + gamma * ahead - values[i][t])
            target = values[i][t] + delta + gamma * min(rho, c_max) * (ahead_target - ahead)
            advantages[i][t] = min(rho, rho_max) * (r[i][t] + gamma * ahead_target - values[i][t])
            targets[i][t], ahead, ahead_target = target, values[i][t], target
    return advantages, targets


def optimal_token_baseline(r, mask, index, old, squares, weights=None, tail=True, epsilon=1e-8):
    returns = to_go(r, mask)
    big = []
    for i, keep in enumerate(mask):
        total, row = 0.0, []
        for t, m in enumerate(keep):
            w = 1 - 2 * math.exp(old[i][t]) + squares[i][t]
            total += m * w * (1.0 if weights is None else weights[i][t] ** 2)
            row.append(total)
        big.append(row)
    base = [[0.0] * len(row) for row in r]
    for rows in rows_of(index):
        if len(rows) == 1:
            continue
        for t in range(len(r[0])):
            top = sum(returns[i][t] * big[i][t] * mask[i][t] for i in rows)
            bottom = sum(big[i][t] * mask[i][t] for i in rows) + epsilon
            for i in rows:
                base[i][t] = top / bottom
        cut(base, rows, [sum(row) for row in mask], tail)
    return times([[g - b for g, b in zip(*two, strict=True)] for two in zip(returns, base, strict=True)], mask), returns


def cut(base, rows, lengths, tail):
    second, longest = sorted(rows, key=lambda i: lengths[i])[-2:]
    if tail and lengths[longest] > lengths[second]:
        base[longest][lengths[second] :] = [0.0] * (len(base[longest]) - lengths[second])


def tir_optimal_token_baseline(r, mask, index, old, squares, weights=None, tail=True, epsilon=1e-8):
    """Pack each row to its policy tokens, use the baseline above, put everything back."""
    returns, places = to_go(r, mask), [[t for t, m in enumerate(row) if m] for row in mask]
    width = max(1, *(len(p) for p in places))

    def packed(x, fill=0.0):
        return [[row[t] for t in p] + [fill] * (width - len(p)) for row, p in zip(x, places, strict=True)]

    # A row without a policy token is nobody's companion.
    labels = [label if p else ("empty", i) for i, (label, p) in enumerate(zip(index, places, strict=True))]
    advantage, _ = optimal_token_baseline(
        packed(r), packed(mask, 0), labels, packed(old), packed(squares),
        None if weights is None else packed(weights), tail, epsilon,
    )  # fmt: skip
    out = [[0.0] * len(row) for row in r]
    for i, p in enumerate(places):
        for k, t in enumerate(p):
            out[i][t] = advantage[i][k]
    return out, returns


def verl_whiten(x, mask):
    """Masked whitening as a chain of fresh tensors, the mean taken twice."""

    def mean(y):
        return (torch.where(mask.bool(), y, 0.0) * mask).sum() / (mask.sum() + 1e-8)

    centre, count = mean(x), mask.sum()
    var = mean((x - mean(x)) ** 2) * (count / (count - 1))
    return (x - centre) * torch.rsqrt(var + 1e-8)


def verl_gae_loop(rewards, values, mask, gamma, lam):
    """The per-token loop over strided columns; the mask blends the state."""
    ahead, trace, back = 0, 0, []
    for t in reversed(range(rewards.shape[1])):
        m = mask[:, t]
        candidate = rewards[:, t] + gamma * ahead - values[:, t] + gamma * lam * trace
        ahead = values[:, t] * m + (1 - m) * ahead
        trace = candidate * m + (1 - m) * trace
        back.append(trace)
    return torch.stack(back[::-1], dim=1)


def verl_return_loop(rewards, mask, gamma):
    """The per-token loop of REINFORCE++ since verl 0.9.0."""
    later, returns = 0, torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        m = mask[:, t]
        candidate = rewards[:, t] + gamma * later
        returns[:, t] = candidate * m
        later = candidate * m + later * (1 - m)
    return returns


def verl_group_loop(rewards, mask, index, epsilon=1e-6):
    """GRPO as a dictionary of lists and a loop over rows."""
    scores = rewards.sum(dim=-1)
    lists, means, stds = {}, {}, {}
    for i in range(len(scores)):
        lists.setdefault(index[i], []).append(scores[i])
    for label, found in lists.items():
        stacked = torch.stack(found)
        means[label] = stacked.mean() if len(found) > 1 else torch.tensor(0.0)
        stds[label] = stacked.std() if len(found) > 1 else torch.tensor(1.0)
    for i in range(len(scores)):
        scores[i] = (scores[i] - means[index[i]]) / (stds[index[i]] + epsilon)
    return scores.unsqueeze(-1) * mask
