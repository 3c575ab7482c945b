"""Events per second of the pipeline model, an event being a finished rollout or a finished training step.

    python -m pytest tests/benchmarks/test_bench_pipeline.py --benchmark-enable -n0 -s

The aim is 300,000 per second with full accounting on 64 workers, batches of 64 and 100,000 trajectories. The peer in
the same interleaved run is the bare SimPy loop: one callback on a `Timeout` per rollout and nothing else, which no
model on SimPy can beat; the ratio to it is what carries over from one machine to another.
"""

import time

import pytest
import simpy

from labs.pipeline.model import simulate
from labs.pipeline.rules import Rules
from labs.pipeline.workload import course_durations

DURATIONS = course_durations(100_000, 3.0, 7)
SYSTEM = Rules(workers=64, batch_size=64)


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


def best(functions, rounds):
    """Shortest seconds of each function over interleaved rounds."""
    seconds = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: min(all_of) for name, all_of in seconds.items()}


@pytest.mark.benchmark
def test_events_per_second(benchmark):
    run = benchmark.pedantic(simulate, args=(SYSTEM, DURATIONS), rounds=1)
    events = len(run.trajectories) + len(run.steps)
    took = best({"bare": bare, "model": lambda: simulate(SYSTEM, DURATIONS)}, 10)
    print(
        f"\n{events:,} events: model {events / took['model']:,.0f}/s, bare SimPy {events / took['bare']:,.0f}/s, "
        f"model/bare time {took['model'] / took['bare']:.2f}"
    )
    assert events > 100_000
