"""What queueing theory says about a pipeline without simulating it, and when it may be believed.

Symbols: W workers, B trajectories per step, T seconds per step, X the seconds of a rollout (any law), v the version.
`law` is a duration law as equally likely values, for instance `labs.pipeline.workload.lognormal_law`, or simply the
durations of a run. Every function that needs conditions returns a `Prediction`: the number, whether the conditions
hold, and what they are. No simulation is imported here.

Where nothing else is said the system is the asynchronous one: free workers start at once, nothing throttles, a version
per step, instant publication, first in first out.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from labs.errors import InputError


class Prediction(NamedTuple):
    """A number of theory: its value, whether its conditions hold, and the conditions in words."""

    value: float
    holds: bool
    condition: str


def _mean(values: Sequence[float]) -> float:
    if not len(values):
        raise InputError("the duration law is empty; it needs at least one value")
    return math.fsum(values) / len(values)


def variation(law: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation (population) over mean; 0 for a law that is always 0."""
    mean = _mean(law)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in law) / len(law)) / mean if mean else 0.0


# Lag


def total_lag(present_at_bumps: Sequence[int]) -> int:
    """Sum of all lags at leaving = sum over version bumps of how many trajectories run or wait then.

    Pathwise: for every policy, order and law, because a bump makes exactly those one version older. What is in the
    batch in training has left. All of them must have left at the end.
    """
    return sum(present_at_bumps)


def mean_lag_from_bumps(mean_present: float, batch: int) -> float:
    """E[lag] = E[running + waiting at bumps] / B: `total_lag` per trajectory; stationary, nothing rejected."""
    return mean_present / batch


def cycle(workers: int, batch: int, training: float, mean: float) -> float:
    """Seconds between two steps: max(T, B E[X] / W); stationary, unthrottled, nothing rejected."""
    return max(training, batch * mean / workers)


def mean_lag(workers: int, batch: int, training: float, law: Sequence[float]) -> Prediction:
    """E[lag] = W/B + rho with rho = T / tau and tau = B E[X] / W.

    Between its start and its step a trajectory meets the bumps of its own seconds, E[X] / tau = W/B of them, and that
    of the step in training when it ends, of which there is one with probability rho. Any duration law that is spread
    out: near-constant durations run in lock-step and lose half a version.
    """
    tau = batch * _mean(law) / workers
    return Prediction(
        workers / batch + training / tau if tau else math.inf, *_rollout_limited(batch, tau, training, law)
    )


def _rollout_limited(batch: int, tau: float, training: float, law: Sequence[float]) -> tuple[bool, str]:
    """The conditions of every formula with tau in it; inside them simulations agree to about one per cent."""
    spread = variation(law)
    rho = training / tau if tau else math.inf
    steady = (1 - rho) * math.sqrt(batch) / spread if spread else math.inf
    return (
        rho < 1 and spread >= 0.3 and steady >= 2,
        f"rollout-limited, rho = {rho:.3g} < 1; durations spread out, CV = {spread:.2f} >= 0.3; batches so large that "
        f"the trainer rarely makes one wait, (1 - rho) sqrt(B) / CV = {steady:.2g} >= 2; unthrottled, nothing rejected",
    )


def lag_tail(k: int, workers: int, batch: int, training: float, law: Sequence[float]) -> Prediction:
    """P(lag >= k) = E[clip((X + T) / tau - (k - 1), 0, 1)], k >= 1: the bumps that X + T covers at a random phase."""
    tau = batch * _mean(law) / workers
    value = 1.0 if k <= 0 else _mean([_clip((x + training) / tau - (k - 1)) for x in law])
    return Prediction(value, *_rollout_limited(batch, tau, training, law))


class Rejection(NamedTuple):
    """The fixed point of the rejection rule: share rejected, seconds per step, and whether the conditions hold."""

    share: float
    step: float
    holds: bool
    condition: str


def rejection(workers: int, batch: int, training: float, law: Sequence[float], bound: int) -> Rejection:
    """P = E[clip((X + T) / tau - m, 0, 1)] with tau = max(T, B / (lambda (1 - P))), lambda = W / E[X].

    Rejects lengthen the time between steps, and longer steps reject less, so there is one fixed point; found by
    bisection. The course's rule, rho < 1.

    Args:
        workers, batch, training, law: W, B, T and the law of X.
        bound: m, the largest lag that still trains.
    """
    rate = workers / _mean(law)

    def implied(share: float) -> float:
        tau = _step(rate, batch, training, share)
        return _mean([_clip((x + training) / tau - bound) for x in law])

    low, high = 0.0, 1.0 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if implied(middle) > middle else (low, middle)
    share = (low + high) / 2
    tau = _step(rate, batch, training, share)
    holds, condition = _rollout_limited(batch, tau, training, law)
    return Rejection(share, tau, holds, condition.replace(", nothing rejected", ""))


def _step(rate: float, batch: int, training: float, share: float) -> float:
    # Not 0, by which it is divided, where rollouts take next to no time.
    return max(training, batch / (rate * (1 - share)), sys.float_info.min)


def rejection_given_duration(x: float, step: float, training: float, bound: int) -> float:
    """P(rejected | X = x) = clip((x + T) / tau - m, 0, 1): rejection prefers long rollouts."""
    return _clip((x + training) / step - bound)


def accepted_mean(law: Sequence[float], step: float, training: float, bound: int) -> float:
    """E[X | accepted] = E[X (1 - P(rejected | X))] / P(accepted), at most E[X]."""
    kept = [1 - rejection_given_duration(x, step, training, bound) for x in law]
    total = math.fsum(kept)
    return math.fsum(x * k for x, k in zip(law, kept, strict=True)) / total if total else math.nan


def token_lag(workers: int, batch: int, training: float, law: Sequence[float]) -> tuple[Prediction, Prediction]:
    """Mean token lag when updates reach running rollouts: over samples, and over tokens.

    Over samples (W - 1)/(2B) + rho, half of a rollout's own bumps; over tokens (W(1 + CV^2) - 1)/(2B) + rho, because
    long rollouts have more tokens and older ones. The 1/(2B) is there because rollouts start when others end, and one
    in B of those ends calls the trainer: a start is half an arrival closer to the next bump than a random
    moment.
    Tokens spread evenly over a rollout's seconds.
    """
    tau = batch * _mean(law) / workers
    rho = training / tau if tau else math.inf
    conditions = _rollout_limited(batch, tau, training, law)
    return (
        Prediction((workers - 1) / (2 * batch) + rho, *conditions),
        Prediction((workers * (1 + variation(law) ** 2) - 1) / (2 * batch) + rho, *conditions),
    )


def saturated_lag(workers: int, batch: int, capacity: int, training: float, law: Sequence[float]) -> Prediction:
    """E[lag] -> (W + Q) / B behind a queue of Q that blocks, when the trainer is the limit.

    At a bump all workers hold something and the queue is full or nearly; `total_lag` does the rest.
    """
    tau = batch * _mean(law) / workers
    return Prediction(
        (workers + capacity) / batch,
        tau < 0.5 * training,
        f"trainer-limited with room to spare, B E[X] / W = {tau:.4g} s < T/2 = {training / 2:.4g} s; the queue blocks",
    )


def budget_binds(workers: int, batch: int, ahead: float, training: float = 0.0) -> Prediction:
    """1 if a budget of `ahead` batches (eta + 1) can close the gate, 0 if not: W > (ahead - 1) B + 1.

    When a worker asks, at most W - 1 others run and, as a step takes no time, at most B - 1 wait, all of them counted:
    pathwise, any durations. A step that takes time adds the batch in training and what arrives meanwhile, so that the
    gate can close earlier. Where it never closes all workers run all the time and the budget bounds nothing: it limits
    how far the whole is ahead, not how old one trajectory is.
    """
    most = math.floor(ahead * batch + 1e-9) - batch + 1
    return Prediction(
        float(workers > most),
        workers > most or training == 0,
        f"W = {workers} > (ahead - 1) B + 1 = {most}, or a step takes no time (T = {training:.4g} s)",
    )


# Batches and makespans


def lognormal_cdf(mean: float, sigma: float) -> Callable[[float], float]:
    """P(X <= x) of the lognormal law with this mean and log-standard deviation."""
    mu = math.log(mean) - sigma * sigma / 2
    return lambda x: 0.0 if x <= 0 else 0.5 * math.erfc(-(math.log(x) - mu) / (sigma * math.sqrt(2)))


def expected_max(n: int, cdf: Callable[[float], float], scale: float, points: int = 20_000) -> float:
    """E[max of n] = integral over x > 0 of 1 - F(x)^n; independent draws.

    Trapezoids in log x over eighteen powers of e around `scale`, twelve above it.

    Args:
        n: how many.
        cdf: F.
        scale: a typical value, for instance the mean.
        points: of the trapezoid rule.
    """
    low, step = math.log(scale) - 18.0, 30.0 / points
    grid = [math.exp(low + i * step) for i in range(points + 1)]
    values = [(1 - cdf(x) ** n) * x for x in grid]
    return grid[0] + step * (math.fsum(values) - (values[0] + values[-1]) / 2)


def graham(durations: Sequence[float], workers: int) -> tuple[float, float]:
    """Bounds of every list schedule: max(S/W, x_max) <= makespan <= S/W + (1 - 1/W) x_max, S the sum.

    Source: Graham (1969), "Bounds on multiprocessing timing anomalies".
    """
    share, longest = math.fsum(durations) / workers, max(durations)
    return max(share, longest), share + (1 - 1 / workers) * longest


def synchronous_step(makespan: float, training: float, sync: float = 0.0) -> float:
    """Seconds of a synchronous step: E[makespan of a batch] + T + weight sync."""
    return makespan + training + sync


def speedup_bound(makespan: float, workers: int, batch: int, training: float, mean: float, sync: float = 0.0) -> float:
    """Most that asynchrony can gain on the same machines: (E[makespan] + T + w) / max(T, B E[X] / W)."""
    return synchronous_step(makespan, training, sync) / cycle(workers, batch, training, mean)


def equal_machines_bound(generation: float, work: float, training: float) -> float:
    """Most that a split can gain over sharing all machines when every stage scales linearly: (G + T) / (R + T).

    G is the generation time of a batch on all machines with its bubbles, R the same without idle time: overlap recovers
    the bubbles and no more. A larger gain needs a stage that scales less than linearly.
    """
    return (generation + training) / (work + training)


def best_share(generation: Callable[[float], float], training: Callable[[float], float]) -> float:
    """The share f of machines for generation at which both stages take equally long: R(f) = T(1 - f).

    Both functions give seconds for a share in (0, 1) and must not grow with it; bisection.
    """
    low, high = 1e-9, 1 - 1e-9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if generation(middle) > training(1 - middle) else (low, middle)
    return (low + high) / 2


def throughput(batch: float, mean_cycle: float) -> float:
    """Renewal-reward: trained per second = B / E[seconds per step]; stationary."""
    return batch / mean_cycle


def little(rate: float, mean_time: float) -> float:
    """L = lambda * W: mean number present from the arrival rate and the mean time spent; stationary, any law."""
    return rate * mean_time


def constant_synchronous(tasks: int, workers: int, batch: int, training: float, seconds: float) -> float:
    """Seconds of the synchronous schedule when every rollout takes equally long; exact."""
    full, rest = divmod(tasks, batch)
    total = full * (math.ceil(batch / workers) * seconds + training)
    return total + (math.ceil(rest / workers) * seconds + training if rest else 0.0)


# Servers beside the workers: rewards, judges, sandboxes


def machine_repair(customers: int, ratio: float) -> float:
    """Utilisation 1 - p_0 of one server with W customers that come back: p_k ~ W!/(W-k)! r^k (M/M/1//W).

    Args:
        customers: W.
        ratio: r, mean service over mean time away; both exponential.
    """
    weight, total = 1.0, 1.0
    for k in range(1, customers + 1):
        weight *= (customers - k + 1) * ratio
        total += weight
    return 1 - 1 / total


def erlang_c_wait(rate: float, service: float, servers: int) -> Prediction:
    """Mean wait in M/M/c: C(c, a) / (c / S - lambda) with a = lambda S offered, C Erlang's probability to wait.

    Args:
        rate: lambda, arrivals per second, Poisson.
        service: S, mean seconds of service, exponential.
        servers: c.
    """
    offered = rate * service
    holds, condition = offered < servers, f"stable, lambda S = {offered:.4g} < c = {servers}"
    if not holds:
        return Prediction(math.inf, holds, condition)
    blocking = 1.0  # Erlang B by recursion, which never overflows
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    waits = blocking / (1 - offered / servers * (1 - blocking))
    return Prediction(waits / (servers / service - rate), holds, condition)


def pollaczek_khinchine(rate: float, law: Sequence[float]) -> Prediction:
    """Mean wait in M/G/1: lambda E[S^2] / (2 (1 - rho)), rho = lambda E[S]; the tail of the service law sets it."""
    rho = rate * _mean(law)
    holds, condition = rho < 1, f"stable, rho = lambda E[S] = {rho:.4g} < 1"
    second = _mean([s * s for s in law])
    return Prediction(rate * second / (2 * (1 - rho)) if holds else math.inf, holds, condition)


def processor_sharing(arrivals: Sequence[float], lengths: Sequence[float], rate: Callable[[int], float]) -> list[float]:
    """When each of several sequences is done that are decoded together, each at `rate(n)` tokens per second.

    Virtual time V = integral of r(n(t)) dt is the number of tokens that everybody present has got, so a sequence that
    arrived at V_0 with L tokens to go is done when V = V_0 + L: one heap operation per event instead of one step per
    token. Exact when the rate depends on the number present alone.

    Args:
        arrivals: seconds, not decreasing.
        lengths: tokens of each.
        rate: tokens per second and sequence when n are present.
    """
    from heapq import heappop, heappush

    done = [0.0] * len(arrivals)
    present: list[tuple[float, int]] = []
    now = virtual = 0.0
    for i in range(len(arrivals) + 1):
        until = arrivals[i] if i < len(arrivals) else math.inf
        while present:
            speed = rate(len(present))
            finish = now + (present[0][0] - virtual) / speed
            if finish > until:
                virtual += (until - now) * speed
                break
            virtual, now = present[0][0], finish
            done[heappop(present)[1]] = finish
        if i < len(arrivals):
            now = until
            heappush(present, (virtual + lengths[i], i))
    return done


def _clip(x: float) -> float:
    return min(1.0, max(0.0, x))
