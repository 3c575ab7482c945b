"""Replay as plain text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labs.replay.episodes import Decision, Episode, Token
from labs.replay.schedules import Schedule

_BAR = 24
#: Columns of a pipeline drawn as text.
WIDTH = 96


def heading(episode: Episode) -> str:
    """One line about an episode."""
    group = f", group {episode.group}" if episode.group else ""
    mark = "right" if episode.success else "wrong"
    count = len(episode.decisions)
    return (
        f"episode {episode.number}{group}: {episode.task}; {count} decision{'s' * (count != 1)}, "
        f"ended by {episode.end}, {mark}, score {episode.score:g}"
    )


def decision(episode: Episode, number: int) -> Iterator[str]:
    """One step of an episode, line by line."""
    step = episode.decisions[number]
    yield f"step {number + 1} of {len(episode.decisions)}: stage {step.stage}, policy version {step.version}"
    yield from _probabilities(step)
    if step.reply:
        yield f"  reply   {step.reply}"
    if step.tokens:
        yield from _tokens(step.tokens)


def _probabilities(step: Decision) -> Iterator[str]:
    if not step.probabilities:
        yield f"  sampled {step.action}, log-probability {step.log_probability:.4f}"
        return
    width = max(map(len, step.probabilities))
    for action, probability in step.probabilities.items():
        bar = "#" * round(_BAR * probability)
        mark = f" <- sampled, log-probability {step.log_probability:.4f}" if action == step.action else ""
        yield f"  {action:<{width}} {probability:6.4f} {bar:<{_BAR}}{mark}".rstrip()


def _tokens(tokens: Sequence[Token]) -> Iterator[str]:
    extra = [name for name in ("returns", "value") if any(getattr(token, name) is not None for token in tokens)]
    heads = ["position", "token", "attention", "response", "loss", "reward", "advantage", *extra, "weight", "version"]
    rows = [
        [
            str(token.position),
            token.text or f"({token.kind})",
            *(str(mask) for mask in (token.attention_mask, token.response_mask, token.loss_mask)),
            *(_number(value) for value in (token.reward, token.advantage, *(getattr(token, n) for n in extra))),
            _number(token.weight),
            "-" if token.version is None else str(token.version),
        ]
        for token in tokens
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = (
            f"{cell:<{w}}" if i == 1 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join(cells).rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def gantt(schedule: Schedule, start: float = 0.0, end: float | None = None) -> Iterator[str]:
    """A pipeline as text: a digit is the lag of the rollout there, x one that was thrown away, # training.

    Args:
        schedule: which.
        start, end: simulated seconds to draw; all of it by default.
    """
    end = schedule.seconds if end is None else end
    span = max(end - start, 1e-9)
    lanes = min(schedule.workers, 32)

    def column(time: float) -> int:
        return max(0, min(WIDTH, round((time - start) / span * WIDTH)))

    drawn = [[" "] * WIDTH for _ in range(lanes)]
    for row in schedule.rows:
        if row["worker"] >= lanes or row["end"] <= start or row["start"] >= end:
            continue
        first, last = column(row["start"]), max(column(row["end"]), column(row["start"]) + 1)
        mark = str(min(row["lag"], 9)) if row["status"] == "accepted" else "x"
        for i in range(first, min(last, WIDTH)):
            drawn[row["worker"]][i] = mark
        if last - first > 1:
            drawn[row["worker"]][first] = "|"
    trainer = [" "] * WIDTH
    for begin, stop, _ in schedule.steps:
        for i in range(column(begin), max(column(stop), column(begin) + 1) if stop > start and begin < end else 0):
            if i < WIDTH:
                trainer[i] = "#"
    yield f"{schedule.name}, {start:.3f} to {end:.3f} simulated s; digit: lag, x: thrown away, #: training"
    width = len(f"worker {lanes}")
    for i, lane in enumerate(drawn):
        yield f"{f'worker {i + 1}':<{width}} {''.join(lane).rstrip()}"
    if lanes < schedule.workers:
        yield f"and {schedule.workers - lanes:,} more workers"
    yield f"{'trainer':<{width}} {''.join(trainer).rstrip()}"


def trajectory(schedule: Schedule, number: int) -> Iterator[str]:
    """The life of one trajectory of a pipeline, moment by moment."""
    row: Mapping[str, Any] = schedule.rows[number]
    yield f"{schedule.name}, trajectory {number} of {len(schedule.rows)}: task {row['task']}, {row['status']}"
    yield f"  {row['start']:>12.3f} s  worker {row['worker'] + 1} starts it with policy version {row['start_version']}"
    for version, seconds in row.get("spans") or ():
        yield f"  {'':>12}    {seconds:.3f} s of it were generated by version {version}"
    yield f"  {row['end']:>12.3f} s  it ends, after {row['end'] - row['start']:.3f} s"
    if row["ingested"] is not None:
        waited = row["ingested"] - row["end"]
        yield (
            f"  {row['ingested']:>12.3f} s  it leaves the queue after {waited:.3f} s, at version "
            f"{row['ingestion_version']}: lag {row['lag']}"
        )
    if row["trained"] is not None:
        yield f"  {row['trained']:>12.3f} s  training step {row['update']}, which used it, ends"
    for i, step in enumerate(row.get("steps") or (), start=1):
        probability = math.exp(step["log_probability"])
        yield (
            f"  decision {i} at {step['stage']}: {step['action']} with probability {probability:.4f}, "
            f"policy version {step['policy_version']}; {step['reply']}"
        )
    if row.get("reward") is not None:
        yield f"  reward {row['reward']:g}"
