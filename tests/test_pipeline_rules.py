"""Every rule of the pipeline: what it does on a trace small enough to check by hand, and what holds for all of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.errors import InputError
from labs.pipeline import report
from labs.pipeline.hazards import hazards
from labs.pipeline.model import DeadlockError, Model, simulate
from labs.pipeline.rules import CHOICES, RETURNABLE, Rules
from labs.pipeline.stream import StarvationError
from labs.pipeline.workload import Workload, course_durations
from tests.small_pipelines import SLOW, table


# What holds under any rules
@st.composite
def any_rules(draw):
    """Rules of every kind together; None where `Rules` refuses the combination."""
    workers, group_size = draw(st.integers(1, 6)), draw(st.sampled_from([1, 1, 2, 3]))
    values = {name: draw(st.sampled_from(allowed)) for name, allowed in CHOICES.items() if draw(st.booleans())}
    values.update(
        workers=workers,
        group_size=group_size,
        batch_size=draw(st.integers(1, 4)),
        training_seconds=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
        submission_batches=draw(st.sampled_from([1, 1.5, 2, 4])),
        max_policy_lag=draw(st.integers(0, 4)),
        sweep=draw(st.booleans()),
        steps_per_sync=draw(st.sampled_from([1, 1, 2, 3])),
        sync_seconds=draw(st.sampled_from([0.0, 0.5, 2.0])),
        resume_seconds=draw(st.sampled_from([0.0, 0.25])),
        pools=draw(st.sampled_from([(), ((workers, 2.0),)])) if workers < 2 else ((1, 2.0), (workers - 1, 0.5)),
        concurrency_batches=draw(st.none() | st.sampled_from([0.5, 1.0, 2.0])),
        queue_batches=draw(st.none() | st.sampled_from([1.0, 1.5, 2.0])),
        returns=tuple(way for way in RETURNABLE if draw(st.booleans())),
        mean_time_to_failure=draw(st.none() | st.sampled_from([3.0, 30.0])),
        restart_seconds=draw(st.none() | st.sampled_from([0.0, 1.0])),
        evaluation_every=draw(st.integers(0, 2)),
        evaluation_seconds=1.0,
    )
    try:
        return Rules(**values)
    except InputError:
        return None


@given(any_rules(), st.data())
@settings(max_examples=400, deadline=None)
def test_every_run_obeys_the_laws_or_was_warned_of(rules, data):
    if rules is None:
        return
    tasks = data.draw(st.integers(1, 15))
    times = st.floats(0, 20) | st.integers(0, 4).map(float)
    n = tasks * rules.group_size
    durations = data.draw(st.lists(times, min_size=n, max_size=n))
    rates = data.draw(st.lists(st.sampled_from([0.0, 0.5, 0.9, 1.0]), min_size=tasks, max_size=tasks))
    work = Workload(durations, group_size=rules.group_size, success=rates, seed=data.draw(st.integers(0, 99)))
    try:
        run = simulate(rules, work)  # checks the conservation laws itself
    except (DeadlockError, StarvationError) as error:
        stuck = error
    else:
        stuck = None
    if stuck is not None:
        kind = "deadlock" if isinstance(stuck, DeadlockError) else "starvation"
        assert any(hazard.startswith(kind) for hazard in hazards(rules)), stuck
        return
    for pool in run.time_budget().values():
        assert sum(pool.values()) == pytest.approx(1) or run.seconds == 0
    for t in run.trajectories:
        assert t.seconds <= t.end - t.start + 1e-9
        assert 0 <= t.token_lag <= t.lag
        assert t.version_at(0.0) == t.start_version or t.spans[0][1] == 0
    metrics, declared = report.framework_metrics(run), {metric.name: metric for metric in report.METRICS}
    assert list(metrics) == list(declared)
    assert [name for name, value in metrics.items() if not declared[name].holds(value)] == []
    trained = [t for t in run.trajectories if t.status == "accepted"]
    keys = [(t.task, t.sample) for t in trained]
    assert len(keys) == len(set(keys)), "a sample trained twice"
    assert len(trained) % rules.group_size == 0, "half a group trained"
    if rules.ingestion == "reject" and rules.group_size == 1:
        assert max((t.lag for t in trained), default=0) <= rules.max_policy_lag
    if rules.requeue == "none" and rules.mean_time_to_failure is None and not run.lags("aborted"):
        assert len(run.trajectories) <= n


@given(
    st.fixed_dictionaries(
        {
            "workers": st.integers(1, 7),
            "batch_size": st.integers(1, 5),
            "training_seconds": st.sampled_from([0.0, 1.0, 2.5]),
            "submission": st.sampled_from(["open", "budget", "quota"]),
            "submission_clock": st.sampled_from(["version", "taken"]),
            "submission_batches": st.sampled_from([2, 2.5, 4]),
            "queue_batches": st.none() | st.sampled_from([1.0, 1.5]),
            "ingestion": st.sampled_from(["reject", "train"]),
            "max_policy_lag": st.integers(0, 3),
            "order": st.sampled_from(CHOICES["order"]),
            "steps_per_sync": st.integers(1, 2),
            "sync_seconds": st.sampled_from([0.0, 1.5]),
        }
    ),
    st.lists(st.integers(0, 5).map(float) | st.floats(0, 30), min_size=1, max_size=50),
)
@settings(max_examples=200, deadline=None)
def test_the_short_path_is_the_long_path(values, durations):
    """What runs where a unit is a trajectory and nothing stops one gives what the general path gives."""
    short, long = (Model(Rules(**values), Workload(durations), plain=plain).run() for plain in (True, False))
    assert (short.seconds, short.lag_at_bumps) == (long.seconds, long.lag_at_bumps)
    keys = short.trajectories[0].row()
    assert [t.row() for t in short.trajectories] == [{key: t.row()[key] for key in keys} for t in long.trajectories]
    for a, b in ((short.worker_seconds[0], long.worker_seconds[0]), (short.trainer_seconds, long.trainer_seconds)):
        assert {k: v for k, v in a.items() if v} == pytest.approx({k: v for k, v in b.items() if v})


# The four gates
def test_a_budget_that_keeps_the_place_of_rejects_becomes_synchronous():
    """AReaL's paper counts rejected rollouts, its code does not: in the paper's form they use the lead up."""
    system = Rules(submission="budget", submission_batches=3, workers=12, batch_size=4, max_policy_lag=0)
    durations = course_durations(400, 3.0, 7)
    code, paper = simulate(system, durations), simulate(system.but(returns=()), durations)
    assert sum(paper.lags("rejected").values()) == (3 - 1) * 4 < sum(code.lags("rejected").values())
    assert {t.lag for t in paper.trajectories[200:]} == {0}


def test_a_budget_of_taken_batches_that_keeps_the_place_of_rejects_gets_stuck():
    system = Rules(submission="budget", submission_clock="taken", max_policy_lag=0, returns=())
    (hazard,) = hazards(system)
    assert hazard.startswith("deadlock: a group that is rejected keeps its place in the budget")
    with pytest.raises(DeadlockError, match="4 of 4 workers wait for the submission gate"):
        simulate(system, course_durations(96, 3.0, 7))


def test_a_budget_of_taken_batches_makes_the_lag_one():
    system = Rules(submission="budget", submission_clock="taken", in_flight="drain", ingestion="train", workers=8)
    run = simulate(system, course_durations(80, 3.0, 1))
    assert run.lags() == {0: 8, 1: 72}


def test_a_quota_starts_again_at_a_sync_from_what_runs_or_waits():
    system = Rules(submission="quota", submission_batches=2.0, batch_size=2, workers=10, training_seconds=1.0)
    run = simulate(system, [1.0] * 12)
    # 4 start at 0 and end at 1. A step ends at 2: two wait, so two of the quota of 4 may start; and so on.
    assert table(run, "start") == [(t,) for t in [0.0] * 4 + [2.0] * 2 + [3.0] * 2 + [4.0] * 2 + [5.0] * 2]


def test_a_quota_per_sync_is_a_budget_as_long_as_nothing_is_dropped():
    """verl's count that starts again at a sync and AReaL's that never does admit the same, batch for batch."""
    durations = course_durations(400, 3.0, 7)
    quota = Rules(submission="quota", submission_batches=6.0, steps_per_sync=4, workers=64, ingestion="train")
    runs = [simulate(quota.but(submission=rule), durations) for rule in ("quota", "budget")]
    assert [t.row() for t in runs[0].trajectories] == [t.row() for t in runs[1].trajectories]
    assert runs[0].worker_seconds[0]["submission"] > 0


def test_concurrency_bounds_what_runs():
    run = simulate(Rules(workers=8, batch_size=4, concurrency_batches=0.5), course_durations(40, 3.0, 2))
    events = sorted([(t.start, 1) for t in run.trajectories] + [(t.end, -1) for t in run.trajectories])
    running = peak = 0
    for _, change in events:
        running += change
        peak = max(peak, running)
    assert peak == 2
    assert run.worker_seconds[0]["concurrency"] > 0


@pytest.mark.parametrize(("on_full", "left"), [("drop_oldest", 1), ("drop_stalest", 1)])
def test_a_full_queue_drops(on_full, left):
    run = simulate(Rules(**SLOW, queue_batches=1.0, on_full=on_full), [1.0, 1.5, 1.0, 1.0])
    # Task 0 trains from 1 to 5; 1 waits from 1.5; 2 arrives at 2 and pushes it out; 3 arrives at 2.5 and pushes 2 out.
    assert table(run, "task", "status", "ingested")[1:] == [
        (1, "dropped", 2.0),
        (2, "dropped", 2.5),
        (3, "accepted", 5.0),
    ]
    assert len(run.lags("dropped")) == left


def test_the_stalest_is_not_always_the_oldest():
    # Task 1 started under version 0 and arrives last; the oldest in the queue then started under version 1.
    durations = [0.5, 10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    system = Rules(**{**SLOW, "training_seconds": 3.0}, queue_batches=2.0)
    dropped = {
        on_full: [
            t.task for t in simulate(system.but(on_full=on_full), durations).trajectories if t.status == "dropped"
        ]
        for on_full in ("drop_oldest", "drop_stalest")
    }
    assert 1 in dropped["drop_stalest"]
    assert 1 not in dropped["drop_oldest"]


def test_waiting_keeps_the_bound_without_throwing_away():
    durations = course_durations(200, 3.0, 7)
    system = Rules(workers=12, order="oldest_version", max_policy_lag=1, submission="budget", submission_batches=2.0)
    free = simulate(system.but(ingestion="train"), durations)
    kept = simulate(system.but(ingestion="wait"), durations)
    assert max(free.lags()) > 1
    assert max(kept.lags()) <= 1
    assert {t.status for t in kept.trajectories} == {"accepted"}
    assert kept.trainer_seconds["hold"] > 0
    assert kept.seconds > free.seconds


@pytest.mark.parametrize(
    ("order", "trained"),
    [("fifo", [0, 2, 3, 1, 4]), ("oldest_version", [0, 2, 1, 3, 4]), ("freshest", [0, 2, 3, 4, 1])],
)
def test_the_order_of_consumption(order, trained):
    # Steps end at 5, 9, 13, ... Version 0 starts 0, 1, 2, which arrive at 1, 8.5, 2; version 1 starts 3 at 5, version 2
    # starts 4 at 9, and both arrive at once. At 9 the queue holds 3 (version 1) and 1 (version 0), at 13 also 4.
    system = Rules(**SLOW, order=order, submission="budget", submission_batches=3.0)
    run = simulate(system, [1.0, 8.5, 1.0, 0.0, 0.0])
    assert [t.task for t in sorted(run.trajectories, key=lambda t: t.exit.update)] == trained


# Groups, filters, requeue
def test_a_group_trains_together_or_not_at_all():
    run = simulate(Rules(group_size=4, batch_size=2, workers=5, max_policy_lag=0), course_durations(80, 3.0, 6))
    by_task = {}
    for t in run.trajectories:
        by_task.setdefault(t.task, []).append((t.status, t.ingested, t.row()["update"]))
    assert all(len(rows) == 4 and len(set(rows)) == 1 for rows in by_task.values())
    assert {rows[0][0] for rows in by_task.values()} == {"accepted", "rejected"}


def test_filtered_groups_give_their_place_back_or_the_run_gets_stuck():
    work = Workload([1.0] * 80, group_size=4, success=[0.5, 1.0] * 10, seed=3)
    system = Rules(group_size=4, batch_size=2, submission="budget", filter="zero_variance")
    run = simulate(system, work)
    assert sum(run.lags("filtered").values()) >= 40
    assert run.lags("accepted")
    leaking = system.but(returns=("rejected",))
    assert any("filtered keeps its place" in hazard for hazard in hazards(leaking))
    with pytest.raises(DeadlockError):
        simulate(leaking, work)


def test_what_replaces_a_reject():
    durations = course_durations(104, 3.0, 7)
    system = Rules(max_policy_lag=1, workers=8, batch_size=8)
    runs = {rule: simulate(system.but(requeue=rule), durations) for rule in CHOICES["requeue"]}
    trained = {rule: {t.task for t in run.trajectories if t.status == "accepted"} for rule, run in runs.items()}
    assert len(trained["none"]) < 104
    assert trained["same"] == set(range(104))
    assert len(trained["new"]) == 104
    assert max(trained["new"]) > 103

    # Replacing long prompts by new ones shifts the trained durations; making the same again does not.
    def mean(run):
        return report.bias(run)["duration"]["trained"]["mean"]

    assert mean(runs["new"]) < mean(runs["same"]) == pytest.approx(sum(durations) / 104)


def test_a_task_that_is_filtered_for_ever_is_named():
    work = Workload([1.0] * 8, group_size=2, success=[1.0, 0.5, 0.5, 0.5])
    system = Rules(group_size=2, batch_size=1, filter="zero_variance", requeue="same")
    assert any(hazard.startswith("starvation") for hazard in hazards(system))
    with pytest.raises(StarvationError, match="task 0 was made 1001 times and the last was filtered"):
        simulate(system, work)


def test_a_sweep_cancels_what_became_too_old_while_it_ran():
    durations = [40.0] + [1.0] * 60
    system = Rules(workers=4, batch_size=4, max_policy_lag=1, training_seconds=1.0)
    late = simulate(system, durations)
    swept = simulate(system.but(sweep=True), durations)
    assert late.trajectories[0].row()["end"] == 40.0
    first = swept.trajectories[0].row()
    assert first["status"] == "cancelled"
    assert first["end"] == swept.publications[1][0]  # the second version makes it two behind
    assert swept.seconds < late.seconds


# Failures, pools, evaluation
def test_a_worker_that_dies_loses_what_it_runs_and_comes_back():
    durations = course_durations(200, 3.0, 7)
    system = Rules(workers=4, mean_time_to_failure=40.0, restart_seconds=5.0, requeue="same", ingestion="train")
    run = simulate(system, durations)
    lost = [t for t in run.trajectories if t.status == "lost"]
    assert lost
    assert all(t.end < t.start + durations[t.task] for t in lost)
    assert {t.task for t in run.trajectories if t.status == "accepted"} == set(range(200))
    assert run.worker_seconds[0]["down"] > 0
    without = simulate(system.but(requeue="none"), durations)
    gone = {t.task for t in without.trajectories if t.status == "lost"}
    assert {t.task for t in without.trajectories if t.status == "accepted"} == set(range(200)) - gone


def test_dead_workers_that_stay_dead_end_the_run():
    with pytest.raises(DeadlockError, match="4 of 4 workers are dead"):
        simulate(Rules(mean_time_to_failure=1.0, restart_seconds=None), [5.0] * 50)


def test_a_rollout_longer_than_workers_live_is_named():
    system = Rules(mean_time_to_failure=1.0, requeue="same")
    assert any(hazard.startswith("starvation: a rollout much longer than workers live") for hazard in hazards(system))
    with pytest.raises(StarvationError, match="its worker died every time, after 1 s on average"):
        simulate(system, [60.0] * 4)


def test_pools_have_their_own_speed_and_their_own_account():
    run = simulate(Rules(workers=3, pools=((1, 2.0), (2, 0.5)), ingestion="train"), [4.0] * 40)
    assert {t.end - t.start for t in run.trajectories if t.worker == 0} == {2.0}
    assert {t.end - t.start for t in run.trajectories if t.worker > 0} == {8.0}
    assert set(run.time_budget()) == {"pool 0", "pool 1", "trainer"}


def test_evaluation_pauses_the_trainer():
    run = simulate(Rules(evaluation_every=3, evaluation_seconds=7.0), course_durations(96, 3.0, 7))
    assert run.trainer_seconds["evaluation"] == pytest.approx(7.0 * (len(run.steps) // 3))


# What is refused before anything runs
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"concurrency_batches": 0.0}, "no rollout may ever run"),
        (
            {"submission": "quota", "submission_batches": 1.5, "steps_per_sync": 2},
            "12 tasks start and the trainer needs 16",
        ),
        ({"queue_batches": 0.5}, "the queue holds at most 4"),
        ({"pools": ((2, 1.0),)}, "workers is 4, but the pools have 2"),
        ({"pools": ((4, 0.0),)}, "the speed of a pool is 0.0"),
        ({"returns": ("eaten",)}, "returns is 'eaten'; allowed: rejected"),
        ({"mean_time_to_failure": 0.0}, "mean_time_to_failure is 0"),
        ({"steps_per_sync": 0}, "steps_per_sync is 0"),
        ({"sync_seconds": float("inf")}, "sync_seconds is inf"),
        ({"order": "lifo"}, "the rule order is 'lifo'; allowed: fifo"),
    ],
)
def test_impossible_rules_are_refused(change, says):
    with pytest.raises(InputError, match=says):
        Rules().but(**change)


@pytest.mark.parametrize(
    ("work", "rules", "says"),
    [
        (lambda: Workload([1.0] * 5, group_size=2), Rules(), "5 durations; allowed: a multiple of group_size = 2"),
        (lambda: Workload([1.0] * 4, group_size=2), Rules(), "groups of 2; allowed: group_size = 1"),
        (lambda: Workload([1.0] * 2, success=[0.5]), Rules(), "allowed: 2 probabilities"),
        (lambda: Workload([1.0] * 2, success=[0.5, 1.5]), Rules(), "allowed: 2 probabilities"),
        (lambda: [1.0] * 2, Rules(filter="zero_variance"), "there are no rewards"),
    ],
)
def test_work_that_does_not_fit_is_refused(work, rules, says):
    with pytest.raises(InputError, match=says):
        simulate(rules, work())
