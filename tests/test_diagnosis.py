"""The engine: order, memory, what is kept and counted, what could not run; the lab's own runs are clean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labs import diagnosis
from labs.diagnosis import KEPT, diagnose, ordered
from labs.evidence import Finding, Step
from labs.reading import read
from labs.registry import checks, experiments
from labs.shown_rows import Showcase


class Fakes(dict[str, Any]):
    """Checks that are not files."""

    def describe(self, name: str) -> str:
        return f"Is it {name}?"


def finding(step: Step, what: str = "wrong", advice: str = "try less", **more: Any) -> Finding:
    return Finding(what=what, where=step.at(), share="1 of 1", why="it matters", advice=advice, sure="certain", **more)


def make(code: str, check: Callable[..., Iterator[Finding]], *needs: str, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(CODE=code, NEEDS=(needs,), UNLOCK=f"log {', '.join(needs)}", check=check, **more)


def scalars(number: int | None, **values: float) -> Step:
    facts = {"run": "a"}
    return Step(source="x", format="f", step=number, scalars=values, facts=facts)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    monkeypatch.setattr(diagnosis, "checks", made)
    return made


def test_checks_run_in_the_order_of_the_checklist(fakes: Fakes) -> None:
    said: list[str] = []

    def check(name: str) -> Callable[..., Iterator[Finding]]:
        def run(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
            said.append(name)
            yield finding(step)

        return run

    for name, code in (("b", "E2"), ("c", "C10"), ("a", "E12"), ("d", "C2")):
        fakes[name] = make(code, check(name), "loss")
    done = diagnose([scalars(1, loss=0.0)])
    assert said == ["d", "c", "b", "a"]
    assert [kind.check for kind in done.kinds] == said
    assert [kind.findings[0].check for kind in done.kinds] == said
    assert list(done.ran) == said


def test_what_lacks_is_listed_with_how_to_unlock_it(fakes: Fakes) -> None:
    fakes["here"] = make("C1", lambda step, memory: iter(()), "loss")
    fakes["gone"] = make("C2", lambda step, memory: iter(()), "loss", "entropy")
    done = diagnose([scalars(1, loss=0.0), scalars(2, loss=0.0)])
    assert done.ran == {"here": 2}
    assert [(each.check, each.code, each.unlock, each.question) for each in done.unchecked] == [
        ("gone", "C2", "log loss, entropy", "Is it gone?")
    ]
    assert diagnose([scalars(1, loss=0.0)], {"entropy": 1}).ran == {"here": 1, "gone": 1}  # a stated fact


def test_findings_of_a_kind_are_kept_up_to_a_count(fakes: Fakes) -> None:
    def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
        yield finding(step, advice=f"lower it to {0.5 * step.scalars['loss']}")
        if step.step == 7:
            yield finding(step, advice="something else")
            yield finding(step, advice="look", kind="note")

    fakes["many"] = make("C1", check, "loss")
    done = diagnose(scalars(i, loss=float(i)) for i in range(3, 13))
    first, second, note = done.kinds
    assert (first.count, len(first.findings), first.steps) == (10, KEPT, (3, 12))
    assert (second.count, second.steps) == (1, (7, 7))
    assert done.faults == [first, second]
    assert done.remarks == [note]
    assert not done.clean
    assert json.loads(json.dumps(done.document(), allow_nan=False))["kinds"][0]["count"] == 10


def test_notes_alone_are_clean(fakes: Fakes) -> None:
    fakes["note"] = make("C1", lambda step, memory: iter([finding(step, kind="note")]), "loss")
    done = diagnose([scalars(1, loss=0.0)])
    assert done.clean
    assert len(done.remarks) == 1


def test_runs_formats_and_splits_do_not_share_memory(fakes: Fakes) -> None:
    seen: list[int] = []

    def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
        memory["n"] = memory.get("n", 0) + 1
        return iter(())

    def finish(memory: dict[str, Any]) -> Iterator[Finding]:
        seen.append(memory["n"])
        return iter(())

    fakes["counts"] = make("C1", check, "loss", finish=finish)
    other = [scalars(i, loss=0.0) for i in (1, 2, 3, 4)]
    other[3].facts["origin"] = "elsewhere"
    other[0].facts["run"], other[1].format, other[2].facts["validation"] = "b", "g", True
    diagnose([scalars(1, loss=0.0), *other, scalars(2, loss=0.0)])
    assert sorted(seen) == [1, 1, 1, 1, 2]


def test_a_check_that_breaks_is_named_and_the_others_go_on(fakes: Fakes) -> None:
    def breaks(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
        yield finding(step)
        raise ZeroDivisionError("no groups")

    fakes["bad"] = make("C1", breaks, "loss")
    fakes["good"] = make("C2", lambda step, memory: iter([finding(step)]), "loss")
    done = diagnose([scalars(1, loss=0.0)])
    assert done.failed == {"bad": "ZeroDivisionError: no groups"}
    assert [kind.check for kind in done.kinds] == ["bad", "good"]


def test_what_readers_found_comes_first_and_notes_come_once(fakes: Fakes) -> None:
    fakes["c"] = make("C1", lambda step, memory: iter([finding(step)]), "loss")
    steps = [scalars(i, loss=0.0) for i in (1, 2, 3)]
    for i, step in enumerate(steps):
        step.notes = [f"sizes {i + 4}"]
    tail = Step(source="x", format="f", found=[finding(steps[0], check="file", advice="write it again")])
    done = diagnose([*steps, tail])
    assert [kind.check for kind in done.kinds] == ["file", "c"]
    assert done.notes == ["sizes 4 (first of 3 steps, 1 to 3)"]
    assert (done.steps, done.sources, done.formats) == (3, 1, {"f": 3})


def test_every_check_defines_what_the_engine_reads() -> None:
    order = [(checks[name].CODE[0], int(checks[name].CODE[1:])) for name in ordered()]
    assert order == sorted(order)
    for name in ordered():
        assert checks[name].UNLOCK
        assert all(isinstance(needs, tuple) and needs for needs in checks[name].NEEDS)


def rows(**columns: Any) -> Step:
    made = {name: np.asarray(v, dtype=object if isinstance(v[0], str) else None) for name, v in columns.items()}
    return Step(source="x", format="f", step=1, rows=len(next(iter(made.values()))), columns=made)


def test_rows_are_shown_for_a_reason() -> None:
    step = rows(
        score=[1.0, 0.0, 0.0, 1.0, 1.0], gts=["4"] * 5, uid=["a", "a", "b", "c", "c"],
        output=["4", "it is 4", "5", "4", "4"], characters=[1, 7, 1, 1, 1],
        response_mask=[[1, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0]],
    )  # fmt: skip
    shown = {}
    for kind in ("worst", "odd", "same"):
        showcase = Showcase(kind, 2)
        showcase.look(step)
        shown[kind] = showcase.rows()
    assert [row.where[-1] for row in shown["worst"]] == ["1", "2"]
    assert "gold '4' is in the output" in shown["odd"][0].reason
    assert "mask opens 2 times" in shown["odd"][1].reason
    assert "group c: all 2 rows have score 1, all texts equal" in shown["same"][0].reason
    text = shown["odd"][0].text()
    assert "it is 4" in text
    assert "response_mask" in text
    json.dumps([row.document() for row in shown["odd"]])


def test_the_row_that_is_not_finite_comes_first_and_k_rows_are_kept() -> None:
    showcase = Showcase("odd", 2)
    for score in (0.0, float("nan"), 0.5, float("nan"), float("nan")):
        showcase.look(rows(score=[1.0, score], characters=[1.0, 2.0]))
    assert [row.reason for row in showcase.rows()] == ["a number that is not finite"] * 2


def healthy(folder: Path, seed: int, **settings: Any) -> list[str]:
    """A short run of the trainer, its batch of every update saved: what a practitioner would diagnose."""
    from itertools import islice

    from labs.registry import environments
    from labs.step import StepConfig
    from labs.trainer import Trainer, TrainerConfig

    trainer = Trainer(
        environments["arithmetic"],
        TrainerConfig(step=StepConfig(**settings), groups_per_update=6, group_size=8, learning_rate=6.0), seed=seed,
    )  # fmt: skip
    paths = []
    for record in islice(trainer, 3):
        path = folder / f"{record['update']}.npz"
        assert trainer.batch is not None
        trainer.batch.save(path)
        paths.append(str(path))
    return paths


#: Runs that are healthy: what a user would call a normal start of training, by estimator and loss.
HEALTHY: list[dict[str, Any]] = [
    {"estimator": "grpo"}, {"estimator": "rloo"}, {"estimator": "gae"}, {"estimator": "reinforce_plus_plus"},
    {"estimator": "dr_grpo"}, {"estimator": "opo"}, {"estimator": "gpg", "loss": "gpg"}, {"estimator": "trl_grpo"},
    {"estimator": "reinforce_plus_plus_baseline"}, {"estimator": "grpo", "loss_agg_mode": "seq-mean-token-mean"},
]  # fmt: skip


def unsound(paths: list[str], **facts: Any) -> list[str]:
    done = diagnose(read(paths, facts), facts)
    assert not done.failed
    assert len(done.ran) >= 3
    return [f"{kind.check}: {kind.findings[0].what}" for kind in done.faults]


@pytest.mark.parametrize("settings", HEALTHY[:3], ids=str)
def test_saved_batches_of_the_lab_are_clean(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert unsound(healthy(tmp_path, 3, **settings), n=8, estimator=settings["estimator"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("settings", HEALTHY, ids=str)
def test_twenty_saved_runs_of_the_lab_are_clean(tmp_path: Path, settings: dict[str, Any], seed: int) -> None:
    assert unsound(healthy(tmp_path, seed, **settings), n=8, estimator=settings["estimator"]) == []


#: The tiny pipeline rejects on arrival what is older than its bound, and so does throw away long rollouts.
UNHEALTHY = {"pipeline": {"staleness"}}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(experiments))
def test_run_folders_of_every_experiment_are_clean(tmp_path: Path, name: str) -> None:
    from labs.api import run

    tiny = getattr(experiments[name], "TINY", {})
    folder = run(name, seed=7, results=str(tmp_path), **tiny).folder
    assert folder is not None
    done = diagnose(read([folder]))
    assert {kind.check for kind in done.faults} == UNHEALTHY.get(name, set()), done.faults
    assert not done.failed


def test_reference_runs_are_clean() -> None:
    folders = sorted(
        str(path.parent) for path in (Path(__file__).parent.parent / "results" / "reference").glob("*/*/result.json")
    )
    assert len(folders) >= 3
    done = diagnose(read(folders))
    assert (done.sources >= 3, done.clean, done.failed) == (True, True, {})
