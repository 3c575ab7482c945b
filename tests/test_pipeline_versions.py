"""Rules of the pipeline on what runs during a sync, on versions, and on the learner."""

import pytest

from labs.errors import InputError
from labs.pipeline.model import simulate
from labs.pipeline.rules import CHOICES, Rules
from labs.pipeline.workload import course_durations
from tests.small_pipelines import table


# In flight at an update: one rollout of 10 s, a step at 1-3 s, then publication in 2 s
def in_flight(rule, **more):
    rules = Rules(workers=2, batch_size=1, ingestion="train", in_flight=rule, sync_seconds=2.0, **more)
    return simulate(rules, [1.0, 10.0])


def test_finish_leaves_it_alone():
    assert table(in_flight("finish"), "start", "end", "lag")[1] == (0.0, 10.0, 1)


def test_drain_waits_for_it():
    run = in_flight("drain")
    assert table(run, "start", "end", "lag")[1] == (0.0, 10.0, 1)
    assert [time for time, _ in run.publications] == [12.0, 16.0]
    assert run.trainer_seconds["drain"] == 7.0


def test_abort_and_restart_starts_from_scratch():
    run = in_flight("abort_restart")
    assert table(run, "task", "attempt", "start", "end", "status", "lag")[1:] == [
        (1, 0, 0.0, 3.0, "aborted", 0),
        (1, 1, 5.0, 15.0, "accepted", 0),
    ]
    assert run.generated() == {"accepted": 11.0, "aborted": 3.0}


def test_abort_and_resume_keeps_the_tokens():
    run = in_flight("abort_resume", resume_seconds=0.5)
    (row,) = table(run, "start", "end", "lag", "spans")[1:]
    assert row == (0.0, 12.5, 1, [[0, 3.0], [1, 7.0]])
    assert run.prefill_seconds == 0.5
    assert run.trajectories[1].token_lag == pytest.approx(0.3)
    assert [run.trajectories[1].version_at(f) for f in (0.0, 0.29, 0.31, 0.99)] == [0, 0, 1, 1]
    assert run.worker_seconds[0]["sync"] == 2 * 2 * 2.0  # both workers in both syncs


def test_mixed_goes_on_and_changes_weights_under_way():
    (row,) = table(in_flight("mixed"), "start", "end", "lag", "spans")[1:]
    assert row == (0.0, 10.0, 1, [[0, 5.0], [1, 5.0]])


# Versions
def test_a_version_can_count_steps_syncs_or_samples():
    durations = [1.0] * 24
    common = {"workers": 4, "batch_size": 2, "group_size": 2, "training_seconds": 1.0, "ingestion": "train"}
    lags = {}
    for unit in CHOICES["version_unit"]:
        run = simulate(Rules(**common, version_unit=unit, steps_per_sync=3), durations)
        lags[unit] = max(run.lags())
        assert run.publications[0][1] == {"sync": 1, "step": 3, "sample": 12}[unit]
    assert lags["sample"] == 4 * lags["step"]


def test_several_steps_per_sync_age_even_a_fresh_trajectory():
    """Lag per step, not per sync: what is generated on the newest weights is behind before it trains."""
    system = Rules(workers=4, batch_size=2, version_unit="step", steps_per_sync=4, ingestion="train")
    run = simulate(system, course_durations(64, 3.0, 4))
    assert run.lag_at_starts > 0
    with pytest.raises(InputError, match="even a new trajectory is 3 behind and is rejected"):
        system.but(ingestion="reject", max_policy_lag=2)


# The learner
class Diary:
    """A learner that writes down what it is asked."""

    def __init__(self):
        self.sampled, self.trained = {}, []

    def sample(self, task, version):
        self.sampled[task] = [version(f) for f in (0.0, 0.5, 0.999)]
        return self.sampled[task]

    def train(self, batch):
        self.trained.append([(t.task, t.payload) for t in batch])


@pytest.mark.parametrize("rule", CHOICES["in_flight"])
def test_the_learner_samples_with_the_versions_that_made_the_tokens(rule):
    diary = Diary()
    run = simulate(Rules(in_flight=rule, sync_seconds=1.0, ingestion="train"), course_durations(60, 3.0, 7), diary)
    trained = [t for t in run.trajectories if t.status == "accepted"]
    assert sum(map(len, diary.trained)) == len(trained) == 60
    for t in trained:
        assert t.payload == [t.version_at(f) for f in (0.0, 0.5, 0.999)]
    mixed = sum(versions[0] != versions[-1] for versions in diary.sampled.values())
    assert (mixed > 0) == (rule in ("abort_resume", "mixed"))


def test_the_n_th_training_makes_version_n():
    class Counting(Diary):
        def sample(self, task, version):
            assert version(0.0) <= len(self.trained)
            return super().sample(task, version)

    run = simulate(Rules(), course_durations(60, 3.0, 7), Counting())
    assert run.publications[-1][1] == len(run.steps)


def test_the_learner_may_say_how_long_a_rollout_takes():
    class Shrinking(Diary):
        def seconds(self, task, version):
            return 8.0 / (1 + version)

    run = simulate(Rules(), course_durations(96, 3.0, 7), Shrinking())
    assert all(t.end - t.start == pytest.approx(8.0 / (1 + t.start_version)) for t in run.trajectories)
