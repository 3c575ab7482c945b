"""What the experiment measures: advantages by kind of group, equal groups, size, ids, sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from labs.experiment import Progress
from labs.registry import call, environments, estimators

if TYPE_CHECKING:
    from experiments.groups import Config
    from labs.policy import Policy
    from labs.trainer import TrainerConfig

#: Scores of the four kinds of group, and the places of the table: (column, row of the batch).
KINDS = (0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0)
PLACES = {"all wrong": 0, "all right": 4, "mixed, right": 8, "mixed, wrong": 9, "lone, right": 12}
#: Group labels of four rollouts of an easy task, then four of a hard one.
IDS = {
    "right ids": ("a",) * 4 + ("b",) * 4,
    "one id for all": ("a",) * 8,
    "an id for each row": tuple("abcdefgh"),
    "ids of the neighbour": ("a", "b") * 4,
    "'7' and '07'": ("7",) * 4 + ("07",) * 4,
}
#: Skill at which the ids are tried: `sum` is the easy task (p = 0.85), `difference` the hard one (p = 0.36).
SKILL = 4.0
#: Sessions of three, three, two and one turn, and their scores.
SESSIONS = (("read", "add", "submit"), ("read", "subtract", "submit"), ("read", "submit"), ("add",))
SCORES = (1.0, 0.0, 0.5, 0.25)


def group_estimators() -> list[str]:
    """The entries that compare rows of one id and read nothing but scores, mask and ids."""
    found = {n: estimators[n] for n in estimators.sound()}
    return [n for n, e in found.items() if e.meta["properties"].groups and set(e.needs) <= {"index"}]


def advantages(name: str, scores: Sequence[float], ids: Sequence[str]) -> list[float] | None:
    """What an estimator makes of one-token rows; None where it raises."""
    import numpy as np
    import torch

    try:
        found, _ = call(
            estimators[name], token_level_rewards=torch.tensor(scores, dtype=torch.float64)[:, None],
            response_mask=torch.ones(len(scores), 1, dtype=torch.int64), index=np.array(ids), config={},
        )  # fmt: skip
    except (ValueError, AssertionError):
        return None
    return [float(v) for v in found[:, 0]]


def kinds() -> list[dict[str, Any]]:
    """Advantages of the kinds of group under every group estimator; each kind alone where a lone row is refused."""
    table = []
    for name in group_estimators():
        whole = advantages(name, KINDS, ["wrong"] * 4 + ["right"] * 4 + ["mixed"] * 4 + ["lone"])
        rest = whole or advantages(name, KINDS[:-1], ["wrong"] * 4 + ["right"] * 4 + ["mixed"] * 4)
        cells = {k: rest[i] if rest is not None and i < len(rest) else None for k, i in PLACES.items()}
        table.append({"estimator": name, **cells})
    return table


def std_ratio(n: int) -> float:
    one = [1.0] + [0.0] * (n - 1)
    left, right = (advantages(name, one, ["a"] * n) for name in ("grpo_population", "grpo"))
    assert left is not None
    assert right is not None
    return left[0] / right[0]


def skilled(skill: float) -> Policy:
    """A policy with this logit on the right action of every stage of `sum`, and half of it in `difference`."""
    from labs.policy import Policy

    table = [[[0.0] * 4 for _ in range(3)] for _ in range(2)]
    for family, right in enumerate(((0, 1, 3), (0, 2, 3))):
        for stage, action in enumerate(right):
            table[family][stage][action] = skill / (1 + family)
    return Policy.of(environments["arithmetic"], table)


def error(share: float, n: int) -> float:
    return math.sqrt(share * (1 - share) / n)


def shares(config: Config, seed: int) -> list[dict[str, Any]]:
    """Sampled and exact share of groups of equal scores."""
    import torch

    from labs.episodes import draw_tasks, play
    from labs.exact import truth

    environment, generator = environments["arithmetic"], torch.Generator().manual_seed(seed)
    rows = []
    for skill in config.skills:
        policy = skilled(skill)
        known = truth(environment, policy.logits.numpy())
        for n in config.group_sizes:
            tasks = draw_tasks(environment, 2 * config.groups, generator)
            scores = play(environment, policy, tasks, n, generator=generator).scores.reshape(config.groups, 2, n)
            equal = (scores.max(axis=2) == scores.min(axis=2)).mean(axis=0)
            exact = known.equal_groups(n)
            for f, task in enumerate(environment.families):
                own = [c for c, k in enumerate(known.classes) if k.family == f]
                share = [known.classes[c].probability / known.family_weights[f] for c in own]
                p = sum(s * float(known.decisions.v[c, 0, 0]) for c, s in zip(own, share, strict=True))
                rows.append({"task": task, "skill": skill, "n": n, "p": p, "sampled": float(equal[f]),
                             "exact": float(sum(s * exact[c] for c, s in zip(own, share, strict=True)))})  # fmt: skip
    return rows


def step(config: Config) -> Any:
    from labs.step import StepConfig

    return StepConfig(estimator=config.estimator, loss="reinforce", loss_agg_mode="seq-mean-token-sum")


def noise(config: Config, size: int, skill: float) -> float:
    """Exact signal-to-noise of one update with groups of this size."""
    from labs.moments import moments

    found = moments(environments["arithmetic"], skilled(skill), step(config), group_size=size,
                    groups=config.budget // size)  # fmt: skip
    return found.signal_to_noise


def train(config: Config, seed: int, progress: Progress | None) -> dict[str, list[list[float]]]:
    """Exact success after every update, `[size][training][update]`; a training of both sizes shares its seed."""
    from labs.exact import truth
    from labs.trainer import Trainer

    environment = environments["arithmetic"]
    curves: dict[str, list[list[float]]] = {"small": [], "large": []}
    for training in range(config.trainings):
        for name, size in (("small", config.small), ("large", config.large)):
            trainer = Trainer(
                environment, _how(config, size), seed=1000 * seed + training, policy=skilled(config.start)
            )
            curve = []
            for _ in range(config.updates):
                next(trainer)
                curve.append(truth(environment, trainer.policy.logits.numpy()).success.value)
            curves[name].append(curve)
        if progress is not None:
            progress(training + 1, config.trainings)
    return curves


def _how(config: Config, size: int) -> TrainerConfig:
    from labs.trainer import TrainerConfig

    return TrainerConfig(
        step=step(config), groups_per_update=config.budget // size, group_size=size,
        learning_rate=config.learning_rate, row_entropy_coeff=0.0,
    )  # fmt: skip


def expected(settings: Mapping[str, Any], size: int) -> tuple[list[float], str]:
    """Exact success after every expected update with groups of this size; or why it is not known."""
    from experiments.groups import Config
    from labs.settings import build
    from labs.theory import expected_success, refusal

    config: Config = build(Config, settings)
    environment, how = environments["arithmetic"], _how(config, size)
    if reason := refusal(environment, how):
        return [], reason
    start = skilled(config.start).logits.numpy()
    return expected_success(environment, how, config.updates, start)[1:].tolist(), ""


def ids(estimator: str) -> list[dict[str, Any]]:
    """Exact expected gradient of an easy and a hard task under right and wrong ids, over all 256 outcomes.

    Four rollouts of `sum` and four of `difference` with the loss `mean_i A_i log pi(rollout i)`. Only the scores enter
    A, so that given them a rollout's score function S is known by its mean and its mean square. `scale` is
    <expected, true> / |true|^2 of a task, `noise` the standard deviation over both tables over that of right ids.
    """
    laws = [_law(f) for f in range(2)]
    rows: list[dict[str, Any]] = []
    for label, names in IDS.items():
        mean: list[Any] = [0.0, 0.0]
        square = 0.0
        for scores in product((0.0, 1.0), repeat=8):
            found = advantages(estimator, scores, names)
            if found is None:
                break
            right = [int(r) for r in scores]
            chance = math.prod(laws[i // 4][0][r] for i, r in enumerate(right))
            for f in range(2):
                _, centre, size = laws[f]
                own = [(found[i] / 4, right[i]) for i in range(4 * f, 4 * f + 4)]
                total = sum(a * centre[r] for a, r in own)
                mean[f] = mean[f] + chance * total
                spread = sum(a * a * (size[r] - float(centre[r] @ centre[r])) for a, r in own)
                square += chance * (float(total @ total) + spread)
        else:
            # E[R S] is the gradient of the success probability.
            truths = [law[0][1] * law[1][1] for law in laws]
            scales = [float(m @ t / (t @ t)) for m, t in zip(mean, truths, strict=True)]
            noise = math.sqrt(max(square - sum(float(m @ m) for m in mean), 0.0))
            base = rows[0]["deviation"] if rows else noise
            rows.append({"ids": label, "scale_easy": scales[0], "scale_hard": scales[1], "deviation": noise,
                         "noise": noise / base})  # fmt: skip
    return rows


def _law(family: int) -> tuple[list[float], list[Any], list[float]]:
    """Of a wrong and of a right rollout: probability, mean of the score function, mean of its square."""
    from labs.exact import truth

    known = truth(environments["arithmetic"], skilled(SKILL).logits.numpy())
    own = next(c for c, k in enumerate(known.classes) if k.family == family)
    weight, reward = known.kinds.probability(known.log_probs[family]), known.kinds.reward[own]
    scores = known.kinds.scores(known.log_probs[family]).reshape(len(weight), -1)
    parts = [weight * (reward == r) for r in (0.0, 1.0)]
    mass = [float(p.sum()) for p in parts]
    means = [p @ scores / m for p, m in zip(parts, mass, strict=True)]
    return mass, means, [float(p @ (scores**2).sum(axis=1)) / m for p, m in zip(parts, mass, strict=True)]


def sessions() -> list[dict[str, Any]]:
    """Which rows of four sessions move an advantage of another session, and what the right session gets."""
    import torch

    from labs.dispatch import compute_advantage_for_multi_trajectories
    from labs.enumeration import trajectories
    from labs.environment import Task
    from labs.episodes import pack
    from labs.policy import Policy
    from labs.tokens import sessions

    environment = environments["arithmetic"]
    known = {tuple(environment.actions[a] for a in t.actions): t for t in trajectories(environment, 4)}
    policy, task = Policy.uniform(environment), Task("sum", (7, 5))
    batch = sessions(pack(environment, [task] * 4, [known[s] for s in SESSIONS], policy, ["task"] * 4))
    keys = [str(k) for k in batch["session_keys"]]
    owner = torch.tensor([int(k.split("_")[1]) for k in keys])
    scores = torch.zeros(batch.rows, batch.width, dtype=torch.float64)
    last = [max(i for i, o in enumerate(owner.tolist()) if o == session) for session in range(4)]
    scores[last, 0] = torch.tensor(SCORES, dtype=torch.float64)

    def weigh(name: str, rewards: Any) -> Any:
        given = batch.replace(token_level_rewards=rewards)
        return compute_advantage_for_multi_trajectories(given, keys, name, config={})["advantages"][:, 0]

    table = []
    for name in group_estimators():
        before, moving = weigh(name, scores), []
        for row in range(batch.rows):
            other = scores.clone()
            other[row, 0] += 0.25
            moved = (weigh(name, other) - before).abs() > 1e-9
            if bool(moved[owner != owner[row]].any()):
                moving.append(row)
        table.append({"estimator": name, "rows": moving, "advantages": [float(v) for v in before]})
    return table
