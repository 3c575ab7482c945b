"""The closed forms: exact where they are pathwise, covered by an interval inside their conditions, flagged outside.

Statistical tests draw three points inside the conditions with hypothesis (always the same three) and run R = 10
independent replications at each; the prediction must lie in the t interval of their mean. The intervals are 95 %
simultaneous over the COMPARISONS of this file (Bonferroni), so if every formula were exact, fresh seeds would fail
somewhere in the file with probability 5 %; and none may be wider than three tenths of the prediction, so that a formula
that is further off cannot pass.
"""

import math
import random
import subprocess
import sys
from heapq import heappop, heappush, heapreplace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.errors import InputError
from labs.pipeline import closed_forms as theory
from labs.pipeline import predictions
from labs.pipeline.model import simulate
from labs.pipeline.rules import Rules
from labs.pipeline.workload import course_durations, lognormal_durations, lognormal_law
from labs.stats import t_interval

THREE = settings(max_examples=3, derandomize=True, deadline=None, database=None)
#: Replications per point, and how many intervals there are in all.
R, COMPARISONS = 10, 30


def covers(prediction, values, comparisons=COMPARISONS):
    interval = t_interval(values, level=1 - 0.05 / comparisons)
    assert interval.high - interval.low < 0.3 * prediction, (prediction, interval)
    assert interval.low <= prediction <= interval.high, (prediction, interval)


def middle(run):
    """The trajectories that start in the second and third fifth: no warm-up, and the long ones end before the run."""
    n = len(run.trajectories)
    return run.trajectories[n // 5 : 3 * n // 5]


@st.composite
def inside(draw):
    """A system inside the conditions of the rollout-limited formulas."""
    batch = 64
    workers = draw(st.sampled_from([32, 64, 96]))
    sigma = draw(st.floats(0.75, 1.0))
    training = draw(st.floats(0.1, 0.4)) * batch * 3.0 / workers
    return workers, batch, training, sigma


def replications(workers, batch, training, sigma, **rules):
    system = Rules(workers=workers, batch_size=batch, training_seconds=training, **rules)
    return [simulate(system, lognormal_durations(80 * max(batch, workers), 3.0, sigma, 100 + r)) for r in range(R)]


# Lag


@given(inside())
@THREE
def test_mean_lag_and_its_tail(point):
    workers, batch, training, sigma = point
    law = lognormal_law(3.0, sigma, 4000)
    assert theory.mean_lag(workers, batch, training, law).holds
    runs = replications(*point, ingestion="train")
    covers(theory.mean_lag(workers, batch, training, law).value, [_mean(t.lag for t in middle(run)) for run in runs])
    k = 1 if workers <= batch else 2  # where the tail is neither 0 nor 1
    share = theory.lag_tail(k, workers, batch, training, law).value
    covers(share, [_mean(t.lag >= k for t in middle(run)) for run in runs])


@given(inside())
@THREE
def test_the_fixed_point_of_rejection_and_its_length_bias(point):
    workers, batch, training, sigma = point
    law = lognormal_law(3.0, sigma, 4000)
    assert theory.mean_lag(workers, batch, training, law).holds
    runs = replications(*point, max_policy_lag=1)
    fixed = theory.rejection(workers, batch, training, law, 1)
    assert fixed.holds
    covers(fixed.share, [_mean(t.status == "rejected" for t in middle(run)) for run in runs])
    kept = [_mean(t.seconds for t in middle(run) if t.status == "accepted") for run in runs]
    covers(theory.accepted_mean(law, fixed.step, training, 1), kept)
    assert max(kept) < 3.0


@given(inside())
@THREE
def test_token_lag_of_updates_in_flight(point):
    workers, batch, training, sigma = point
    law = lognormal_law(3.0, sigma, 4000)
    assert theory.mean_lag(workers, batch, training, law).holds
    runs = replications(*point, ingestion="train", in_flight="mixed")
    per_sample, per_token = theory.token_lag(workers, batch, training, law)
    covers(per_sample.value, [_mean(t.token_lag for t in middle(run)) for run in runs])
    weighted = [sum(t.token_lag * t.seconds for t in middle(run)) / sum(t.seconds for t in middle(run)) for run in runs]
    covers(per_token.value, weighted)


def test_lag_behind_a_blocking_queue():
    # rho is far above 1, so every bump finds the queue full and every worker with something in hand.
    predicted = theory.saturated_lag(16, 8, 24, 30.0, lognormal_law(3.0, 1.0))
    assert predicted.holds
    system = Rules(workers=16, batch_size=8, queue_batches=3.0, training_seconds=30.0, ingestion="train")
    lags = [
        _mean(t.lag for t in middle(simulate(system, lognormal_durations(2000, 3.0, 1.0, 50 + r)))) for r in range(R)
    ]
    assert predicted.value == pytest.approx(_mean(lags), rel=0.005)


def test_total_lag_is_pathwise():
    run = simulate(Rules(workers=32, batch_size=16, max_policy_lag=3), course_durations(4000, 3.0, 5))
    present = [
        sum(t.start < time <= t.exit.time and not (t.start_version > version - 1) for t in run.trajectories)
        for time, version in run.publications
    ]
    assert theory.total_lag(present) == sum(t.lag for t in run.trajectories) == run.lag_at_bumps
    assert theory.mean_lag_from_bumps(_mean(present), 16) == pytest.approx(run.lag_at_bumps / (16 * len(present)))


def test_outside_the_conditions_the_run_says_so():
    """Lock-step: near-constant durations lose half a version, and the report flags the formula."""
    durations = lognormal_durations(4000, 3.0, 0.01, 0)
    run = simulate(Rules(workers=32, batch_size=32, training_seconds=1.5, ingestion="train"), durations)
    (row,) = [row for row in predictions.theory(run) if row["name"] == "mean lag"]
    assert row["holds"] is False
    assert "CV = 0.01 >= 0.3" in row["condition"]
    assert abs(row["simulated"] - row["predicted"]) > 0.2
    spread = simulate(
        Rules(workers=32, batch_size=32, training_seconds=1.0, ingestion="train"),
        lognormal_durations(4000, 3.0, 0.9, 0),
    )
    (row,) = [row for row in predictions.theory(spread) if row["name"] == "mean lag"]
    assert row["holds"] is True
    assert row["simulated"] == pytest.approx(row["predicted"], rel=0.03)


@pytest.mark.parametrize(
    "prediction",
    [
        theory.mean_lag(64, 8, 30.0, [3.0, 1.0, 9.0]),  # trainer-limited
        theory.lag_tail(1, 64, 8, 30.0, [3.0, 1.0, 9.0]),
        theory.token_lag(64, 8, 30.0, [3.0, 1.0, 9.0])[0],
        theory.saturated_lag(4, 64, 10, 2.0, [3.0]),  # rollout-limited
        theory.erlang_c_wait(3.0, 1.0, 2),  # unstable
        theory.pollaczek_khinchine(2.0, [1.0]),
    ],
)
def test_a_prediction_outside_its_conditions_says_so(prediction):
    assert prediction.holds is False
    assert prediction.condition


@given(st.integers(1, 8), st.integers(2, 5), st.integers(0, 30), st.integers(0, 999))
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
def test_when_a_budget_closes_the_gate(batch, ahead, more, seed):
    """Pathwise when a step takes no time: never up to W = (ahead - 1) B + 1 workers."""
    workers = max(1, (ahead - 1) * batch + 1 - more)
    assert theory.budget_binds(workers, batch, ahead) == (0.0, True, theory.budget_binds(workers, batch, ahead)[2])
    system = Rules(
        submission="budget", submission_batches=ahead, workers=workers, batch_size=batch, ingestion="train",
        training_seconds=0.0,
    )  # fmt: skip
    durations = course_durations(30 * batch, 3.0, seed)
    assert "submission" not in {state for state, s in simulate(system, durations).worker_seconds[0].items() if s}
    assert theory.budget_binds(workers, batch, ahead, 2.0).holds is False


def test_with_more_workers_the_gate_closes():
    assert theory.budget_binds(18, 8, 3.0).value == 1
    system = Rules(submission="budget", submission_batches=3.0, ingestion="train", training_seconds=0.0)
    waited = [
        simulate(system.but(workers=workers), course_durations(2000, 3.0, 7)).worker_seconds[0].get("submission", 0)
        for workers in (17, 18)
    ]
    assert waited[0] == 0 < waited[1]


def test_a_budget_bounds_the_whole_and_not_a_sample():
    durations = [1.0] * 600
    durations[0] = 200.0
    system = Rules(submission="budget", submission_batches=3.0, workers=8, ingestion="train", training_seconds=0.5)
    assert simulate(system, durations).trajectories[0].lag > 20 * 3


# Batches


@pytest.mark.parametrize(("n", "known"), [(8, 9.2515), (64, 21.219), (512, 41.187)])
def test_the_expected_maximum(n, known):
    value = theory.expected_max(n, theory.lognormal_cdf(3.0, 1.0), 3.0)
    assert value == pytest.approx(known, rel=5e-5)


@given(st.integers(1, 200), st.floats(0.3, 1.4))
@THREE
def test_the_expected_maximum_is_the_mean_of_maxima(n, sigma):
    generator = random.Random(1)
    maxima = [
        [max(generator.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(n)) for _ in range(400)]
        for _ in range(R)
    ]
    covers(theory.expected_max(n, theory.lognormal_cdf(1.0, sigma), 1.0), [_mean(row) for row in maxima])


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40), st.integers(1, 10))
def test_grahams_bounds_hold_for_every_batch(durations, workers):
    rules = Rules(workers=workers, batch_size=len(durations), training_seconds=0.0)
    low, high = theory.graham(durations, workers)
    assert low * (1 - 1e-12) <= simulate(rules, durations).seconds <= high * (1 + 1e-12)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.integers(1, 5))
def test_constant_durations_are_exact(tasks, workers, batch, training, seconds):
    rules = Rules(workers=workers, batch_size=batch, training_seconds=float(training), submission="budget")
    run = simulate(rules, [float(seconds)] * tasks)
    assert run.seconds == theory.constant_synchronous(tasks, workers, batch, training, seconds)
    assert set(run.lags()) == {0}


def test_the_limits_of_the_asynchronous_schedule():
    durations = course_durations(96, 3.0, 7)
    open_ended = Rules(ingestion="train")
    # A budget of one batch is synchronous, one that never binds is no budget, and one worker never waits.
    assert (
        simulate(open_ended.but(submission="budget", submission_batches=1e6), durations).seconds
        == simulate(open_ended, durations).seconds
    )
    bounded = simulate(open_ended.but(max_policy_lag=10**6, ingestion="reject"), durations)
    assert [t.row() for t in bounded.trajectories] == [t.row() for t in simulate(open_ended, durations).trajectories]
    one = simulate(Rules(workers=1, batch_size=1, training_seconds=0.0), durations)
    assert one.seconds == pytest.approx(sum(durations))
    assert set(one.lags()) <= {0, 1}


def test_no_schedule_gains_more_than_the_bound():
    durations = course_durations(960, 3.0, 2)
    sync = simulate(Rules(submission="budget"), durations)
    away = simulate(Rules(ingestion="train"), durations)
    makespan = (sync.seconds - 120 * 2.0) / 120
    gain = sync.seconds / away.seconds
    assert gain <= theory.speedup_bound(makespan, 4, 8, 2.0, _mean(durations))
    assert sync.seconds / 120 == pytest.approx(theory.synchronous_step(makespan, 2.0))
    assert theory.throughput(8, away.seconds / 120) == pytest.approx(960 / away.seconds)
    waiting = away.waiting_area / away.seconds
    assert waiting == pytest.approx(
        theory.little(960 / away.seconds, _mean(t.exit.time - t.end for t in away.trajectories))
    )


def test_splitting_machines():
    assert theory.equal_machines_bound(100.0, 60.0, 40.0) == pytest.approx(1.4)
    share = theory.best_share(lambda f: 60.0 / f, lambda f: 40.0 / f)
    assert share == pytest.approx(0.6)
    assert 60.0 / share == pytest.approx(40.0 / (1 - share))


# Servers beside the workers, against simulators that share nothing with the formulas


def _mean(values):
    values = list(values)
    return sum(values) / len(values)


@given(st.integers(2, 12), st.floats(0.05, 0.5))
@THREE
def test_machine_repair(customers, ratio):
    def utilisation(seed):
        generator = random.Random(seed)
        away = [(generator.expovariate(1.0), i) for i in range(customers)]
        away.sort()
        now = busy = 0.0
        for _ in range(6000):
            arrival, customer = heappop(away)
            now = max(now, arrival)
            service = generator.expovariate(1 / ratio)
            busy, now = busy + service, now + service
            heappush(away, (now + generator.expovariate(1.0), customer))
        return busy / now

    covers(theory.machine_repair(customers, ratio), [utilisation(seed) for seed in range(R)])


@given(st.integers(1, 4), st.floats(0.5, 0.8))
@THREE
def test_erlang_c(servers, load):
    def wait(seed):
        generator = random.Random(seed)
        free, now, total, n = [0.0] * servers, 0.0, 0.0, 40_000
        for _ in range(n):
            now += generator.expovariate(load * servers)
            start = max(now, free[0])
            total += start - now
            heapreplace(free, start + generator.expovariate(1.0))
        return total / n

    prediction = theory.erlang_c_wait(load * servers, 1.0, servers)
    assert prediction.holds
    covers(prediction.value, [wait(seed) for seed in range(R)])


@given(st.floats(0.2, 0.7), st.floats(0.2, 0.9))
@THREE
def test_pollaczek_khinchine(load, sigma):
    def wait(seed):
        generator = random.Random(seed)
        waiting, total, n = 0.0, 0.0, 60_000
        for _ in range(n):
            total += waiting
            service = generator.lognormvariate(-sigma * sigma / 2, sigma)
            waiting = max(0.0, waiting + service - generator.expovariate(load))
        return total / n

    prediction = theory.pollaczek_khinchine(load, lognormal_law(1.0, sigma, 100_000))
    assert prediction.holds
    covers(prediction.value, [wait(seed) for seed in range(R)])


def test_one_server_is_one_theory():
    assert theory.erlang_c_wait(0.5, 1.0, 1).value == pytest.approx(1.0)
    exponential = [-math.log1p(-(i + 0.5) / 200_000) for i in range(200_000)]
    assert theory.pollaczek_khinchine(0.5, exponential).value == pytest.approx(1.0, rel=1e-3)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30)), min_size=1, max_size=12),
    st.floats(0.01, 0.1),
)
@settings(max_examples=50, deadline=None)
def test_processor_sharing_equals_small_steps(sequences, slow):
    sequences = sorted(sequences)
    arrivals, lengths = [a for a, _ in sequences], [float(n) for _, n in sequences]

    def rate(n):
        return 1 / (0.1 + slow * n)

    done = theory.processor_sharing(arrivals, lengths, rate)
    left, finished, now = dict(enumerate(lengths)), {}, 0.0
    while left:  # event by event with every remaining length kept, where the formula keeps one number
        present = [i for i in left if arrivals[i] <= now]
        coming = min((arrivals[i] for i in left if arrivals[i] > now), default=math.inf)
        if not present:
            now = coming
            continue
        speed = rate(len(present))
        step = min(min(left[i] for i in present) / speed, coming - now)
        now = coming if step == coming - now else now + step
        for i in present:
            left[i] -= speed * step
            if left[i] <= 1e-9:
                finished[i] = now
                del left[i]
    assert done == pytest.approx([finished[i] for i in range(len(done))], rel=1e-6, abs=1e-6)


def test_an_empty_law_is_refused():
    with pytest.raises(InputError, match="the duration law is empty"):
        theory.mean_lag(1, 1, 1.0, [])


def test_the_formulas_need_no_simulation():
    code = "import sys, labs.pipeline.closed_forms; print([m for m in ('simpy', 'numpy', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
