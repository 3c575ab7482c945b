"""The report of a run: the question, the answer, what was typed, numbers, figures, replay, glossary, stamp."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labs import replay
from labs.config import as_dict, changed, settings, spelled
from labs.errors import InputError
from labs.experiment import Result, figures, spell
from labs.metrics import Metric, by_name
from labs.registry import experiments
from labs.replay import Episode, Schedule
from labs.report import figures as drawing
from labs.report.gantt import pipeline_panel
from labs.report.glossary import Glossary
from labs.report.pages import MOST_BYTES, Html, Section, TooLargeError, command, esc, join, number, page, table, tag
from labs.report.pages import name as code_name
from labs.report.panels import replay_panel
from labs.report.texts import ui
from labs.stats import t_interval

#: How many episodes of a source and rollouts of all schedules together are shown, the fuller page first; the third
#: page has coarse figures too, the last one none.
EPISODES, ROLLOUTS = (16, 8, 4, 0), (3000, 1000, 400, 200)


def report(
    results: Sequence[Result], lang: str = "en", *, stamp: Mapping[str, Any] | None = None, replayed: bool = True
) -> bytes:
    """One offline HTML page about a run of one or several seeds of one configuration.

    Args:
        results: as `labs.run`, `Sweep.results` or `load(...).results` give them.
        lang: of the page's own words, "en" or "zh".
        stamp: what `stamp.json` holds; the only part of the page that differs between runs of one command.
        replayed: show episodes of training too, which computes the run again where it stored none.

    Raises:
        InputError: no results, results of several experiments, or an unknown language.
    """
    if not results or len({(r.experiment, r.fingerprint) for r in results}) != 1:
        raise InputError("a report needs the results of one configuration, of one seed or several")
    ui("run", lang)
    panels = _panels(results, replayed)
    for level in range(4):
        try:
            return _Report(results, lang, stamp, panels, level).made()
        except TooLargeError:
            continue
    raise InputError(f"the report would have more than {MOST_BYTES:,} bytes even without figures and replay")


@dataclass(kw_only=True)
class _Panels:
    """What a page replays: (update, last update, episodes), the last evaluation's episodes, pipelines."""

    updates: list[tuple[int, int, list[Episode]]]
    held_out: list[Episode]
    schedules: list[Schedule]


def _panels(results: Sequence[Result], wanted: bool) -> _Panels:
    """Played once, however often the page is tried; a sweep has no single run to replay."""
    found = _Panels(updates=[], held_out=[], schedules=[])
    if len(results) > 1:
        return found
    result = results[0]
    found.schedules = replay.schedules(result, wanted)
    found.held_out = replay.held_out(result)
    if wanted and replay.able(result.experiment):
        last = int(result.config.get("updates", len(result.metrics)))
        for number_ in replay.telling_updates(result):
            try:
                episodes = replay.clearest_group(replay.of_update(result, number_))
            except InputError:  # an update that trained on nothing has nothing to show
                continue
            found.updates.append((number_, last, episodes))
    return found


class _Report:
    """One attempt at a page; a higher level leaves more out."""

    def __init__(
        self, results: Sequence[Result], lang: str, stamp: Mapping[str, Any] | None, panels: _Panels, level: int
    ) -> None:
        from labs.settings import build

        self.results, self.lang, self.stamp, self.panels, self.level = results, lang, stamp, panels, level
        self.first = results[0]
        self.module = experiments[self.first.experiment]
        self.config = build(self.module.Config, self.first.config)
        self.declared: dict[str, Metric] = by_name(getattr(self.module, "METRICS", ()))
        self.glossary = Glossary(lang, self.declared)

    def made(self) -> bytes:
        name = self.first.experiment
        one = len(self.results) == 1
        which = f"{ui('seed', self.lang)} {self.first.seed}" if one else (
            f"{ui('seeds', self.lang)} {spell([int(r.seed or 0) for r in self.results])}"
        )  # fmt: skip
        sections = [self._question(), self._conclusion(), self._ran(), self._numbers(), self._figures()]
        sections += [self._replay(), self._pipeline(), self._next()]
        shown = [section for section in sections if section.body]
        return page(
            f"{name}, {which}",
            [*shown, self.glossary.section()],
            lang=self.lang,
            kind=ui("kind_run", self.lang),
            stamp=self._stamp(),
            scripts=("page.js", "replay.js", "gantt.js"),
        )

    def _section(self, key: str, *parts: object) -> Section:
        return Section(id=key.replace("_", "-"), title=ui(key, self.lang), body=join(p for p in parts if p))

    def _question(self) -> Section:
        text = inspect.getdoc(self.module) or ""
        blocks = [" ".join(block.split()) for block in text.split("\n\n")]
        # What reads as a table or a list in a terminal stays in the documentation.
        kept = [block for block in blocks if block and block[0] not in "|-*"]
        said = [tag("p", self.glossary.foreign(block)) for block in kept[:3]]
        return self._section("question", *said)

    def _conclusion(self) -> Section:
        if len(self.results) == 1:
            lines, conclusion = self.first.summary, self.first.conclusion
        else:
            lines, conclusion = [], ""
        said = tag("p", self.glossary.foreign(conclusion), class_="lead") if conclusion else Html("")
        items = tag("ul", *(tag("li", self.glossary.foreign(line)) for line in lines)) if lines else Html("")
        return self._section("conclusion", said, items)

    def _ran(self) -> Section:
        lang = self.lang
        seeds = [int(result.seed or 0) for result in self.results]
        which = f"--seed {seeds[0]}" if len(seeds) == 1 else f"--seeds {spell(seeds)}"
        typed = f"python -m labs.run --experiment {self.first.experiment} {which}{spelled(self.config)}"
        return self._section(
            "what_ran",
            command(typed, lang),
            tag("p", self.glossary.text(ui("what_ran_text", lang))),
            tag("h3", ui("settings", lang)),
            self._settings(),
        )

    def _settings(self) -> Html:
        lang = self.lang
        other = changed(self.config)
        default = as_dict(type(self.config)())
        rows = []
        for key, declared in settings(type(self.config)).items():
            value: object = esc(_word(self.first.config.get(key, default[key]), lang))
            if key in other:
                value = join([tag("strong", value), tag("br"), f"{ui('default', lang)} {_word(default[key], lang)}"])
            unit = declared.metadata["unit"]
            said = self.glossary.foreign(declared.metadata["help"])
            rows.append([code_name(key), value, said if unit == "1" else join([said, f" [{unit}]"])])
        heads = [ui(key, lang) for key in ("setting", "value_head", "meaning")]
        return table(ui("settings_all", lang), heads, rows)

    def _numbers(self) -> Section:
        parts = [self._headline()]
        if len(self.results) > 1:
            parts.append(self._per_seed())
        parts += self._along()
        return self._section("numbers", *parts)

    def _along(self) -> list[Html]:
        """A table of the metric rows; one for each value of a column of names, such as the schedule."""
        lang = self.lang
        heads = [ui(key, lang) for key in ("number", "unit", "first", "middle", "last", "lowest", "highest")]
        tables = []
        for part, rows in _parts(self.results):
            cells = [
                [self.glossary.metric(name), self.declared[name].unit if name in self.declared else "",
                 *map(number, seen)]
                for name, seen in _along(rows)
            ]  # fmt: skip
            said = f"{part or ui('along', lang)} ({len(rows[0]):,} {ui('rows', lang)})"
            tables.append(table(said, heads, cells, numeric=(2, 3, 4, 5, 6)))
        if not self.first.metrics:
            return []
        said = ui("along_text", lang) + ("" if len(self.results) == 1 else " " + ui("along_seeds", lang))
        return [tag("h3", ui("along", lang)), tag("p", self.glossary.text(said)), *tables]

    def _headline(self) -> Html:
        lang = self.lang
        rows = []
        many = len(self.results) > 1
        healthy = any(self.declared[name].healthy for name in self.first.headline)
        for name in self.first.headline:
            metric = self.declared[name]
            found = t_interval([result.headline[name] for result in self.results])
            bounds: object = ui("no_interval", lang)
            if found.low is not None and found.high is not None:
                bounds = f"{number(found.low)} – {number(found.high)}"
            row: list[object] = [self.glossary.metric(name), number(found.value)]
            row += [bounds] if many else []
            row += [metric.unit]
            row += [self.glossary.foreign(metric.healthy) or "–"] if healthy else []
            rows.append(row)
        keys = ["number", "mean" if many else "value_head", *(["interval"] if many else []), "unit"]
        keys += ["healthy"] if healthy else []
        said = self.glossary.text(ui("headline_seeds" if many else "headline", lang))
        return table(said, [ui(key, lang) for key in keys], rows, numeric=(1, 2) if many else (1,))

    def _per_seed(self) -> Html:
        names = list(self.first.headline)
        rows = [[result.seed, *(number(result.headline[name]) for name in names)] for result in self.results]
        heads = [ui("seed", self.lang), *(self.glossary.metric(name) for name in names)]
        inside = table(ui("per_seed", self.lang), heads, rows, numeric=range(1, len(names) + 1))
        return tag("details", tag("summary", ui("per_seed", self.lang)), inside)

    def _figures(self) -> Section:
        if self.level == 3:
            return self._section("figures", *())
        from labs import plots

        drawn = figures(self.first.experiment, self.results)
        with plots.style():
            return self._section("figures", drawing.drawn(drawn, self.glossary, self.lang, coarse=self.level > 1))

    def _replay(self) -> Section:
        lang, most = self.lang, EPISODES[self.level]
        sources = [
            (ui("update_at", lang, n=n, all=last), "", episodes[:most]) for n, last, episodes in self.panels.updates
        ]
        held_out = self.panels.held_out[:most]
        sources.append((ui("held_out_now", lang), ui("held_out_text", lang), held_out))
        panel = replay_panel(sources, self.glossary, lang)
        if not panel:
            return self._section("replay")
        said = [tag("p", self.glossary.text(ui("replay_text", lang)))] if self.panels.updates else []
        return self._section("replay", *said, panel)

    def _pipeline(self) -> Section:
        most = ROLLOUTS[self.level] // max(1, len(self.panels.schedules))
        panel = pipeline_panel(self.panels.schedules, self.glossary, self.lang, most)
        return self._section("pipeline", panel)

    def _next(self) -> Section:
        commands = list(self.first.next)
        name = self.first.experiment
        if len(self.results) > 1 or not commands:
            commands = [
                f"python -m labs.run --experiment {name}{spelled(self.config)} --seed 7",
                f"python -m labs show {name}",
            ]
        if len(self.results) == 1 and self.first.folder and (self.panels.updates or self.panels.schedules):
            commands.append(f"python -m labs replay {shlex.quote(self.first.folder)}")
        lines = [command(each, self.lang) for each in commands]
        return self._section("next", tag("p", ui("next_text", self.lang)), *lines)

    def _stamp(self) -> Section:
        if not self.stamp:
            return self._section("stamp", tag("p", ui("no_stamp", self.lang)))
        rows = [[key, _flat(value, self.lang)] for key, value in self.stamp.items()]
        heads = [ui("field", self.lang), ui("value_head", self.lang)]
        return self._section("stamp", table(ui("stamp_text", self.lang), heads, rows))


def _word(value: Any, lang: str) -> str:
    if isinstance(value, list):
        return ", ".join(_word(each, lang) for each in value) or ui("none", lang)
    return ui("none", lang) if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _flat(value: Any, lang: str) -> str:
    """A value of the stamp as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else _word(value, lang)


def _parts(results: Sequence[Result]) -> list[tuple[str, list[list[dict[str, Any]]]]]:
    """The metric rows of every seed, split by the first column of names that has a few; "" where there is none."""
    rows = results[0].metrics
    for key in rows[0] if rows else ():
        names = list(dict.fromkeys(row.get(key) for row in rows))
        if 2 <= len(names) <= 6 and all(isinstance(name, str) for name in names):
            return [(str(name), [[r for r in one.metrics if r.get(key) == name] for one in results]) for name in names]
    return [("", [result.metrics for result in results])]


def _along(rows: Sequence[Sequence[Mapping[str, Any]]]) -> list[tuple[str, list[float]]]:
    """Every number of the rows `[seeds][rows]`: first, middle, last, lowest, highest; over seeds the mean of each."""
    names = list(dict.fromkeys(name for row in rows[0] for name, value in row.items() if _is_number(value)))
    found = []
    for name in names:
        columns = [[row.get(name) for row in one] for one in rows]
        if len({len(column) for column in columns}) != 1:
            columns = columns[:1]
        mean = [_mean(values) for values in zip(*columns, strict=True)]
        known = [value for value in mean if value is not None]
        if known:
            found.append((name, [known[0], known[len(known) // 2], known[-1], min(known), max(known)]))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mean(values: Sequence[Any]) -> float | None:
    known = [value for value in values if _is_number(value)]
    if len(known) != len(values):
        return None
    return float(known[0]) if len(known) == 1 else float(sum(known) / len(known))
