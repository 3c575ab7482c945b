"""What an exercise is, as data: a folder of `labs/exercises` with a solution, two statements and a declaration.

A folder holds `solution.py` (the reference, one typed function, self-contained), `en.md` and `zh.md` (the
statement, then the hints after a line `<!-- hints -->`), and `__init__.py`, which defines `EXERCISE`. Both
statements take their numbers from the declaration (`{{cases}}` and `{{name}}`), the student's file is made from
the solution (its body removed, or, in the "find the silent bug" form, edited), and a named mistake is an edit of
the solution too, so that everything an exercise says has one source.

Only the standard library is imported here: listing exercises must not wait for torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from labs.errors import InputError

if TYPE_CHECKING:
    from labs.grading.draw import Draw

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

#: Arguments of one call, by parameter: numbers, strings, None, and nested lists of them (what JSON can carry).
Inputs = dict[str, Any]

#: Replace the one occurrence of the first string by the second.
Edit = tuple[str, str]

#: `call(inputs)` runs the answer under test; tensors come back as nested lists.
Call = Callable[[Inputs], Any]


class Text(NamedTuple):
    """One sentence in both languages."""

    en: str
    zh: str

    def get(self, lang: Language) -> str:
        """The sentence in `lang`."""
        return self.zh if lang == "zh" else self.en


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case worked by hand and printed in the statement; `expected` holds what the arithmetic gives."""

    inputs: Inputs
    expected: Any
    note: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Property:
    """Something that must hold for every input: `holds(call, inputs, draw)` raises `Broken` when it does not."""

    name: str
    text: Text
    holds: Callable[[Call, Inputs, Draw], None]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A wrong implementation, as edits of the solution, and the one sentence a student is told who made it."""

    name: str
    edits: tuple[Edit, ...]
    text: Text


def mistake(name: str, *edits: Edit, en: str, zh: str) -> Mistake:
    """A named mistake, written short."""
    return Mistake(name=name, edits=edits, text=Text(en, zh))


def prop(name: str, holds: Callable[[Call, Inputs, Draw], None], en: str, zh: str) -> Property:
    """A property, written short."""
    return Property(name=name, text=Text(en, zh), holds=holds)


class Broken(Exception):  # noqa: N818 - reads as what it says at the place where it is raised
    """A property does not hold: `got` is what came out, `wanted` what it was compared with (nothing, when missing)."""

    def __init__(self, got: Any, *wanted: Any) -> None:
        super().__init__(got, *wanted)
        self.got = got
        self.wanted = wanted


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """The declaration of one exercise.

    Attributes:
        name: of the folder.
        number: place on the ladder.
        title: one line.
        function: the function the student writes.
        minutes: what it takes.
        kinds: parameter -> "float", "int" or "bool" (an array of float64, int64, bool) or "plain" (as it is).
        library: what the arrays are made of: "torch", "numpy" or "python" (nested lists).
        inputs: draws the arguments of one call.
        hand: the cases of the statement.
        properties, mistakes: see there.
        gradient: parameters whose gradient is compared as well (torch only).
        numbers: further numbers of the statement, by the name they have between double braces.
        probes: further inputs that are always among the hidden ones (edge cases random draws seldom meet).
        stub: edits of the solution that make the student's file; None removes the body instead.
        needs: exercises that come before.
        allow: modules of the lab that the student's file may import.
        hidden: how many seeded hidden cases.
        rtol: tolerance relative to the largest entry of the answer.
        examples: how many inputs a property is tried on; 0 does not search for a smallest failing input either.
    """

    name: str
    number: int
    title: Text
    function: str
    minutes: int
    kinds: Mapping[str, str]
    inputs: Callable[[Draw], Inputs]
    hand: tuple[Case, ...]
    properties: tuple[Property, ...]
    mistakes: tuple[Mistake, ...]
    library: str = "python"
    gradient: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    probes: tuple[Inputs, ...] = ()
    stub: tuple[Edit, ...] | None = None
    needs: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    hidden: int = 8
    rtol: float = 1e-6
    examples: int = 40

    @property
    def folder(self) -> Path:
        """Where the exercise lives."""
        return Path(__file__).resolve().parent.parent / "exercises" / self.name

    @property
    def file_name(self) -> str:
        """Name of the student's file."""
        return f"{self.number:02d}_{self.name}.py"

    @property
    def hunt(self) -> bool:
        """True when the student gets working code with a bug in it."""
        return self.stub is not None

    def solution_source(self) -> str:
        """Text of the reference."""
        return (self.folder / "solution.py").read_text(encoding="utf-8")

    def mistake_source(self, *mistakes: Mistake) -> str:
        """Text of a wrong implementation; of several mistakes made together when their edits go together."""
        where = f"exercise {self.name}, mistake {' and '.join(m.name for m in mistakes)}"
        return edited(self.solution_source(), tuple(e for m in mistakes for e in m.edits), where)

    def stub_source(self) -> str:
        """Text of the file that a student starts from."""
        source = self.solution_source()
        if self.stub is not None:
            return edited(source, self.stub, f"exercise {self.name}, stub")
        return without_body(source, self.function)

    def statement(self, lang: Language) -> str:
        """The statement with its numbers filled in."""
        return self._filled(lang).split(HINT_MARK, 1)[0].rstrip() + "\n"

    def hints(self, lang: Language) -> list[str]:
        """The hints, each one paragraph, from gentle to plain."""
        rest = self._filled(lang).split(HINT_MARK, 1)[1]
        return [" ".join(block.split()) for block in rest.strip().split("\n\n") if block.strip()]

    def _filled(self, lang: Language) -> str:
        text = (self.folder / f"{lang}.md").read_text(encoding="utf-8")
        text = text.replace("{{cases}}", "\n".join(self.render_case(i, lang) for i in range(len(self.hand))))
        for name, number in self.numbers.items():
            text = text.replace("{{" + name + "}}", shown(number))
        return text

    def render_case(self, index: int, lang: Language) -> str:
        """One hand case as the statement prints it: the call, and what it must return."""
        case = self.hand[index]
        head = f"# {index + 1}" + (f": {case.note.get(lang)}" if case.note else "")
        return f"{head}\n{render_call(self.function, case.inputs)}\n    -> {shown(case.expected)}"


HINT_MARK = "<!-- hints -->"


def edited(source: str, edits: tuple[Edit, ...], where: str) -> str:
    """Apply edits one after the other; each old text must occur exactly once."""
    for old, new in edits:
        if source.count(old) != 1:
            raise InputError(f"{where}: {old!r} occurs {source.count(old)} times in the solution; it must occur once")
        source = source.replace(old, new)
    return source


def without_body(source: str, function: str) -> str:
    """The source with only imports, constants and `function`, whose body is replaced by `raise NotImplementedError`."""
    tree = ast.parse(source)
    lines = source.splitlines()
    kept = []
    for node in tree.body:
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if isinstance(node, ast.FunctionDef):
            if node.name != function:
                continue
            last = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
            text = "\n".join(lines[node.lineno - 1 : last]) + "\n    raise NotImplementedError"
            text = "\n\n" + text
        elif isinstance(node, ast.Expr):
            text += "\n"
        kept.append(text)
    return "\n".join(kept) + "\n"


def shown(value: Any) -> str:
    """A value as statements and verdicts print it: seven significant digits, nested lists in brackets."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(k)}: {shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shown, value)) + ("," if len(value) == 1 else "") + ")"
    return "[" + ", ".join(map(shown, value)) + "]"


def render_call(function: str, inputs: Inputs) -> str:
    """A call as text: on one line when it is short, else one argument a line."""
    arguments = [f"{name}={shown(value)}" for name, value in inputs.items()]
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= 100:
        return line
    return f"{function}(\n" + "".join(f"    {a},\n" for a in arguments) + ")"


def get(name: str) -> Exercise:
    """The exercise called `name`: its name, its number, or the name of its file.

    Raises:
        InputError: there is none, with close names.
    """
    from labs.registry import exercises

    text = name.removesuffix(".py")
    if text.isdigit():
        for exercise in ladder():
            if exercise.number == int(text):
                return exercise
        raise InputError(f"exercise {name}: the ladder goes from 1 to {len(exercises)}")
    head, _, tail = text.partition("_")
    if head.isdigit() and tail in exercises:
        text = tail
    declared = exercises[text].EXERCISE
    assert isinstance(declared, Exercise)
    return declared


def ladder() -> list[Exercise]:
    """Every exercise, in order."""
    from labs.registry import exercises

    return sorted((exercises[name].EXERCISE for name in exercises), key=lambda e: (e.number, e.name))
