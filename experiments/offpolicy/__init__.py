"""How wrong and how noisy is a gradient made from another policy's episodes, and what can a correction repair?

Without the clock. Along real training runs four policies are kept apart: the behaviour policy that sampled, `lag`
updates before the old one from which the step starts; the current one, `inner` updates behind it; and the reference,
where the run began. Everything is counted over all trajectories: the laws of the token and sequence ratios with their
tails; bias, variance and squared error of the gradient under truncation, masking and rejection as the lag grows; what
is lost for good when the behaviour policy never takes some actions; and how dropping long, cut or stale work shifts the
training distribution. Only the runs themselves are random, and a few drawn episodes, which hold the logged effective
sample size against the exact one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.offpolicy import measures
from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the training runs and of the corrections."""

    environment: str = field("flaky_tools", help="the environment", choices=environments)
    runs: int = field(5, help="training runs", low=1, high=1000)
    version: int = field(36, help="updates before the old policy", unit="update", low=1, high=10_000)
    inner: int = field(1, help="updates between the old and the current policy", unit="update", low=0, high=1000)
    lags: tuple[int, ...] = field(
        (0, 1, 2, 4, 8, 16, 32), help="updates between the behaviour and the old policy", unit="update", low=0
    )
    threshold: float = field(2.0, help="C: truncate at C, mask and reject outside [1/C, C]", above=1, high=1e6)
    episodes: int = field(512, help="episodes of a batch, for the squared error", unit="trajectory", low=2, high=10**7)
    groups_per_update: int = field(12, help="tasks an update of the runs", unit="group", low=1)
    group_size: int = field(16, help="trajectories a task", unit="trajectory", low=2)
    learning_rate: float = field(6.0, help="SGD's step size", above=0, high=1000)
    max_lag: int = field(1, help="lag that the gate on stale work lets through", unit="update", low=0)
    pace: float = field(2.0, help="decisions that fit between two updates", unit="decision", above=0, high=1e6)

    def check(self) -> None:
        """Lags that the run has."""
        if not self.lags or list(self.lags) != sorted(set(self.lags)) or self.lags[-1] > self.version:
            raise InputError(
                f"lags is {list(self.lags)}; it takes at least one, ascending, none above version ({self.version})"
            )


TINY = {"environment": "arithmetic", "runs": 2, "version": 6, "lags": (0, 4), "groups_per_update": 2, "group_size": 8,
        "episodes": 64}  # fmt: skip
CHANGES = {
    "environment": "long_observations", "runs": 3, "version": 7, "inner": 2, "lags": [0, 3], "threshold": 1.1,
    "episodes": 128, "groups_per_update": 4, "group_size": 6, "learning_rate": 3.0, "max_lag": 0, "pace": 1.5,
}  # fmt: skip

#: The rules of the conclusion.
WORDS = {"sequence truncation": "truncated sequence weights", measures.EXACT: "exact weights"}

_SHARE: Any = {"unit": "1", "low": 0.0, "high": 1.0 + 1e-9}
_COSINE: Any = {"unit": "1", "low": -1 - 1e-9, "high": 1 + 1e-9}
METRICS = (
    Metric(name="run", unit="1", formula="number of the training run", low=0),
    Metric(name="lag", unit="update", formula="version of the old policy - version of the behaviour policy", low=0),
    Metric(name="relative_bias", unit="1", formula="|E[g] - grad J| / |grad J|", low=0),
    Metric(name="cosine", **_COSINE, formula="between E[g] and grad J; 0 without an expectation"),
    Metric(name="scale", unit="1", formula="<E[g], grad J> / |grad J|^2"),
    Metric(name="noise", unit="1", formula="trace Cov[g] / |grad J|^2, one episode of each family", low=-1e-9),
    Metric(name="squared_error", unit="1", formula="E|g - grad J|^2 / |grad J|^2, a batch of episodes", low=-1e-9),
    Metric(name="kept", **_SHARE, formula="probability that an episode has a weight other than 0"),
    Metric(name="sequence_mean", unit="1", formula="E[w], w = prod current / behaviour", low=0,
           text="1 where the behaviour policy can do all that the current one does."),
    Metric(name="sequence_largest", unit="1", formula="largest w of all trajectories", low=0),
    Metric(name="token_largest", unit="1", formula="largest current / behaviour of a decision", low=0),
    Metric(name="sequence_chi2", unit="1", formula="E[w^2] - 1", low=-1e-9),
    Metric(name="token_chi2", unit="1", formula="the same of a decision", low=-1e-9),
    Metric(name="effective", **_SHARE, formula="1 / E[w^2]: effective sample size / episodes"),
    Metric(name="sampled_effective", **_SHARE, formula="(sum w)^2 / (n sum w^2) of n drawn episodes"),
    Metric(name="above", **_SHARE, formula="P(w > C)"),
    Metric(name="carried", **_SHARE, formula="E[w 1(w > C)]: probability of the current policy that lies there"),
    Metric(name="kl_behaviour", unit="nat", formula="KL(current, behaviour) of whole trajectories", low=-1e-12),
    Metric(name="kl_old", unit="nat", formula="KL(current, old) of whole trajectories", low=-1e-12),
    Metric(name="kl_reference", unit="nat", formula="KL(current, reference) of whole trajectories", low=-1e-12),
    Metric(name="missing", **_SHARE, formula="P(trajectory) under the policy that the behaviour never samples"),
    Metric(name="unrepairable", unit="1", formula="|grad P(missing)| / 2 / |grad J|", low=0,
           text="Least possible relative bias in the worse of two worlds that the data cannot tell apart."),
    Metric(name="weighted_bias", unit="1", formula="relative bias with exact importance weights", low=0),
    Metric(name="unweighted_bias", unit="1", formula="relative bias as if the policy itself had sampled", low=0),
    Metric(name="kept_decisions", unit="decision", formula="mean number of decisions of trained episodes", low=0),
    Metric(name="decisions", unit="decision", formula="the same of played episodes", low=0),
    Metric(name="uncorrected_bias", unit="1", formula="relative_bias at the largest lag, no correction", low=0),
    Metric(name="truncated_bias", unit="1", formula="relative_bias there, truncated sequence weights", low=0),
    Metric(name="exact_bias", unit="1", formula="relative_bias there, untruncated sequence weights", low=0),
    Metric(name="exact_noise", unit="1", formula="noise there, untruncated, over the noise at the smallest lag", low=0),
    Metric(name="support_bias", unit="1", formula="largest weighted_bias among top-k with k > 1", low=0),
    Metric(name="selection_cosine", **_COSINE, formula="cosine of training on what the gate on stale work keeps"),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Train, and count at every lag."""
    steps, ratios, tails, supports, selections = [], [], [], [], []
    for r in range(config.runs):
        found = measures.policies(config, 1000 * seed + r)
        for lag in config.lags:
            behaviour = found.at(config.version - lag)
            steps += [{"run": r, "lag": lag, **row} for row in measures.corrections(config, found, behaviour)]
            law, tail = measures.ratios(config, found, behaviour, (seed, r, lag))
            ratios.append({"run": r, "lag": lag, **law})
            if r == 0:
                tails.append({"lag": lag, **tail})
        # The policy of the run at which there is most to gain; at its end hardly anything is missing or cut.
        learning = found.at(config.version - config.lags[-1] // 2)
        supports += [{"run": r, **row} for row in measures.supports(learning)]
        selections += [{"run": r, **row} for row in measures.selections(config, learning)]
        if progress is not None:
            progress(r + 1, config.runs)
    first, last = config.lags[0], config.lags[-1]

    def at(rule: str, lag: int, key: str) -> list[float]:
        return [row[key] for row in steps if row["rule"] == rule and row["lag"] == lag]

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    end = {rule: mean(at(rule, last, "relative_bias")) for rule in measures.rules(config)}
    error = {lag: {rule: at(rule, lag, "squared_error") for rule in (measures.NONE, *WORDS)} for lag in config.lags}
    noises = [at(measures.EXACT, lag, "noise") for lag in (last, first)]
    laws = {key: mean([row[key] for row in ratios if row["lag"] == last]) for key in
            ("sequence_largest", "effective", "sampled_effective", "above", "carried")}  # fmt: skip
    cut = {name: mean([row["weighted_bias"] for row in supports if row["behaviour"] == name])
           for name in dict.fromkeys(row["behaviour"] for row in supports)}  # fmt: skip
    gate = [row for row in selections if row["selection"] == measures.GATE]
    chosen = max((k for k in cut if k.startswith("top") and k != "top 1"), key=lambda k: cut[k])
    floor = mean([row["unrepairable"] for row in supports if row["behaviour"] == chosen])
    return Result(
        data={"tails": tails, "learning_version": config.version - last // 2},
        metrics=[*steps, *ratios, *supports, *selections],
        headline={
            "uncorrected_bias": end[measures.NONE],
            "truncated_bias": end["sequence truncation"],
            "exact_bias": end[measures.EXACT],
            "exact_noise": mean([a / b for a, b in zip(*noises, strict=True)]),
            "effective": laws["effective"],
            "support_bias": cut[chosen],
            "selection_cosine": mean([row["cosine"] for row in gate]),
        },
        summary=[
            f"lag {last}: relative bias, exact: " + ", ".join(f"{rule} {value:.3f}" for rule, value in end.items()),
            f"ratios there: largest {laws['sequence_largest']:.1f}; the {laws['above']:.3f} of episodes above "
            f"{config.threshold:g} carry {laws['carried']:.3f} of the current policy",
            f"effective sample size there: exact {laws['effective']:.4f}, of {config.episodes} drawn episodes "
            f"{laws['sampled_effective']:.4f}",
            f"support: {chosen} leaves a bias of {cut[chosen]:.3f} under exact weights; at least {floor:.3f} in one of "
            "two worlds with the same data",
            f"selection: {measures.GATE} keeps {mean([g['kept'] for g in gate]):.3f}, decisions "
            f"{gate[0]['decisions']:.2f} -> {gate[0]['kept_decisions']:.2f} (run 0), cosine "
            f"{mean([g['cosine'] for g in gate]):.4f}",
        ],
        conclusion=verdict(error, config.episodes),
        next=(
            "python -m labs.run --experiment offpolicy --set threshold=5",
            "python -m labs.run --experiment offpolicy --set episodes=100000 inner=0",
        ),
    )  # fmt: skip


def verdict(errors: Mapping[int, Mapping[str, Sequence[float]]], episodes: int) -> str:
    """At which lags a rule is nearer to the gradient than no correction: paired over runs, Bonferroni over all."""
    parts = []
    for rule, words in WORDS.items():
        places: dict[str, list[int]] = {"nearer": [], "farther": [], "one cannot tell": []}
        for lag, rows in errors.items():
            pairs = list(zip(rows[rule], rows[measures.NONE], strict=True))
            apart = t_interval([math.log(a / b) for a, b in pairs], level=1 - 0.05 / len(errors) / len(WORDS))
            if apart.low is None or apart.high is None or apart.low <= 0 <= apart.high:
                places["one cannot tell"].append(lag)
            else:
                places["nearer" if apart.high < 0 else "farther"].append(lag)
        said = [f"{word} at lag {', '.join(map(str, lags))}" for word, lags in places.items() if lags]
        parts.append(f"with {words} {', '.join(said)}")
    runs = len(next(iter(errors.values()))[measures.NONE])
    return (
        f"Against no correction a batch of {episodes:,} episodes comes to the true gradient, over {runs} run(s): "
        f"{'; '.join(parts)}."
    )


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`lag` (bias, noise, error), `ratios` (tails, effective sample size), `support` and `selection`."""
    from experiments.offpolicy import drawing

    return {
        "lag": drawing.lag(results),
        "ratios": drawing.ratios(results),
        "support": drawing.support(results),
        "selection": drawing.selection(results),
    }
