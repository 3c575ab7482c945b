"""`labs simulate`: the report, what it writes, and what it refuses."""

import json
import random
import subprocess
import sys
from itertools import pairwise

import pytest

from experiments import pipeline
from experiments.pipeline import setup
from labs import timelines
from labs.errors import InputError
from labs.experiment import execute
from labs.pipeline import catalogue
from labs.pipeline.rules import CHOICES
from labs.pipeline.told import SECTIONS
from labs.settings import build, parse_pairs
from tests.command_line import environment, run

SMALL = ("--set", "tasks=160", "workers=16", "batch_size=8")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def simulate(*arguments):
    return run("simulate", *arguments, whole=True)


def test_the_report_has_every_section_and_says_where_the_files_are(tmp_path):
    said = simulate("verl-fully-async", *SMALL)
    assert (said.code, said.err) == (0, "")
    heads = [line.split()[0] for line in said.out.splitlines() if not line.startswith(" ")]
    assert heads == [*SECTIONS, "files", "next"]
    (folder,) = (tmp_path / "results" / "pipeline").iterdir()
    assert {path.name for path in (folder / "figures").iterdir()} == {
        "versions.png", "queue.png", "budget.png", "frontier.png",
    }  # fmt: skip
    trace = json.loads((folder / "trace.json").read_text())
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "C"}
    again = simulate("verl-fully-async", *SMALL)
    assert "stored by an earlier run" in again.out
    assert again.out.splitlines()[:-3] == said.out.splitlines()[:-3]


def test_the_two_commands_that_are_suggested_run():
    said = simulate("slime", *SMALL, "--no-figures")
    lines = said.out.splitlines()[-2:]
    for line in lines:
        command = line.removeprefix("next").split()
        assert command[:4] == ["python", "-m", "labs", "simulate"]
        assert run(*command[3:], "--no-figures", whole=True).code == 0


def test_the_course_figures_come_out_of_the_course_systems():
    course = ["--set", "tasks=96", "workers=4", "batch_size=8", "duration_mean=3", "straggler_factor=5"]
    course += ["training_seconds=2", "--show", "outcome"]
    away, sync = simulate("course-asynchronous", *course), simulate("course-synchronous", *course)
    assert "93.860 simulated s" in away.out
    assert "88 trained, 8 rejected" in away.out
    assert "170.369 simulated s" in sync.out
    for lag, trained in ((0, 56), (3, 95)):
        assert f"{trained} trained" in simulate("course-asynchronous", *course, "--set", f"max_policy_lag={lag}").out
    assert (
        "59 trained, 37 rejected"
        in simulate("course-asynchronous", *course[:-3], "training_seconds=10", *course[-2:]).out
    )


def test_json_many_seeds_and_an_output_file(tmp_path):
    document = json.loads(simulate("trl", *SMALL, "--json", "--no-figures").out)
    assert (document["experiment"], document["system"]["name"]) == ("pipeline", "trl")
    for shares in document["time_budget"].values():
        assert sum(shares.values()) == pytest.approx(1)
    assert {"sample_in_queue", "trainer_blocked", "generator_blocked"} == set(document["waits"])
    assert "fully_async/trainer/idle_ratio" in document["frameworks"]
    said = simulate("trl", *SMALL, "--seeds", "0-2", "--no-figures")
    assert said.code == 0
    assert "trained_per_second" in said.out
    assert json.loads(simulate("trl", *SMALL, "--output", "o.json", "--no-figures").out)["output"] == "o.json"


def test_the_list_of_systems():
    said = simulate("--list")
    assert [line.split()[0] for line in said.out.splitlines()] == catalogue.names()


@pytest.mark.parametrize("arguments", [["--list"], ["--help"], ["nothing"], ["trl", "--set", "workers=0"]])
def test_lists_and_mistakes_import_nothing_heavy(arguments):
    code = (
        "import sys; from labs.__main__ import group; from labs.console import guard; from labs.terminal import invoke;"
        f"guard(invoke, group, 'labs', ['simulate', *{arguments!r}]);"
        "print(sorted({'numpy', 'torch', 'matplotlib', 'simpy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stderr.splitlines()[-1] == "[]"


IMPOSSIBLE = [
    # sizes and times
    "course-asynchronous workers=0", "course-asynchronous workers=-3", "course-asynchronous workers=1.5",
    "course-asynchronous tasks=0", "course-asynchronous tasks=2000000", "course-asynchronous batch_size=0",
    "course-asynchronous group_size=0", "course-asynchronous training_seconds=-1",
    "course-asynchronous training_seconds=nan", "course-asynchronous duration_mean=0",
    "course-asynchronous duration_mean=inf", "course-asynchronous sigma=-1", "course-asynchronous within=1.5",
    "course-asynchronous cap=0", "course-asynchronous sync_seconds=soon", "course-asynchronous straggler_every=0",
    "course-asynchronous max_policy_lag=-1", "course-asynchronous steps_per_sync=0",
    "course-asynchronous mean_time_to_failure=0", "course-asynchronous tasks=600000 group_size=2",
    # names
    "course-asynchronus", "course-asynchronous wokers=3", "course-asynchronous in_flight=stop",
    "course-asynchronous order=lifo", "course-asynchronous returns=gone", "course-asynchronous ingestion=maybe",
    # what the gates can never hold
    "course-asynchronous queue_batches=0.5", "course-asynchronous concurrency_batches=0.001",
    "course-synchronous submission_batches=0.5", "course-synchronous steps_per_sync=2",
    "verl-fully-async submission_batches=3", "course-asynchronous version_unit=step steps_per_sync=4",
    # what does not fit together
    "course-asynchronous pools=3x1", "course-asynchronous pools=64", "course-asynchronous pools=64x0",
    "course-asynchronous filter=zero_variance group_size=4", "course-asynchronous success=0.5",
    "course-asynchronous success=0.9,0.1", "course-asynchronous success=0.5,1.5",
    "course-asynchronous vary=workers", "course-asynchronous system=trl",
    "course-asynchronous submission=open submission_batches=3", "slime submission=open returns=filtered",
    "course-asynchronous success=[[0,1]]",
    # times beyond what seconds can be added to, and below what they can be told apart
    "course-asynchronous duration_mean=1e308", "course-asynchronous duration_mean=1e-320",
    "course-asynchronous sigma=10 duration_mean=1e300", "course-asynchronous straggler_factor=1e300",
    "course-asynchronous workers=1 pools=1x1e-300", "course-asynchronous pools=64x1e-320",
    "course-asynchronous training_seconds=1e308", "course-asynchronous sync_seconds=1e308",
    "course-asynchronous cap=1e-320", "course-asynchronous mean_time_to_failure=1e-320",
    "course-asynchronous evaluation_seconds=1e308", "course-asynchronous resume_seconds=1e308",
]  # fmt: skip


@pytest.mark.parametrize("line", IMPOSSIBLE)
def test_what_is_impossible_is_refused_with_one_sentence_before_anything_runs(line, tmp_path, monkeypatch):
    monkeypatch.setattr("labs.pipeline.model.simulate", None)
    system, *pairs = line.split()
    said = simulate(system, *(["--set", *pairs] if pairs else []))
    assert said.code == 2
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "vary",
    [
        "workers", "workers=", "workers=0", "workers=4/order=lifo", "a=1", "workers+tasks=3", "vary=1", "frontier=no",
        "workers=1,2,3,4,5/tasks=1,2,3,4,5/batch_size=1,2,3",
        "max_policy_lag=0,0", "sigma=1,1.0", "workers=4,5/sigma=1,2,1", "submission_batches=1,2",
    ],
)  # fmt: skip
def test_a_vary_that_cannot_run_is_refused(vary):
    said = simulate("course-asynchronous", "--vary", vary)
    assert (said.code, len(said.err.strip().splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "options", [["--show", "all"], ["--show", "lag", "--json"], ["--show", "lag", "--seeds", "0-3"]]
)
def test_show_prints_sections_and_nothing_else(options):
    assert simulate("trl", *SMALL, *options).code == 2
    said = simulate("trl", *SMALL, "--show", "waits,lag")
    assert [line.split()[0] for line in said.out.splitlines() if not line.startswith(" ")] == ["waits", "lag"]


def test_the_examples_of_the_help_are_lines_of_their_own():
    examples = [line.strip() for line in simulate("--help").out.splitlines() if line.startswith("  labs simulate ")]
    assert len(examples) == 3
    assert all(example.count("labs simulate") == 1 for example in examples)


@pytest.mark.parametrize(("workers", "says"), [(8, False), (20, True)])
def test_a_chart_says_how_many_workers_it_leaves_out(workers, says):
    from labs import plots

    with plots.style():
        figure = pipeline.figures([result(workers=workers, frontier=False)])["versions"]
    assert ("16 of 20 workers" in figure.get_suptitle()) is says


def test_a_table_without_rows_is_refused():
    said = simulate("areal", *SMALL, "--show", "table", "--set", "frontier=false")
    assert (said.code, said.out) == (2, "")
    assert "has no row" in said.err


@pytest.mark.parametrize(
    "extreme",
    [
        {"duration_mean": 1e9, "sigma": 10.0, "straggler_factor": 1e6, "workers": 1, "pools": ["1x1e-6"]},
        {"duration_mean": 1e-9, "sigma": 10.0, "training_seconds": 1e9, "sync_seconds": 1e9},
        {"training_seconds": 1e9},
        {"straggler_every": 1, "straggler_factor": 1e-320, "training_seconds": 0.0},
    ],
)
def test_the_ends_of_the_ranges_run(extreme):
    found = execute("pipeline", build(pipeline.Config, {**pipeline.TINY, "sigma": 10.0, **extreme}), 7)
    assert found.headline["kept"] > 0
    for line in found.next:  # what is suggested there is in range too
        pairs = line.split(" --set ")[1].split(" --vary ")
        values = dict(pair.split("=", 1) for pair in pairs[0].split())
        build(pipeline.Config, {**parse_pairs(pipeline.Config, [f"{k}={v}" for k, v in values.items()]),
                                "vary": pairs[1]})  # fmt: skip


def test_a_side_that_waits_most_of_the_time_does_not_set_the_pace():
    """One batch at a time: the trainer is the slower side, and yet hardly ever busy."""
    machines = {"tasks": 640, "workers": 64, "batch_size": 32, "duration_mean": 6.0, "frontier": False}
    tight = {"training_seconds": 4.0, "submission_batches": 4.0, "sigma": 1.6}
    found = result(system="verl-fully-async", **machines, **tight)
    assert found.headline["trainer_busy"] < 0.5
    assert found.data["report"]["limits"][0].endswith("what it waits for sets the pace")
    assert "training is the slower side, yet busy only" in found.conclusion
    open_gate = result(system="verl-fully-async", **machines, training_seconds=4.0, sigma=0.5)
    assert open_gate.headline["trainer_busy"] > 0.5
    assert open_gate.data["report"]["limits"][0].endswith("training is slower")


def test_a_deadlock_is_a_sentence_in_the_table_and_an_error_alone():
    stuck = ("--set", "filter=zero_variance", "group_size=4", "batch_size=4", "success=0,1", "tasks=200")
    said = simulate("skyrl", *stuck, "--vary", "returns=filtered,lost", "--show", "table")
    assert said.code == 0
    assert "returns=lost" in said.out
    assert said.out.splitlines()[-1].split("returns=lost")[1].strip().startswith("deadlock at ")
    assert simulate("skyrl", *stuck, "--set", "returns=lost").code == 2


def test_what_is_set_by_hand_is_no_longer_assumed():
    before = simulate("slime", *SMALL, "--show", "system,assumed")
    after = simulate("slime", *SMALL, "order=freshest", "--show", "system,assumed")
    assert "order = fifo" in before.out
    assert "order = fifo" not in after.out
    assert "changed: order = freshest" in after.out


def result(**settings):
    return execute("pipeline", build(pipeline.Config, {**pipeline.TINY, **settings}), 7)


def test_the_bound_that_is_varied_is_the_one_that_the_system_has():
    rules = {name: setup.bounds(setup.rules(pipeline.Config(system=name))[1])[0] for name in catalogue.names()}
    assert rules["course-asynchronous"] == rules["prime-rl"] == rules["trl"] == "max_policy_lag"
    assert rules["skyrl"] == rules["verl-fully-async"] == rules["slime"] == "submission_batches"
    assert rules["openrlhf"] == "queue_batches"
    for name in catalogue.names():
        rows = result(system=name).data["frontier"]["rows"]
        assert len(rows) >= 2
        assert all("trained_per_second" in row or row["refused"].startswith("deadlock") for row in rows)


def test_the_frontier_rises_with_the_bound():
    rows = result(tasks=800).data["frontier"]["rows"]
    rates = [row["trained_per_second"] for row in rows]
    assert rates == sorted(rates)
    assert [row["lag_max"] for row in rows][:3] == [0, 1, 2]


def test_a_frontier_with_a_learner_inside_has_a_third_panel():
    from labs import plots

    rows = [{"bound": b, "trained_per_second": 1.0 + b, "lag_mean": b / 2, "lag_max": b, "success": 0.9 - b / 10}
            for b in (0, 1, 2)]  # fmt: skip
    with plots.style():
        _, panels = plots.figure(3, 1, sharex=True)
        bands = timelines.frontier(panels, [rows, [*rows[:2], {"bound": 2, "refused": "deadlock"}]], own=1)
    (learning,) = [line for line in panels[2].lines if line.get_label() == "success"]
    assert list(learning.get_ydata()) == pytest.approx([0.9, 0.8])  # a bound that stopped in one seed is left out
    assert bands == ["band: 95 % t interval of the mean over 2 seeds"]


def test_vary_runs_every_combination_and_pairs():
    varied = result(vary="in_flight=drain,mixed/sigma=0.5,1").data["varied"]
    assert [row["setting"] for row in varied] == [
        f"in_flight={rule} sigma={sigma}" for rule in ("drain", "mixed") for sigma in ("0.5", "1")
    ]
    paired = result(vary="workers+training_seconds=4+1,8+2").data["varied"]
    assert [row["setting"] for row in paired] == ["workers=4 training_seconds=1", "workers=8 training_seconds=2"]
    alone = result(workers=4, training_seconds=1.0).data["measures"]
    assert {key: paired[0][key] for key in alone} == alone


def test_the_parts_of_a_rollout_fill_it():
    data = result(system="verl-fully-async", sync_seconds=0.4, resume_seconds=0.2, steps_per_sync=1).data
    published = {version: time for time, version in data["publications"]}
    several = 0
    for row in data["gantt"]:
        parts = timelines.segments(row, published, 0.2)
        assert parts[0][1] == row["start"]
        assert parts[-1][2] == pytest.approx(row["end"])
        assert all(a[2] <= b[1] + 1e-9 for a, b in pairwise(parts))
        assert sum(end - begin for _, begin, end in parts) == pytest.approx(sum(s for _, s in row["spans"]))
        several += len(parts) > 1
    assert several


def drawn(generator):
    """Settings that a user might combine, sensible or not."""
    pick = generator.choice
    settings = {
        "system": pick(catalogue.names()), "tasks": pick([1, 2, 7, 40]), "workers": pick([1, 3, 8, 50]),
        "batch_size": pick([1, 3, 8]), "group_size": pick([1, 1, 3]), "training_seconds": pick([0.0, 1.0, 7.0]),
        "sync_seconds": pick([0.0, 0.5]), "sigma": pick([0.0, 1.0, 2.5]), "straggler_factor": pick([0.0, 1.0, 5.0]),
        "cap": pick([None, 4.0]), "success": pick([(), (0.0, 1.0)]), "mean_time_to_failure": pick([None, None, 15.0]),
        "evaluation_every": pick([0, 2]), "evaluation_seconds": 2.0, "frontier": False,
    }  # fmt: skip
    for name, words in CHOICES.items():
        if generator.random() < 0.2:
            settings[name] = pick(words)
    for name, values in {"max_policy_lag": [0, 1, 5], "steps_per_sync": [1, 3], "queue_batches": [0.0, 1.0]}.items():
        if generator.random() < 0.3:
            settings[name] = pick(values)
    return settings


def test_whatever_is_combined_runs_within_its_ranges_or_is_refused_with_a_sentence():
    generator, ran, refusals = random.Random(3), 0, []
    metrics = {metric.name: metric for metric in pipeline.METRICS}
    for _ in range(120):
        settings = drawn(generator)
        try:
            found = execute("pipeline", build(pipeline.Config, settings), 7)
        except InputError as error:
            refusals.append(str(error))
            continue
        ran += 1
        assert all(metrics[name].holds(value) for name, value in found.data["measures"].items()), settings
        for shares in found.data["time_budget"].values():
            assert not shares or sum(shares.values()) == pytest.approx(1)
        assert "NaN" not in json.dumps(found.document()), settings
    assert 60 < ran < 120
    assert all(len(sentence) > 20 and "\n" not in sentence for sentence in refusals)
