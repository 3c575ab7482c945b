"""One HTML file that needs nothing else: no network, no script to be read, no style sheet beside it.

`page` puts sections into a document with landmarks, a table of contents, the glossary of what was used and, apart from
everything else, the stamp. Text is escaped unless it is `Html`, which only the functions of this package make. The
document is well-formed XML, so that a test can read it; its content security policy forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labs.errors import InputError
from labs.report.texts import ui

ASSETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "assets")

#: A page is smaller than this, in bytes.
MOST_BYTES = 2_000_000

#: Characters that XML cannot hold, and the ones that turn the direction of the text around them.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


class TooLargeError(InputError):
    """A page that would not be smaller than `MOST_BYTES`."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def esc(text: object) -> Html:
    """Anything as text that a browser shows as it is; `Html` passes."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_FORBIDDEN.sub("\ufffd", str(text)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element; `class_` is `class`, `_` in other names is `-`; None leaves an attribute out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{esc(key if value is True else value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if not children and name in ("img", "meta", "link", "br"):
        return Html(f"<{name}{given}/>")
    return Html(f"<{name}{given}>{''.join(map(esc, children))}</{name}>")


def plain(markup: Html) -> Html:
    """Markup without its tags."""
    return Html(re.sub("<[^>]+>", "", markup))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other."""
    return Html(esc(between).join(map(esc, parts)))


def name(text: str) -> Html:
    """A name of code, which may break after its underscores and slashes and nowhere else."""
    return tag("code", breakable(text))


def breakable(text: str) -> Html:
    """A name without the look of code."""
    return Html(re.sub(r"([_/.])(?=\w)", r"\1<wbr/>", esc(text)))


def command(text: str, lang: str, label: str | None = None) -> Html:
    """One line to copy; the script puts a button beside it."""
    return tag(
        "div",
        tag("pre", tag("code", *_words(text)), tabindex="0", role="group", aria_label=label or ui("command", lang)),
        class_="copy",
    )


def _words(text: str) -> list[object]:
    """The words of a command, which break between one another and not at a hyphen."""
    return [each if each.isspace() else tag("span", each) for each in re.split(r"(\s+)", text) if each]


def table(
    caption: object,
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numeric: Sequence[int] = (),
    empty: object = "",
) -> Html:
    """A table with its caption, column heads, and the first cell of each row as the head of the row.

    Args:
        caption: what it shows.
        heads: of the columns.
        rows: as many cells each.
        numeric: columns of numbers, aligned right.
        empty: what to say instead of a table without rows.
    """
    rows = list(rows)
    if not rows:
        return tag("p", empty)
    align = dict.fromkeys(numeric, "n")
    head = tag("tr", *(tag("th", each, scope="col", class_=align.get(i)) for i, each in enumerate(heads)))
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=align.get(i)) if i else tag("th", cell, scope="row", class_=align.get(i))
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    inside = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body))
    # Wide tables scroll in a box of their own, which must be reachable by keyboard.
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=plain(esc(caption)))


def picture(content: bytes, kind: str, alt: str, caption: object) -> Html:
    """A figure held in the page itself.

    Args:
        content: the file.
        kind: "png" or "svg+xml".
        alt: what it shows, for who cannot see it.
        caption: below it.
    """
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return tag("figure", tag("img", src=source, alt=alt), tag("figcaption", caption))


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a page.

    Attributes:
        id: its anchor.
        title: its heading.
        body: its content.
    """

    id: str
    title: str
    body: Html


def asset(name: str) -> str:
    """A style sheet or script of this package."""
    with open(os.path.join(ASSETS, name), encoding="utf-8") as file:
        return file.read()


def number(value: object, digits: int = 4) -> str:
    """A number as a person reads it: `digits` significant digits, integers whole, thousands apart."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    text = f"{value:,.{digits}f}" if 1 <= abs(value) < 1e6 else f"{value:.{digits}g}"
    return text.replace("-", "−")


def page(
    title: str,
    sections: Sequence[Section],
    *,
    lang: str = "en",
    kind: str = "",
    stamp: Section | None = None,
    scripts: Sequence[str] = ("page.js",),
) -> bytes:
    """The whole document.

    Args:
        title: of the page.
        sections: in order.
        lang: "en" or "zh".
        kind: what sort of page it is, above the title.
        stamp: the only part that may differ between two runs of one command; it comes last.
        scripts: files of `assets/` to put in.

    Raises:
        TooLargeError: it would not be smaller than `MOST_BYTES`.
    """
    style = asset("page.css")
    script = "\n".join(asset(name) for name in scripts)
    parts = [*sections, *([stamp] if stamp is not None else [])]
    contents = tag("ol", *(tag("li", tag("a", part.title, href=f"#{part.id}")) for part in parts))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    head = join(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy),
            tag("meta", name="color-scheme", content="light dark"),
            tag("link", rel="icon", href="data:,"),
            tag("title", title),
            Html(f"<style>{style}</style>"),
        ],
        "\n",
    )
    body = [
        tag("a", ui("skip", lang), class_="skip", href="#main"),
        tag("header", *([tag("p", kind, class_="kind")] if kind else []), tag("h1", title)),
        tag("nav", tag("h2", ui("contents", lang)), contents, aria_label=ui("contents", lang)),
        tag("main", *(Html("\n" + _section(part)) for part in sections), id="main", tabindex="-1"),
        *([Html("\n<footer>" + _section(stamp) + "</footer>")] if stamp is not None else []),
        Html(f"\n<script>{script}</script>"),
    ]
    words = {"data_lang": lang, "lang": {"zh": "zh-CN"}.get(lang, lang)}
    text = f"<!DOCTYPE html>\n{tag('html', tag('head', head), tag('body', *body), **words)}\n"
    made = text.encode()
    if len(made) >= MOST_BYTES:
        raise TooLargeError(f"the page has {len(made):,} bytes; allowed: fewer than {MOST_BYTES:,}")
    return made


def _section(part: Section) -> Html:
    return tag(
        "section",
        tag("h2", part.title, id=f"{part.id}-title"),
        part.body,
        id=part.id,
        aria_labelledby=f"{part.id}-title",
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
