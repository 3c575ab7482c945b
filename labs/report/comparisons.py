"""The page of a comparison: one sentence, the differences with their intervals, and the settings that differ."""

from __future__ import annotations

import shlex
from typing import Any

from labs.compare import Comparison, Difference, Run
from labs.metrics import Metric, by_name
from labs.registry import experiments
from labs.report.glossary import Glossary
from labs.report.pages import Html, Section, command, join, name, number, page, picture, table, tag
from labs.report.texts import ui


def comparison_report(found: Comparison, drawn: bytes | None = None, *, lang: str = "en") -> bytes:
    """One offline HTML page about what `labs compare` found.

    Args:
        found: the comparison.
        drawn: its figure as PNG.
        lang: of the page's own words, "en" or "zh".
    """
    glossary = Glossary(lang, _declared(found))

    def section(key: str, *parts: object) -> Section:
        return Section(id=key, title=ui(key, lang), body=join(part for part in parts if part))

    sentence = found.sentence()
    typed = shlex.join(["python", "-m", "labs", "compare", found.a.path, found.b.path])
    sections = [
        section("verdict", tag("p", glossary.foreign(sentence), class_="lead")),
        section(
            "what_ran",
            command(typed, lang),
            _runs(found, lang),
        ),
        section("difference", _differences(found, glossary, lang)),
        section("differing", _settings(found, lang)),
    ]
    if drawn is not None:
        caption = glossary.foreign(f"{found.deciding.name}: A, B and A - B with {found.deciding.difference.name}")
        sections.append(section("figures", picture(drawn, "png", sentence, caption)))
    title = f"A: {_short(found.a)}, B: {_short(found.b)}"
    return page(title, [*sections, glossary.section()], lang=lang, kind=ui("kind_comparison", lang))


def _declared(found: Comparison) -> dict[str, Metric]:
    """The metrics of both experiments; where they declare one name differently, A's."""
    tables = [
        by_name(experiments[run.experiment].METRICS) for run in (found.a, found.b) if run.experiment in experiments
    ]
    return {key: metric for each in reversed(tables) for key, metric in each.items()}


def _short(run: Run) -> str:
    return f"{run.experiment} {run.path.rstrip('/').rpartition('/')[2]}"


def _runs(found: Comparison, lang: str) -> Html:
    from labs.experiment import spell

    rows = [
        [which, run.experiment, name(run.path), spell(sorted(run.values))]
        for which, run in (("A", found.a), ("B", found.b))
    ]
    return table(ui("what_ran", lang), [ui(key, lang) for key in ("run", "experiment", "folder", "seeds")], rows)


def _differences(found: Comparison, glossary: Glossary, lang: str) -> Html:
    heads = [ui("number", lang), "A", "B", "A\u00a0−\u00a0B", ui("interval", lang), ui("says", lang)]
    rows = [[glossary.metric(d.name), *_cells(d), glossary.foreign(d.sentence())] for d in found.differences]
    return table(glossary.text(ui("differences", lang)), heads, rows, numeric=(1, 2, 3, 4))


def _cells(d: Difference) -> list[str]:
    low, high = d.difference.low, d.difference.high
    bounds = "–" if low is None or high is None else f"{number(low)} – {number(high)}"
    return [number(d.a.value), number(d.b.value), number(d.difference.value), bounds]


def _settings(found: Comparison, lang: str) -> Html:
    def word(value: Any) -> str:
        return (
            ", ".join(map(str, value)) if isinstance(value, list) else ui("none", lang) if value is None else str(value)
        )

    rows = [[name(key), word(a), word(b)] for key, a, b in found.settings]
    return table(ui("differing", lang), [ui("setting", lang), "A", "B"], rows, empty=ui("same_settings", lang))
