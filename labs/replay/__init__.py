"""Replay: what happened in one episode, step by step, and who did what when in a pipeline.

    of_update(result, number)   the episodes of one update, computed again from the settings and the seed
    held_out(result)            the stored episodes of the last evaluation
    schedules(result)           the lanes of a simulated pipeline

A decision is what the policy saw (its stage), the probabilities it acted with, what it sampled, what the tool replied,
and the tokens of both with the three masks, reward, advantage and weight in the loss. Nothing of it is stored with a
run: a run is computed again from its settings and its seed, which gives the same bytes.
"""

from __future__ import annotations

from labs.replay.episodes import Decision, Episode, Token, able, clearest_group, held_out, of_update, telling_updates
from labs.replay.schedules import Schedule, schedules

__all__ = [
    "Decision",
    "Episode",
    "Schedule",
    "Token",
    "able",
    "clearest_group",
    "held_out",
    "of_update",
    "schedules",
    "telling_updates",
]
