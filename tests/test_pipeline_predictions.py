"""What a run prints beside its simulation: covered inside the conditions, flagged outside, formula by formula.

Intervals as in `test_pipeline_theory`: three points, R = 10 independent replications at each, 95 % simultaneous over
the COMPARISONS of this file, so that fresh seeds would fail somewhere in it with probability 5 %.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.pipeline.model import simulate
from labs.pipeline.predictions import MOST_VALUES, theory, thinned
from labs.pipeline.rules import Rules
from labs.pipeline.workload import Workload, course_durations, lognormal_durations, rollout_durations
from tests.test_pipeline_theory import THREE, R, covers, inside

COMPARISONS = 9


def rows_of(rules, tasks, mean=3.0, sigma=0.8):
    """The rows of R independent runs, by name."""
    runs = [simulate(rules, lognormal_durations(tasks, mean, sigma, 300 + r)) for r in range(R)]
    return [{row["name"]: row for row in theory(run)} for run in runs]


def covered(rows, name):
    assert all(row[name]["holds"] for row in rows), rows[0][name]["broken"]
    # Every run predicts from its own durations: the mean of the predictions against those of the simulations.
    predicted = sum(row[name]["predicted"] for row in rows) / R
    covers(predicted, [row[name]["simulated"] - row[name]["predicted"] + predicted for row in rows], COMPARISONS)


@given(inside())
@THREE
def test_seconds_per_step(point):
    workers, batch, training, sigma = point
    system = Rules(workers=workers, batch_size=batch, training_seconds=training, ingestion="train")
    covered(rows_of(system, 80 * batch, sigma=sigma), "seconds per step")


@given(st.integers(8, 24), st.integers(1, 4), st.floats(20.0, 40.0))
@THREE
def test_lag_behind_a_full_queue(workers, queue, training):
    system = Rules(
        workers=workers, batch_size=8, queue_batches=float(queue), training_seconds=training, ingestion="train"
    )
    covered(rows_of(system, 800, sigma=0.5), "mean lag behind a full queue")


@given(st.sampled_from([4, 8, 16]), st.floats(0.4, 1.0), st.floats(0.0, 3.0))
@THREE
def test_the_synchronous_step(batch, sigma, training):
    system = Rules(workers=batch, batch_size=batch, training_seconds=training, submission="budget")
    covered(rows_of(system, 100 * batch, sigma=sigma), "seconds per synchronous step")


#: Formula -> rules outside its conditions, and the condition that fails.
OUTSIDE = {
    "seconds per step": ({"sync_seconds": 1.0}, "instant publication, no evaluation"),
    "trained per second": ({"steps_per_sync": 2}, "a version per step"),
    "mean lag": ({"training_seconds": 60.0}, "rollout-limited, rho"),
    "mean lag from bumps": ({"max_policy_lag": 0}, "every batch full, everything trains"),
    "share with lag 2 or more": ({"submission": "budget", "submission_batches": 1.5}, "no gate closes"),
    "share rejected": ({"in_flight": "drain"}, "nothing stops a rollout"),
    "mean seconds of what trains": ({"order": "freshest"}, "first in first out"),
    "token lag, mean over samples": ({"in_flight": "mixed", "max_policy_lag": 1}, "everything trains"),
    "token lag, mean over tokens": ({"in_flight": "mixed", "max_policy_lag": 1}, "everything trains"),
    "mean lag behind a full queue": ({"queue_batches": 2.0}, "trainer-limited with room to spare"),
    "seconds, at least (Graham)": ({"in_flight": "abort_restart"}, "nothing stops a rollout"),
    "seconds per synchronous step": ({"submission": "budget", "batch_size": 64}, "W = 32 >= B = 64"),
    "the budget closes the gate (1: yes)": (
        {"submission": "budget", "submission_batches": 4.0}, "or a step takes no time",
    ),
    "gain over synchronous, at most": ({"max_policy_lag": 0}, "everything trains"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_its_conditions_a_formula_is_flagged(name):
    changes, condition = OUTSIDE[name]
    durations = lognormal_durations(1600, 3.0, 0.8, 0)
    rules = Rules(workers=32, batch_size=16, training_seconds=0.3).but(**changes)
    sync = simulate(Rules(workers=32, batch_size=16, training_seconds=0.3, submission="budget"), durations)
    row = {row["name"]: row for row in theory(simulate(rules, durations), sync)}[name]
    assert row["holds"] is False
    assert any(condition in text for text in row["broken"]), row["broken"]


def test_a_formula_says_which_condition_fails():
    rows = {row["name"]: row for row in theory(simulate(Rules(), course_durations(96, 3.0, 7)))}
    assert "nothing is rejected" in rows["mean lag"]["broken"]
    assert "at least 40 batches" in rows["share rejected"]["broken"]
    assert rows["total lag"]["broken"] == []
    assert all(row["holds"] == (not row["broken"]) for row in rows.values())
    assert all(row["condition"] for row in rows.values())


def test_pathwise_formulas_are_exact_whatever_the_rules():
    rules = Rules(
        workers=12, batch_size=4, group_size=2, in_flight="abort_resume", sync_seconds=0.5, resume_seconds=0.25,
        submission="budget", submission_batches=6.0, steps_per_sync=2, requeue="same", mean_time_to_failure=200.0,
    )  # fmt: skip
    work = Workload(lognormal_durations(200, 3.0, 1.0, 3, group_size=2), group_size=2, seed=5)
    for run in (simulate(rules, work), simulate(Rules(), course_durations(96, 3.0, 7))):
        rows = {row["name"]: row for row in theory(run)}
        for name in ("total lag", "mean number in flight", "mean number waiting"):
            assert rows[name]["predicted"] == pytest.approx(rows[name]["simulated"], rel=1e-9)
        if rows["seconds, at least (Graham)"]["holds"]:
            assert rows["seconds, at least (Graham)"]["predicted"] <= run.seconds


def test_the_gain_is_below_its_bound():
    durations = rollout_durations(3200, 6.0, 0.8, 1)
    system = Rules(workers=64, batch_size=32, training_seconds=1.0, ingestion="train")
    sync = simulate(system.but(submission="budget"), durations)
    gain = {row["name"]: row for row in theory(simulate(system, durations), sync)}["gain over synchronous, at most"]
    assert gain["holds"]
    assert 1 < gain["simulated"] <= gain["predicted"]


def test_a_law_that_is_thinned_keeps_its_mean():
    law = course_durations(10_007, 3.0, 1)
    thin = thinned(law)
    assert len(thin) == MOST_VALUES
    assert sum(thin) / len(thin) == pytest.approx(sum(law) / len(law), rel=1e-12)
    assert thin == sorted(thin)
    assert thinned([3.0, 1.0]) == [1.0, 3.0]
