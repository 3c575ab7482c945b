import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.errors import InputError
from labs.pipeline.accounting import ConservationError
from labs.pipeline.model import DeadlockError, Model, simulate
from labs.pipeline.rules import Rules
from labs.pipeline.workload import course_durations
from tests import pipeline_oracle

# Integers and quarters make many things happen at the same moment: the order of ties is part of the contract.
TIMES = st.one_of(st.integers(0, 6).map(float), st.integers(0, 24).map(lambda n: n / 4), st.floats(0.01, 50))


@st.composite
def systems(draw):
    batch_size = draw(st.integers(1, 6))
    return {
        "workers": draw(st.integers(1, 7)),
        "batch_size": batch_size,
        "training_seconds": draw(TIMES),
        "max_policy_lag": draw(st.none() | st.integers(0, 4)),
        "ahead": draw(st.none() | st.sampled_from([1, 1.5, 2, 3])),
        "capacity": draw(st.none() | st.integers(batch_size, batch_size + 4)),
        "returns": draw(st.booleans()),
    }


def rules(system):
    lag, ahead = system["max_policy_lag"], system["ahead"]
    return Rules(
        workers=system["workers"],
        batch_size=system["batch_size"],
        training_seconds=system["training_seconds"],
        queue_batches=None if system["capacity"] is None else system["capacity"] / system["batch_size"],
        **({"ingestion": "train"} if lag is None else {"max_policy_lag": lag}),
        **({} if ahead is None else {"submission": "budget", "submission_batches": ahead}),
        **({} if system["returns"] else {"returns": ()}),
    )


@given(systems(), st.lists(TIMES, min_size=1, max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_model_equals_a_plain_loop(system, durations):
    seconds, rows = pipeline_oracle.simulate(durations, **system)
    run = simulate(rules(system), durations)
    assert run.seconds == seconds
    assert [t.row() for t in run.trajectories] == [
        {key: row[key] for key in t.row()} for t, row in zip(run.trajectories, rows, strict=True)
    ]


def test_the_model_equals_a_plain_loop_at_length():
    durations = course_durations(3000, 3.0, 1)
    system = {
        "workers": 32,
        "batch_size": 24,
        "training_seconds": 2.0,
        "max_policy_lag": 1,
        "ahead": None,
        "capacity": None,
        "returns": True,
    }
    run = simulate(rules(system), durations)
    seconds, rows = pipeline_oracle.simulate(durations, **system)
    assert (run.seconds, [t.lag for t in run.trajectories]) == (seconds, [row["lag"] for row in rows])


def test_one_batch_ahead_is_the_synchronous_schedule():
    durations = course_durations(97, 3.0, 3)
    run = simulate(Rules(submission="budget"), durations)
    now = 0.0
    for first in range(0, 97, 8):
        free = [now] * 4
        for duration in durations[first : first + 8]:
            free.sort()
            free[0] += duration
        now = max(free) + 2.0
    assert run.seconds == pytest.approx(now, rel=1e-12)
    assert run.lags() == {0: 97}
    assert [step.size for step in run.steps] == [8] * 12 + [1]


@given(systems(), st.lists(TIMES, min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_every_trajectory_leaves_once_and_every_second_is_named(system, durations):
    run = simulate(rules({**system, "returns": True}), durations)
    for t in run.trajectories:
        assert t.start + durations[t.task] == t.end <= t.ingested
        assert t.status in ("accepted", "rejected")
        assert (t.status == "accepted") == (t.row()["trained"] is not None)
    summary = run.summary()
    assert summary["accepted_trajectories"] + summary["rejected_stale_trajectories"] == len(durations)
    assert sum(run.worker_seconds[0].values()) == pytest.approx(system["workers"] * run.seconds, abs=1e-6)
    assert min(run.worker_seconds[0].values(), default=0) >= 0
    # Graham: no list schedule of the rollouts is shorter than the work per worker, or than the longest rollout.
    assert run.seconds >= max(sum(durations) / system["workers"], max(durations)) - 1e-9


def test_a_lag_is_above_the_bound_only_when_rejected():
    run = simulate(Rules(max_policy_lag=2, workers=16), course_durations(500, 3.0, 0))
    assert max(run.lags("accepted")) <= 2 < min(run.lags("rejected"))


def test_a_full_queue_holds_the_worker():
    run = simulate(
        Rules(workers=2, batch_size=1, queue_batches=1.0, training_seconds=10.0, ingestion="train"), [1.0] * 4
    )
    # 1 s: one trains until 11, one waits. 2 s: both workers hold a finished one until the queue drains at 11 and 21.
    assert run.worker_seconds[0] == pytest.approx({"busy": 4.0, "queue full": 28.0, "task": 2 * 41 - 32.0})
    assert [t.ingested for t in run.trajectories] == [1.0, 11.0, 21.0, 31.0]


def test_a_deadlock_is_an_error_that_names_who_waits():
    system = Rules(batch_size=4, workers=2)
    object.__setattr__(system, "queue_batches", 3 / 4)  # what `Rules` refuses: a batch that never fits
    with pytest.raises(
        DeadlockError,
        match=r"trainer waits for a batch of 4 and the queue holds 3; 2 of 2 workers hold a finished group",
    ):
        simulate(system, [1.0, 2.0, 3.0, 4.0, 5.0])


def test_a_broken_law_is_an_error(monkeypatch):
    honest = Model._bump

    def forgetful(self, by):
        honest(self, by)
        self.lag_at_bumps += 1

    monkeypatch.setattr(Model, "_bump", forgetful)
    with pytest.raises(ConservationError, match="conservation of lag"):
        simulate(Rules(), [1.0] * 20)


def test_progress_counts_what_left():
    seen = []
    simulate(Rules(batch_size=2), [1.0] * 9, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (9, 9)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"workers": 0}, "workers is 0; allowed: an integer of at least 1"),
        ({"workers": 2.0}, "workers is 2.0; allowed: an integer"),
        ({"batch_size": True}, "batch_size is True"),
        ({"training_seconds": -1.0}, "training_seconds is -1.0; allowed: a finite number of at least 0"),
        ({"training_seconds": math.nan}, "training_seconds is nan"),
        ({"max_policy_lag": -1}, "max_policy_lag is -1"),
        (
            {"submission": "budget", "submission_batches": 0.5},
            "lets 4 tasks start and the trainer needs 8 before it opens again",
        ),
        ({"queue_batches": 0.9}, "the queue holds at most 7"),
        ({"submission": "bugdet"}, "did you mean budget"),
        ({"worker": 3}, "did you mean workers"),
    ],
)
def test_bad_rules_are_refused(change, says):
    with pytest.raises(InputError, match=says):
        Rules().but(**change)


@pytest.mark.parametrize("durations", [[], [1.0, -1.0], [math.nan], [1.0, math.inf]])
def test_bad_durations_are_refused(durations):
    with pytest.raises(InputError, match=r"needs at least one|the duration of task"):
        simulate(Rules(), durations)


@pytest.mark.parametrize("mean", [0.0, -3.0, math.inf, math.nan])
def test_a_bad_mean_is_refused(mean):
    with pytest.raises(InputError, match="mean duration"):
        course_durations(3, mean, 0)
