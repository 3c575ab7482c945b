"""The page of a diagnosis: what is wrong, where, why it matters, what to try, and what could not be checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labs.evidence import Finding
from labs.report.glossary import Glossary
from labs.report.pages import Html, Section, command, esc, join, name, number, page, table, tag
from labs.report.texts import ui

if TYPE_CHECKING:
    from labs.diagnosis import Diagnosis, Kind, Unchecked


def diagnosis_report(
    found: Diagnosis | Sequence[Finding],
    unchecked: Sequence[Unchecked] = (),
    *,
    typed: str = "",
    reproduced: Sequence[tuple[str, str, Sequence[str]]] = (),
    lang: str = "en",
) -> bytes:
    """One offline HTML page about what `labs diagnose` found.

    Args:
        found: a `labs.diagnosis.Diagnosis`, or bare findings.
        unchecked: beside bare findings, what could not be checked.
        typed: the command, as it was typed.
        reproduced: (check, command, lines of what it showed) of the lab's own runs with the same fault.
        lang: of the page's own words, "en" or "zh".
    """
    from labs.diagnosis import Diagnosis, Kind

    if not isinstance(found, Diagnosis):
        kinds = [Kind(check=each.check, code="", findings=[each], count=1) for each in found]
        found = Diagnosis(kinds=kinds, unchecked=list(unchecked))
    return _Page(found, typed, reproduced, lang).made()


class _Page:
    def __init__(
        self, found: Diagnosis, typed: str, reproduced: Sequence[tuple[str, str, Sequence[str]]], lang: str
    ) -> None:
        self.found, self.typed, self.reproduced, self.lang = found, typed, reproduced, lang
        self.glossary = Glossary(lang)

    def made(self) -> bytes:
        parts = [
            self._verdict(),
            self._kinds("findings", self.found.faults),
            self._kinds("remarks", self.found.remarks),
        ]
        parts += [self._reproductions(), self._unchecked(), self._ran()]
        shown = [part for part in parts if part.body]
        faults = len(self.found.faults)
        verdict = ui("faults", self.lang, n=faults) if faults else ui("clean", self.lang).rstrip(".。")
        title = f"{ui('kind_diagnosis', self.lang)}: {verdict}"
        glossary = self.glossary.section()
        return page(title, [*shown, glossary], lang=self.lang, kind=ui("kind_diagnosis", self.lang))

    def _section(self, key: str, *parts: object) -> Section:
        return Section(id=key, title=ui(key, self.lang), body=join(part for part in parts if part))

    def _verdict(self) -> Section:
        found, lang = self.found, self.lang
        total = sum(kind.count for kind in found.faults)
        said = ui("faults_of", lang, total=total, n=len(found.faults)) if found.faults else ui("clean", lang)
        formats = ", ".join(f"{each} ({count:,})" for each, count in found.formats.items())
        rows = [
            [ui("sources", lang), formats],
            [ui("steps_rows", lang), f"{found.steps:,} / {found.rows:,}"],
            *([ui("stated", lang), f"{key} = {value}"] for key, value in found.facts.items()),
        ]
        order = [
            tag("li", tag("a", self._name(kind), href=f"#{_anchor(kind)}"), f": {kind.findings[0].what}")
            for kind in found.faults
        ]
        notes = [tag("li", self.glossary.foreign(note)) for note in found.notes]
        return self._section(
            "verdict",
            tag("p", said, class_="lead"),
            tag("ul", *order) if order else "",
            command(self.typed, lang) if self.typed else "",
            table(ui("sources", lang), [ui("field", lang), ui("value_head", lang)], rows) if formats else "",
            join([tag("h3", ui("notes", lang)), tag("ul", *notes)]) if notes else "",
        )

    def _kinds(self, key: str, kinds: Sequence[Kind]) -> Section:
        return self._section(key, *(self._kind(kind) for kind in kinds))

    @staticmethod
    def _name(kind: Kind) -> str:
        return f"{kind.code} {kind.check}".strip() or "–"

    def _kind(self, kind: Kind) -> Html:
        lang, first = self.lang, kind.findings[0]
        rows = [
            (ui("where", lang), str(first.where)),
            (ui("share", lang), first.share),
            (ui("why", lang), self.glossary.foreign(first.why)),
            (ui("advice", lang), self.glossary.foreign(first.advice)),
            (ui("sure", lang), ui(first.sure, lang)),
        ]
        facts = tag("dl", *(tag("div", tag("dt", head), tag("dd", tag("p", text))) for head, text in rows if text))
        numbers = [[name(key), number(value)] for key, value in first.numbers.items()]
        others = [
            tag("li", tag("strong", str(each.where)), " ", self.glossary.foreign(each.what))
            for each in kind.findings[1:]
        ]
        more = kind.count - len(kind.findings)
        if more > 0:
            first_step, last_step = kind.steps
            others.append(tag("li", ui("more_like_it", lang, n=more, first=first_step, last=last_step)))
        heads = [ui("number", lang), ui("value_head", lang)]
        return tag(
            "article",
            tag("h3", self._name(kind)),
            tag("p", self.glossary.foreign(first.what)),
            facts,
            table(ui("numbers_of", lang), heads, numbers, numeric=(1,)) if numbers else "",
            tag("details", tag("summary", ui("also", lang, n=kind.count - 1)), tag("ul", *others)) if others else "",
            class_=f"finding {first.sure}",
            id=_anchor(kind),
        )

    def _reproductions(self) -> Section:
        parts: list[object] = []
        for check, typed, lines in self.reproduced:
            parts += [
                tag("h3", name(check)),
                command(typed, self.lang),
                tag("ul", *(tag("li", line) for line in lines)),
            ]
        return self._section("reproduced", *parts)

    def _unchecked(self) -> Section:
        lang = self.lang
        rows = [
            [
                join([f"{each.code} ", name(each.check)]),
                self.glossary.foreign(each.question),
                self.glossary.foreign(each.unlock),
            ]
            for each in self.found.unchecked
        ]
        rows += [[name(check), esc(""), esc(error)] for check, error in self.found.failed.items()]
        heads = [ui("check", lang), ui("question", lang), ui("unlock", lang)]
        switches = [
            tag("li", self.glossary.foreign(sentence), f" ({', '.join(names)})")
            for sentence, names in self.found.unlocks.items()
        ]
        return self._section(
            "unchecked",
            table(ui("unchecked", lang), heads, rows, empty=ui("unchecked_none", lang)),
            join([tag("h3", ui("unlocks", lang)), tag("ul", *switches)]) if switches else "",
        )

    def _ran(self) -> Section:
        wrong = {kind.check for kind in self.found.faults}
        rows = [[name(check), f"{count:,}"] for check, count in self.found.ran.items() if check not in wrong]
        heads = [ui("check", self.lang), ui("steps_head", self.lang)]
        return self._section("ran", table(ui("ran", self.lang), heads, rows, numeric=(1,)) if rows else "")


def _anchor(kind: Kind) -> str:
    """The fragment of a finding: its check, and which of the check's kinds it is."""
    import hashlib

    return f"f-{kind.check or 'x'}-{hashlib.sha256(kind.findings[0].advice.encode()).hexdigest()[:6]}"
