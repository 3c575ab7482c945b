"""Run every check of `labs/checks/` over the steps that a reader yields, in the order of the course's checklist.

C1 to C8 come first, then E1 to E12, by each check's `CODE`. A check runs on a step that has what it needs; one that
never did is listed with what to log. Findings are kept `KEPT` a kind and counted beyond that. Steps of different
formats, runs and splits (training, validation) do not mix: every check has a memory for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from labs.evidence import Finding, Step
from labs.registry import checks

#: Findings of one kind of one check that are kept; the others are only counted.
KEPT = 3


@dataclass(kw_only=True)
class Kind:
    """Findings of one check that give the same advice.

    Attributes:
        check, code: which check.
        findings: the first `KEPT` of them.
        count: how many there were.
        steps: the first and the last step they were found in.
    """

    check: str
    code: str
    findings: list[Finding] = field(default_factory=list)
    count: int = 0
    steps: tuple[int | None, int | None] = (None, None)


@dataclass(kw_only=True)
class Unchecked:
    """A check that could not run on any step, and what to log for it."""

    check: str
    code: str
    question: str
    unlock: str


@dataclass(kw_only=True)
class Diagnosis:
    """What came out.

    Attributes:
        kinds: findings, by check in the order of the checklist; what readers found wrong with files first.
        ran: check to the number of steps it looked at, in the same order.
        unchecked: the others.
        failed: checks that broke on these data, with the error: a bug of the lab, not of the data.
        notes: what readers assumed or left out, each once.
        formats: reader to the number of steps it yielded.
        rows: rows read; steps: steps read; sources: files that yielded a step.
        facts: what the user stated.
        unlocks: what to switch on in the software that wrote the files -> the checks that it unlocks.
    """

    kinds: list[Kind] = field(default_factory=list)
    ran: dict[str, int] = field(default_factory=dict)
    unchecked: list[Unchecked] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    formats: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    steps: int = 0
    sources: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    unlocks: dict[str, list[str]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """No fault was found; notes do not count."""
        return not self.faults

    @property
    def faults(self) -> list[Kind]:
        """The kinds of findings that are faults."""
        return [kind for kind in self.kinds if kind.findings[0].kind == "fault"]

    @property
    def remarks(self) -> list[Kind]:
        """The kinds of findings that are worth knowing and not wrong."""
        return [kind for kind in self.kinds if kind.findings[0].kind == "note"]

    def document(self) -> dict[str, Any]:
        """JSON types; numbers that JSON has not stay out."""
        made = asdict(self)
        for kind in made["kinds"]:
            for finding in kind["findings"]:
                finding["where"] = {name: value for name, value in finding["where"].items() if value is not None}
                finding["numbers"] = {name: float(value) for name, value in finding["numbers"].items()}
        return {"clean": self.clean, **made}


def ordered() -> list[str]:
    """The checks in the order of their codes: C1 to C8, then E1 to E12."""
    return sorted(checks, key=lambda name: (checks[name].CODE[0], int(checks[name].CODE[1:]), name))


def diagnose(steps: Iterable[Step], facts: Mapping[str, Any] | None = None) -> Diagnosis:
    """Look at every step once; see the module.

    Args:
        steps: from a reader, lazily.
        facts: what the user states; they are facts of every step.
    """
    return Examination(facts).run(steps)


class Examination:
    """The checks with what each remembers, fed step by step.

    Attributes:
        names: every column, scalar and fact that a step had.

    >>> from labs.evidence import Step
    >>> examination = Examination()
    >>> examination.look(Step(source="a", format="none"))
    >>> examination.end().steps
    1
    """

    def __init__(self, facts: Mapping[str, Any] | None = None) -> None:
        self._facts = {name: value for name, value in (facts or {}).items() if value is not None}
        self._checks = {name: checks[name] for name in ordered()}
        self._memory: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
        self._kinds: dict[tuple[str, str, str], Kind] = {}
        self._notes: dict[str, tuple[str, list[int | None]]] = {}
        self._sources: set[str] = set()
        self.names: set[str] = set()
        self._made = Diagnosis(facts=dict(self._facts))

    def run(self, steps: Iterable[Step]) -> Diagnosis:
        """Look at all steps and end."""
        for step in steps:
            self.look(step)
        return self.end()

    def look(self, step: Step) -> None:
        """Run every check that can on one step."""
        step.facts = {**step.facts, **self._facts}
        for finding in step.found:
            self._keep(finding.check or "file", finding, step.step)
        for note in step.notes:
            self._notes.setdefault(re.sub(r"\d+", "#", note), (note, []))[1].append(step.step)
        if not (step.rows or step.scalars) and (step.found or step.format == "file"):
            return  # only words about files
        made = self._made
        made.steps += 1
        made.rows += step.rows
        made.formats[step.format] = made.formats.get(step.format, 0) + 1
        self._sources.add(step.source)
        self.names.update(step.columns, step.scalars, step.facts)
        key = (step.format, step.facts.get("origin"), step.facts.get("run"), bool(step.facts.get("validation")))
        memories = self._memory.setdefault(key, {})
        for name, module in self._checks.items():
            if any(step.has(*needs) for needs in module.NEEDS):
                made.ran[name] = made.ran.get(name, 0) + 1
                self._ask(name, lambda m=module, n=name: m.check(step, memories.setdefault(n, {})), step.step)

    def end(self) -> Diagnosis:
        """Ask the checks for what they say after the last step, and sum up."""
        for memories in self._memory.values():
            for name, memory in memories.items():
                finish = getattr(self._checks[name], "finish", None)
                if finish is not None:
                    self._ask(name, lambda f=finish, m=memory: f(m), None)
        made, order = self._made, {name: at for at, name in enumerate(self._checks, start=1)}
        made.kinds = sorted(self._kinds.values(), key=lambda kind: order.get(kind.check, 0))
        made.ran = {name: made.ran[name] for name in self._checks if name in made.ran}
        made.unchecked = [
            Unchecked(check=name, code=module.CODE, question=checks.describe(name), unlock=module.UNLOCK)
            for name, module in self._checks.items()
            if name not in made.ran
        ]
        made.notes = [_note(text, numbers) for text, numbers in self._notes.values()]
        made.sources = len(self._sources)
        return made

    def _ask(self, name: str, call: Any, step: int | None) -> None:
        """Collect what one check yields; an error in it becomes a sentence, since data may be anything."""
        try:
            for finding in call() or ():
                self._keep(name, finding, finding.where.step if finding.where.step is not None else step)
        except Exception as error:
            self._made.failed.setdefault(name, f"{type(error).__name__}: {error}")

    def _keep(self, name: str, finding: Finding, step: int | None) -> None:
        """Count a finding under its kind: the same check with the same advice, numbers apart."""
        code = self._checks[name].CODE if name in self._checks else ""
        key = (name, finding.kind, re.sub(r"[\d.]+", "#", finding.advice))
        kind = self._kinds.setdefault(key, Kind(check=name, code=code, steps=(step, step)))
        kind.count += 1
        kind.steps = (kind.steps[0] if kind.steps[0] is not None else step, step if step is not None else kind.steps[1])
        if len(kind.findings) < KEPT:
            kind.findings.append(replace(finding, check=name))


def _note(text: str, numbers: list[int | None]) -> str:
    """A note with how often it was made."""
    steps = [number for number in numbers if number is not None]
    if len(numbers) == 1 or not steps:
        return text
    return f"{text} (first of {len(numbers)} steps, {min(steps)} to {max(steps)})"
