"""A finite environment as a Gymnasium one, so that any other library can learn on it.

    import gymnasium
    import labs.interop.gymnasium
    env = gymnasium.make("labs/arithmetic-v0")

Observation: `Discrete(families * stages)`, the flat row of the policy's table; `labs.interop.gymnasium.one_hot` gives
it to function approximators as a vector. Action: `Discrete(actions)`. Reward: 0 until the end, then the verifier's
score, which the environment itself never sees. `terminated` and `truncated` are the lab's: the step limit truncates.
`info` has `text`, `end`, `state`, and on the last step `success`.

A new task is drawn at every reset, families in turn, or given as `reset(options={"task": Task(...)})`; randomness is
Gymnasium's own `np_random`, seeded by `reset(seed=...)`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from labs.environment import SUBMITTED, Environment, Episode, Task, score, succeeded
from labs.errors import InputError
from labs.registry import environments

#: Gymnasium's name of the lab's environments is `labs/<name>-v0`.
NAMESPACE = "labs"


class LabEnv(gymnasium.Env[np.int64, np.int64]):
    """One environment of the lab under Gymnasium's interface.

    Args:
        environment: the environment or its name.
        operands: smallest and largest operand of the tasks; the training range when None.
        max_steps: limit on decisions, the environment's own when None.
        render_mode: None or `ansi`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - the name and form that Gymnasium prescribes

    def __init__(
        self,
        environment: Environment | str = "arithmetic",
        operands: tuple[int, int] | None = None,
        max_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise InputError(f"render_mode is {render_mode!r}; allowed: ansi, or None")
        self.environment: Environment = environments[environment] if isinstance(environment, str) else environment
        self.operands = self.environment.train_operands if operands is None else operands
        self.max_steps = max_steps
        self.render_mode = render_mode
        families, stages, actions = self.environment.policy_shape
        self.observation_space: Any = spaces.Discrete(families * stages)
        self.action_space: Any = spaces.Discrete(actions)
        self._episode: Episode | None = None
        self._lines: list[str] = []
        self._drawn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start an episode; `options["task"]` chooses the task."""
        super().reset(seed=seed)
        if seed is not None:
            self._drawn = 0
        task = (options or {}).get("task")
        if task is None:
            names = list(self.environment.families)
            low, high = self.operands
            operands = self.np_random.integers(low, high + 1, self.environment.operand_count).tolist()
            task = Task(names[self._drawn % len(names)], tuple(operands))
            self._drawn += 1
        self._episode = Episode(self.environment, task, self.max_steps)
        text = self.environment.text(task, 0)
        self._lines = [f"{self.environment.name}: {text}"]
        return self._row(), {"text": text, "end": None, "state": self.environment.states[0].name}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take one action.

        Raises:
            InputError: before `reset`, after the end, or an action outside the space.
        """
        episode = self._episode
        if episode is None:
            raise InputError("step before reset: there is no episode yet")
        before = self.environment.states[episode.state]
        draw = float(self.np_random.random()) if self.environment.random else 0.0
        _, terminated, truncated, info = episode.step(int(action), draw)
        reward = 0.0
        if episode.end is not None:
            task, actions, state = episode.task, episode.actions, episode.state
            reward = score(self.environment, task, actions, state, episode.end)
            info["success"] = episode.end == SUBMITTED and succeeded(self.environment, task, state, episode.end)
        self._lines.append(f"  {before.stage:<10} {self.environment.actions[int(action)]:<10} {info['text']}")
        return self._row(), reward, terminated, truncated, info

    def render(self) -> str | None:
        """The episode so far as text, in mode `ansi`."""
        return "\n".join(self._lines) if self.render_mode == "ansi" else None

    def _row(self) -> np.int64:
        assert self._episode is not None
        family, stage = self._episode.observation
        return np.int64(family * len(self.environment.stages) + stage)


def one_hot(env: LabEnv) -> gymnasium.Env[Any, Any]:
    """The same environment with the observation as a float32 vector: one-hot family, then one-hot stage."""
    families, stages, _ = env.environment.policy_shape

    def vector(row: np.int64) -> Any:
        seen = np.zeros(families + stages, dtype=np.float32)
        seen[row // stages] = seen[families + row % stages] = 1.0
        return seen

    space = spaces.Box(0.0, 1.0, (families + stages,), np.float32)
    return gymnasium.wrappers.TransformObservation(env, vector, space)


def probabilities(environment: Environment, policy: Any) -> list[list[list[float]]]:
    """`[families][stages][actions]` of a policy function `vector -> probabilities`, for the lab's exact answers.

    Args:
        environment: the environment.
        policy: maps the `one_hot` vectors `[N, families + stages]` float32 to `[N, actions]` probabilities.
    """
    families, stages, actions = environment.policy_shape
    vectors = np.zeros((families * stages, families + stages), dtype=np.float32)
    for row in range(families * stages):
        vectors[row, row // stages] = vectors[row, families + row % stages] = 1.0
    table: list[list[list[float]]] = np.asarray(policy(vectors), float).reshape(families, stages, actions).tolist()
    return table


def register() -> None:
    """Register every environment of the lab as `labs/<name>-v0`; harmless when done twice."""
    for name in environments:
        if f"{NAMESPACE}/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                id=f"{NAMESPACE}/{name}-v0",
                entry_point="labs.interop.gymnasium:LabEnv",
                kwargs={"environment": name},
            )


register()
