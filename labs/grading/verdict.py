"""What grading found: checks, a verdict, and its record as JSON. No sentence is made here (see `text`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from labs.grading.spec import Exercise

LAYERS = ("contract", "hand", "property", "hidden")
#: What each layer is worth.
WEIGHTS = {"contract": 0.1, "hand": 0.2, "property": 0.3, "hidden": 0.4}

Status = Literal["passed", "failed", "not started", "refused", "broken", "missing", "timeout", "died", "garbage"]

#: Exit code of `check`.
EXIT = {"passed": 0, "failed": 1, "refused": 1, "not started": 2}
CRASHED = 3


@dataclass(frozen=True)
class Finding:
    """Why a check failed: a code that `text` turns into a sentence, and what that sentence shows."""

    code: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One check: `passed` is None when it did not run."""

    layer: str
    name: str
    passed: bool | None = None
    finding: Finding | None = None

    @property
    def id(self) -> str:
        """Layer and name."""
        return f"{self.layer}: {self.name}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of grading one file.

    Attributes:
        exercise: what was graded.
        status: passed only when every check that exists ran and passed and nothing was refused.
        checks: all that exist.
        mistakes: the named mistake, or up to three, whose answers coincide with the student's; empty if none.
        smallest: the smallest failing input found.
        stop: why the process could answer no more, or what was refused.
        printed: the beginning of what the file printed.
    """

    exercise: Exercise
    status: Status
    checks: tuple[Check, ...]
    mistakes: tuple[str, ...] = ()
    smallest: Finding | None = None
    stop: Finding | None = None
    printed: str = ""

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 2 not started, 3 the file crashed, hung or answered nonsense."""
        return EXIT.get(self.status, CRASHED)

    def count(self, layer: str | None = None) -> tuple[int, int, int]:
        """How many checks passed, ran, exist."""
        own = [c for c in self.checks if layer in (None, c.layer)]
        return sum(c.passed is True for c in own), sum(c.passed is not None for c in own), len(own)

    @property
    def score(self) -> float:
        """Weighted share of passed checks by layer; 0 for anything that was refused, crashed or not started.

        Working code with a bug in it passes most checks as it is handed out, so that a bug hunt counts whole or
        not at all.
        """
        if self.status == "passed":
            return 1.0
        if self.status != "failed" or self.exercise.hunt:
            return 0.0
        shares = {layer: self.count(layer) for layer in LAYERS}
        return round(sum(WEIGHTS[k] * passed / max(exist, 1) for k, (passed, _, exist) in shares.items()), 4)

    def record(self) -> dict[str, Any]:
        """JSON: exercise, status, score, counts, every check, the named mistake."""
        passed, ran, exist = self.count()
        return {
            "exercise": self.exercise.name,
            "status": self.status,
            "score": self.score,
            "checks_exist": exist,
            "checks_ran": ran,
            "checks_passed": passed,
            "checks": [{"layer": c.layer, "name": c.name, "passed": c.passed} for c in self.checks],
            "mistakes": list(self.mistakes),
            "refused": self.stop.data.get("what") if self.stop and self.status == "refused" else None,
        }
