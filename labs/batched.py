"""The dynamics of `labs.environment`, many episodes at once in numpy.

The table of outcomes is the environment's own; what is added is the inversion of many draws in one comparison. A test
goes through all action sequences and finds this and the single form equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labs.environment import INVALID, SUBMITTED, Environment, check_max_steps, cumulative
from labs.errors import InputError


class PathBatch(NamedTuple):
    """Many episodes as arrays; positions after the end hold -1.

    `states` `[B, max_steps]` is the state before each action, `actions` `[B, max_steps]`, `last` `[B]` the last
    state, `terminated` `[B]`, `truncated` `[B]`, `submitted` `[B]` (a submission rather than an invalid action).
    """

    states: NDArray[np.int64]
    actions: NDArray[np.int64]
    last: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    submitted: NDArray[np.bool_]


def sample_batch(
    environment: Environment,
    probabilities: Any,
    families: Any,
    uniforms: Any,
    outcome_uniforms: Any = None,
    start: Any = None,
) -> PathBatch:
    """Draw `B` episodes at once; on the same draws equal to `sample_episodes` one by one.

    Args:
        environment: the environment.
        probabilities: `[families, stages, actions]`.
        families: `[B]` family index of every episode.
        uniforms: `[B, max_steps]` in [0, 1), one for each decision; positions after the end are not read.
        outcome_uniforms: `[B, max_steps]` for random transitions; needed when the environment is random.
        start: `[B]` states to go on from, the first one when None (episodes cut by a step limit are resumed so).

    Raises:
        InputError: shapes that do not fit, or no `outcome_uniforms` in a random environment.
    """
    uniforms = np.asarray(uniforms, dtype=float)
    families = np.asarray(families)
    if uniforms.ndim != 2 or uniforms.shape[0] != len(families):
        raise InputError(f"uniforms has shape {uniforms.shape}, it must be [{len(families)}, max_steps]")
    rows, max_steps = uniforms.shape
    check_max_steps(max_steps)
    if environment.random:
        if outcome_uniforms is None:
            raise InputError(f"environment {environment.name} has random transitions, so outcome_uniforms is needed")
        outcome_uniforms = np.asarray(outcome_uniforms, dtype=float)
        if outcome_uniforms.shape != uniforms.shape:
            raise InputError(f"outcome_uniforms has shape {outcome_uniforms.shape}, uniforms has {uniforms.shape}")
    if ((families < 0) | (families >= len(environment.families))).any():
        raise InputError(
            f"families must be 0 to {len(environment.families) - 1}, they hold {sorted({*families.tolist()})}"
        )
    sums = np.array(cumulative(probabilities))
    if sums.shape != environment.policy_shape:
        raise InputError(
            f"the policy has shape {sums.shape}, environment {environment.name} needs {environment.policy_shape}"
        )
    most = max(len(cell) for row in environment.outcomes for cell in row)
    shape = (len(environment.states), len(environment.actions), most)
    bounds, target, end = np.full(shape, np.inf), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    codes = {None: 0, INVALID: 1, SUBMITTED: 2}
    for s, row in enumerate(environment.outcomes):
        for a, cell in enumerate(row):
            target[s, a], end[s, a] = cell[-1].state, codes[cell[-1].end]
            total = 0.0
            for k, outcome in enumerate(cell[:-1]):
                total += outcome.probability
                bounds[s, a, k], target[s, a, k], end[s, a, k] = total, outcome.state, codes[outcome.end]
    stage_of = np.array(environment.stage_of)
    states = np.full((rows, max_steps), -1)
    actions = np.full((rows, max_steps), -1)
    last = np.zeros(rows, np.int64) if start is None else np.array(start, dtype=np.int64)
    if last.shape != (rows,) or ((last < 0) | (last >= len(environment.states))).any():
        raise InputError(f"start must hold one state from 0 to {len(environment.states) - 1} for each of {rows} rows")
    ended = np.zeros(rows, np.int64)
    alive = np.arange(rows)
    for step in range(max_steps):
        here = last[alive]
        chosen = (uniforms[alive, step, None] >= sums[families[alive], stage_of[here]]).sum(1)
        outcome_index = np.zeros(len(alive), np.int64)
        if environment.random:
            draws = outcome_uniforms[alive, step, None]
            outcome_index = (draws >= bounds[here, chosen]).sum(1)
        states[alive, step], actions[alive, step] = here, chosen
        last[alive] = target[here, chosen, outcome_index]
        ended[alive] = end[here, chosen, outcome_index]
        alive = alive[ended[alive] == 0]
        if not len(alive):
            break
    return PathBatch(states, actions, last, ended > 0, ended == 0, ended == 2)
