"""What every experiment promises, held over all of them: a new file is tested by being there."""

import inspect
import json
import math
from functools import cache

import pytest

from labs import jobs, plots
from labs.config import as_dict, settings
from labs.errors import InputError
from labs.experiment import RESERVED, Result, execute, figures
from labs.registry import experiments
from labs.settings import build
from labs.store import dumps

NAMES = sorted(experiments)
SETTINGS = [(name, setting) for name in NAMES for setting in settings(experiments[name].Config)]


@cache
def tiny(name, seed=7, **_):
    """The quick run of an experiment; the same object for every test."""
    module = experiments[name]
    return execute(name, build(module.Config, getattr(module, "TINY", {})), seed)


def output(result: Result) -> str:
    """Everything a run writes that does not merely repeat what was asked for."""
    asked = ("config", "fingerprint", "next", "seed")
    document = {key: value for key, value in result.document().items() if key not in asked}
    files = {name: content.hex() for name, content in result.files.items()}
    return dumps([document, result.metrics, result.trajectories, files])


@pytest.mark.parametrize("name", NAMES)
class TestEvery:
    def test_its_docstring_asks_a_question(self, name):
        assert inspect.getdoc(experiments[name]).split("\n")[0].rstrip().endswith("?")

    def test_its_settings_are_declared(self, name):
        module = experiments[name]
        config = module.Config()
        assert build(module.Config, as_dict(config)) == config
        for setting in settings(module.Config).values():
            assert setting.metadata["help"]
            assert setting.kw_only

    def test_the_same_seed_gives_the_same_bytes_with_and_without_progress(self, name):
        module, calls = experiments[name], []
        config = build(module.Config, getattr(module, "TINY", {}))
        again = execute(name, config, 7, lambda done, total: calls.append((done, total)))
        assert output(again) == output(tiny(name))
        assert all(0 <= done <= total for done, total in calls)

    def test_another_seed_gives_another_result_unless_it_says_that_nothing_is_random(self, name):
        differs = output(tiny(name)) != output(tiny(name, seed=8))
        assert differs == (not getattr(experiments[name], "DETERMINISTIC", False))

    def test_what_it_returns_is_json_and_within_what_its_metrics_declare(self, name):
        result = tiny(name)
        declared = {metric.name: metric for metric in experiments[name].METRICS}
        assert result.headline
        for row in (result.headline, *result.metrics):
            for key, value in row.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    assert key in declared, f"{key} is not declared in METRICS"
                    assert math.isnan(value) or declared[key].holds(value), f"{key} is {value}"
        document = result.document()
        assert json.loads(json.dumps(document)) == document
        assert not set(RESERVED) & set(result.data)

    def test_its_words(self, name):
        result = tiny(name)
        assert 1 <= len(result.summary) <= 5
        assert all(line and "\n" not in line for line in result.summary)
        assert result.conclusion.endswith(".")
        assert len(result.next) == 2
        assert all(line.startswith("python -m labs") for line in result.next)
        shown = [f"{name}, seed {result.seed}", *result.summary, result.conclusion]
        assert repr(result) == "\n".join(shown), "what a notebook shows"

    @pytest.mark.slow
    def test_figures_from_one_seed_from_many_and_from_what_is_stored(self, name):
        one, two = tiny(name), tiny(name, seed=8)
        stored = Result.from_document(json.loads(dumps(one.document())), json.loads(dumps(one.metrics)))
        drawn = plots.files(figures(name, [one]))
        assert drawn
        assert plots.files(figures(name, [stored])) == drawn
        assert sorted(plots.files(figures(name, [one, two]))) == sorted(drawn)

    def test_every_axis_is_labelled(self, name):
        for key, figure in figures(name, [tiny(name)]).items():
            for axes in figure.axes:
                if axes.axison and axes.get_visible():
                    shared = axes.get_shared_x_axes().get_siblings(axes)
                    assert any(other.get_xlabel() for other in shared) or axes.get_label() == "<colorbar>", (
                        f"{name}/{key}"
                    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_every_setting_matters(name, setting):
    module = experiments[name]
    changes = getattr(module, "CHANGES", {})
    assert setting in changes, f"experiments/{name}.py: CHANGES has no other value for {setting}"
    quick = getattr(module, "TINY", {})
    other = changes[setting]
    # A value may be a dictionary of settings, where one matters only together with others.
    values = other if isinstance(other, dict) else {setting: other}
    base = {**quick, **{key: value for key, value in values.items() if key != setting}}
    one = tiny(name) if base == quick else execute(name, build(module.Config, base), 7)
    two = execute(name, build(module.Config, {**quick, **values}), 7)
    assert output(one) != output(two), f"changing {setting} to {values[setting]!r} changed nothing"


class TestExecute:
    def module(self, monkeypatch, result):
        from types import SimpleNamespace

        from experiments import agent

        fake = SimpleNamespace(Config=agent.Config, METRICS=agent.METRICS, run=lambda *_: result, figures=agent.figures)
        monkeypatch.setitem(experiments._extra, "fake", fake)
        return execute("fake", agent.Config(), 7)

    @pytest.mark.parametrize(
        ("result", "word"),
        [
            (Result(data={"seed": 1}), "reserved"),
            (Result(data={}, summary=["x"] * 6), "at most 5"),
            (Result(data={}, headline={"unheard": 1.0}), "unheard"),
        ],
    )
    def test_a_broken_promise_is_named(self, monkeypatch, result, word):
        with pytest.raises(InputError, match=word):
            self.module(monkeypatch, result)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "7"])
def test_seeds_that_some_generator_would_not_take(seed):
    with pytest.raises(InputError, match="seed is"):
        jobs.check_seed(seed)
