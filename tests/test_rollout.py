"""Every reference figure of the rollout experiment, to each printed digit."""

import json
import subprocess
import sys

import pytest

from experiments import rollout
from labs.errors import InputError
from labs.experiment import execute, figures
from labs.settings import build, parse_pairs


def result(seed=7, **settings):
    return execute("rollout", build(rollout.Config, settings), seed)


def figure(data):
    return (
        f"{data['simulated_seconds']:.3f}",
        data["accepted_trajectories"],
        data["rejected_stale_trajectories"],
    )


def test_the_default_figures():
    data = result().data
    sync, away = data["synchronous"], data["asynchronous"]
    assert figure(sync) == ("170.369", 96, 0)
    assert figure(away) == ("93.860", 88, 8)
    assert f"{sync['accepted_per_simulated_second']:.4f}" == "0.5635"
    assert f"{away['accepted_per_simulated_second']:.4f}" == "0.9376"
    assert f"{data['accepted_throughput_ratio']:.3f}" == "1.664"
    assert sync["all_ingest_lag_histogram"] == {"0": 96}
    assert away["all_ingest_lag_histogram"] == {"0": 38, "1": 50, "2": 5, "3": 2, "4": 1}
    assert (sync["accepted_max_lag"], away["accepted_max_lag"]) == (0, 1)
    assert (sync["policy_updates"], away["policy_updates"]) == (12, 11)
    for one, name in ((sync, "synchronous"), (away, "asynchronous")):
        assert one["completed_trajectories"] == len(one["trajectories"]) == 96
        busy = sum(t["end"] - t["start"] for t in one["trajectories"])
        assert one["environment_worker_busy_fraction"] == pytest.approx(busy / (4 * one["simulated_seconds"])), name
        assert one["trainer_busy_fraction"] == pytest.approx(2.0 * one["policy_updates"] / one["simulated_seconds"])


@pytest.mark.parametrize(
    ("settings", "synchronous", "asynchronous"),
    [
        ({"max_policy_lag": 0}, ("170.369", 96, 0), ("93.860", 56, 40)),
        ({"max_policy_lag": 3}, ("170.369", 96, 0), ("95.860", 95, 1)),
        ({"training_seconds": 10.0}, ("266.369", 96, 0), ("103.860", 59, 37)),
    ],
)
def test_the_figures_of_the_course_tasks(settings, synchronous, asynchronous):
    data = result(**settings).data
    assert figure(data["synchronous"]) == synchronous
    assert figure(data["asynchronous"]) == asynchronous


def test_rollout_time_is_apart_from_queue_time():
    found = result()
    for name in rollout.SCHEDULES:
        data = found.data[name]
        trained = [t for t in data["trajectories"] if t["status"] == "accepted"]
        parts = data["seconds_of_a_trained_trajectory"]
        assert parts["rollout"] == pytest.approx(sum(t["end"] - t["start"] for t in trained) / len(trained))
        assert parts["queue"] == pytest.approx(sum(t["ingested"] - t["end"] for t in trained) / len(trained))
        assert parts["training"] == pytest.approx(2.0)
        assert f"{name}: rollout {parts['rollout']:.3f} s + queue {parts['queue']:.3f} s" in found.summary[3]


def test_the_trajectories_of_the_result_are_the_asynchronous_ones():
    found = result()
    assert found.trajectories == found.data["asynchronous"]["trajectories"]
    assert {t["status"] for t in found.trajectories} == {"accepted", "rejected"}
    # Rollout time and queue time are separate, and both can be read off a row.
    assert all(t["end"] > t["start"] and t["ingested"] >= t["end"] for t in found.trajectories)


def test_a_row_per_step_that_agrees_with_the_trajectories():
    found = result()
    for name in rollout.SCHEDULES:
        for row in (r for r in found.metrics if r["schedule"] == name):
            batch = [t for t in found.data[name]["trajectories"] if t["update"] == row["update"]]
            assert len(batch) == row["size"]
            assert {(t["ingested"], t["trained"], t["ingestion_version"]) for t in batch} == {
                (row["start"], row["end"], row["version"])
            }
            assert row["mean_lag"] == pytest.approx(sum(t["lag"] for t in batch) / len(batch))
            assert row["mean_queue_seconds"] == pytest.approx(sum(t["ingested"] - t["end"] for t in batch) / len(batch))


def test_every_number_is_declared_and_in_its_range():
    found = result()
    declared = {metric.name: metric for metric in rollout.METRICS}
    for name, value in found.headline.items():
        assert declared[name].holds(value)
    for row in found.metrics:
        assert all(declared[name].holds(value) for name, value in row.items() if name != "schedule")


def test_the_same_seed_gives_the_same_bytes_in_another_process():
    code = (
        "import json; from experiments.rollout import Config; from labs.experiment import execute;"
        "print(json.dumps(execute('rollout', Config(), 11).document()))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(other) == json.loads(json.dumps(result(11).document()))
    assert other.strip() == json.dumps(result(11).document())


def test_neither_torch_nor_numpy_is_imported():
    code = (
        "import sys; from experiments.rollout import Config, run; run(Config(), 7);"
        "print([m for m in ('torch', 'numpy', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tasks": 0}, "tasks is 0; allowed: an integer at least 1"),
        ({"workers": 0}, "workers is 0"),
        ({"batch_size": -1}, "batch_size is -1"),
        ({"training_seconds": -0.5}, "training_seconds is -0.5"),
        ({"duration_mean": 0.0}, "duration_mean is 0.0; allowed: a number above 0"),
        ({"max_policy_lag": -1}, "max_policy_lag is -1"),
        ({"max_policy_lag": 1.5}, "max_policy_lag is 1.5; allowed: an integer"),
        ({"max_lag": 1}, "did you mean max_policy_lag"),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(InputError, match=says):
        build(rollout.Config, settings)


@pytest.mark.parametrize("settings", [{"training_seconds": 0.0}, {"tasks": 1}, {"batch_size": 200}, {"workers": 200}])
def test_the_edges_of_the_settings_run(settings):
    data = result(**settings).data
    assert data["synchronous"]["accepted_trajectories"] == data["synchronous"]["completed_trajectories"]
    assert data["accepted_throughput_ratio"] > 0


@pytest.mark.parametrize("setting", rollout.CHANGES)
def test_every_setting_changes_the_result(setting):
    assert result(**{setting: rollout.CHANGES[setting]}).data != result().data


@pytest.mark.parametrize("seeds", [(7,), (1, 2, 3)])
def test_the_figures_draw_and_say_n(seeds):
    drawn = figures("rollout", [result(seed, **rollout.TINY) for seed in seeds])
    assert set(drawn) == {"schedules", "queue", "lags", "throughput"}
    for fig in drawn.values():
        titles = [axes.get_title(loc="left") for axes in fig.axes] + [fig.get_suptitle()]
        assert any("n = 16" in text or f"n = {16 * len(seeds)}" in text for text in titles)
        for axes in fig.axes:
            bottom = axes.get_subplotspec().is_last_row()
            assert axes.get_xlabel() or not bottom


def test_the_queue_figure_counts_what_waits():
    from labs import timelines

    rows = result().trajectories
    times, lengths = timelines.queue(rows)
    for time, length in zip(times, lengths, strict=True):
        assert length == sum(r["end"] <= time < r["ingested"] for r in rows)
    assert timelines.accepted(rows)[1][-1] == 88


@pytest.mark.parametrize("settings", [{}, {"max_policy_lag": 0}, {"training_seconds": 10}, {"tasks": 20, "workers": 2}])
def test_what_it_suggests_next_is_something_else(settings):
    config = build(rollout.Config, settings)
    for line in execute("rollout", config, 7).next:
        pairs = line.partition("--set ")[2].partition(" --seeds")[0].split()
        suggested = build(rollout.Config, parse_pairs(rollout.Config, pairs))
        assert ("--seeds" in line) == (suggested == config), line
        assert suggested.tasks == config.tasks, "the settings of this run are kept"


def test_throughput_is_drawn_to_the_end_of_the_run():
    default = execute("rollout", build(rollout.Config, {}), 7)
    lines = figures("rollout", [default])["throughput"].axes[0].get_lines()
    for name, line in zip(rollout.SCHEDULES, lines, strict=True):
        rate = line.get_ydata()[-1] / line.get_xdata()[-1]
        assert rate == pytest.approx(default.data[name]["accepted_per_simulated_second"])
