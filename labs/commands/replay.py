"""Replay episodes of a stored run step by step, or the life of a trajectory in a pipeline."""

from __future__ import annotations

from typing import Any

import click


@click.command(short_help=__doc__)
@click.argument("run")
@click.option(
    "--update", "number", type=click.IntRange(min=1), help="Which update's episodes (default: a telling one)."
)
@click.option("--held-out", is_flag=True, help="The stored episodes of the last evaluation instead.")
@click.option("--episode", type=click.IntRange(min=0), help="Which episode, or trajectory of a pipeline, from 0.")
@click.option("--schedule", metavar="NAME", help="Which pipeline of the run (default: the last one).")
@click.option("--from", "start", type=click.FloatRange(min=0), default=0.0, help="Draw a pipeline from this second on.")
@click.option("--to", "end", type=click.FloatRange(min=0), help="Draw it up to this second.")
@click.option("--step", is_flag=True, help="Wait for Enter after every step; b goes back, q ends.")
def command(
    run: str,
    number: int | None,
    held_out: bool,
    episode: int | None,
    schedule: str | None,
    start: float,
    end: float | None,
    step: bool,
) -> None:
    """Replay the run in the folder RUN.

    A run that trained a policy: without --episode the episodes of an update are listed, with it one is stepped through:
    stage, action probabilities, sampled action, tool text, the three masks, reward, advantage, weight in the loss,
    policy version. They are computed again from the settings and the seed.

    A run of a pipeline: who did what when, and with --episode the life of one trajectory.
    """
    import math

    from labs.errors import InputError
    from labs.report.loading import load
    from labs.stored import fits

    if held_out and number is not None:
        raise InputError("--update and --held-out exclude each other: one replays training, one the last evaluation")
    for option, value in (("--from", start), ("--to", end)):
        if value is not None and not math.isfinite(value):
            raise InputError(f"{option} is {value}; it must be a number of seconds")
    results = load(run).results
    if len(results) > 1:
        raise InputError(f"{run} has {len(results)} seeds; replay takes a run of one, made with --seed")
    with fits(run):
        _replay(run, results[0], number, held_out, episode, schedule, start, end, step)


def _replay(
    run: str,
    result: Any,
    number: int | None,
    held_out: bool,
    episode: int | None,
    schedule: str | None,
    start: float,
    end: float | None,
    step: bool,
) -> None:
    """Replay what was stored of one seed."""
    from labs import replay
    from labs.errors import InputError, one_of
    from labs.replay import terminal

    lanes = {each.name: each for each in replay.schedules(result)}
    if (schedule is not None or start or end is not None) and (held_out or number is not None or not lanes):
        what = f"the pipelines of a run; {run} is one of {result.experiment}, which has none"
        what = "pipelines, not for --update or --held-out" if lanes else what
        raise InputError(f"--schedule, --from and --to are for {what}")
    if lanes and not held_out and number is None:
        name = list(lanes)[-1] if schedule is None else schedule
        if name not in lanes:
            raise one_of("--schedule", name, list(lanes))
        _pipeline(terminal, run, lanes[name], episode, start, end)
        return
    if held_out or not replay.able(result.experiment):
        episodes, where = replay.held_out(result), "held-out episodes after training"
        if not episodes:
            names = "episodes of its last evaluation" if held_out else "episodes, neither of training nor of a pipeline"
            raise InputError(f"{run} is a run of {result.experiment}, which keeps no {names}")
    else:
        if number is None:
            telling = replay.telling_updates(result)
            number = telling[len(telling) // 2] if telling else 1
        episodes, where = replay.of_update(result, number), f"update {number} of {result.config.get('updates', number)}"
    click.echo(f"{result.experiment}, seed {result.seed}, {where}")
    if episode is None:
        for each in episodes:
            click.echo(f"  {terminal.heading(each)}")
        which = f"--update {number} " if number else "--held-out "
        click.echo(f"next   python -m labs replay {run} {which}--episode {episodes[0].number} --step")
        return
    if episode >= len(episodes):
        raise InputError(f"--episode is {episode}; there are episodes 0 to {len(episodes) - 1}")
    _walk(terminal, episodes[episode], step)


def _pipeline(terminal: Any, run: str, lanes: Any, episode: int | None, start: float, end: float | None) -> None:
    from labs.errors import InputError

    if episode is None:
        if end is not None and end <= start:
            raise InputError(f"--to is {end:g}; it must be above --from, {start:g}")
        if start and start >= lanes.seconds:
            raise InputError(f"--from is {start:g}; {lanes.name} ends after {lanes.seconds:g} seconds")
        for line in terminal.gantt(lanes, start, end):
            click.echo(line)
        click.echo(f"next   python -m labs replay {run} --schedule {lanes.name} --episode 0")
        return
    if episode >= len(lanes.rows):
        raise InputError(f"--episode is {episode}; {lanes.name} has trajectories 0 to {len(lanes.rows) - 1}")
    for line in terminal.trajectory(lanes, episode):
        click.echo(line)


def _walk(terminal: Any, episode: Any, step: bool) -> None:
    """Print the steps, all at once or one after each line that is read."""
    import sys

    click.echo(terminal.heading(episode))
    at = 0
    while at < len(episode.decisions):
        click.echo("\n" + "\n".join(terminal.decision(episode, at)))
        if not step or at == len(episode.decisions) - 1:
            at += 1
            continue
        sys.stderr.write("Enter next, b back, q quit: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        word = answer.strip().lower()
        if not answer or word == "q":
            return
        at = max(0, at - 1) if word == "b" else at + 1
