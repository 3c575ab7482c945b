"""What the experiment measures: exact shares, costs and gradients of a filtered batch, and real filtered batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from labs.environment import Environment
from labs.registry import call, environments, estimators

if TYPE_CHECKING:
    from experiments.filtering import Config
    from labs.exact import Array, Truth

PLAIN, STREAM, TURN, LEFT, SAME = (
    "no filter",
    "refill from a stream",
    "refill, families in turn",
    "no refill, over what is left",
    "same task again",
)
RULES = (PLAIN, STREAM, TURN, LEFT, SAME)


def contrast(p: float, n: int) -> float:
    """`1 - p^n - (1-p)^n`: probability that n scores of 0 or 1 are not all equal."""
    return 1 - p**n - (1 - p) ** n


def counts(keeps: Sequence[float]) -> list[float]:
    """Law of how many of independent events with these probabilities happen, `[len(keeps) + 1]`."""
    law = [1.0]
    for keep in keeps:
        law = [a * (1 - keep) + b * keep for a, b in zip([*law, 0.0], [0.0, *law], strict=True)]
    return law


def reciprocal(keeps: Sequence[float]) -> float:
    """`E[1 / (1 + K)]`, K of these events happen: the weight of a kept group among these others."""
    return sum(chance / (1 + k) for k, chance in enumerate(counts(keeps)))


def in_turn(keeps: Sequence[float], groups: int) -> tuple[list[float], float]:
    """Families are played in turn, group by group, until `groups` are kept.

    Returns:
        Expected number of kept groups of each family, and of groups played. Infinite where nothing is ever kept.
    """
    if not any(keep > 0 for keep in keeps):
        return [0.0] * len(keeps), float("inf")
    kept, played = [0.0] * len(keeps), 0.0
    law = [1.0] + [0.0] * (groups - 1)
    place = 0
    # What is left of the law shrinks by a factor every round.
    while (going := sum(law)) > 1e-13:
        keep = keeps[place % len(keeps)]
        played += going
        kept[place % len(keeps)] += going * keep
        law = [a * (1 - keep) + b * keep for a, b in zip(law, [0.0, *law], strict=False)]
        place += 1
    return kept, played


class Task(NamedTuple):
    """One task class: share of the offered tasks, family, P(contrast), expected gradient of a group with and without.

    Both gradients are `[families, stages, actions]`, are not conditional (they add up to the expectation of a group),
    and average over the rows of the group.
    """

    share: float
    family: int
    keep: float
    mixed: Array
    equal: Array


def tasks(known: Truth, estimator: str, n: int) -> list[Task]:
    """The task classes of a policy under a group estimator and the loss `-A log pi`, all groups counted.

    Only scores enter an advantage, so that a group is a multinomial over the scores that occur, and a row's score
    function is known by its mean given its score.
    """
    import numpy as np

    from labs.exact import multisets, probability

    chance, out = known.kinds.probability(known.log_probs), []
    for c, own in enumerate(known.classes):
        weight = chance[own.family]
        values, level = np.unique(known.kinds.reward[c], return_inverse=True)
        mass = np.bincount(level, weights=weight)
        scores = known.kinds.scores(known.log_probs[own.family])
        sums = np.array([np.tensordot(weight * (level == v), scores, 1) for v in range(len(values))])
        centres = sums / np.where(mass > 0, mass, 1.0)[:, None, None]
        drawn = multisets(len(values), n)
        law = probability(drawn, mass)
        push = drawn * advantages(estimator, values, drawn) / n
        one = (drawn == n).any(axis=1)
        parts = []
        for picked in (~one, one):
            whole = np.zeros(known.environment.policy_shape)
            whole[own.family] = np.tensordot((law * picked) @ push, centres, 1)
            parts.append(whole)
        out.append(Task(own.probability, own.family, float(law[~one].sum()), *parts))
    return out


def advantages(estimator: str, values: Array, drawn: Any) -> Array:
    """`[M, V]`: what the estimator gives a row of each score in groups with these counts; 0 where there is none."""
    import numpy as np
    import torch

    rows = [(g, v) for g, group in enumerate(drawn) for v, count in enumerate(group) for _ in range(count)]
    scores = torch.tensor([[float(values[v])] for _, v in rows], dtype=torch.float64)
    found, _ = call(
        estimators[estimator], token_level_rewards=scores, response_mask=torch.ones(len(rows), 1, dtype=torch.int64),
        index=np.array([str(g) for g, _ in rows]), config={},
    )  # fmt: skip
    out = np.zeros(drawn.shape)
    for (g, v), value in zip(rows, found[:, 0].tolist(), strict=True):
        out[g, v] = value
    return out


def skilled(environment: Environment, successes: Sequence[float]) -> Truth:
    """Family by family the first policy of the steepest ascent whose success over all families is this, in turn."""
    import numpy as np

    from labs.exact import ascend, truth

    found = {s: ascend(environment, s).log_probs for s in dict.fromkeys(successes)}
    families = range(len(environment.families))
    return truth(environment, np.stack([found[successes[f % len(successes)]][f] for f in families]))


def families(known: Truth, groups: Sequence[Task], batch: int) -> list[dict[str, Any]]:
    """One row a family: success, probability of contrast, and its share of the trained groups under every rule."""
    names = list(known.environment.families)
    share = [sum(t.share for t in groups if t.family == f) for f in range(len(names))]
    keep = [sum(t.share * t.keep for t in groups if t.family == f) / share[f] for f in range(len(names))]
    right = [
        sum(
            own.probability * float(known.kinds.probability(known.log_probs)[f] @ (known.kinds.reward[c] > 0))
            for c, own in enumerate(known.classes)
            if own.family == f
        )
        / share[f]
        for f in range(len(names))
    ]
    total = sum(s * k for s, k in zip(share, keep, strict=True))
    turns, _ = in_turn(keep, batch)
    there = 1 - counts([keep[g % len(names)] for g in range(batch)])[0]
    left = [expected_left(keep, batch, f) for f in range(len(names))]
    return [
        {
            "family": name,
            "family_success": right[f],
            "family_keep": keep[f],
            "offered": share[f],
            "stream": share[f] * keep[f] / total if total else 0.0,
            "in_turn": turns[f] / batch,
            "left": keep[f] * left[f] / there if there else 0.0,
            "family_cost": 1 / keep[f] if keep[f] else float("inf"),
        }
        for f, name in enumerate(names)
    ]


def expected_left(keep: Sequence[float], batch: int, family: int) -> float:
    """Sum over the family's groups of a batch of `E[1 / (1 + others kept)]`: each is divided by what is left."""
    played = [g % len(keep) for g in range(batch)]
    if family not in played:
        return 0.0
    others = list(played)
    others.remove(family)
    return played.count(family) * reciprocal([keep[f] for f in others])


def gradients(known: Truth, groups: Sequence[Task], rows: Sequence[dict[str, Any]], batch: int) -> dict[str, Array]:
    """Expected gradient of a batch under every rule, and the true gradient of J; `[families, stages, actions]`."""
    import numpy as np

    total = sum(t.share * t.keep for t in groups)
    keep = [row["family_keep"] for row in rows]
    zero = np.zeros(known.environment.policy_shape)

    def combine(weights: Sequence[float]) -> Array:
        return sum((w * t.mixed for w, t in zip(weights, groups, strict=True)), zero)

    def within(t: Task) -> float:
        return t.share / rows[t.family]["offered"]

    def over(a: float, b: float) -> float:
        return a / b if b else 0.0

    return {
        PLAIN: sum((t.share * (t.mixed + t.equal) for t in groups), zero),
        STREAM: combine([over(t.share, total) for t in groups]),
        TURN: combine([over(rows[t.family]["in_turn"] * within(t), keep[t.family]) for t in groups]),
        LEFT: combine([within(t) * expected_left(keep, batch, t.family) for t in groups]),
        SAME: combine([over(t.share, t.keep) for t in groups]),
        "true": known.objective.gradient,
    }


def costs(rows: Sequence[dict[str, Any]], groups: Sequence[Task], batch: int) -> dict[str, float]:
    """Expected groups played for each trained one."""
    keep = [row["family_keep"] for row in rows]
    total = sum(t.share * t.keep for t in groups)
    trained = sum(keep[g % len(keep)] for g in range(batch))
    return {
        PLAIN: 1.0,
        STREAM: 1 / total if total else float("inf"),
        TURN: in_turn(keep, batch)[1] / batch,
        LEFT: batch / trained if trained else float("inf"),
        SAME: sum(t.share / t.keep if t.keep else float("inf") for t in groups),
    }


def sampled(config: Config, known: Truth, seed: int) -> dict[str, list[Any]]:
    """Filtered batches of the lab's trainer: trained groups of each family and groups played, batch by batch."""
    import torch

    from labs.policy import Policy
    from labs.step import StepConfig
    from labs.trainer import Trainer, TrainerConfig

    environment = environments[config.environment]
    trainer = Trainer(
        environment,
        TrainerConfig(
            step=StepConfig(estimator=config.estimator), groups_per_update=config.groups_per_update,
            group_size=config.group_size, filter_groups=True, filter_budget=1000,
        ),
        seed=seed, policy=Policy(torch.from_numpy(known.log_probs.copy())),
    )  # fmt: skip
    names = list(environment.families)
    trained, played = [], []
    for _ in range(config.batches):
        episodes, note = trainer.collect()
        found = [] if episodes is None else [task.family for task in episodes.tasks[:: config.group_size]]
        trained.append([found.count(name) for name in names])
        played.append(note["groups_played"])
    return {"trained": trained, "played": played}


def path(config: Config) -> list[dict[str, float]]:
    """Along the expected training run from the uniform policy: success, P(contrast), groups played a trained one."""
    from itertools import islice

    from labs.classes import Learner, mean_field
    from labs.exact import truth

    environment = environments[config.environment]
    learner = Learner(
        environment=environment, groups_per_update=len(environment.families), group_size=config.group_size,
        learning_rate=config.learning_rate,
    )  # fmt: skip
    out = []
    for update, table in enumerate(islice(mean_field(learner, config.updates), config.updates)):
        known = truth(environment, table)
        equal = known.equal_groups(config.group_size)
        keep = float(sum(own.probability * (1 - e) for own, e in zip(known.classes, equal, strict=True)))
        out.append({"update": update + 1, "success": known.success.value, "path_keep": keep,
                    "path_cost": 1 / max(keep, 1e-300)})  # fmt: skip
    return out
