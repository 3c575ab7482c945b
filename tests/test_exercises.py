"""The grader is graded: every exercise of the ladder is sound, passes its solution, and rejects everything else."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from labs.errors import InputError
from labs.grading import checks, values
from labs.grading.process import InProcess
from labs.grading.spec import HINT_MARK, LANGUAGES, Exercise, Inputs, edited, get, ladder, without_body
from labs.grading.text import render
from labs.grading.verdict import Verdict

LADDER = ladder()
each = pytest.mark.parametrize("exercise", LADDER, ids=lambda e: e.name)


def quick(exercise: Exercise) -> Exercise:
    """The exercise without its search by hypothesis: contract, hand and hidden cases."""
    return dataclasses.replace(exercise, properties=(), examples=0)


def bare(exercise: Exercise) -> Exercise:
    """The same without mistakes to look for: the verdict alone is of interest."""
    return dataclasses.replace(exercise, properties=(), examples=0, mistakes=())


def runner(exercise: Exercise, source: str | None = None) -> InProcess:
    return InProcess.of_source(exercise, exercise.solution_source() if source is None else source)


@cache
def answers(name: str, mistake: str | None) -> tuple[list[Inputs], list[dict[str, Any]]]:
    """What the solution (None) or a mistake says to every recorded input."""
    exercise = get(name)
    inputs = checks.recorded(exercise)
    chosen = next((m for m in exercise.mistakes if m.name == mistake), None)
    source = exercise.mistake_source(chosen) if chosen else exercise.solution_source()
    return inputs, checks.replies(exercise, runner(exercise, source), inputs)


class Derived:
    """An answer made from the solution's: what a student would send who knows the shape and nothing else."""

    def __init__(self, exercise: Exercise, change: Callable[[Any], Any]) -> None:
        self.refused: list[str] = []
        self.printed = ""
        self._reference = runner(exercise)
        self._change = change

    def answer(self, inputs: Inputs, gradient: bool = False) -> dict[str, Any]:
        reply = self._reference.answer(inputs, gradient)
        reply["out"] = self._change(reply["out"])
        if "gradients" in reply:
            reply["gradients"] = {n: self._change(g) for n, g in reply["gradients"].items()}
        return reply


def filled(number: float) -> Callable[[Any], Any]:
    """Every number of an encoded answer replaced by `number`."""

    def change(value: Any) -> Any:
        if isinstance(value, bool | str) or value is None:
            return value
        if isinstance(value, int | float):
            return number
        ((label, content),) = value.items()
        if label in ("list", "tuple"):
            return {label: [change(v) for v in content]}
        if label == "dict":
            return {label: [[k, change(v)] for k, v in content]}
        return {label: {**content, "data": [change(v) for v in content["data"]]}}

    return change


def test_the_ladder_is_complete_and_in_order() -> None:
    assert [e.number for e in LADDER] == list(range(1, len(LADDER) + 1))
    place = {e.name: e.number for e in LADDER}
    for exercise in LADDER:
        assert all(place[name] < exercise.number for name in exercise.needs), exercise.name


@each
def test_the_declaration_is_whole(exercise: Exercise) -> None:
    assert 8 <= len(exercise.mistakes) <= 15
    assert len(exercise.hand) >= 2
    assert len(exercise.properties) >= 1
    assert exercise.hidden >= 6
    names = [m.name for m in exercise.mistakes]
    assert len(set(names)) == len(names)
    sentences = [text for m in exercise.mistakes for text in m.text]
    assert len(set(sentences)) == len(sentences)
    assert all(re.search("[\u4e00-\u9fff]", m.text.zh) for m in exercise.mistakes)
    for case in exercise.hand:
        assert case.inputs.keys() == exercise.kinds.keys()
    function = runner(exercise)
    assert function.answer(exercise.hand[0].inputs)["out"] is not None


@each
def test_both_statements_say_the_same_numbers(exercise: Exercise) -> None:
    """Code, numbers and placeholders agree; hints come in equal number; nothing is left unfilled."""
    raw = {lang: (exercise.folder / f"{lang}.md").read_text(encoding="utf-8") for lang in LANGUAGES}
    places = [sorted(re.findall(r"\{\{\w+\}\}", text)) for text in raw.values()]
    assert places[0] == places[1]
    assert "{{cases}}" in places[0]
    statements = {lang: exercise.statement(lang) for lang in LANGUAGES}
    for lang, text in statements.items():
        assert "{{" not in text
        assert HINT_MARK not in text
        assert text.startswith("# "), lang
        assert 2 <= len(exercise.hints(lang)) <= 4
    assert len(exercise.hints("en")) == len(exercise.hints("zh"))
    numbers = [set(re.findall(r"\d+(?:\.\d+)?", text.partition(HINT_MARK)[0])) for text in raw.values()]
    assert numbers[0] == numbers[1]
    assert re.search("[\u4e00-\u9fff]", statements["zh"])
    assert not re.search("[\u4e00-\u9fff]", statements["en"])


@each
def test_the_solution_passes_and_hand_cases_are_its_answers(exercise: Exercise) -> None:
    verdict = checks.grade(dataclasses.replace(exercise, examples=8), runner(exercise))
    assert verdict.status == "passed", render(verdict, "en")
    passed, ran, exist = verdict.count()
    assert passed == ran == exist


@each
def test_every_named_mistake_is_rejected_and_named(exercise: Exercise) -> None:
    plain = quick(exercise)
    for mistake in exercise.mistakes:
        verdict = checks.grade(plain, runner(exercise, exercise.mistake_source(mistake)))
        assert verdict.status == "failed", mistake.name
        assert verdict.mistakes == (mistake.name,)
        assert mistake.text.en in render(verdict, "en")
        assert mistake.text.zh in render(verdict, "zh")


@each
def test_mistakes_differ_from_the_solution_and_from_each_other(exercise: Exercise) -> None:
    inputs, solution = answers(exercise.name, None)
    known = {None: solution} | {m.name: answers(exercise.name, m.name)[1] for m in exercise.mistakes}
    names = list(known)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            cases = zip(inputs, known[first], known[second], strict=True)
            assert any(checks.difference(exercise, x, a, b) for x, a, b in cases), (first, second)


@each
def test_stub_zero_and_constants_fail(exercise: Exercise) -> None:
    plain = quick(exercise)
    verdict = checks.grade(plain, runner(exercise, exercise.stub_source()))
    if exercise.hunt:
        assert verdict.status == "failed", "the code with the bug must not pass"
        assert verdict.score == 0.0
        assert verdict.mistakes, "the bug must be one that is named"
    else:
        assert verdict.status == "not started"
        assert verdict.exit_code == 2
    for number in (0.0, 1.0, 0.5):
        assert checks.grade(bare(exercise), Derived(exercise, filled(number))).status == "failed"
    first = answers(exercise.name, None)[1][0]
    constant = Derived(exercise, lambda _: first["out"])
    assert checks.grade(bare(exercise), constant).status == "failed"


@each
def test_memorised_hand_cases_do_not_pass(exercise: Exercise) -> None:
    """An answer that knows the cases of the statement and guesses zero elsewhere."""
    known = answers(exercise.name, None)[0][: len(exercise.hand)]

    class Memory(Derived):
        def answer(self, inputs: Inputs, gradient: bool = False) -> dict[str, Any]:
            if any(repr(inputs) == repr(x) for x in known):
                return self._reference.answer(inputs, gradient)
            return super().answer(inputs, gradient)

    verdict = checks.grade(bare(exercise), Memory(exercise, filled(0.0)))
    assert verdict.count("hand")[0] == len(exercise.hand)
    assert verdict.status == "failed"


@each
def test_a_small_but_real_error_is_seen(exercise: Exercise) -> None:
    """One part in ten thousand: a tolerance that is relative to the answer does not let it through."""

    def nudge(value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value * 1.0001
        if not isinstance(value, dict):
            return value
        ((label, content),) = value.items()
        if label in ("list", "tuple"):
            return {label: [nudge(v) for v in content]}
        if label == "dict":
            return {label: [[k, nudge(v)] for k, v in content]}
        return {label: {**content, "data": [nudge(v) for v in content["data"]]}}

    assert checks.grade(bare(exercise), Derived(exercise, nudge)).status == "failed"


@each
def test_the_student_file_is_code_that_says_what_to_do(exercise: Exercise) -> None:
    source = exercise.stub_source()
    tree = ast.parse(source)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == exercise.function)
    assert ast.get_docstring(function)
    assert ast.get_docstring(tree)
    assert set(exercise.kinds) == {a.arg for a in function.args.args}
    assert all(a.annotation for a in function.args.args)
    assert function.returns is not None


@pytest.mark.slow
@each
def test_every_property_can_fail(exercise: Exercise) -> None:
    """A check that nothing breaks checks nothing."""
    wrong = [runner(exercise, exercise.mistake_source(m)) for m in exercise.mistakes]
    wrong += [Derived(exercise, filled(0.37))]
    sparing = dataclasses.replace(exercise, examples=16)
    for prop in exercise.properties:
        assert any(checks._Grading(sparing, w, 0).property(prop) for w in wrong), prop.name


@pytest.mark.slow
@each
def test_the_whole_matrix_with_its_search(exercise: Exercise) -> None:
    """All layers, under another seed: the solution passes at full strength, every mistake fails."""
    solved = checks.grade(exercise, runner(exercise), seed=20)
    assert solved.status == "passed", render(solved, "en")
    sparing = dataclasses.replace(exercise, examples=8)
    for mistake in exercise.mistakes:
        verdict: Verdict = checks.grade(sparing, runner(exercise, exercise.mistake_source(mistake)), seed=20)
        assert verdict.status == "failed", mistake.name


def test_names_numbers_and_files_find_an_exercise() -> None:
    assert get("1") is get("masked_mean") is get("01_masked_mean") is get("01_masked_mean.py")
    with pytest.raises(InputError, match="did you mean masked_mean"):
        get("masked_means")
    with pytest.raises(InputError, match="the ladder goes from 1 to"):
        get("999")


def test_edits_must_hit_once() -> None:
    assert edited("a b", (("a", "c"),), "here") == "c b"
    with pytest.raises(InputError, match="occurs 2 times"):
        edited("a a", (("a", "c"),), "here")


def test_a_stub_keeps_imports_and_docstrings_only() -> None:
    kept = '"""Top."""\n\nimport math\nK = 2\n\n\n'
    head = 'def f(x: int) -> int:\n    """Doc."""\n'
    source = f"{kept}def help(x):\n    return x\n\n\n{head}    return help(x)\n"
    assert without_body(source, "f") == f"{kept}{head}    raise NotImplementedError\n"


@pytest.mark.parametrize(
    ("got", "wanted", "size", "same"),
    [
        (1.0, 1.0 + 1e-9, 1.0, True),
        (1.0, 1.0001, 1.0, False),
        (1e-9, 1.1e-9, 1e-9, False),  # small answers are compared relative to themselves
        ([0.0, 1e6], [0.5, 1e6], 1.0, True),  # ... an array relative to its largest entry
        ([0.0, 1.0], [1e-5, 1.0], 1.0, False),
        (0.0, 1e-13, 1.0, True),
        (0.0, 1e-9, 1.0, False),
        (float("nan"), float("nan"), 1.0, True),
        (float("nan"), 0.0, 1.0, False),
        (float("inf"), float("inf"), 1.0, True),
        (float("inf"), float("-inf"), 1.0, False),
        (True, 1.0, 1.0, False),
        (True, True, 1.0, True),
        ([1.0], [1.0, 2.0], 1.0, False),
        ({"a": 1.0}, {"a": 1.0}, 1.0, True),
        ({"a": 1.0}, {"b": 1.0}, 1.0, False),
        ("x", "x", 1.0, True),
    ],
)
def test_tolerances_are_relative(got: Any, wanted: Any, size: float, same: bool) -> None:
    assert (values.values(got, wanted, 1e-6, size) is None) is same


def test_the_failing_input_shown_is_a_small_one() -> None:
    """A natural mistake in GAE, ignoring the mask: two tokens are enough to see it."""
    exercise = get("gae")
    mistake = next(m for m in exercise.mistakes if m.name == "ignores_mask")
    verdict = checks.grade(exercise, runner(exercise, exercise.mistake_source(mistake)))
    assert verdict.smallest is not None
    inputs = verdict.smallest.data["inputs"]
    assert len(inputs["rewards"]) <= 2
    assert sorted(map(abs, inputs["rewards"] + inputs["values"]))[-2] == 0.0
    assert "smallest failing input" in render(verdict, "en")
    assert "最小" in render(verdict, "zh")


def test_an_answer_that_changes_from_call_to_call_is_told_so() -> None:
    exercise = get("rloo")
    source = exercise.solution_source().replace("def rloo(", "import itertools\nN = itertools.count()\n\n\ndef rloo(")
    source = source.replace("    return advantages", "    return [a + next(N) for a in advantages]")
    verdict = checks.grade(exercise, runner(exercise, source))
    assert verdict.status == "failed"
    assert {c.name: c.passed for c in verdict.checks if c.layer == "contract"}["same"] is False
    assert "different answers" in render(verdict, "en")


def test_an_answer_that_edits_its_arguments_is_told_so() -> None:
    exercise = get("masked_mean")
    source = exercise.solution_source().replace("    count = mask.sum()", "    count = mask.sum()\n    values *= 2")
    verdict = checks.grade(quick(exercise), runner(exercise, source))
    assert {c.name: c.passed for c in verdict.checks if c.layer == "contract"}["inputs"] is False
    assert "edits its argument values" in render(verdict, "en")


def test_contract_messages_name_what_is_wrong() -> None:
    exercise = get("masked_mean")
    for old, new, words in (
        ("kept.sum() / count.clamp(min=1)", "kept.sum().item()", "returns number, the statement asks for tensor"),
        ("kept.sum() / count.clamp(min=1)", "(kept.sum() / count.clamp(min=1)).float()", "returns dtype float32"),
        ("kept.sum() / count.clamp(min=1)", "(kept.sum() / count.clamp(min=1))[None]", "returns shape [1]"),
        ("return kept", "return 1 / 0 + kept", "it raises ZeroDivisionError: division by zero, line"),
        ("return kept.sum()", "return kept.detach().sum()", "no gradient flows to values"),
    ):
        source = exercise.solution_source().replace(old, new)
        verdict = checks.grade(quick(exercise), runner(exercise, source))
        assert verdict.status == "failed"
        assert words in render(verdict, "en")


def test_a_wrong_gradient_is_called_one() -> None:
    exercise = get("policy_loss")
    mistake = next(m for m in exercise.mistakes if m.name == "detached_ratio")
    verdict = checks.grade(exercise, runner(exercise, exercise.mistake_source(mistake)))
    assert verdict.count("hand") == (3, 3, 3)
    text = render(verdict, "en")
    assert "no gradient flows to log_prob" in text
    assert verdict.smallest is not None
    assert verdict.smallest.code == "gradient"
