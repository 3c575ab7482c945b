"""How much does each trajectory weigh in the update, under each way of turning token losses into a number?

Token, sequence and constant denominators on one sampled batch, as a ledger: how many tokens a rollout chose, how many
its tools wrote, what each of its tokens and all of them together weigh. Then what that does to the expected gradient,
exactly; and what becomes of a batch that is split into micro-batches, each divided by its own counts or by those of the
whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.aggregation import measures
from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import estimators
from labs.stats import Interval, t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENVIRONMENTS = ("arithmetic", "long_observations")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the batches and of the exact comparison."""

    environment: str = field(
        "long_observations", help="the same decisions with short or with long replies", choices=ENVIRONMENTS
    )
    estimator: str = field("rloo", help="who writes the advantages", choices=estimators)
    success: float = field(0.3, help="success of the policy, on the way of exact training", above=0.016, below=0.95)
    groups: int = field(8, help="tasks in a batch; families alternate", unit="group", low=1, high=1000)
    group_size: int = field(8, help="rollouts of each task", unit="trajectory", low=2, high=1000)
    constant: float = field(8.0, help="the constant denominator, in tokens", unit="token", above=0, high=1e6)
    splits: tuple[int, ...] = field((1, 2, 4, 8), help="numbers of micro-batches", low=1, high=64)
    batches: int = field(20, help="sampled batches that are split", low=1, high=10_000)
    exact_group_size: int = field(4, help="rollouts of each task where batches are counted", low=2, high=6)

    def check(self) -> None:
        """Every micro-batch has a row, and something is split."""
        rows = self.groups * self.group_size
        if not self.splits or max(self.splits) < 2 or max(self.splits) > rows:
            raise InputError(
                f"splits is {list(self.splits)}; the largest must be 2 or more, and at most the {rows} rows"
            )


TINY = {"groups": 2, "group_size": 4, "splits": [2], "batches": 3, "exact_group_size": 2}
CHANGES = {"environment": "arithmetic", "estimator": "dr_grpo", "success": 0.5, "groups": 4, "group_size": 6,
           "constant": 16.0, "splits": [4], "batches": 4, "exact_group_size": 3}  # fmt: skip

_LOCAL = "|sum of the parts' gradients / parts - the whole one| / |the whole one|, each part divided by its own counts"
METRICS = (
    Metric(name="exact_cosine", unit="1", low=-1 - 1e-9, high=1 + 1e-9, scope="run",
           formula="between the exact expected gradient and that of the success probability"),
    Metric(name="exact_scale", unit="1", scope="run", text="A factor that a learning rate can undo.",
           formula="<expected, true> / |true|^2 of the gradient, by enumeration"),
    Metric(name="exact_signal_to_noise", unit="1", low=0, scope="run", formula="|mean| / sqrt(trace of covariance)"),
    Metric(name="weight_ratio", unit="1", low=0, formula="weight of the longest / of the shortest rollout, |A| = 1"),
    Metric(name="local_error", unit="1", low=0, formula=_LOCAL, text="At the largest number of parts, mean."),
    Metric(name="global_error", unit="1", low=0, formula="the same with the counts of the whole batch, parts added"),
    Metric(name="length_ratio", unit="1", low=1, scope="batch",
           formula="chosen tokens of the longest / of the shortest rollout"),
    Metric(name="token_mean_weight_ratio", unit="1", low=0, scope="batch", formula="weight_ratio under token-mean"),
    Metric(name="token_mean_cosine", unit="1", low=-1 - 1e-9, high=1 + 1e-9, scope="run",
           formula="exact_cosine under token-mean"),
    Metric(name="token_mean_local_error", unit="1", low=0, formula="local_error under token-mean"),
    Metric(name="largest_global_error", unit="1", low=0, formula="largest global_error of all ways"),
    Metric(name="sorted_error_difference", unit="1", scope="run",
           formula="mean over batches of local_error under token-mean, rows sorted by length - rows shuffled"),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """The ledger of one batch, the exact gradients, and the splits of many batches."""
    policy = measures.policy(config.success)
    ledger, ratios = measures.ledger(config, policy, seed)
    exact = measures.exact(config, policy)
    splits, paired = measures.splits(config, policy, seed, progress)
    most = max(config.splits)
    rows = [
        {"way": way, "weight_ratio": ratios[way], **exact[way],
         "local_error": next(r["local"] for r in splits if r["way"] == way and r["parts"] == most),
         "global_error": next(r["global"] for r in splits if r["way"] == way and r["parts"] == most)}
        for way in measures.WAYS
    ]  # fmt: skip
    by_way = {row["way"]: row for row in rows}
    chosen = [row["action_tokens"] for row in ledger]
    difference = t_interval(paired)
    token = by_way["token-mean"]
    worst = max(row["global_error"] for row in rows)
    straight = [way for way in measures.WAYS if exact[way]["exact_cosine"] > 1 - 1e-9]
    tool = sum(row["tool_tokens"] for row in ledger)
    return Result(
        data={"ledger": ledger, "ways": rows, "splits": splits, "sorted": difference._asdict()},
        metrics=rows,
        trajectories=ledger,
        headline={
            "length_ratio": max(chosen) / min(chosen), "token_mean_weight_ratio": token["weight_ratio"],
            "token_mean_cosine": token["exact_cosine"], "token_mean_local_error": token["local_error"],
            "largest_global_error": worst, "sorted_error_difference": difference.value,
        },
        summary=[
            f"tokens   {sum(chosen)} chosen, {tool} of tools, in {len(ledger)} rollouts of {min(chosen)} to "
            f"{max(chosen)} chosen tokens",
            "weight   longest / shortest rollout: " + ", ".join(f"{w} {by_way[w]['weight_ratio']:.3g}" for w in SHOWN),
            "cosine   with the true gradient, exact: "
            + ", ".join(f"{w} {by_way[w]['exact_cosine']:.4f}" for w in SHOWN),
            f"parts    {most} micro-batches, own counts: "
            + ", ".join(f"{w} off by {by_way[w]['local_error']:.3g}" for w in SHOWN),
            f"         counts of the whole: off by at most {worst:.1e}; sorted - shuffled rows {difference}",
        ],
        conclusion=_conclusion(straight, token["exact_cosine"], worst, difference, config.estimator),
        next=(
            "python -m labs.run --experiment aggregation --set environment=arithmetic",
            "python -m labs.run --experiment aggregation --set constant=16",
        ),
    )  # fmt: skip


#: The ways that a summary has room for.
SHOWN = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")


def _conclusion(straight: list[str], cosine: float, worst: float, difference: Interval, estimator: str) -> str:
    """Exact: which ways keep the direction. Sampled: whether sorting the rows by length makes splitting worse."""
    kept = f"{', '.join(straight)} keep{'s' * (len(straight) == 1)}" if straight else "no way of dividing keeps"
    exact = (
        f"With {estimator}, {kept} the direction of the true gradient (token-mean: cosine {cosine:.4f}, exact); the "
        f"counts of the whole batch make micro-batches exact (off by {worst:.0e})"
    )
    if difference.low is None or difference.high is None or difference.low <= 0 <= difference.high:
        return f"{exact}; {difference.n} batches cannot tell whether sorting by length matters ({difference})."
    word = "worse" if difference.low > 0 else "better"
    return f"{exact}, and with own counts sorting by length makes token-mean {word} ({difference})."


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`ledger` (tokens and weights of one batch), `exact` (cosine and scale), `splits` (error over parts, seeds)."""
    from experiments.aggregation import drawing

    return {
        "ledger": drawing.ledger(results[0]),
        "exact": drawing.exact(results[0]),
        "splits": drawing.splits(results),
    }
