"""What is told about a run: budgets, waits, frameworks' names, bias, the trace for Perfetto."""

import json
from itertools import pairwise

import pytest

from labs.pipeline import chrome, predictions, report
from labs.pipeline.accounting import quantiles
from labs.pipeline.model import simulate
from labs.pipeline.rules import Rules
from labs.pipeline.workload import Workload, course_durations, lognormal_durations, uniform

DURATIONS = course_durations(96, 3.0, 7)


@pytest.fixture(scope="module")
def run():
    return simulate(Rules(), DURATIONS)


@pytest.fixture(scope="module")
def busy_run():
    rules = Rules(
        workers=12, batch_size=4, group_size=2, in_flight="abort_resume", sync_seconds=0.5, resume_seconds=0.25,
        ingestion="train", order="oldest_version", submission="budget", submission_batches=3.0,
    )  # fmt: skip
    return simulate(rules, Workload(lognormal_durations(120, 3.0, 1.0, 3, group_size=2), group_size=2))


def test_budgets_sum_to_one(run, busy_run):
    for one in (run, busy_run):
        for shares in one.time_budget().values():
            assert sum(shares.values()) == pytest.approx(1, abs=1e-12)


def test_the_three_waits_are_three(run):
    waits = run.waits()
    trained = [t for t in run.trajectories if t.status == "accepted"]
    assert waits["sample_in_queue"] == pytest.approx(sum(t.ingested - t.end for t in trained) / 88)
    assert waits["trainer_blocked"] == pytest.approx(run.seconds - 22.0)
    assert waits["generator_blocked"] == 0  # a free worker without a task is not blocked
    blocked = simulate(Rules(queue_batches=1.0, training_seconds=30.0, ingestion="train"), DURATIONS)
    assert blocked.waits()["generator_blocked"] == blocked.worker_seconds[0]["queue full"] > 0


def test_the_frameworks_names(run, busy_run):
    for one in (run, busy_run):
        metrics = report.framework_metrics(one)
        trained = [t for t in one.trajectories if t.status == "accepted"]
        mean = sum(t.lag for t in trained) / len(trained)
        assert metrics["async/staleness_mean"] == metrics["off_policy/mean"] == pytest.approx(mean)
        finished = [t for t in one.trajectories if t.status in ("accepted", "rejected")]
        in_flight, in_queue = metrics["off_policy/in_flight/mean"], metrics["off_policy/in_queue/mean"]
        assert in_flight + in_queue == pytest.approx(sum(t.lag for t in finished) / len(finished))
        assert metrics["fully_async/trainer/idle_ratio"] == pytest.approx(1 - one.time_budget()["trainer"]["busy"])
        assert metrics["fully_async/count/current_param_version"] == len(one.steps)
    assert report.framework_metrics(run)["off_policy/dropped"] == 8
    assert report.framework_metrics(run)["async/keep_rate"] == pytest.approx(88 / 96)
    partial = sum(len({v for v, _ in t.spans or ()}) > 1 for t in busy_run.trajectories)
    assert report.framework_metrics(busy_run)["fully_async/partial/total_partial_num"] == partial > 0
    assert report.framework_metrics(busy_run)["timing_s/param_sync"] == pytest.approx(0.5)


def test_the_queue_at_wait_start_is_what_waits_when_a_step_ends(run):
    counts = []
    for step in run.steps:
        counts.append(sum(t.end <= step.trained < t.ingested for t in run.trajectories))
    assert report.framework_metrics(run)["async/gen_buffer_qsize_at_wait_start"] == pytest.approx(
        sum(counts) / len(counts)
    )


def test_rejection_trains_on_shorter_rollouts_than_were_offered(run):
    bias = report.bias(run)
    offered, trained = bias["duration"]["offered"], bias["duration"]["trained"]
    assert (offered["n"], trained["n"]) == (96, 88)
    assert offered["mean"] == pytest.approx(sum(DURATIONS) / 96)
    assert trained["mean"] < offered["mean"]
    assert bias["trained_by_duration"][:3] == [1.0, 1.0, 1.0]
    assert bias["trained_by_duration"][3] == pytest.approx(16 / 24)
    assert "reward" not in bias


def test_a_filter_shifts_difficulty_and_reward():
    rates = [0.02, 0.5, 0.98] * 60
    work = Workload([1.0] * 720, group_size=4, success=rates, seed=1)
    run = simulate(Rules(group_size=4, filter="zero_variance", workers=8), work)
    bias = report.bias(run)
    assert bias["difficulty"]["offered"]["mean"] == pytest.approx(0.5)
    trained = [t for t in run.trajectories if t.status == "accepted"]
    assert bias["reward"]["trained"]["mean"] == pytest.approx(sum(t.reward for t in trained) / len(trained))
    assert bias["difficulty"]["trained"]["quantiles"]["0.5"] == 0.5
    kept = sum(t.task % 3 == 1 for t in trained) / len(trained)
    assert kept > 0.7  # a third of the offered tasks


def test_theory_beside_simulation_names_its_conditions(run):
    rows = {row["name"]: row for row in predictions.theory(run)}
    assert rows["total lag"] == {
        "name": "total lag", "predicted": 70, "simulated": 70, "holds": True, "condition": "always, on every path",
        "broken": [],
    }  # fmt: skip
    assert rows["mean lag"]["holds"] is False  # 12 batches are no stationary state
    assert "at least 40 batches" in rows["mean lag"]["condition"]
    long = simulate(Rules(workers=32, batch_size=32, training_seconds=1.0), lognormal_durations(4000, 3.0, 0.9, 1))
    rows = {row["name"]: row for row in predictions.theory(long)}
    assert rows["share rejected"]["holds"] is True
    assert rows["share rejected"]["simulated"] == pytest.approx(rows["share rejected"]["predicted"], rel=0.05)


def test_the_trace_opens_in_perfetto(run, busy_run):
    """Every event has what the trace event format asks of its phase, and a thread's events do not overlap."""
    for one in (run, busy_run):
        document = json.loads(chrome.dumps(one))
        events = document["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        assert len(spans) == len(one.trajectories) + len(one.steps)
        for event in spans:
            assert event["dur"] >= 0
            assert {"name", "ts", "pid", "tid"} <= set(event)
        named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        assert {(e["pid"], e["tid"]) for e in spans} <= named
        for thread in named:
            mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if (e["pid"], e["tid"]) == thread)
            assert all(b >= a - 0.01 for (_, a), (b, _) in pairwise(mine))
        waiting = [e["args"]["value"] for e in events if e["name"] == "waiting trajectories"]
        assert min(waiting) >= 0
        assert waiting[-1] == 0
        versions = [e["args"]["value"] for e in events if e["name"] == "published version"]
        assert versions == list(range(len(one.steps) + 1))


def test_a_trace_can_end_early(run):
    events = chrome.events(run, until=20.0)
    assert all(event["ts"] <= 20e6 for event in events if event["ph"] != "M")
    starts = [t.start for t in run.trajectories if t.start <= 20] + [s.time for s in run.steps if s.time <= 20]
    assert sum(event["ph"] == "X" for event in events) == len(starts)


def test_the_trace_of_pools_has_a_process_per_pool():
    one = simulate(Rules(workers=3, pools=((1, 1.0), (2, 2.0))), DURATIONS)
    events = chrome.events(one)
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["workers, pool 0", "workers, pool 1", "trainer"]
    assert {(e["pid"], e["tid"]) for e in events if e.get("cat") == "rollout"} == {(1, 1), (2, 1), (2, 2)}


def test_quantiles():
    assert quantiles(range(1, 101)) == [50, 90, 99]
    assert quantiles([5.0]) == [5.0, 5.0, 5.0]
    assert quantiles([]) == [0.0, 0.0, 0.0]


def test_keyed_draws_are_uniform_and_independent_of_order():
    draws = [uniform(1, 2, i) for i in range(20_000)]
    assert draws == [uniform(1, 2, i) for i in range(20_000)]
    assert all(0 <= u < 1 for u in draws)
    assert sum(draws) / 20_000 == pytest.approx(0.5, abs=0.01)
    assert sum(a * b for a, b in pairwise(draws)) / 20_000 == pytest.approx(0.25, abs=0.01)
    assert uniform(1, 2) != uniform(2, 1)
