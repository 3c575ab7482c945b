"""What does dynamic sampling change: the tasks that are trained, the direction of the gradient, or only its length?

A group of n equal scores teaches nothing to an estimator that compares within the group, and DAPO drops it. Which tasks
the trained batch then has is exact: each counts by its probability of contrast, `1 - p^n - (1-p)^n`. What that does to
the expected gradient depends on what replaces a dropped group: the next task of a stream, tasks of all families in
turn (the lab's trainer), nothing (and the sum is divided by what is left), or the same task once more. All of it is
counted over all groups, family by family, with the groups that must be played for one that is trained; a few filtered
batches of the trainer are held against it, and an expected training run shows when filtering costs most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.filtering import measures
from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments, estimators
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labs.exact import Array


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the policy and of the batches."""

    environment: str = field("arithmetic3", help="the environment", choices=environments)
    successes: tuple[float, ...] = field(
        (0.03, 0.5, 0.97), help="success of the policy by family, in turn", low=0, high=0.999
    )
    estimator: str = field("grpo", help="a group estimator that reads only scores and ids", choices=estimators)
    group_size: int = field(8, help="trajectories a task", unit="trajectory", low=2, high=64)
    groups_per_update: int = field(12, help="tasks of a batch; families in turn", unit="group", low=1, high=512)
    batches: int = field(50, help="filtered batches of the trainer", low=1, high=100_000)
    updates: int = field(80, help="updates of the expected training run", unit="update", low=1, high=10_000)
    learning_rate: float = field(4.0, help="its step size", above=0, high=1000)

    def check(self) -> None:
        """An estimator whose advantage is a function of the group's scores, and a batch that offers what is offered."""
        entry = estimators[self.estimator]
        if not entry.meta["properties"].groups or not set(entry.needs) <= {"index"}:
            raise InputError(f"estimator is {self.estimator}; it must compare scores within the group and read no more")
        if not self.successes:
            raise InputError("successes is empty; it takes at least one")
        families = len(environments[self.environment].families)
        if self.groups_per_update % families:
            raise InputError(
                f"groups_per_update is {self.groups_per_update}; environment {self.environment} plays its "
                f"{families} families in turn, so that it must be a multiple of that"
            )


TINY = {"group_size": 4, "groups_per_update": 6, "batches": 4, "updates": 2}
CHANGES = {
    "environment": "arithmetic", "successes": [0.2, 0.6], "estimator": "rloo", "group_size": 3, "groups_per_update": 12,
    "batches": 5, "updates": 3, "learning_rate": 2.0,
}  # fmt: skip

_SHARE: Any = {"unit": "1", "low": -1e-9, "high": 1.0 + 1e-9}
_COSINE: Any = {"unit": "1", "low": -1 - 1e-9, "high": 1 + 1e-9}
METRICS = (
    Metric(name="family_success", **_SHARE, formula="p: exact success of the policy on this family"),
    Metric(name="family_keep", **_SHARE, formula="P(the n scores are not all equal); 1 - p^n - (1-p)^n for 0/1 scores"),
    Metric(name="offered", **_SHARE, formula="share of the family in the task distribution"),
    Metric(name="stream", **_SHARE, formula="share of trained groups, refill from a stream: offered x keep / sum"),
    Metric(name="in_turn", **_SHARE, formula="the same when families are played in turn until the batch is full"),
    Metric(name="left", **_SHARE, formula="E[share of the kept groups | any], no refill"),
    Metric(name="family_cost", unit="1", formula="1 / family_keep: groups played for one with contrast", low=1 - 1e-9),
    Metric(name="scale", unit="1", formula="<E[g], E[g] unfiltered> / |E[g] unfiltered|^2"),
    Metric(name="cosine", **_COSINE, formula="between E[g] and E[g] unfiltered"),
    Metric(name="true_cosine", **_COSINE, formula="between E[g] and grad J"),
    Metric(name="cost", unit="1", formula="expected groups played / groups trained", low=1 - 1e-9),
    Metric(name="update", unit="1", formula="number of the update", low=1),
    Metric(name="success", **_SHARE, formula="exact success along the expected training run"),
    Metric(name="path_keep", **_SHARE, formula="P(contrast) of an offered group along it"),
    Metric(name="path_cost", unit="1", formula="1 / path_keep: cost, and length of the refilled "
                                               "gradient", low=1 - 1e-9),
    Metric(name="keep", **_SHARE, formula="P(contrast) of an offered group: sum of offered x keep"),
    Metric(name="refill_scale", unit="1", formula="scale of refill from a stream", low=0),
    Metric(name="refill_cosine", **_COSINE, formula="cosine of refill from a stream"),
    Metric(name="left_cosine", **_COSINE, formula="cosine without refill, over what is left"),
    Metric(name="same_cosine", **_COSINE, formula="cosine of playing the same task again"),
    Metric(name="trained_share", **_SHARE, formula="exact share, families in turn, of the family that moves most"),
    Metric(name="sampled_share", **_SHARE, formula="its share in the trainer's filtered batches, mean over batches"),
    Metric(name="sampled_cost", unit="1", formula="groups played / trained in them", low=0,
           text="Above the exact cost of one at a time: two are ordered for each that is dropped, and surplus is "
                "lost."),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Count, draw filtered batches, and follow the expected run."""
    environment = environments[config.environment]
    known = measures.skilled(environment, config.successes)
    groups = measures.tasks(known, config.estimator, config.group_size)
    rows = measures.families(known, groups, config.groups_per_update)
    expected = measures.gradients(known, groups, rows, config.groups_per_update)
    cost = measures.costs(rows, groups, config.groups_per_update)
    rules = [{"rule": name, **compare(expected[name], expected), "cost": cost[name]} for name in measures.RULES]
    weights = [
        {"rule": name, **{row["family"]: along(expected, name, f) for f, row in enumerate(rows)}}
        for name in measures.RULES
    ]
    drawn = measures.sampled(config, known, seed)
    if progress is not None:
        progress(1, 1)
    by = {row["rule"]: row for row in rules}
    moved = max(range(len(rows)), key=lambda f: abs(rows[f]["in_turn"] - rows[f]["offered"]))
    shares = [batch[moved] / sum(batch) for batch in drawn["trained"] if sum(batch)]
    total = sum(map(sum, drawn["trained"]))
    keep = math.fsum(row["offered"] * row["family_keep"] for row in rows)
    sampled_cost = sum(drawn["played"]) / total if total else 0.0
    headline = {
        "keep": keep,
        "refill_scale": by[measures.STREAM]["scale"],
        "refill_cosine": by[measures.STREAM]["cosine"],
        "left_cosine": by[measures.LEFT]["cosine"],
        "same_cosine": by[measures.SAME]["cosine"],
        "trained_share": rows[moved]["in_turn"],
        "sampled_share": math.fsum(shares) / len(shares) if shares else 0.0,
        "sampled_cost": sampled_cost,
    }
    return Result(
        data={"families": rows, "weights": weights, "sampled": drawn},
        metrics=[*rows, *rules, *measures.path(config)],
        headline=headline,
        summary=[
            "exact  contrast: " + ", ".join(
                f"{row['family']} p {row['family_success']:.3f} -> {row['family_keep']:.3f}" for row in rows
            ),
            "exact  offered -> trained, from a stream: "
            + ", ".join(f"{row['family']} {row['offered']:.3f} -> {row['stream']:.3f}" for row in rows),
            "exact  cosine to the unfiltered gradient (length): "
            + ", ".join(f"{row['rule']} {row['cosine']:.4f} ({row['scale']:.3f})" for row in rules[1:]),
            "exact  groups played a trained one: " + ", ".join(f"{n} {c:.3f}" for n, c in list(cost.items())[1:])
            + f"; the trainer's batches {sampled_cost:.3f}",
            f"a KL or entropy bonus of fixed coefficient counts {keep:.3f} of what it did, against a refilled gradient",
        ],
        conclusion=f"{turns(rules)}; {verdict(rows[moved], shares)}.",
        next=(
            "python -m labs.run --experiment filtering --set group_size=16",
            "python -m labs.run --experiment filtering --set successes=0.01,0.02,0.03",
        ),
    )  # fmt: skip


def compare(mean: Array, expected: Mapping[str, Array]) -> dict[str, float]:
    """Length along the unfiltered gradient, and cosines to it and to the true one; 0 where there is no direction."""
    import numpy as np

    def cosine(a: Array, b: Array) -> float:
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        return float((a * b).sum() / size) if size else 0.0

    plain = expected[measures.PLAIN]
    square = float((plain**2).sum())
    return {
        "scale": float((mean * plain).sum()) / square if square else 0.0,
        "cosine": cosine(mean, plain),
        "true_cosine": cosine(mean, expected["true"]),
    }


def along(expected: Mapping[str, Array], rule: str, family: int) -> float:
    """How long a family's part of the gradient is along its unfiltered part; 0 where that is none."""
    plain = expected[measures.PLAIN][family]
    square = float((plain**2).sum())
    return float((expected[rule][family] * plain).sum()) / square if square else 0.0


def turns(rules: Sequence[Mapping[str, Any]]) -> str:
    """Which rules keep the direction of the expected gradient, exactly; a cosine within 1e-9 of 1 is kept."""
    kept, turned = [], []
    for row in rules[1:]:
        if row["cosine"] > 1 - 1e-9:
            kept.append(f"{row['rule']} (x {row['scale']:.3f})")
        else:
            turned.append(f"{row['rule']} ({math.degrees(math.acos(row['cosine'])):.2g} degrees)")
    parts = []
    if kept:
        parts.append(f"only the length changes with {', '.join(kept)}")
    if turned:
        parts.append(f"the direction turns with {', '.join(turned)}")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def verdict(row: Mapping[str, Any], shares: Sequence[float]) -> str:
    """Whether sampled batches show the shift of the family that moves most."""
    what = f"{row['in_turn']:.3f} of the trained groups are {row['family']} (exact), offered {row['offered']:.3f}"
    if not shares:
        return f"{what}, and no filtered batch kept a group, so that they cannot tell"
    found = t_interval(shares)
    if found.low is None or found.high is None or found.low <= row["offered"] <= found.high:
        return f"{what}; from {len(shares)} filtered batch(es), share {found.value:.3f}, one cannot tell that apart"
    word = "more" if found.low > row["offered"] else "fewer"
    seen = f"{found.value:.3f} ({found.name} {found.low:.3f} to {found.high:.3f})"
    return f"{what}; {len(shares)} filtered batches show {word} than offered, {seen}"


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`tasks` (contrast, shares), `gradient` (weights, directions) and `cost` (groups played, along training)."""
    from experiments.filtering import drawing

    return {
        "tasks": drawing.tasks(results),
        "gradient": drawing.gradient(results[0]),
        "cost": drawing.cost(results),
    }
