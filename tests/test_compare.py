"""`labs.compare`: pairing, intervals, "cannot tell", and how many seeds would tell."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from labs.compare import Run, compare, load, seeds_that_tell, welch
from labs.errors import InputError
from tests.command_line import run


def made(values, path="x", experiment="agent", **config):
    rows = {seed: {"success_rate": value, "mean_actions": 3.0} for seed, value in values.items()}
    return Run(path=path, experiment=experiment, config=config, values=rows)


def test_pairs_are_seeds_and_the_interval_is_students():
    a = {0: 0.90, 1: 0.94, 2: 0.91, 3: 0.97, 9: 0.1}
    b = {0: 0.86, 1: 0.90, 2: 0.89, 3: 0.92, 8: 0.9}
    found = compare(made(a), made(b)).deciding
    want = stats.ttest_rel([a[s] for s in range(4)], [b[s] for s in range(4)]).confidence_interval()
    assert found.paired
    assert found.difference.n == 4
    assert found.difference.low == pytest.approx(want.low, abs=1e-12)
    assert found.difference.high == pytest.approx(want.high, abs=1e-12)
    assert found.tells
    assert found.sentence().startswith("success_rate: A better by 0.0375, 95 % ")
    assert found.sentence().endswith("4 paired seeds")


def test_the_sentence_turns_with_the_runs():
    a, b = {s: 0.9 + 0.01 * s for s in range(5)}, {s: 0.8 + 0.011 * s for s in range(5)}
    there, back = compare(made(a), made(b)).deciding, compare(made(b), made(a)).deciding
    assert "A better" in there.sentence()
    assert "B better" in back.sentence()
    assert there.difference.value == -back.difference.value


def test_lower_is_better_where_that_is_declared():
    a = Run(path="a", experiment="agent", config={}, values={s: {"invalid_rate": 0.1 + s / 1000} for s in range(4)})
    b = Run(path="b", experiment="agent", config={}, values={s: {"invalid_rate": 0.3 + s / 900} for s in range(4)})
    assert "A better" in compare(a, b).sentence()


def test_it_cannot_tell_and_says_how_many_seeds_would():
    a, b = {0: 0.90, 1: 0.95, 2: 0.91, 3: 0.97}, {0: 0.93, 1: 0.90, 2: 0.92, 3: 0.94}
    found = compare(made(a), made(b)).deciding
    assert not found.tells
    assert found.wanted is not None
    assert found.wanted > 4
    assert f"cannot tell, A - B is {found.difference.value:+.4g}" in found.sentence()
    assert f"about {found.wanted:,} seeds would" in found.sentence()


@pytest.mark.parametrize(("a", "b", "words"), [
    ({7: 0.9}, {7: 0.8}, "cannot tell, one seed: A - B is +0.1"),
    ({7: 0.9}, {8: 0.8}, "one seed each"),
    ({0: 0.9, 1: 0.8}, {0: 0.9, 1: 0.8}, "no difference at all"),
])  # fmt: skip
def test_where_there_is_no_interval_or_no_difference(a, b, words):
    assert words in compare(made(a), made(b)).sentence()


def test_without_common_seeds_the_interval_is_welchs():
    generator = np.random.default_rng(0)
    a, b = generator.normal(1, 1, 9), generator.normal(0, 3, 5)
    want = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    found = welch(list(a), list(b))
    assert (found.low, found.high) == pytest.approx((want.low, want.high), abs=1e-12)
    runs = made(dict(enumerate(a))), made({100 + i: v for i, v in enumerate(b)})
    assert compare(*runs).deciding.difference == found
    assert not compare(*runs).deciding.paired


@pytest.mark.parametrize(("mean", "std"), [(1.0, 1.0), (0.02, 0.05), (-0.3, 0.01)])
def test_the_number_of_seeds_is_the_smallest_with_the_power(mean, std):
    n = seeds_that_tell(mean, std)

    def enough(k):
        return math.sqrt(k) * abs(mean) / std >= stats.t.ppf(0.975, k - 1) + stats.t.ppf(0.8, k - 1)

    assert enough(n)
    assert n == 2 or not enough(n - 1)


def test_the_number_of_seeds_finds_the_difference_in_four_of_five_repetitions():
    n = seeds_that_tell(0.5, 1.0)
    draws = np.random.default_rng(1).normal(0.5, 1.0, (4000, n))
    told = np.abs(draws.mean(1)) > stats.t.ppf(0.975, n - 1) * draws.std(1, ddof=1) / math.sqrt(n)
    assert abs(told.mean() - 0.8) < 0.03  # 4.7 standard errors


def test_nothing_is_asked_where_the_difference_is_zero_or_tiny():
    assert seeds_that_tell(0.0, 1.0) is None
    assert seeds_that_tell(1e-6, 1.0) is None
    assert seeds_that_tell(1.0, math.inf) is None


def test_settings_that_differ_are_listed_and_a_metric_can_be_chosen():
    a, b = made({0: 1.0}, updates=10, old=1), made({0: 1.0}, experiment="train", updates=20)
    found = compare(a, b, "mean_actions")
    assert found.settings == [("experiment", "agent", "train"), ("updates", 10, 20), ("old", 1, "not there")]
    assert found.deciding.name == "mean_actions"
    with pytest.raises(InputError, match=r"--metric is 'success_rat'.*did you mean success_rate"):
        compare(a, b, "success_rat")


def test_the_command_on_stored_runs(tmp_path):
    runs = []
    for rate in ("0.8", "0.4"):
        done = run("--experiment", "agent", "--seeds", "0-3", "--jobs", "1", "--set", f"learning_rate={rate}",
                    "updates=20", "--results", str(tmp_path), "--no-figures", "--quiet")  # fmt: skip
        assert done.code == 0, done.err
        runs.append(done.out.strip())
    said = run("compare", *runs, "--figure", str(tmp_path / "x.png"), whole=True)
    assert said.code == 0, said.err
    assert "learning_rate" in said.out
    assert "4 paired seeds" in said.out
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    document = json.loads(run("compare", *runs, "--json", whole=True).out)
    a, b = load(runs[0]), load(runs[1])
    name = document["differences"][0]["name"]
    apart = [a.values[s][name] - b.values[s][name] for s in range(4)]
    assert document["differences"][0]["difference"]["value"] == pytest.approx(sum(apart) / 4)


@pytest.mark.parametrize("make", ["nothing", "folder", "broken", "list"])
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path, make):
    if make != "nothing":
        (tmp_path / "r").mkdir()
    if make in ("broken", "list"):
        (tmp_path / "r" / "result.json").write_text({"broken": "{", "list": "[1]"}[make])
    said = run("compare", str(tmp_path / "r"), str(tmp_path / "r"), whole=True)
    assert said.code == 2
    word = "is damaged" if make in ("broken", "list") else "is no folder of a complete run"
    assert word in said.err
    assert "Traceback" not in said.err
