"""When does training on old data cost something, and which cost can importance weights repair?

Five measurements. Forced lag: what every rule for the denominator makes of data that is a fixed number of updates old.
The exact bias of one such step, with the tails of the ratios. Systems: the trainer inside the pipeline, against
simulated hours, samples and updates, by system and by bound on the lag. A drifting target: old actions against old
rewards. A search: is there a step size at which uncorrected training keeps up with truncated weights at equal samples?

The wide search, kept in `results/reference/staleness`:
--set search_environments=arithmetic,arithmetic3,flaky_tools,routes search_learning_rates=1,3,10,30,100
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.staleness import measures
from labs.config import field, spelled
from labs.errors import InputError, one_of
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments
from labs.stats import Interval, t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the learners, the systems, the drift and the search."""

    environment: str = field("arithmetic", help="where forced lag, bias, drift and systems train", choices=environments)
    lags: tuple[int, ...] = field((0, 4, 8, 16, 32), help="forced lags, ascending from 0", unit="update", low=0)
    runs: int = field(20, help="runs of every lag and rule, and of the drift", low=1, high=10_000)
    updates: int = field(100, help="updates of every run without a clock", unit="update", low=1, high=100_000)
    learning_rate: float = field(0.8, help="step size of forced lag", above=0, high=1000)
    groups_per_update: int = field(12, help="tasks an update", unit="group", low=1)
    group_size: int = field(16, help="trajectories a task, without a clock", unit="trajectory", low=2)
    threshold: float = field(2.0, help="weights are truncated here", above=0, high=1e6)
    clip: float = field(0.2, help="PPO's bound on both sides", above=0, below=1)
    bias_update: int = field(50, help="update at which the bias is measured", unit="update", low=1, high=10_000)
    bias_runs: int = field(5, help="runs along which it is measured", low=1, high=1000)
    systems: tuple[str, ...] = field(
        ("course-synchronous", "areal", "verl-fully-async"), help="systems of labs/pipeline/systems"
    )
    bounds: tuple[int, ...] = field(
        (0, 1, 2, 8), help="bounds on the lag of the course's system, ascending", unit="version", low=0
    )
    system_runs: int = field(3, help="runs of every system and rule", low=1, high=1000)
    system_updates: int = field(30, help="updates that the tasks suffice for", unit="update", low=1, high=10_000)
    system_group_size: int = field(8, help="trajectories a task in the systems", unit="trajectory", low=2)
    system_learning_rate: float = field(5.0, help="step size of the systems", above=0, high=1000)
    workers: int = field(96, help="rollouts that run at once", unit="worker", low=1, high=100_000)
    rollout_seconds: float = field(
        60.0, help="mean time of a rollout (lognormal, sigma 1)", unit="s", low=1e-9, high=1e9
    )
    training_seconds: float = field(120.0, help="time of a training step", unit="s", low=0, high=1e9)
    drift: int = field(40, help="updates after which the right answers change places", unit="update", low=1)
    drift_lag: int = field(8, help="age of what is old under the drift", unit="update", low=1, high=1000)
    drift_learning_rate: float = field(2.0, help="step size under the drift", above=0, high=1000)
    drift_entropy: float = field(0.4, help="entropy coefficient under the drift: who never tries cannot turn", low=0)
    search_environments: tuple[str, ...] = field(("routes",), help="environments of the search")
    search_learning_rates: tuple[float, ...] = field((5.0, 20.0, 60.0), help="its step sizes", above=0, high=1e5)
    search_normalise: bool = field(False, help="divide advantages by the group's standard deviation in the search")
    search_lag: int = field(32, help="its lag", unit="update", low=1, high=10_000)
    search_runs: int = field(50, help="its runs", low=2, high=10_000)

    def check(self) -> None:
        """Lags that the runs have, names that exist and systems that can work, a target that can change places."""
        from labs.pipeline import catalogue

        if len(self.lags) < 2 or self.lags[0] != 0 or list(self.lags) != sorted(set(self.lags)):
            raise InputError(f"lags is {list(self.lags)}; it starts with 0 and ascends, two lags at least")
        for key, reach in (("updates", self.updates - 1), ("bias_update", self.bias_update)):
            if self.lags[-1] > reach:
                limit = f"with {key}={getattr(self, key)} the largest is {reach}"
                raise InputError(f"lags goes to {self.lags[-1]}; {limit}")
        for key in ("bias_update", "drift", "drift_lag", "search_lag"):
            most = self.updates - (key != "bias_update")
            if getattr(self, key) > most:
                raise InputError(f"{key} is {getattr(self, key)}; with updates={self.updates} the largest is {most}")
        if not self.bounds or list(self.bounds) != sorted(set(self.bounds)):
            raise InputError(f"bounds is {list(self.bounds)}; it takes at least one, ascending")
        for key in ("systems", "search_environments", "search_learning_rates"):
            given = getattr(self, key)
            twice = [value for value in given if given.count(value) > 1]
            if twice:
                raise InputError(f"{key} has {twice[0]} twice; allowed: each once")
        for name in self.systems:
            if name not in catalogue.names():
                raise one_of("systems", name, catalogue.names())
        measures.arms(self)
        for name in self.search_environments:
            if name not in environments:
                raise one_of("search_environments", name, sorted(environments))
        if not self.search_environments or not self.search_learning_rates:
            raise InputError("the search needs at least one environment and one step size")
        if len(environments[self.environment].families) < 2:
            raise InputError(f"{self.environment} has one family; a drifting target needs two")


TINY = {"lags": [0, 3], "runs": 2, "updates": 12, "learning_rate": 6.0, "groups_per_update": 2, "group_size": 8,
        "bias_update": 6, "bias_runs": 2, "systems": [], "bounds": [1], "system_runs": 1, "system_updates": 4,
        "workers": 16, "drift": 5, "drift_lag": 2, "search_environments": ["arithmetic"],
        "search_learning_rates": [10.0], "search_lag": 3, "search_runs": 3}  # fmt: skip
CHANGES = {
    "environment": "flaky_tools", "lags": [0, 2], "runs": 3, "updates": 13, "learning_rate": 5.0,
    "groups_per_update": 4, "group_size": 6, "threshold": 1.1, "clip": 0.1, "bias_update": 7, "bias_runs": 3,
    "systems": ["verl-fully-async"], "bounds": [2], "system_runs": 2, "system_updates": 6, "system_group_size": 6,
    "system_learning_rate": 3.0, "workers": 8, "rollout_seconds": 30.0, "training_seconds": 30.0, "drift": 4,
    "drift_lag": 3, "drift_learning_rate": 9.0, "drift_entropy": 0.1, "search_environments": ["arithmetic3"],
    "search_learning_rates": [5.0], "search_normalise": True, "search_lag": 2, "search_runs": 4,
}  # fmt: skip

_RATE: Any = {"unit": "1", "low": 0.0, "high": 1.0 + 1e-9}
_GAP: Any = {"unit": "1", "low": -1.0 - 1e-9, "high": 1.0 + 1e-9}
_RATIO: Any = {"unit": "1", "low": 0.0}
METRICS = (
    Metric(name="lag", unit="update", formula="updates between behaviour and current policy", low=0),
    Metric(name="run", unit="1", formula="number of the run", low=0),
    Metric(name="final_success", **_RATE, formula="exact success after the last update, mean over runs"),
    Metric(name="mean_success", **_RATE, formula="exact success, mean over updates and runs"),
    *(Metric(name=f"bias_{r}", **_RATIO, formula=f"|E[g] - true| / |true|: {w}") for r, w in measures.WORDS.items()),
    *(Metric(name=f"scale_{r}", unit="1", formula=f"<E[g], true> / |true|^2: {w}") for r, w in measures.WORDS.items()),
    Metric(name="effective", **_RATE, formula="1 / E[w^2], w = prod pi / mu: effective sample size / episodes, exact"),
    *(Metric(name=f"{kind}_{what}", **_RATIO, formula=f"{words} of pi / mu of {of}, exact")
      for kind, of in (("token", "a decision"), ("sequence", "an episode"))
      for what, words in (("99", "99 % quantile"), ("largest", "largest value"))),
    Metric(name="hours", unit="h", formula="simulated time until the last task has left", low=0),
    Metric(name="success", **_RATE, formula="exact success of the last policy in a system"),
    Metric(name="rejected", **_RATE, formula="trajectories that were too old / all"),
    Metric(name="token_lag", unit="update", low=0, formula="mean age of a trained token, then over steps"),
    Metric(name="largest_lag", unit="update", low=0, formula="largest age of a trained token"),
    Metric(name="version_span", unit="update", low=0, formula="mean newest - oldest version in a row, then over steps"),
    Metric(name="effective_share", **_RATE, formula="(sum w)^2 / (n sum w^2) of a batch, mean over steps"),
    Metric(name="sequence_ratio_max", **_RATIO, formula="largest pi / mu of a trained row"),
    Metric(name="learning_rate", unit="1", formula="step size of the search", low=0),
    Metric(name="uncorrected", **_RATE, formula="final success of the search, no correction, mean over its runs"),
    Metric(name="weighted", **_RATE, formula="final success of the search, truncated sequence weights"),
    Metric(name="difference", **_GAP, formula="weighted - uncorrected, mean over the same seeds"),
    *(Metric(name=f"{rule}_final", **_RATE, formula=f"final success at the largest lag: {words}", scope="run")
      for rule, words in measures.WORDS.items()),
    Metric(name="on_policy_final", **_RATE, formula="final success at lag 0, no correction", scope="run"),
    Metric(name="collapse", **_GAP, formula="token_final - behaviour_final, same seeds", scope="run"),
    Metric(name="delay", **_GAP, scope="run",
           formula="mean success over training at lag 0 - at the largest lag, no correction"),
    Metric(name="action_loss", **_GAP, formula="drift: mean success fresh - old actions", scope="run"),
    Metric(name="action_repair", **_GAP, formula="drift: old actions, weighted - old actions", scope="run"),
    Metric(name="reward_loss", **_GAP, formula="drift: fresh - old rewards", scope="run"),
    Metric(name="reward_repair", **_GAP, formula="drift: old rewards, weighted - old rewards: 0", scope="run",
           text="With fresh actions every weight is 1; what is wrong is the score, which no ratio of policies knows."),
    Metric(name="search_difference", **_GAP, scope="run", better="higher",
           formula="difference where uncorrected training has its best step size, largest over environments"),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """The five measurements."""
    from labs.lagged import RULES

    done = 0
    cells = (len(config.lags) * len(RULES), len(config.search_environments) * len(config.search_learning_rates),
             (len(config.systems) + len(config.bounds)) * len(measures.DENOMINATORS), len(measures.ARMS))  # fmt: skip

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, sum(cells))

    table = measures.table(config, seed, tick)
    bias = measures.bias(config, seed)
    systems = measures.systems(config, seed, tick)
    drift = measures.drift(config, seed, tick)
    search = measures.search(config, seed, tick)
    cell = {(row["lag"], row["rule"]): row for row in table}
    last = config.lags[-1]
    collapse = paired(cell[last, "token"]["final"], cell[last, "behaviour"]["final"])
    delay = paired(cell[0, "none"]["mean"], cell[last, "none"]["mean"])
    drifts = {
        "action_loss": paired(drift["fresh"], drift["old actions"]),
        "action_repair": paired(drift["old actions, weighted"], drift["old actions"]),
        "reward_loss": paired(drift["fresh"], drift["old rewards"]),
        "reward_repair": paired(drift["old rewards, weighted"], drift["old rewards"]),
    }
    found = [{**{k: row[k] for k in ("environment", "learning_rate")}, "uncorrected": mean(row["none"]),
              "weighted": mean(row["sequence"]), "interval": paired(row["sequence"], row["none"])}
             for row in search]  # fmt: skip
    bests = at_best(found)
    best = max(bests, key=lambda row: row["interval"].value)
    final = {rule: mean(cell[last, rule]["final"]) for rule in measures.WORDS}
    verdicts = [shape(collapse, delay, last), repair(drifts), verdict(bests)]
    return Result(
        data={
            "table": table, "bias": bias, "systems": systems, "drift": drift, "search": search,
            "intervals": {"collapse": collapse._asdict(), "delay": delay._asdict(),
                          **{name: gap._asdict() for name, gap in drifts.items()}},
            "searched": [{**row, "interval": row["interval"]._asdict()} for row in found],
        },
        metrics=[
            *({"lag": r["lag"], "rule": r["rule"], "final_success": mean(r["final"]), "mean_success": mean(r["mean"])}
              for r in table),
            *bias,
            *({**{k: v for k, v in row.items() if k != "curve"}, "success": row["curve"]["success"][-1]}
              for row in systems),
            *({**{k: row[k] for k in ("environment", "learning_rate", "uncorrected", "weighted")},
               "difference": row["interval"].value} for row in found),
        ],
        headline={
            "search_difference": best["interval"].value, "collapse": collapse.value, "delay": delay.value,
            **{name: gap.value for name, gap in drifts.items()},
            "on_policy_final": mean(cell[0, "none"]["final"]),
            **{f"{rule}_final": value for rule, value in final.items()},
        },
        summary=[
            f"lag {last:<4}final success: " + ", ".join(f"{rule} {value:.3f}" for rule, value in final.items())
            + f"; on policy {mean(cell[0, 'none']['final']):.3f}",
            f"mean    over training, uncorrected: lag 0 {mean(cell[0, 'none']['mean']):.3f}, "
            f"lag {last} {mean(cell[last, 'none']['mean']):.3f}; sequence weights "
            f"{mean(cell[last, 'sequence']['mean']):.3f}",
            "clock   " + "; ".join(_system(config, systems, name) for name in measures.arms(config)),
            f"drift   old actions cost {drifts['action_loss'].value:.3f}, weights return "
            f"{drifts['action_repair'].value:.3f}; old rewards cost {drifts['reward_loss'].value:.3f}, weights return "
            f"{drifts['reward_repair'].value:.3f}",
            f"search  {best['environment']}, lag {config.search_lag}, step size {best['learning_rate']:g}: uncorrected "
            f"{best['uncorrected']:.3f}, weighted {best['weighted']:.3f}, difference {best['interval']}",
        ],
        conclusion=" ".join(verdicts),
        next=_next(config, seed),
    )  # fmt: skip


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def paired(one: Sequence[float], other: Sequence[float]) -> Interval:
    """Mean of `one - other` over the same seeds."""
    return t_interval([a - b for a, b in zip(one, other, strict=True)])


def short(gap: Interval) -> str:
    """An interval as three numbers."""
    bounds = "no interval" if gap.low is None or gap.high is None else f"95 % {gap.low:.3f} to {gap.high:.3f}"
    return f"{gap.value:.3f} ({bounds}, n = {gap.n})"


def above(gap: Interval) -> bool | None:
    """Whether the difference is above 0: None where the interval cannot tell."""
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return None
    return gap.low > 0


def shape(collapse: Interval, delay: Interval, lag: int) -> str:
    """Forced lag in one sentence."""
    side = {
        None: "cannot be told from the decoupled form: success differs by",
        True: "ends below the decoupled form by",
        False: "ends above the decoupled form: success differs by",
    }[above(collapse)]
    slow = {
        None: "uncorrected training is not visibly slower",
        True: f"uncorrected training loses {delay.value:.3f} of mean success",
        False: f"uncorrected training even gains {-delay.value:.3f} of mean success",
    }[above(delay)]
    return f"At lag {lag} clipping around the stale policy {side} {short(collapse)}, and {slow}."


def repair(drifts: Mapping[str, Interval]) -> str:
    """What weights do about old actions and old rewards, in one sentence."""
    loss, back, cost = (drifts[name] for name in ("action_loss", "action_repair", "reward_loss"))
    if above(loss) is not True:
        actions = f"old actions do not visibly cost anything, {short(loss)}"
    elif above(back) is not True:
        actions = f"weights do not visibly repair old actions, {short(back)}"
    else:
        actions = f"weights return {back.value:.3f} of the {loss.value:.3f} that old actions cost"
    if above(cost) is not True:
        return f"Under a drifting target {actions}, and old rewards do not visibly cost anything, {short(cost)}."
    again = "" if actions.startswith("weights return") else "weights return "
    return f"Under a drifting target {actions}, and {again}nothing of the {cost.value:.3f} that old rewards cost."


def at_best(found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """For every environment the row of the step size that suits uncorrected training best."""
    return [
        max((row for row in found if row["environment"] == name), key=lambda row: row["uncorrected"])
        for name in dict.fromkeys(row["environment"] for row in found)
    ]


def verdict(bests: Sequence[Mapping[str, Any]]) -> str:
    """The search in one sentence, each environment at the step size that suits uncorrected training best."""
    words = {True: "loses to truncated weights in", False: "wins in", None: "cannot be told from them in"}
    parts = []
    for side, text in words.items():
        own = [f"{row['environment']} by {short(row['interval'])}" if side else
               f"{row['environment']}, {short(row['interval'])}"
               for row in bests if above(row["interval"]) is side]  # fmt: skip
        if own or side:
            parts.append(f"{text} {'; '.join(own) or 'none of the searched environments'}")
    return f"At equal samples and its own best step size uncorrected training {', '.join(parts)}."


def simulated(config: Config, seed: int) -> Mapping[str, Any]:
    """The first run of every system, uncorrected, for `python -m labs replay`."""
    from experiments.staleness import measures

    own = measures.seeds(seed, config.system_runs)[0]
    return {name: measures.system(config, rules, "recomputed", own)[1] for name, rules in measures.arms(config).items()}


def _system(config: Config, rows: Sequence[Mapping[str, Any]], name: str) -> str:
    own = [row for row in rows if row["system"] == name and row["denominator"] == "recomputed"]
    success = mean([row["curve"]["success"][-1] for row in own])
    return f"{name} {success:.2f} in {mean([row['hours'] for row in own]):.2f} h"


def _next(config: Config, seed: int) -> tuple[str, ...]:
    wide = replace(config, search_environments=("arithmetic3",), search_learning_rates=(0.8,), search_normalise=True,
                   search_lag=16)  # fmt: skip
    command = f"python -m labs.run --experiment staleness --seed {seed}"
    return (f"{command}{spelled(wide)}", f"{command}{spelled(replace(config, runs=2 * config.runs))}")


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`lag` (by lag and rule), `bias`, `systems` (curves by clock), `frontier`, `bounds`, `drift`, `search`."""
    from experiments.staleness import drawing

    return {
        "lag": drawing.lag(results),
        "bias": drawing.bias(results),
        "systems": drawing.systems(results),
        "frontier": drawing.frontier(results),
        "bounds": drawing.bounds(results),
        "drift": drawing.drift(results),
        "search": drawing.search(results),
    }
