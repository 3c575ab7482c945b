"""The figures of a run inside a page: SVG where it is smaller than PNG, with what they show in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labs.report.glossary import Glossary
from labs.report.pages import Html, esc, join, picture, tag
from labs.report.texts import ui

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Dots per inch of a PNG in a page that is otherwise too large.
COARSE = 72

#: More bytes than this no single figure may take.
MOST = 600_000


def drawn(figures: Mapping[str, Figure], glossary: Glossary, lang: str, coarse: bool = False) -> Html:
    """Every figure with its words; one that takes more than `MOST` bytes is named and left out.

    Args:
        figures: by name; call inside `labs.plots.style()`.
        glossary: gets the words of the captions.
        lang: "en" or "zh".
        coarse: small PNGs.
    """
    from labs import plots

    parts = []
    for name, figure in figures.items():
        plots.settle(figure)
        kinds = [("png", plots.png(figure, COARSE))] if coarse else [
            ("png", plots.png(figure)), ("svg+xml", plots.svg(figure))
        ]  # fmt: skip
        kind, content = min(kinds, key=lambda each: len(each[1]))
        if len(content) > MOST:
            parts.append(tag("p", ui("figure_left_out", lang, name=name)))
            continue
        said = describe(figure)
        caption = join([tag("strong", name), ". ", glossary.foreign(said)])
        parts.append(picture(content, kind, f"{name}: {said}", caption))
    return join(parts) if parts else esc("")


def describe(figure: Figure) -> str:
    """What a figure shows, from its titles, axis names and lines: enough to know what one cannot see."""
    said = [_clean(figure.get_suptitle())] if figure.get_suptitle() else []
    for axes in figure.axes:
        title = _clean(axes.get_title(loc="left") or axes.get_title())
        x, y = _clean(axes.get_xlabel()), _clean(axes.get_ylabel())
        names = _labels(axes)
        parts = [title] if title else []
        parts += [" against ".join(part for part in (y, x) if part)] if x or y else []
        parts += ["shown: " + ", ".join(f"“{each}”" for each in names)] if names else []
        if parts:
            said.append("; ".join(parts))
    return ". ".join(said) + ("." if said else "")


def _labels(axes: Any) -> Sequence[str]:
    _, labels = axes.get_legend_handles_labels()
    return list(dict.fromkeys(_clean(label) for label in labels))


def _clean(text: str) -> str:
    return " ".join(str(text).replace("$", "").split())
