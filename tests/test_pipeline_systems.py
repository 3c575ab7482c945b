"""The systems as data: complete, with evidence, runnable, and each changed by the rule that sets it apart."""

import pytest

from labs.errors import InputError
from labs.pipeline import catalogue
from labs.pipeline.model import simulate
from labs.pipeline.rules import Rules
from labs.pipeline.workload import Workload, course_durations, lognormal_durations

SIZES = {"workers": 24, "batch_size": 6, "group_size": 2, "training_seconds": 2.0, "sync_seconds": 0.3}
WORK = Workload(lognormal_durations(150, 3.0, 1.2, 11, group_size=2, within=0.5), group_size=2)

#: The rule that sets the system apart, and another value of it.
APART = {
    "course-asynchronous": {"submission": "budget"},
    "course-synchronous": {"submission": "open"},
    "areal": {"submission": "open"},
    "verl-one-step-off": {"submission_clock": "version"},
    "verl-fully-async": {"steps_per_sync": 1},
    "verl-v1": {"requeue": "none"},
    "slime": {"in_flight": "finish"},
    "prime-rl": {"sweep": False},
    "pipelinerl": {"in_flight": "finish"},
    "nemo-rl": {"max_policy_lag": 0},
    "skyrl": {"ingestion": "reject"},
    "trl": {"concurrency_batches": None},
    "openrlhf": {"queue_batches": None},
    "roll": {"max_policy_lag": 3},
}
#: Where the rule only matters under pressure: a bound that the load above does not reach.
PRESSURE = {
    "trl": {"workers": 60},
    "verl-v1": {"max_policy_lag": 1},
    "prime-rl": {"max_policy_lag": 2},
    "skyrl": {"max_policy_lag": 1},
}


def trace(rules):
    run = simulate(rules, WORK)
    return [t.row() for t in run.trajectories], run


def test_every_system_has_its_test():
    assert sorted(APART) == catalogue.names()
    assert len(catalogue.names()) >= 9


@pytest.mark.parametrize("name", catalogue.names())
def test_the_rule_that_sets_a_system_apart_changes_the_trace(name):
    system = catalogue.load(name)
    (rule,) = APART[name]
    assert system.apart.split(":")[0] == rule
    own = {**SIZES, **PRESSURE.get(name, {})}
    before, run = trace(system.rules(**own))
    after, _ = trace(system.rules(**own, **APART[name]))
    assert before != after
    assert run.lags("accepted")


@pytest.mark.parametrize("name", catalogue.names())
def test_every_rule_has_evidence(name):
    system = catalogue.load(name)
    assert set(system.read) | set(system.assumed) == set(system.values)
    assert not set(system.read) & set(system.assumed)
    assert all(len(why) > 3 for why in (*system.read.values(), *system.assumed.values()))
    assert system.source
    assert len(system.assumptions()) == len(system.assumed)
    # The rule that sets a system apart was found in its source, not made up here.
    assert system.apart.split(":")[0] in system.read


def test_the_course_systems_are_the_course():
    sizes = {"workers": 4, "batch_size": 8, "training_seconds": 2.0}
    durations = course_durations(96, 3.0, 7)
    seconds = {
        name: f"{simulate(catalogue.load(f'course-{name}').rules(**sizes), durations).seconds:.3f}"
        for name in ("synchronous", "asynchronous")
    }
    assert seconds == {"synchronous": "170.369", "asynchronous": "93.860"}


def test_what_the_sources_promise():
    """A property that each source states about its own schedule."""

    def lags(name, *statuses, **settings):
        return simulate(catalogue.load(name).rules(**SIZES, **settings), WORK).lags(*statuses)

    assert set(lags("course-synchronous")) == {0}
    assert set(lags("verl-one-step-off")) == {0, 1}  # 0 is the first batch alone
    assert lags("verl-one-step-off")[0] == 12
    assert max(lags("prime-rl", "accepted")) <= 8
    assert max(lags("nemo-rl", "accepted")) <= 1
    assert max(lags("roll", "accepted")) <= 1
    assert max(lags("trl", "accepted")) <= 4
    assert sum(lags("verl-v1", "accepted").values()) == 300  # exact refill
    # SkyRL bounds the aggregate and not the sample: a straggler trains beyond S and is counted.
    assert max(lags("skyrl", "accepted")) > 4


def test_max_staleness_zero_lets_nothing_run():
    with pytest.raises(InputError, match="no rollout may ever run"):
        catalogue.load("trl").rules(concurrency_batches=0.0, max_policy_lag=0)


def test_a_lag_in_samples_scales_with_the_batch():
    assert catalogue.load("pipelinerl").rules(batch_size=16, group_size=4).max_policy_lag == 4 * 16 * 4


def test_an_unknown_system_has_close_names():
    with pytest.raises(InputError, match="did you mean verl-fully-async"):
        catalogue.load("verl-fuly-async")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[rules]\nlag = { value = 1, read = "x" }', "lag is no rule of a system"),
        ('[rules]\norder = { value = "fifo" }', r"order is marked \[\]"),
        ('[rules]\norder = { value = "fifo", read = "x", assumed = "y" }', "order is marked"),
        ('[rules]\norder = { value = "fifo", read = "x" }', "does not say submission, concurrency_batches"),
    ],
)
def test_a_file_that_is_incomplete_is_refused(tmp_path, monkeypatch, text, says):
    (tmp_path / "mine.toml").write_text(f'title = "t"\nsource = "s"\ntext = "x"\napart = "a"\n{text}\n')
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    with pytest.raises(InputError, match=says):
        catalogue.load("mine")


def test_the_fields_of_a_file_are_rules():
    assert set(catalogue.ALWAYS + catalogue.SOMETIMES) <= set(Rules.__dataclass_fields__)
