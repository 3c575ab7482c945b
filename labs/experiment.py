"""What an experiment is, and what it returns.

An experiment is a file `experiments/<name>.py`: its docstring asks the question it answers, and it defines

- `Config`: a frozen keyword-only dataclass of settings made with `labs.config.field`;
- `METRICS`: the `labs.metrics.Metric` of every number in its rows and its headline;
- `run(config, seed, progress=None) -> Result`; `progress(done, total)` may be called as often as it likes;
- `figures(results) -> {name: matplotlib figure}` from the results of one or several seeds of one configuration; it
  reads `data` and `metrics` only, so that figures can be drawn again from what is stored;
- optionally `explained(config, seed, number)`, one update of a run as `labs.explain` takes it, and `simulated(config,
  seed)`, the pipelines of a run that stores no trajectories: a replay and a report compute both again;
- optionally `TINY`, settings that make it finish in a fraction of a second for tests, and `CHANGES`, for each
  setting another value that must change some output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labs.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Called with how much is done and how much there is in all.
Progress = Callable[[int, int], None]

#: Keys of the JSON document that are not the experiment's own.
RESERVED = ("experiment", "seed", "fingerprint", "config", "headline", "summary", "conclusion", "next")

#: The largest seed; every generator in use takes it.
MAX_SEED = 2**32 - 1


@dataclass(kw_only=True, eq=False, repr=False)
class Result:
    """What one run of an experiment found.

    Attributes:
        data: the answer, JSON types only; its keys stand at the top of the JSON document.
        metrics: one row per step, JSON types only.
        trajectories: one row per trajectory, JSON types only.
        headline: the numbers that matter, by metric name; over many seeds each gets a mean and an interval.
        summary: at most five lines for a person.
        conclusion: what was found, in one sentence.
        next: two commands worth typing next.
        files: further files for the run folder, by name.
        timing: rows of wall-clock numbers; they never enter the document.
        experiment, seed, fingerprint, config: which run this is; filled in by `execute`.
        folder: where it is stored, if it is.
    """

    data: dict[str, Any]
    metrics: list[dict[str, Any]] = field(default_factory=list)
    trajectories: list[dict[str, Any]] = field(default_factory=list)
    headline: dict[str, float] = field(default_factory=dict)
    summary: list[str] = field(default_factory=list)
    conclusion: str = ""
    next: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    timing: list[dict[str, Any]] = field(default_factory=list)
    experiment: str = ""
    seed: int | None = None
    fingerprint: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    folder: str | None = None

    def document(self) -> dict[str, Any]:
        """The full JSON result: which run, the headline, the words, then the experiment's own keys."""
        own = {name: getattr(self, name) for name in RESERVED}
        return {**own, "next": list(self.next), **self.data}

    @classmethod
    def from_document(cls, document: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]] = ()) -> Result:
        """The result of a stored document and its metric rows."""
        own = {name: document[name] for name in RESERVED if name in document}
        own["next"] = tuple(own.get("next", ()))
        data = {name: value for name, value in document.items() if name not in RESERVED}
        return cls(data=data, metrics=[dict(row) for row in metrics], **own)

    def __repr__(self) -> str:
        """What a notebook shows: which run, its summary and conclusion; the rows are in the attributes."""
        which = f"{self.experiment or 'result'}, seed {self.seed}"
        return "\n".join([which, *self.summary, *([self.conclusion] if self.conclusion else [])])

    def figures(self) -> Mapping[str, Figure]:
        """The figures of this run, by name; they show themselves in a notebook."""
        return figures(self.experiment, [self])


def execute(name: str, config: Any, seed: int, progress: Progress | None = None) -> Result:
    """Run experiment `name` on a built configuration and hold it to its promises.

    Raises:
        InputError: a `data` key that the document needs for itself, more than five summary lines, or a headline
            number that `METRICS` does not declare.
    """
    from labs.config import as_dict, fingerprint
    from labs.registry import experiments

    module = experiments[name]
    result: Result = module.run(config, seed, progress)
    clash = [key for key in RESERVED if key in result.data]
    if clash:
        raise InputError(f"experiment {name}: its data has the reserved keys {', '.join(clash)}")
    if len(result.summary) > 5:
        raise InputError(f"experiment {name}: its summary has {len(result.summary)} lines; at most 5 are allowed")
    undeclared = set(result.headline) - {metric.name for metric in module.METRICS}
    if undeclared:
        raise InputError(f"experiment {name}: METRICS does not declare {', '.join(sorted(undeclared))}")
    result.experiment, result.seed, result.config = name, seed, as_dict(config)
    result.fingerprint = fingerprint(name, config)
    return result


def spell(seeds: Sequence[int]) -> str:
    """The shortest way to write seeds: `[0, 1, 2, 5]` is `0-2,5`."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def figures(name: str, results: Sequence[Result]) -> Mapping[str, Figure]:
    """The figures of experiment `name` for the results of one or several seeds, in the lab's style."""
    from labs import plots
    from labs.registry import experiments

    with plots.style():
        drawn: Mapping[str, Figure] = experiments[name].figures(results)
    return drawn
