"""The four layers of checks, and which named mistake an answer is.

1. contract: it runs, returns the right kind, shape and dtype, edits no argument, gives the same answer twice, and a
   gradient flows where one should;
2. hand: the cases worked out in the statement;
3. property: what must hold for every input, tried on inputs that hypothesis chooses and shrinks;
4. hidden: seeded cases against the reference, value and gradient.

All recorded inputs (the hand cases, the probes, the seeded ones) are asked first; contract, hand and hidden are
judged on those replies, and so is the diagnosis: an answer *is* a named mistake when all its replies coincide with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

from labs.errors import InputError
from labs.grading import values
from labs.grading.draw import Draw, Searched, Seeded
from labs.grading.process import Child, InProcess, Limits, Raised, Runner, Stopped, call
from labs.grading.spec import Broken, Exercise, Inputs, Property
from labs.grading.values import largest, plain
from labs.grading.verdict import Check, Finding, Status, Verdict

HAND_RTOL = 2e-6
#: Inputs tried to make a failing one smaller.
SHRINKS = 150
Reply = dict[str, Any]


def recorded(exercise: Exercise, seed: int = 0) -> list[Inputs]:
    """The inputs every answer is asked: hand cases, probes, and seeded ones."""
    hidden = [exercise.inputs(Seeded(f"{exercise.name}/{seed}/{i}")) for i in range(exercise.hidden)]
    return [*(c.inputs for c in exercise.hand), *exercise.probes, *hidden]


def replies(exercise: Exercise, runner: Runner, inputs: list[Inputs]) -> list[Reply]:
    """What a runner answers to each input, with gradients where the exercise compares them."""
    return [runner.answer(x, bool(exercise.gradient)) for x in inputs]


def difference(exercise: Exercise, inputs: Inputs, got: Reply, wanted: Reply, rtol: float | None = None) -> str | None:
    """Name of the first part in which two replies to one input differ: error, out, after, gradient; None if none."""
    rtol = exercise.rtol if rtol is None else rtol
    if "error" in got or "error" in wanted:
        same = "error" in got and "error" in wanted and got["error"]["type"] == wanted["error"]["type"]
        return None if same else "error"
    size = largest(inputs)
    if values.structure(got["out"], wanted["out"]):
        return "out"
    if values.values(plain(got["out"]), plain(wanted["out"]), rtol, size):
        return "out"
    for name, value in wanted["after"].items():
        if name not in got["after"] or values.values(plain(got["after"][name]), plain(value), rtol, size):
            return "after"
    for name, value in wanted.get("gradients", {}).items():
        if _gradient_difference(got.get("gradients", {}).get(name), value, rtol, size):
            return "gradient"
    return None


def _gradient_difference(got: Any, wanted: Any, rtol: float, size: float) -> values.Difference | None:
    """No gradient at all is the gradient zero."""
    mine, theirs = (None if g is None else plain(g) for g in (got, wanted))
    if mine is None and theirs is None:
        return None
    if theirs is None:
        theirs = _zeros(mine)
    if mine is None:
        mine = _zeros(theirs)
    return values.values(mine, theirs, rtol, size)


def _zeros(value: Any) -> Any:
    return [_zeros(v) for v in value] if isinstance(value, list) else 0.0


def mistakes_of(exercise: Exercise, inputs: list[Inputs], got: list[Reply]) -> tuple[str, ...]:
    """Names of the mistake, or of up to three made together, with which all replies coincide; empty if none."""
    gradient = bool(exercise.gradient)
    for names in chain.from_iterable(combinations(exercise.mistakes, n) for n in (1, 2, 3)):
        try:
            runner = InProcess.of_source(exercise, exercise.mistake_source(*names))
        except (InputError, SyntaxError):  # they do not go together
            continue
        if all(not difference(exercise, x, g, runner.answer(x, gradient)) for x, g in zip(inputs, got, strict=True)):
            return tuple(m.name for m in names)
    return ()


def search(attempt: Callable[[Draw], None], examples: int, seed: int) -> Broken | None:
    """Let hypothesis look for choices that make `attempt` raise `Broken`; the smallest one found, or None.

    Half of the examples are small inputs, and they come first.
    """
    for limit, share in ((1, 4), (2, 4), (None, 2)):
        found = _search(attempt, max(examples // share, 1), seed, limit)
        if found:
            return found
    return None


def _search(attempt: Callable[[Draw], None], examples: int, seed: int, limit: int | None) -> Broken | None:
    import hypothesis
    from hypothesis import strategies as st

    found: list[Broken] = []
    stopped: list[Stopped] = []
    tries = 0

    def run(data: Any) -> None:
        nonlocal tries
        # Counted and not timed, so that the same file always gets the same text. What is tried after the first
        # failure is smaller than it, so that the last failure is the smallest.
        tries += bool(found)
        if stopped or tries > SHRINKS:
            return
        try:
            attempt(Searched(data, limit))
        except Broken as broken:
            found.append(broken)
            raise
        except Stopped as stop:
            stopped.append(stop)

    settings = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    # An answer that differs from call to call makes hypothesis complain; what was found stays found.
    with contextlib.suppress(Broken, hypothesis.errors.HypothesisException):
        hypothesis.seed(seed)(settings(hypothesis.given(st.data())(run)))()
    if stopped:
        raise stopped[0]
    return found[-1] if found else None


class _Grading:
    """One file being graded: which checks exist is known from the start, what they found fills up."""

    def __init__(self, exercise: Exercise, runner: Runner, seed: int) -> None:
        self.exercise = exercise
        self.runner = runner
        self.seed = seed
        self.inputs = recorded(exercise, seed)
        self.results: dict[str, Check] = {}
        hidden = len(self.inputs) - len(exercise.hand)
        names = [("contract", n) for n in ("runs", "returns", "inputs", "same")]
        names += [("contract", "gradient")] if exercise.gradient else []
        names += [("hand", str(i + 1)) for i in range(len(exercise.hand))]
        names += [("property", p.name) for p in exercise.properties]
        parts = ("value", "gradient") if exercise.gradient else ("value",)
        names += [("hidden", f"{i + 1} {part}") for part in parts for i in range(hidden)]
        for layer, name in names:
            self._set(layer, name, None, None)

    def _set(self, layer: str, name: str, passed: bool | None, finding: Finding | None) -> None:
        self.results[f"{layer}: {name}"] = Check(layer, name, passed, finding)

    def judge(self, layer: str, name: str, finding: Finding | None) -> None:
        self._set(layer, name, finding is None, finding)

    def run(self) -> Verdict:
        status: Status = "failed"
        smallest = stop = None
        mistakes: tuple[str, ...] = ()
        try:
            got = replies(self.exercise, self.runner, self.inputs)
            if got[0].get("error", {}).get("type") == "NotImplementedError":
                return Verdict(exercise=self.exercise, status="not started", checks=tuple(self.results.values()))
            if self.runner.refused:
                raise Stopped("refused")
            self.reference = InProcess.of_source(self.exercise, self.exercise.solution_source())
            wanted = replies(self.exercise, self.reference, self.inputs)
            self.contract(got, wanted)
            self.hand(got)
            self.hidden(got, wanted)
            # An answer that never comes has no properties.
            if not all("error" in g for g in got):
                for prop in self.exercise.properties:
                    self.judge("property", prop.name, self.property(prop))
                smallest = None if all(c.passed for c in self.results.values()) else self.smallest()
            if all(c.passed for c in self.results.values()):
                status = "passed"
            else:
                mistakes = mistakes_of(self.exercise, self.inputs, got)
        except Stopped as stopped:
            status, stop = stop_of(stopped)
        if self.runner.refused:
            status, stop, mistakes = "refused", Finding("refused", {"what": self.runner.refused[0]}), ()
        return Verdict(
            exercise=self.exercise,
            status=status,
            checks=tuple(self.results.values()),
            mistakes=mistakes,
            smallest=smallest,
            stop=stop,
            printed=self.runner.printed,
        )

    def contract(self, got: list[Reply], wanted: list[Reply]) -> None:
        cases = list(zip(self.inputs, got, wanted, strict=True))
        self.judge("contract", "runs", next((_raised(x, g) for x, g, _ in cases if "error" in g), None))
        fine = [(x, g, w) for x, g, w in cases if "error" not in g]
        finding = None if fine else Finding("nothing")
        for x, g, w in fine:
            found = values.structure(g["out"], w["out"])
            if found and not finding:
                finding = Finding("structure", {"inputs": x, **found._asdict()})
        self.judge("contract", "returns", finding)
        finding = None if fine else Finding("nothing")
        for x, g, w in fine:
            for name, value in w["after"].items():
                if not finding and (name not in g["after"] or g["after"][name] != value) and not _nan(value):
                    finding = Finding("edited", {"inputs": x, "name": name, "got": plain(g["after"].get(name))})
        self.judge("contract", "inputs", finding)
        finding = None if fine else Finding("nothing")
        for x, g, _ in fine[:2]:
            again = self.runner.answer(x, bool(self.exercise.gradient))
            if not finding and ("error" in again or values.values(plain(again["out"]), plain(g["out"]), 0.0, 0.0)):
                data = {
                    "inputs": x,
                    "got": None if "error" in again else plain(again["out"]),
                    "wanted": plain(g["out"]),
                }
                finding = Finding("differs", data)
        self.judge("contract", "same", finding)
        if self.exercise.gradient:
            finding = None if fine else Finding("nothing")
            for x, g, w in fine:
                for name, value in w["gradients"].items():
                    mine = g.get("gradients", {}).get(name)
                    if not finding and value is not None and largest(plain(value)) and mine is None:
                        finding = Finding("no gradient", {"inputs": x, "name": name})
            self.judge("contract", "gradient", finding)

    def hand(self, got: list[Reply]) -> None:
        for i, case in enumerate(self.exercise.hand):
            self.judge("hand", str(i + 1), self.compare(case.inputs, got[i], case.expected, HAND_RTOL))

    def hidden(self, got: list[Reply], wanted: list[Reply]) -> None:
        for i in range(len(self.exercise.hand), len(self.inputs)):
            x, g, w = self.inputs[i], got[i], wanted[i]
            number = i - len(self.exercise.hand) + 1
            self.judge("hidden", f"{number} value", self.compare(x, g, plain(w["out"]), self.exercise.rtol))
            if self.exercise.gradient:
                self.judge("hidden", f"{number} gradient", self.compare_gradients(x, g, w))

    def compare(self, x: Inputs, got: Reply, wanted: Any, rtol: float) -> Finding | None:
        if "error" in got:
            return _raised(x, got)
        found = values.values(plain(got["out"]), wanted, rtol, largest(x))
        if not found:
            return None
        data = {"inputs": x, "got": plain(got["out"]), "wanted": wanted, "where": found.where}
        return Finding("value", {**data, "entry": (found.got, found.wanted)})

    def compare_gradients(self, x: Inputs, got: Reply, wanted: Reply) -> Finding | None:
        if "error" in got:
            return _raised(x, got)
        for name, value in wanted["gradients"].items():
            mine = got.get("gradients", {}).get(name)
            found = _gradient_difference(mine, value, self.exercise.rtol, largest(x))
            if found:
                data = {
                    "inputs": x,
                    "name": name,
                    "got": None if mine is None else plain(mine),
                    "wanted": None if value is None else plain(value),
                    "where": found.where,
                    "entry": (found.got, found.wanted),
                }
                return Finding("gradient", data)
        return None

    def property(self, prop: Property) -> Finding | None:
        last: dict[str, Any] = {}

        def attempt(draw: Draw) -> None:
            inputs = self.exercise.inputs(draw)
            try:
                prop.holds(lambda x: call(self.runner, x), inputs, draw)
            except Raised as raised:
                last.update(inputs=inputs, error=raised.error)
                raise Broken(None) from raised
            except (Broken, ArithmeticError, LookupError, TypeError, ValueError) as broken:
                # An answer of the wrong structure breaks the arithmetic of the property itself.
                last.clear()
                last.update(inputs=inputs)
                raise broken if isinstance(broken, Broken) else Broken(f"{broken}") from broken

        broken = search(attempt, self.exercise.examples, self.seed)
        if broken is None:
            return None
        data = {**last, "property": prop.name, "got": broken.got, "wanted": list(broken.wanted)}
        return Finding("raised" if "error" in last else "property", data)

    def smallest(self) -> Finding | None:
        """The smallest input on which value or gradient differ from the reference."""
        if not self.exercise.examples:
            return None
        gradient = bool(self.exercise.gradient)
        last: list[Finding] = []

        def attempt(draw: Draw) -> None:
            x = self.exercise.inputs(draw)
            got, wanted = self.runner.answer(x, gradient), self.reference.answer(x, gradient)
            finding = self.compare(x, got, plain(wanted["out"]), self.exercise.rtol)
            if finding is None and gradient:
                finding = self.compare_gradients(x, got, wanted)
            if finding is not None:
                last.append(finding)
                raise Broken(None)

        return last[-1] if search(attempt, 2 * self.exercise.examples, self.seed) and last else None


def _nan(value: Any) -> bool:
    """An argument that holds NaN never equals itself; such cases are not used to judge edits."""
    text = repr(value)
    return "nan" in text


def _raised(x: Inputs, got: Reply) -> Finding:
    return Finding("raised", {"inputs": x, "error": got["error"]})


def stop_of(stopped: Stopped) -> tuple[Status, Finding]:
    """Status and finding for a process that can answer no more."""
    data: dict[str, Any] = {"detail": stopped.detail, "error": stopped.error}
    status: Status = stopped.status  # type: ignore[assignment]
    return status, Finding(status, data)


def grade(exercise: Exercise, runner: Runner, seed: int = 0) -> Verdict:
    """Judge a runner that has started. `seed` chooses the hidden cases and the search for failing inputs."""
    return _Grading(exercise, runner, seed).run()


def grade_source(exercise: Exercise, source: str, seed: int = 0, limits: Limits | None = None) -> Verdict:
    """Judge a student's file, given as text, in a process of its own.

    Raises:
        InputError: hypothesis, which looks for failing inputs, is not installed.
    """
    try:
        import hypothesis  # noqa: F401
    except ImportError as error:
        raise InputError("checking an exercise needs hypothesis: python -m pip install hypothesis") from error
    with Child(exercise, source, limits) as child:
        grading = _Grading(exercise, child, seed)
        try:
            child.start()
        except Stopped as stopped:
            status, stop = stop_of(stopped)
            if child.refused:
                status, stop = "refused", Finding("refused", {"what": child.refused[0]})
            checks = tuple(grading.results.values())
            return Verdict(exercise=exercise, status=status, checks=checks, stop=stop, printed=child.printed)
        return grading.run()
