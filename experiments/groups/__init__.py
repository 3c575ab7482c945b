"""What does a group of rollouts teach, and what goes wrong in it: no contrast, its size, its ids, its sessions?

Five measurements. What every group estimator makes of an all-wrong, an all-right, a mixed and a lone group. How often a
group has no contrast, sampled and exact, for each task, skill and size. Small groups against large ones at the same
number of rollouts: exact signal-to-noise of the update, and training. Wrong group ids: the exact expected gradient over
all outcomes of an easy and a hard task. Sessions of several rows: which rows move the baseline of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.groups import measures
from labs.config import field
from labs.errors import InputError, one_of
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import estimators
from labs.stats import Interval, t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the measurements on groups."""

    estimator: str = field("rloo", help="group estimator that trains and gets wrong ids", choices=estimators)
    skills: tuple[float, ...] = field(
        (0.0, 1.0, 2.0, 3.0, 4.0), help="logits of the right actions, half of it for difference", low=-20, high=20
    )
    group_sizes: tuple[int, ...] = field((2, 4, 8, 16), help="rollouts a group", low=2, high=64)
    groups: int = field(300, help="sampled groups for each skill, size and task", unit="group", low=1, high=100_000)
    small: int = field(2, help="the small group of the comparison", unit="trajectory", low=2, high=64)
    large: int = field(16, help="the large group of the comparison", unit="trajectory", low=2, high=64)
    budget: int = field(192, help="rollouts an update, whatever the size", unit="trajectory", low=4, high=4096)
    updates: int = field(30, help="updates of each training", low=1, high=1000)
    trainings: int = field(6, help="trainings of each size", low=1, high=100)
    learning_rate: float = field(10.0, help="step size of the trainings", above=0, high=1000)
    start: float = field(1.0, help="logit of the right actions where training starts", low=-20, high=20)

    def check(self) -> None:
        """A group estimator that works on scores alone, and groups of both sizes that fill the budget."""
        if self.estimator not in (known := measures.group_estimators()):
            raise one_of("estimator", self.estimator, known)
        for name in ("small", "large"):
            if self.budget % (2 * getattr(self, name)):
                raise InputError(f"budget is {self.budget}; it must be a multiple of twice {name}, as both tasks share")
        if not self.skills or not self.group_sizes:
            raise InputError("skills and group_sizes need at least one number each")


TINY = {"skills": [2.0], "group_sizes": [2, 4], "groups": 20, "large": 4, "budget": 16, "updates": 2, "trainings": 2}
CHANGES = {"estimator": "dr_grpo", "skills": [1.0], "group_sizes": [2, 3], "groups": 30, "small": 4, "large": 8,
           "budget": 32, "updates": 3, "trainings": 3, "learning_rate": 5.0, "start": 2.0}  # fmt: skip

_RATE: Any = {"unit": "1", "low": 0.0, "high": 1.0}
METRICS = (
    Metric(name="update", unit="1", formula="number of the policy update", low=1, scope="run"),
    Metric(name="small_success", **_RATE, formula="exact success after the update, mean over the small-group runs"),
    Metric(name="large_success", **_RATE, formula="exact success after the update, mean over the large-group runs"),
    Metric(name="equal_share", **_RATE, formula="sampled groups of equal scores / groups, largest size, first skill",
           text="They teach nothing to an estimator that compares within the group.", scope="run"),
    Metric(name="exact_equal_share", **_RATE, formula="p^n + (1 - p)^n of the same, by enumeration", scope="run"),
    Metric(name="largest_deviation", unit="standard error", low=0, scope="run", healthy="under 4",
           formula="largest |sampled - exact share| / sqrt(exact (1 - exact) / groups), over tasks, skills and sizes"),
    Metric(name="std_ratio", unit="1", low=1, scope="run",
           formula="advantage with the population std / with the sample std at the smallest size: sqrt(n / (n - 1))"),
    Metric(name="signal_to_noise_ratio", unit="1", low=0, scope="run",
           formula="exact signal-to-noise of an update with large groups / with small ones, where training starts"),
    Metric(name="success_difference", unit="1", low=-1, high=1, scope="run",
           formula="mean over updates and trainings of exact success, large groups - small groups"),
    Metric(name="baseline_rows", unit="row", low=0, scope="run",
           formula="rows of nine in four sessions whose reward moves another session's advantage, under grpo"),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """The five measurements; only the shares of equal groups and the trainings are sampled."""
    shares = measures.shares(config, seed)
    worst = max(abs(r["sampled"] - r["exact"]) / max(measures.error(r["exact"], config.groups), 1e-12) for r in shares)
    noise = {name: measures.noise(config, getattr(config, name), config.start) for name in ("small", "large")}
    curves = measures.train(config, seed, progress)
    rows = [
        {"update": u + 1, **{f"{name}_success": math.fsum(c[u] for c in curves[name]) / len(curves[name])
                             for name in curves}}
        for u in range(config.updates)
    ]  # fmt: skip
    area = {name: [math.fsum(curve) / len(curve) for curve in curves[name]] for name in curves}
    difference = t_interval([b - a for a, b in zip(area["small"], area["large"], strict=True)])
    stds = [
        {"n": n, "measured": measures.std_ratio(n), "exact": math.sqrt(n / (n - 1))} for n in sorted(config.group_sizes)
    ]
    ids, sessions = measures.ids(config.estimator), measures.sessions()
    shown = max((r for r in shares if r["skill"] == config.skills[0]), key=lambda r: r["n"])
    ratio = noise["large"] / noise["small"]
    turns = next(row for row in sessions if row["estimator"] == "grpo")
    plain = max(len(row["rows"]) for row in sessions)
    merged = next(row for row in ids if row["ids"] == "one id for all")
    return Result(
        data={
            "kinds": measures.kinds(), "stds": stds, "shares": shares, "signal_to_noise": noise,
            "signal": [{"skill": s, **{name: measures.noise(config, getattr(config, name), s) for name in noise}}
                       for s in config.skills],
            "curves": {name: [[round(v, 6) for v in curve] for curve in curves[name]] for name in curves},
            "difference": difference._asdict(), "ids": ids, "sessions": sessions,
        },
        metrics=rows,
        headline={
            "equal_share": shown["sampled"], "exact_equal_share": shown["exact"], "largest_deviation": worst,
            "std_ratio": stds[0]["measured"], "signal_to_noise_ratio": ratio,
            "success_difference": difference.value, "baseline_rows": float(len(turns["rows"])),
        },
        summary=[
            f"equal    {shown['sampled']:.4f} of groups of {shown['n']} ({shown['task']}, p = {shown['p']:.4f}), exact "
            f"{shown['exact']:.4f}; largest of {len(shares)} deviations {worst:.2f} standard errors",
            f"std      population / sample: {stds[0]['measured']:.4f} at n = {stds[0]['n']}, "
            f"{stds[-1]['measured']:.4f} at n = {stds[-1]['n']}",
            f"size     {config.large} against {config.small}: signal-to-noise x {ratio:.4f} (exact); "
            f"success over training {difference}",
            f"ids      one id for all: gradient of the easy task x {merged['scale_easy']:.4f}, of the hard one "
            f"x {merged['scale_hard']:.4f}, noise x {merged['noise']:.4f} of right ids (exact)",
            f"sessions grpo compares {len(turns['rows'])} of 9 rows; others up to {plain}",
        ],
        conclusion=_conclusion(difference, ratio, config),
        next=(
            "python -m labs.run --experiment groups --set estimator=grpo",
            "python -m labs.run --experiment groups --set small=4",
        ),
    )  # fmt: skip


def _conclusion(difference: Interval, ratio: float, config: Config) -> str:
    """Exact: signal-to-noise. Sampled: who trains better, which trainings may be too few to tell."""
    exact = (
        f"At {config.budget} rollouts an update, groups of {config.large} have {ratio:.2f} times the "
        f"signal-to-noise of groups of {config.small} (exact)"
    )
    if difference.low is None or difference.high is None or difference.low <= 0 <= difference.high:
        return f"{exact}; {config.trainings} trainings cannot tell which of them learns faster ({difference})."
    better = config.large if difference.low > 0 else config.small
    return f"{exact}; groups of {better} learn faster (mean success {difference})."


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`kinds` (advantages by kind of group), `equal` (shares), `size` (noise and training), `ids` (ids, sessions)."""
    from experiments.groups import drawing

    first = results[0]
    return {
        "kinds": drawing.kinds(first),
        "equal": drawing.equal(results),
        "size": drawing.size(results),
        "ids": drawing.ids(first),
    }
