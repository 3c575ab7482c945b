"""The replay of a page: every episode and step as plain markup, which the script turns into a stage to step through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labs.replay import Decision, Episode, Token
from labs.report.glossary import Glossary
from labs.report.pages import Html, breakable, esc, join, number, table, tag
from labs.report.texts import ui


def replay_panel(sources: Sequence[tuple[str, str, Sequence[Episode]]], glossary: Glossary, lang: str) -> Html:
    """Episodes to step through.

    Args:
        sources: (name, explanation, episodes), such as the updates of a run.
        glossary: gets the words of the columns.
        lang: "en" or "zh".
    """
    parts = [
        tag(
            "details",
            tag("summary", name),
            *([tag("p", glossary.text(said))] if said else []),
            *(_episode(episode, glossary, lang) for episode in episodes),
            class_="source",
        )
        for name, said, episodes in sources
        if episodes
    ]
    if not parts:
        return Html("")
    labels = {
        "data_source": ui("episodes_of", lang),
        "data_episode": ui("episode", lang),
        "data_previous": ui("previous_step", lang),
        "data_next": ui("next_step", lang),
    }
    return tag("div", *parts, class_="replay", **labels)


def _episode(episode: Episode, glossary: Glossary, lang: str) -> Html:
    heads = [
        f"{ui('episode', lang)} {episode.number}",
        *([f"{ui('group', lang)} {episode.group}"] if episode.group else []),
        episode.task,
        episode.end,
        ui("right" if episode.success else "wrong", lang),
        f"{ui('score', lang)} {number(episode.score)}",
    ]
    steps = [_step(episode, i, glossary, lang) for i in range(len(episode.decisions))]
    return tag("details", tag("summary", " · ".join(heads)), tag("div", *steps, class_="inside"), class_="episode")


def _step(episode: Episode, at: int, glossary: Glossary, lang: str) -> Html:
    step = episode.decisions[at]
    which = f"{ui('step', lang)} {at + 1} / {len(episode.decisions)}"
    head = join([f"{which} · {ui('stage', lang)} {step.stage} · ", glossary.word("version"), f" {step.version}"])
    parts = [tag("h3", head), _probabilities(step, glossary, lang)]
    if step.reply:
        parts.append(tag("p", tag("b", ui("reply", lang)), " ", tag("code", step.reply), class_="tool"))
    if step.tokens:
        parts.append(_tokens(step.tokens, glossary, lang))
    return tag("div", *parts, class_="step")


def _probabilities(step: Decision, glossary: Glossary, lang: str) -> Html:
    said = join(
        [
            f"{ui('sampled', lang)} ",
            tag("strong", step.action),
            ", ",
            glossary.word("log_probability"),
            f" {number(step.log_probability)}",
        ]
    )
    if not step.probabilities:
        return tag("p", said)
    bars = [
        tag(
            "li",
            tag("span", action),
            Html(
                '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
                '<rect class="back" width="100" height="8"/>'
                f'<rect width="{100 * probability:.2f}" height="8"/></svg>'
            ),
            tag("span", f"{probability:.4f}" + (f" ← {ui('sampled', lang)}" if action == step.action else "")),
            class_="on" if action == step.action else None,
        )
        for action, probability in step.probabilities.items()
    ]
    return join([tag("ul", *bars, class_="bars", aria_label=ui("probabilities", lang)), tag("p", said)])


def _tokens(tokens: Sequence[Token], glossary: Glossary, lang: str) -> Html:
    extra = [
        (attribute, word)
        for attribute, word in (("returns", "return"), ("value", "value"))
        if any(getattr(token, attribute) is not None for token in tokens)
    ]
    heads = [
        ui("token", lang),
        *(glossary.word(mask, breakable(mask)) for mask in ("attention_mask", "response_mask", "loss_mask")),
        *(glossary.word(word) for word in ("reward", "advantage", *(word for _, word in extra), "weight", "version")),
    ]
    rows: list[list[object]] = []
    for run in _alike(tokens):
        token, positions = run[0], str(run[0].position)
        if len(run) > 1:
            positions += f"–{run[-1].position}"
        text = tag("code", token.text) if token.text else esc(f"({ui(f'kind_{token.kind}', lang)})")
        rows.append(
            [
                join([f"{positions} ", text]),
                token.attention_mask,
                token.response_mask,
                token.loss_mask,
                *(number(value) for value in (token.reward, token.advantage)),
                *(number(getattr(token, attribute)) for attribute, _ in extra),
                number(token.weight),
                "–" if token.version is None else token.version,
            ]
        )
    return table(ui("tokens", lang), heads, rows, numeric=range(1, len(heads)))


def _alike(tokens: Sequence[Token]) -> list[list[Token]]:
    """Neighbours that differ in nothing but their position, together."""
    runs: list[list[Token]] = []
    for token in tokens:
        if runs and replace(runs[-1][-1], position=token.position) == token:
            runs[-1].append(token)
        else:
            runs.append([token])
    return runs
