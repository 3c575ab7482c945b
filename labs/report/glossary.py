"""Which numbers and words a page uses, the links to them, and the glossary of exactly those.

A `Glossary` hands out links and remembers what it linked. The entries it renders in the end link to one another too,
until nothing new comes up: every link has an entry and every entry is linked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from labs.metrics import Metric
from labs.report.metrics_zh import TRANSLATED
from labs.report.pages import Html, Section, esc, join, name, number, tag
from labs.report.texts import LANGUAGES, ui
from labs.report.words import WORDS


class Glossary:
    """What one page uses.

    Args:
        lang: "en" or "zh".
        declared: the metrics it may use, by name.
    """

    def __init__(self, lang: str, declared: Mapping[str, Metric] = {}) -> None:
        self._lang = lang
        self._at = LANGUAGES.index(lang)
        self._declared = declared
        self._used: dict[str, None] = {}
        patterns = {key: word.pattern[self._at] for key, word in WORDS.items() if word.pattern[self._at]}
        # Names in backquotes are theirs; in running text only names that no English word could be are taken for one.
        names = [each for each in declared if re.search(r"[_/]", each)]
        known = [f"(?P<w_{key}>{pattern})" for key, pattern in patterns.items()]
        if names:
            exact = "|".join(re.escape(each) for each in sorted(names, key=lambda each: (-len(each), each)))
            known.insert(0, rf"(?P<m_>(?<![\w/])(?:{exact})(?![\w/]))")
        self._known = re.compile("|".join(known))

    def metric(self, metric: str) -> Html:
        """A metric's name, linked; bare text for a name that nothing declares."""
        return self._link(f"m:{metric}", name(metric)) if metric in self._declared else name(metric)

    def word(self, key: str, text: object | None = None) -> Html:
        """A word of `WORDS`, linked, in the page's language or as `text`."""
        return self._link(f"w:{key}", WORDS[key].term[self._at] if text is None else text)

    def text(self, text: str, apart: str = "") -> Html:
        """Running text with `code` in it; the first use of each known word or metric is linked, that of `apart` not."""
        seen = {apart}
        parts: list[object] = []
        for i, piece in enumerate(re.split(r"`([^`]+)`", text)):
            if i % 2:
                parts.append(self.metric(piece))
                continue
            at = 0
            for match in self._known.finditer(piece):
                group = str(match.lastgroup)
                key = f"m:{match[0]}" if group == "m_" else f"w:{group[2:]}"
                if key in seen:
                    continue
                seen.add(key)
                parts += [piece[at : match.start()], self._link(key, match[0])]
                at = match.end()
            parts.append(piece[at:])
        return join(parts)

    def foreign(self, text: str, apart: str = "") -> Html:
        """Running text in English, marked as such on a page in another language, with the same links."""
        if self._lang == "en":
            return self.text(text, apart)
        return tag("span", self._english(text, apart), lang="en")

    def _english(self, text: str, apart: str) -> Html:
        other = Glossary("en", self._declared)
        made = other.text(text, apart)
        self._used.update(other._used)
        return made

    def _link(self, key: str, text: object) -> Html:
        self._used[key] = None
        return tag("a", text, href=f"#{anchor(key)}", class_="g")

    def section(self) -> Section:
        """The glossary: words first, then metrics, each once."""
        made: dict[str, Html] = {}
        while missing := [key for key in self._used if key not in made]:
            for key in missing:
                made[key] = self._word(key[2:]) if key.startswith("w:") else self._metric(self._declared[key[2:]])
        order = sorted(made, key=lambda key: (key.startswith("m:"), self._rank(key)))
        body = join([tag("p", ui("glossary_text", self._lang)), tag("dl", *(made[key] for key in order))])
        return Section(id="glossary", title=ui("glossary", self._lang), body=body)

    def _rank(self, key: str) -> int:
        return list(WORDS if key.startswith("w:") else self._declared).index(key[2:])

    def _word(self, key: str) -> Html:
        word, own = WORDS[key], f"w:{key}"
        formula = word.formula if isinstance(word.formula, str) else word.formula[self._at]
        facts = [
            ("unit", esc(word.unit[self._at] if isinstance(word.unit, tuple) else word.unit)),
            ("formula", tag("code", formula) if formula else None),
            ("healthy", esc(word.healthy[self._at]) if word.healthy[0] else None),
            ("see", join((self.word(other) for other in word.see), ", ") if word.see else None),
        ]
        return self._entry(own, esc(word.term[self._at]), self.text(word.text[self._at], own), facts)

    def _metric(self, metric: Metric) -> Html:
        own = f"m:{metric.name}"
        facts = [
            ("unit", esc(metric.unit)),
            ("formula", self._own(metric.formula, own)),
            ("range", _range(metric)),
            ("healthy", self._own(metric.healthy, own) if metric.healthy else None),
            ("scope", esc(SCOPES.get(metric.scope, metric.scope) if self._lang == "zh" else metric.scope)),
        ]
        text = self._own(metric.text, own) if metric.text else Html("")
        return self._entry(own, name(metric.name), text, facts)

    def _own(self, text: str, apart: str) -> Html:
        """What a metric declares about itself, in the page's language where it is translated."""
        if self._lang == "zh" and text in TRANSLATED:
            return self.text(TRANSLATED[text], apart)
        return self.foreign(text, apart)

    def _entry(self, key: str, term: Html, text: Html, facts: Iterable[tuple[str, Html | None]]) -> Html:
        said = join(
            (tag("span", tag("b", ui(head, self._lang)), " ", fact) for head, fact in facts if fact is not None), " "
        )
        definition = tag("dd", *([tag("p", text)] if text else []), tag("p", said, class_="facts"))
        return tag("div", tag("dt", term), definition, id=anchor(key), tabindex="-1")


#: What a metric is computed over, in Chinese.
SCOPES = {"token": "token", "row": "行", "group": "组", "batch": "批", "update": "更新", "run": "运行"}


def anchor(key: str) -> str:
    """The fragment of an entry: letters, digits, `-` and `_`, different for different keys."""
    return "g-" + re.sub(r"[^A-Za-z0-9_]", lambda match: f"-{ord(match[0]):x}-", key)


def _range(metric: Metric) -> Html | None:
    low, high = metric.low, metric.high
    if low == float("-inf") and high == float("inf"):
        return None
    if high == float("inf"):
        return Html(f"≥ {number(low)}")
    return Html(f"≤ {number(high)}" if low == float("-inf") else f"{number(low)} – {number(high)}")
