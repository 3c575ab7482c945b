"""The numbers that systems are compared by, each against another way to get it."""

import pytest

from labs.pipeline import told
from labs.pipeline.measures import METRICS, journey, measures, overlap, series, step_lags
from labs.pipeline.model import simulate
from labs.pipeline.rules import Rules
from labs.pipeline.workload import (
    Workload,
    course_durations,
    lognormal_durations,
    rollout_durations,
    success_rates,
)

PLAIN = simulate(Rules(), course_durations(96, 3.0, 7))
GROUPS = simulate(
    Rules(
        workers=12, batch_size=4, group_size=2, in_flight="abort_resume", sync_seconds=0.5, resume_seconds=0.25,
        ingestion="train", submission="budget", submission_batches=6.0, steps_per_sync=2, requeue="same",
        mean_time_to_failure=200.0, restart_seconds=3.0,
    ),
    Workload(lognormal_durations(200, 3.0, 1.0, 3, group_size=2), group_size=2, seed=5),
)  # fmt: skip
BOTH = pytest.mark.parametrize("run", [PLAIN, GROUPS], ids=["plain", "groups"])


@BOTH
def test_both_identities_give_the_throughput(run):
    m = measures(run)
    assert m["trained_per_second"] == pytest.approx(
        run.rules.workers * m["workers_busy"] * m["useful"] / m["mean_trained_seconds"], rel=1e-12
    )
    assert m["trained_per_second"] == pytest.approx(
        m["step_size"] * m["trainer_busy"] / run.rules.training_seconds, rel=1e-12
    )


@BOTH
def test_measures_are_declared_and_within_their_range(run):
    m = measures(run)
    assert list(m) == [metric.name for metric in METRICS]
    assert all(metric.holds(m[metric.name]) for metric in METRICS)


@BOTH
def test_a_trained_sample_s_time_adds_up(run):
    trained = [t for t in run.trajectories if t.status == "accepted"]
    whole = sum(t.exit.trained - t.start for t in trained) / len(trained)
    assert sum(journey(run).values()) == pytest.approx(whole, rel=1e-12)
    assert (journey(run)["sibling"] > 0) == (run.rules.group_size > 1)
    assert journey(run)["training"] == pytest.approx(run.rules.training_seconds)


def test_the_steady_rate_leaves_the_end_out():
    last = max(t.start for t in PLAIN.trajectories)
    before = [t for t in PLAIN.trajectories if t.status == "accepted" and t.exit.time <= last]
    assert measures(PLAIN)["steady_per_second"] == pytest.approx(len(before) / last)
    at_once = simulate(Rules(workers=8, batch_size=8), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert measures(at_once)["steady_per_second"] == measures(at_once)["trained_per_second"] == 8 / 10


def test_step_lags_count_optimiser_steps():
    lags = [t.lag for t in PLAIN.trajectories if t.status == "accepted"]
    assert step_lags(PLAIN) == lags
    double = simulate(Rules(steps_per_sync=2, ingestion="train"), course_durations(200, 3.0, 7))
    for t, steps in zip(double.trajectories, step_lags(double), strict=True):
        assert steps == t.exit.update - 2 * t.start_version
        assert 2 * t.lag <= steps <= 2 * t.lag + 1


def test_overlap_is_none_in_turns_and_full_without_a_gate():
    durations = course_durations(400, 3.0, 7)
    assert overlap(simulate(Rules(submission="budget"), durations)) == 0
    run = simulate(Rules(ingestion="train"), durations)
    slots = 0.0
    for step in run.steps:
        slots += sum(max(0.0, min(t.end, step.trained) - max(t.start, step.time)) for t in run.trajectories)
    assert overlap(run) == pytest.approx(slots / (4 * 2.0 * len(run.steps)), rel=1e-9)
    assert overlap(run) > 0.9


@BOTH
def test_series_integrate_to_the_areas(run):
    s = series(run)
    widths = [b - a for a, b in zip(s["time"], s["time"][1:], strict=False)]
    running = sum(n * w for n, w in zip(s["running"], widths, strict=False))
    waiting = sum(n * w for n, w in zip(s["waiting"], widths, strict=False))
    assert running == pytest.approx(run.running_area, rel=1e-9 if len(s["time"]) < 1000 else 0.02)
    assert waiting == pytest.approx(run.waiting_area, rel=1e-9 if len(s["time"]) < 1000 else 0.02)
    assert len(s["time"]) <= 1000


def test_the_table_has_a_row_a_setting_and_a_sentence_for_what_stopped():
    row = {"setting": "a=1", **measures(PLAIN)}
    lines = told.table([row, {"setting": "a=2", "refused": "deadlock at 3 s"}])
    assert len(lines) == 3
    assert lines[1].split()[0] == "a=1"
    assert lines[2] == "a=2  deadlock at 3 s"
    assert told.table([]) == []


def test_durations_of_the_course_and_of_groups():
    assert rollout_durations(300, 3.0, 1.0, 7, factor=5.0) == course_durations(300, 3.0, 7)
    alike = rollout_durations(50, 3.0, 1.0, 7, group_size=2, within=1.0)
    assert all(a == b for a, b in zip(alike[::2], alike[1::2], strict=True))
    assert max(rollout_durations(500, 3.0, 1.0, 7, cap=4.0)) == 4.0


def test_the_longest_task_is_the_hardest():
    seconds = [3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 9.0, 9.0]
    assert success_rates(seconds, 2, 0.0, 1.0, 0) == [0.375, 0.875, 0.625, 0.125]
