"""Two stored runs side by side: paired over the seeds they share, with an interval, and honest when it cannot tell.

    d_s = A_s - B_s                            over the seeds s that both have
    mean(d) -+ t(n-1) sd(d) / sqrt(n)          95 %, sd with n - 1
    otherwise: Welch's interval of mean(A) - mean(B), degrees of freedom by Satterthwaite

"Cannot tell" means that the interval contains 0, or that there is none. The number of seeds that would tell is the
smallest n with `sqrt(n) |mean(d)| / sd(d) >= t(n-1, 0.975) + t(n-1, 0.8)`: it would find a difference as large as the
one seen in 4 of 5 repetitions.

Source: Student (1908); Welch (1947), "The generalization of Student's problem"; Colas, Sigaud and Oudeyer (2018), "How
many random seeds?", for the pairing and the power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labs.errors import InputError, one_of
from labs.stats import Interval, t_interval
from labs.stored import document

#: More seeds than this are never asked for: a difference that small is no difference.
_MOST = 100_000


@dataclass(frozen=True, kw_only=True)
class Run:
    """A stored run as a comparison sees it.

    Attributes:
        path: its folder.
        experiment, config: which run.
        values: the headline numbers of every seed.
    """

    path: str
    experiment: str
    config: Mapping[str, Any]
    values: Mapping[int, Mapping[str, float]]


def load(path: str) -> Run:
    """The run in a folder, of one seed or of many.

    Raises:
        InputError: no complete run is there, or it is damaged.
    """
    found = document(path)
    if "per_seed" in found:
        rows = [dict(row) for row in found["per_seed"]]
        values = {row.pop("seed"): row for row in rows}
    else:
        values = {found["seed"]: found["headline"]}
    run = Run(path=path, experiment=found["experiment"], config=found["config"], values=values)
    if not any(run.values.values()):
        raise InputError(f"{path} is a run of {run.experiment}, which has no headline numbers to compare")
    return run


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One number of both runs.

    Attributes:
        name: the headline number.
        a, b: its mean over the seeds, with interval.
        difference: of A - B, with interval.
        paired: over the same seeds; False for Welch's.
        wanted: seeds of each run that would tell, None where the interval tells already or nothing is known.
        better: "higher", "lower" or "" as declared.
    """

    name: str
    a: Interval
    b: Interval
    difference: Interval
    paired: bool
    wanted: int | None
    better: str = ""

    @property
    def tells(self) -> bool:
        """True when the interval leaves 0 out."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and (low > 0 or high < 0)

    def sentence(self) -> str:
        """The verdict for a person."""
        d, n = self.difference, self.difference.n
        size = abs(d.value)
        which = f"{n} paired seeds" if self.paired else f"{self.a.n} and {self.b.n} seeds, not the same ones"
        if d.low is None or d.high is None:
            which = which.replace("1 paired seeds", "one seed").replace(
                "1 and 1 seeds, not the same ones", "one seed each"
            )
            return f"{self.name}: cannot tell, {which}: A - B is {d.value:+.4g}, no interval; run both with --seeds 0-7"
        if d.low == d.high == 0:
            return f"{self.name}: no difference at all, {which} gave the same numbers"
        if not self.tells:
            more = f"; about {self.wanted:,} seeds would" if self.wanted else ""
            return f"{self.name}: cannot tell, A - B is {d.value:+.4g}, 95 % {d.low:.4g} to {d.high:.4g}, {which}{more}"
        first = "A" if (d.value > 0) == (self.better != "lower") else "B"
        word = "better" if self.better else "higher"
        low, high = sorted((abs(d.low), abs(d.high)))
        return f"{self.name}: {first} {word} by {size:.4g}, 95 % {low:.4g} to {high:.4g}, {which}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two runs differ in.

    Attributes:
        a, b: the runs.
        settings: (name, value in A, value in B) of every setting that differs.
        differences: one per headline number that both have, the deciding one first.
        deciding: which number the sentence is about.
    """

    a: Run
    b: Run
    settings: Sequence[tuple[str, Any, Any]]
    differences: Sequence[Difference] = field(default_factory=list)

    @property
    def deciding(self) -> Difference:
        """The number that the sentence is about."""
        return self.differences[0]

    def sentence(self) -> str:
        """One sentence."""
        return self.deciding.sentence()

    def document(self) -> dict[str, Any]:
        """As JSON types."""

        def run(which: Run) -> dict[str, Any]:
            return {"folder": which.path, "experiment": which.experiment, "seeds": sorted(which.values)}

        return {
            "a": run(self.a),
            "b": run(self.b),
            "settings": [{"name": name, "a": a, "b": b} for name, a, b in self.settings],
            "sentence": self.sentence(),
            "differences": [
                {
                    "name": d.name,
                    "a": d.a._asdict(),
                    "b": d.b._asdict(),
                    "difference": d.difference._asdict(),
                    "paired": d.paired,
                    "tells": d.tells,
                    "seeds_that_would_tell": d.wanted,
                }
                for d in self.differences
            ],
        }


def welch(a: Sequence[float], b: Sequence[float]) -> Interval:
    """95 % interval of mean(a) - mean(b) for independent samples of unequal variance (Welch 1947)."""
    first, second = t_interval(a), t_interval(b)
    difference, name = first.value - second.value, "95 % Welch interval"
    n = min(first.n, second.n)
    if first.n < 2 or second.n < 2:
        return Interval(difference, None, None, n, name)
    from scipy.special import stdtrit

    u, v = (_variance(x) / len(x) for x in (a, b))
    if u + v == 0:
        return Interval(difference, difference, difference, n, name)
    freedom = (u + v) ** 2 / (u * u / (first.n - 1) + v * v / (second.n - 1))
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(u + v)
    return Interval(difference, difference - half, difference + half, n, name)


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


def seeds_that_tell(mean: float, std: float) -> int | None:
    """The smallest n for which a paired t-test at 5 % finds `mean` in 4 of 5 repetitions; see the module's formula.

    None when the mean is 0, or when more than 100,000 seeds would be needed. `std` is that of the differences, n - 1.
    """
    if mean == 0 or not math.isfinite(std):
        return None
    from scipy.special import stdtrit

    def enough(n: int) -> bool:
        return math.sqrt(n) * abs(mean) >= std * float(stdtrit(n - 1, 0.975) + stdtrit(n - 1, 0.8))

    if not enough(_MOST):
        return None
    low, high = 1, _MOST  # enough(1) is never asked: one seed has no interval
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def compare(a: Run, b: Run, metric: str | None = None) -> Comparison:
    """Compare two runs number by number.

    Args:
        a, b: the runs.
        metric: the number that decides; the first headline number that both have when None.

    Raises:
        InputError: they share no headline number, or not `metric`.
    """
    from labs.registry import experiments

    shared = [name for name in _names(a) if name in _names(b)]
    if not shared:
        raise InputError(
            f"{a.path} is a run of {a.experiment} and {b.path} one of {b.experiment}; they share no headline number"
        )
    if metric is not None:
        if metric not in shared:
            raise one_of("--metric", metric, shared)
        shared.sort(key=lambda name: name != metric)
    declared = {m.name: m for which in (b, a) if which.experiment in experiments
                for m in experiments[which.experiment].METRICS}  # fmt: skip
    missing = "not there"
    keys = [*a.config, *(key for key in b.config if key not in a.config)]
    settings = [(key, a.config.get(key, missing), b.config.get(key, missing)) for key in keys]
    if a.experiment != b.experiment:
        settings.insert(0, ("experiment", a.experiment, b.experiment))
    differences = [_difference(a, b, name, declared[name].better if name in declared else "") for name in shared]
    return Comparison(a=a, b=b, settings=[s for s in settings if s[1] != s[2]], differences=differences)


def _names(run: Run) -> list[str]:
    return list(next(iter(run.values.values())))


def _difference(a: Run, b: Run, name: str, better: str) -> Difference:
    both = sorted(set(a.values) & set(b.values))
    if both:
        first, second = ([run.values[seed][name] for seed in both] for run in (a, b))
        apart = [x - y for x, y in zip(first, second, strict=True)]
        found = t_interval(apart)
        std = math.sqrt(_variance(apart)) if len(apart) > 1 else math.inf
    else:
        first, second = ([values[name] for values in run.values.values()] for run in (a, b))
        found = welch(first, second)
        std = math.sqrt(_variance(first) + _variance(second)) if min(len(first), len(second)) > 1 else math.inf
    tells = found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)
    return Difference(
        name=name,
        a=t_interval(first),
        b=t_interval(second),
        difference=found,
        paired=bool(both),
        wanted=None if tells else seeds_that_tell(found.value, std),
        better=better,
    )


def figure(comparison: Comparison) -> Any:
    """The deciding number: every paired seed as a line from A to B, or the two samples, and the means with interval."""
    from labs import plots

    found = comparison.deciding
    name = found.name
    with plots.style():
        fig, (left, right) = plots.figure(columns=2)
        both = sorted(set(comparison.a.values) & set(comparison.b.values))
        for seed in both:
            pair = [run.values[seed][name] for run in (comparison.a, comparison.b)]
            left.plot([0, 1], pair, color="0.6", linewidth=0.8, marker="o", markersize=3)
        if not both:
            for at, run in enumerate((comparison.a, comparison.b)):
                left.plot(
                    [at] * len(run.values), [v[name] for v in run.values.values()], "o", color="0.6", markersize=3
                )
        left.set_xticks([0, 1], ["A", "B"])
        left.set_xlim(-0.4, 1.4)
        plots.label(left, f"{name}, one {'line a seed' if both else 'point a seed'}", "", name)
        d = found.difference
        bars = None if d.low is None or d.high is None else [[d.value - d.low], [d.high - d.value]]
        right.errorbar([0], [d.value], yerr=bars, fmt="o", capsize=6)
        right.axhline(0, color="black", linestyle="--", linewidth=1)
        right.set_xticks([0], ["A - B"])
        right.set_xlim(-1, 1)
        plots.label(right, f"difference, {d.name}, n = {d.n}", "", f"{name}, A - B")
        plots.settle(fig)
    return fig
