"""A pipeline on a page: a drawing that stands without script, and with it zooms, moves and opens a trajectory."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from labs.replay import Schedule
from labs.report.glossary import Glossary
from labs.report.pages import Html, esc, join, number, table, tag
from labs.report.texts import ui

#: Lanes and rows of the table beyond which nobody reads.
MOST_LANES, MOST_LISTED = 32, 100


def pipeline_panel(schedules: Sequence[Schedule], glossary: Glossary, lang: str, most: int = 1500) -> Html:
    """Every schedule as a Gantt chart and a table.

    Args:
        schedules: of one run.
        glossary: gets the words of the table.
        lang: "en" or "zh".
        most: trajectories drawn of each schedule.
    """
    if not schedules:
        return Html("")
    parts: list[object] = [tag("p", glossary.text(ui("pipeline_text", lang))), _legend(schedules, lang)]
    for schedule in schedules:
        parts += [tag("h3", schedule.name), *_one(schedule, glossary, lang, most)]
    return join(parts)


def _legend(schedules: Sequence[Schedule], lang: str) -> Html:
    lags = sorted({_shade(row) for schedule in schedules for row in schedule.rows})
    names = {lag: f"{ui('lag', lang)} {lag}" + ("+" if lag == 3 else "") for lag in lags}
    lost = any(row["status"] != "accepted" for schedule in schedules for row in schedule.rows)
    items = [(f"lag{lag}", name) for lag, name in names.items()]
    items += [("lost", ui("thrown_away", lang))] if lost else []
    items += [("train", ui("training_step", lang))]
    return tag(
        "ul",
        *(
            tag(
                "li",
                Html(
                    f'<svg viewBox="0 0 16 16" aria-hidden="true"><rect class="{kind}" x="1" y="1" width="14" '
                    'height="14"/></svg>'
                ),
                name,
            )
            for kind, name in items
        ),
        class_="legend",
    )


def _one(schedule: Schedule, glossary: Glossary, lang: str, most: int) -> list[Html]:
    lanes = min(schedule.workers, MOST_LANES)
    rows = [row for row in schedule.rows if row["worker"] < lanes][:most]
    all_shown = len(rows) == len(schedule.rows)
    seconds = schedule.seconds if all_shown else max((float(row["end"]) for row in rows), default=schedule.seconds)
    high = 22 if lanes <= 8 else 14
    height = (lanes + 1) * high
    bars = [_bar(row, i, high, lang) for i, row in enumerate(rows)]
    bars += [
        _rect(
            "train",
            start,
            end - start,
            lanes * high,
            high,
            f"{ui('training_step', lang)} {i}: {start:.3f} – {end:.3f} s",
        )
        for i, (start, end, _) in enumerate(schedule.steps)
        if start < seconds
    ]
    names = [f"{ui('worker', lang)} {i + 1}" for i in range(lanes)] + [ui("trainer", lang)]
    label = ui("gantt_alt", lang, name=schedule.name, workers=lanes, rows=len(rows), seconds=number(seconds))
    drawing = Html(
        f'<svg class="area" viewBox="0 0 {seconds:.3f} {height}" preserveAspectRatio="none" height="{height}" '
        f'role="img" aria-label="{esc(label)}">{"".join(bars)}</svg>'
        f'<svg class="ticks" height="20" aria-hidden="true">{_ticks(seconds)}</svg>'
    )
    side = tag("ol", *(tag("li", name) for name in names), class_="lanes " + ("few" if high == 22 else "many"),
               aria_hidden="true")  # fmt: skip
    keys = ("zoom_in", "zoom_out", "earlier", "later", "whole", "trajectory", "task", "worker", "start", "finished",
            "waited", "ingested", "trained", "version", "lag", "status", "update", "none", "keys", "step",
            "reward")  # fmt: skip
    words = json.dumps({key: ui(key, lang) for key in keys}, ensure_ascii=False, sort_keys=True)
    chart = tag(
        "div",
        tag("div", side, tag("div", drawing, class_="draw"), class_="frame"),
        tag("p", ui("time", lang), class_="axis"),
        class_="gantt",
        data_seconds=f"{seconds:.3f}",
        data_words=words,
        data_rows=json.dumps([_kept(row) for row in rows], separators=(",", ":")),
    )
    part = {"shown": f"{len(rows):,}", "all": f"{len(schedule.rows):,}", "lanes": lanes, "workers": schedule.workers}
    note = [] if all_shown else [tag("p", ui("pipeline_part", lang, **part))]
    return [chart, *note, _table(schedule, rows, glossary, lang)]


def _shade(row: Mapping[str, Any]) -> int:
    return min(int(row["lag"]), 3) if row["lag"] is not None and row["status"] == "accepted" else 0


def _bar(row: Mapping[str, Any], at: int, high: int, lang: str) -> Html:
    kind = f"lag{_shade(row)}" if row["status"] == "accepted" else "lost"
    said = (
        f"{ui('trajectory', lang)} {at}: {row['start']:.3f} – {row['end']:.3f} s, {ui('lag', lang)} {row['lag']}, "
        f"{row['status']}"
    )
    return _rect(kind, row["start"], row["end"] - row["start"], row["worker"] * high, high, said, at)


def _rect(kind: str, x: float, width: float, y: int, high: int, said: str, at: int | None = None) -> Html:
    which = "" if at is None else f' data-i="{at}"'
    title = tag("title", said)
    return Html(
        f'<rect class="{kind}" x="{x:.3f}" y="{y + 1}" width="{max(width, 0.001):.3f}" height="{high - 2}"{which}>'
        f"{title}</rect>"
    )


def _ticks(seconds: float) -> str:
    """Six or so round moments, at their share of the width."""
    if seconds <= 0:
        return ""
    rough = seconds / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    times = [i * step for i in range(int(seconds / step) + 1)]
    return "".join(
        f'<text x="{100 * time / seconds:.3f}%" y="14"{_anchor(time / seconds)}>{time:g}</text>' for time in times
    )


def _anchor(share: float) -> str:
    return "" if share < 0.02 else ' text-anchor="end"' if share > 0.97 else ' text-anchor="middle"'


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("task", "worker", "start", "end", "ingested", "trained", "start_version", "ingestion_version", "lag",
            "update", "status", "reward", "spans", "steps")  # fmt: skip
    return {key: _short(row[key]) for key in keys if row.get(key) is not None}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: round(each, 6) if isinstance(each, float) else each for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value


def _table(schedule: Schedule, rows: Sequence[Mapping[str, Any]], glossary: Glossary, lang: str) -> Html:
    heads: list[object] = [glossary.word("trajectory"), ui("task", lang), ui("worker", lang)]
    heads += [ui(key, lang) for key in ("start", "finished", "ingested", "trained")]
    heads += [glossary.word("version"), glossary.word("lag"), ui("status", lang)]
    cells = [
        [
            i,
            row["task"],
            row["worker"] + 1,
            *("–" if row[key] is None else f"{row[key]:.3f}" for key in ("start", "end", "ingested", "trained")),
            row["start_version"],
            row["lag"],
            row["status"],
        ]
        for i, row in enumerate(rows[:MOST_LISTED])
    ]
    said = ui("first_of", lang, shown=len(cells), all=f"{len(schedule.rows):,}")
    inside = table(f"{schedule.name}: {said}", heads, cells, numeric=range(1, 9))
    return tag("details", tag("summary", f"{ui('trajectories', lang)}: {said}"), inside)
