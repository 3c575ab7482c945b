"""Events per second of the pipeline model, an event being a finished rollout or a finished training step.

    python -m pytest tests/benchmarks/test_bench_pipeline.py --benchmark-enable -n0 -s

The aim is 300,000 per second with full accounting on 64 workers, batches of 64 and 100,000 trajectories. Two peers run
interleaved with it: the bare SimPy loop (one callback on a `Timeout` per rollout and nothing else), whose ratio carries
over from one machine to another, and a model written for the course's rules alone with the same accounting, which shows
what rules cost that are switched off. Then every further rule states its own rate, and the cost per trajectory is shown
from a thousand to a million trajectories. Times are processor times, so that a busy machine disturbs them less; wall
clock stands beside them, and is the same on a machine that does nothing else. Exact under any load is the number of
calls: the last tests count it.
"""

import gc
import resource
import sys
import time
from collections import deque

import pytest
import simpy
from simpy.events import NORMAL, URGENT

from labs.pipeline.accounting import Run
from labs.pipeline.model import simulate
from labs.pipeline.records import ACCEPTED, REJECTED, Exit, Flight
from labs.pipeline.rules import Rules
from labs.pipeline.workload import Workload, course_durations

DURATIONS = course_durations(100_000, 3.0, 7)
SYSTEM = Rules(workers=64, batch_size=64)

#: Every further rule alone, with what it needs to matter.
RULES = {
    "order=freshest": {"order": "freshest"},
    "sync_seconds": {"sync_seconds": 0.1},
    "submission=budget": {"submission": "budget", "submission_batches": 4.0},
    "submission=quota": {"submission": "quota", "submission_batches": 4.0},
    "queue_batches, block": {"queue_batches": 2.0},
    "queue_batches, drop_oldest": {"queue_batches": 1.0, "on_full": "drop_oldest"},
    "concurrency_batches": {"concurrency_batches": 0.9},
    "ingestion=wait": {"ingestion": "wait"},
    "sweep": {"sweep": True},
    "in_flight=drain": {"in_flight": "drain"},
    "in_flight=abort_restart": {"in_flight": "abort_restart"},
    "in_flight=abort_resume": {"in_flight": "abort_resume"},
    "in_flight=mixed": {"in_flight": "mixed"},
    "version_unit=step": {"version_unit": "step"},
    "requeue=new": {"requeue": "new"},
    "group_size=4": {"group_size": 4, "batch_size": 16},
    "filter, group_size=4": {"group_size": 4, "batch_size": 16, "filter": "zero_variance"},
    "mean_time_to_failure": {"mean_time_to_failure": 1000.0, "restart_seconds": 10.0, "requeue": "same"},
    "pools": {"pools": ((32, 1.0), (32, 2.0))},
}


def bare(durations=DURATIONS, workers=64):
    """Rollouts on SimPy that nobody counts."""
    env = simpy.Environment()
    tasks = iter(durations)

    def start(_):
        for duration in tasks:
            simpy.Timeout(env, duration).callbacks.append(start)
            break

    for _ in range(workers):
        start(None)
    env.run()
    return env.now


def stripped(durations=DURATIONS, workers=64, batch_size=64, training_seconds=2.0, bound=1):
    """The course's asynchronous rules and nothing else, with the model's records, integrals and laws."""
    env = simpy.Environment()
    schedule = env.schedule
    trajectories, exits, waiting, publications = [], [], deque(), []
    version = started = running = lag_at_bumps = 0
    area = since = busy = worked = worked_since = 0.0
    free, call, over, n = True, simpy.Event(env), simpy.Event(env), len(durations)

    def leave(some, status):
        record = Exit(status, env._now, version, len(some))
        for trajectory in some:
            trajectory.exit = record
        exits.append(record)
        return record

    def finished(trajectory):
        nonlocal started, running, area, since, worked, worked_since
        now = trajectory.end = env._now
        if free and trajectory.start_version < version - bound:
            leave([trajectory], REJECTED)
        else:
            area += len(waiting) * (now - since)
            since = now
            waiting.append(trajectory)
        if started < n:
            successor = Flight(started, trajectory.worker, now, version, called)
            trajectories.append(successor)
            schedule(successor, NORMAL, durations[started])
            started += 1
        else:
            worked += running * (now - worked_since)
            worked_since = now
            running -= 1
        if free and (len(waiting) >= batch_size or not running):
            offer()

    def offer():
        nonlocal free, area, since
        area, since = area + len(waiting) * (env._now - since), env._now
        stale = [t for t in waiting if t.start_version < version - bound]
        if stale:
            leave(stale, REJECTED)
            kept = [t for t in waiting if t.exit is None]
            waiting.clear()
            waiting.extend(kept)
        if len(waiting) >= batch_size or (not running and waiting):
            batch = leave([waiting.popleft() for _ in range(min(batch_size, len(waiting)))], ACCEPTED)
            free = False
            call._ok, call._value = True, batch
            schedule(call, URGENT, 0)
        elif not running:
            over.succeed()

    def trainer():
        nonlocal call, free, version, lag_at_bumps, busy
        while True:
            batch = yield call
            call = simpy.Event(env)
            done = simpy.Event(env)
            done._ok, done._value = True, None
            schedule(done, URGENT, training_seconds)
            yield done
            batch.trained, batch.update = env.now, len(publications)
            busy += training_seconds
            version += 1
            publications.append((env.now, version))
            lag_at_bumps += running + len(waiting)
            free = True
            offer()

    called = [finished]
    env.process(trainer())
    for worker in range(min(workers, n)):
        first = Flight(started, worker, 0.0, 0, called)
        trajectories.append(first)
        schedule(first, NORMAL, durations[started])
        started += 1
        running += 1
    env.run(until=over)
    seconds = env.now
    worked += running * (seconds - worked_since)
    return Run(
        rules=Rules(workers=workers, batch_size=batch_size), work=Workload(durations), hazards=[], seconds=seconds,
        trajectories=trajectories, exits=exits, publications=publications, prefill_seconds=0.0,
        worker_seconds=[{"busy": worked, "task": workers * seconds - worked}],
        trainer_seconds={"busy": busy, "data": seconds - busy}, lag_at_bumps=lag_at_bumps, lag_at_starts=0,
        running_area=worked, waiting_area=area,
    ).check()  # fmt: skip


def timed(function, clock=time.process_time):
    """Seconds of one call, with the collector off as the model has it."""
    gc.collect()
    gc.disable()
    try:
        start = clock()
        function()
        return clock() - start
    finally:
        gc.enable()


def best(functions, rounds, clock=time.process_time):
    """Shortest seconds of each function over interleaved rounds."""
    seconds = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            seconds[name].append(timed(function, clock))
    return {name: min(all_of) for name, all_of in seconds.items()}


def calls(function):
    """Calls of Python functions in a call: what its time is made of, and the same on every machine."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def test_the_stripped_model_is_the_same_model():
    durations = course_durations(2000, 3.0, 1)
    ours, theirs = stripped(durations, 16, 16), simulate(Rules(workers=16, batch_size=16), durations)
    assert [t.row() for t in ours.trajectories] == [t.row() for t in theirs.trajectories]


@pytest.mark.benchmark
def test_events_per_second(benchmark):
    run = benchmark.pedantic(simulate, args=(SYSTEM, DURATIONS), rounds=1)
    events = len(run.trajectories) + len(run.steps)
    took = best({"bare": bare, "stripped": stripped, "model": lambda: simulate(SYSTEM, DURATIONS)}, 15)
    rates = ", ".join(f"{name} {events / seconds:,.0f}/s" for name, seconds in took.items())
    off = took["model"] / took["stripped"] - 1
    wall = best({"model": lambda: simulate(SYSTEM, DURATIONS)}, 10, time.perf_counter)["model"]
    print(f"\n{events:,} events, wall clock: model {events / wall:,.0f}/s")
    print(f"processor time: {rates}; model/bare time {took['model'] / took['bare']:.2f}")
    print(f"switched off, the {len(RULES)} rules cost {off:+.1%} together, {off / len(RULES):+.1%} each")
    assert events > 100_000


@pytest.mark.benchmark
def test_the_rate_of_every_rule(benchmark):
    n = 40_000
    plain = benchmark.pedantic(simulate, args=(SYSTEM, DURATIONS[:n]), rounds=1)
    print()
    for name, change in {"none": {}, **RULES}.items():
        rules = SYSTEM.but(**change)
        success = [0.5] * (n // rules.group_size) if rules.filter != "none" else None
        work = Workload(DURATIONS[:n], group_size=rules.group_size, success=success)
        run = simulate(rules, work)
        events = len(run.trajectories) + len(run.steps)
        seconds = min(timed(lambda rules=rules, work=work: simulate(rules, work)) for _ in range(3))
        print(f"{name:28s} {events / seconds:>9,.0f} events/s")
    assert plain.steps


@pytest.mark.benchmark
def test_the_cost_grows_no_faster_than_n_log_n(benchmark):
    """A thousand workers up to a million trajectories: seconds, memory, microseconds per trajectory."""
    rules = Rules(workers=1000, batch_size=500)
    benchmark.pedantic(simulate, args=(rules, DURATIONS[:10_000]), rounds=1)
    per = {}
    print()
    for n in (10**3, 10**4, 10**5, 10**6):
        durations = course_durations(n, 3.0, 7)
        start, cpu = time.perf_counter(), time.process_time()
        run = simulate(rules, durations)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        per[n] = 1e6 * cpu / n
        print(
            f"n = {n:>9,}: {wall:7.3f} s, {per[n]:5.2f} us per trajectory, {len(run.steps)} steps, peak {peak:.0f} MB"
        )
    # log n doubles between the first and the last; the margin is for a busy machine.
    assert per[10**6] < 4 * per[10**4]


@pytest.mark.parametrize(
    "rules", [{}, {"group_size": 4, "batch_size": 8}, {"order": "freshest"}, {"on_full": "drop_stalest"}]
)
def test_calls_grow_in_proportion(rules):
    """Without a clock: ten times the trajectories, at most ten times the calls and a little for the logarithm."""
    system = Rules(workers=64, batch_size=32, training_seconds=2.0, queue_batches=4.0).but(**rules)
    few, many = (calls(lambda n=n: simulate(system, DURATIONS[:n])) for n in (1_000, 10_000))
    assert 8 * few < many < 11 * few


def test_a_rule_that_is_off_costs_under_five_per_cent_in_calls():
    """Without a clock: what the model calls beyond the one for the course alone, shared among the rules."""
    durations = DURATIONS[:10_000]
    without, model = calls(lambda: stripped(durations)), calls(lambda: simulate(SYSTEM, durations))
    assert without < model < (1 + 0.05 * len(RULES)) * without
