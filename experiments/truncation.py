"""What does a policy learn when its longest episodes are cut: to finish in time, or the right thing?

In `routes` an answer is reached by one expensive call in 3 decisions, or by three cheap ones in 5. A limit of 4 cuts
the cheap way, which is the better one. Five rules say what a cut row is worth, and each climbs another function: `zero`
(score 0, and nobody tells the learner that it was cut), `drop` (the row is gone), `mask` (out of the loss, still in its
group's baseline), `continue` (played on in the next update), `bootstrap` (the critic's value of the state at the cut).
Beside them `shaping`: nothing is cut, and long answers lose a part of their score.

The function of each rule has an exact gradient, which the step's own expected gradient is held against; following it
without noise gives the dashed lines. Then each rule trains on samples. Bootstrapping with a learnt critic leaves its
line: the score charges what the calls cost at the end of an episode, and every episode that ends within the limit came
the short way, so that the critic learns 0.9 for the state at the cut. A cut row then earns 0.9 less its own cost of
0.03, always less than the short way, where the exact value of what is still to come is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from labs.config import field
from labs.environment import TIMEOUT
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labs.exact import Array, Truth
    from labs.step import StepConfig

RULES = ("zero", "drop", "mask", "continue", "bootstrap", "shaping")
#: What each climbs; R the score, T "ended within the limit", V the value of a state, L tokens.
ESTIMANDS = {
    "zero": "E[R 1(T)]",
    "drop": "E[R | T]",
    "mask": "nothing: E[(R - mean) S 1(T)]",
    "continue": "E[R], no limit",
    "bootstrap": "E[R + V(cut state)], V held",
    "shaping": "E[R - penalty(L)], no limit",
}
#: Tokens of the longest answer, tool replies included, and of the part of it that is punished.
LONGEST, CACHE = 15, 6


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the comparison of truncation rules."""

    limit: int = field(4, help="most decisions of a training episode; 5 cuts nothing", low=3, high=5)
    head_start: float = field(4.0, help="logit of every right action at first", unit="nat", low=0, high=20)
    penalty: float = field(0.2, help="what shaping takes from the longest answer", unit="reward", low=0, high=10)
    updates: int = field(100, help="policy updates", low=1, high=100_000)
    groups_per_update: int = field(6, help="tasks an update", unit="group", low=1)
    group_size: int = field(8, help="trajectories a task", unit="trajectory", low=2)
    learning_rate: float = field(0.1, help="Adam's step size", above=0, high=1000)
    repeats: int = field(3, help="runs of each rule", low=1, high=1000)


TINY = {"updates": 3, "groups_per_update": 2, "group_size": 4, "repeats": 2}
CHANGES = {
    "limit": 5,
    "head_start": 2.0,
    "penalty": 0.0,
    "updates": 4,
    "groups_per_update": 4,
    "group_size": 5,
    "learning_rate": 0.3,
    "repeats": 1,
}

_RATE: Any = {"unit": "1", "low": -1e-9, "high": 1 + 1e-9}
_COSINE: Any = {"unit": "1", "low": -1 - 1e-9, "high": 1 + 1e-9}
METRICS = (
    Metric(name="cosine_to_own", **_COSINE, formula="step's expected gradient, gradient of the rule's function"),
    Metric(name="cosine_to_score", **_COSINE, formula="step's expected gradient, gradient of E[R] without limit"),
    Metric(name="scale", unit="1", formula="<E[g], own> / |own|^2", text="Below 1 where rows or pairs are lost."),
    Metric(name="update", unit="1", formula="number of the policy update", low=1),
    Metric(name="long_share", **_RATE, formula="exact P(cheap long way | success), no limit; mean of repeats"),
    Metric(name="score", unit="reward", formula="exact E[R] without limit; mean of repeats"),
    Metric(name="success", **_RATE, formula="exact success without limit; mean of repeats"),
    Metric(name="decisions", unit="1", formula="exact decisions of an episode without limit; mean of repeats", low=1),
    Metric(name="cut_share", **_RATE, formula="exact P(cut) at the limit; mean of repeats"),
    Metric(name="ideal_long_share", **_RATE, formula="long_share when following the exact gradient without noise"),
    *(Metric(name=f"{rule}_long_share", **_RATE, formula=f"long_share at the end, {rule}") for rule in RULES),
    Metric(name="zero_score", unit="reward", formula="score at the end, zero"),
    Metric(name="continue_score", unit="reward", formula="score at the end, continue"),
    Metric(name="zero_cosine", **_COSINE, formula="cosine_to_score of zero at the start"),
)


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Expected gradients against the exact ones, and training under every rule."""
    import numpy as np

    start, rows = knowing(config.head_start), []
    total = len(RULES) * (1 + config.repeats)
    for rule in RULES:
        rows.append(compared(config, rule))
        if progress is not None:
            progress(len(rows), total)
    runs: dict[str, list[list[dict[str, float]]]] = {rule: [] for rule in RULES}
    for rule in RULES:
        for r in range(config.repeats):
            runs[rule].append(_train(config, rule, start, seed * 1000 + r))
            if progress is not None:
                progress(len(RULES) + sum(map(len, runs.values())), total)
    ideal = {rule: _follow(config, rule, start) for rule in RULES}
    history = [
        {"rule": rule, "update": u + 1, "ideal_long_share": ideal[rule][u],
         **{key: float(np.mean([step[key] for step in steps])) for key in steps[0]}}
        for rule, own in runs.items()
        for u, steps in enumerate(zip(*own, strict=True))
    ]  # fmt: skip
    last = {row["rule"]: row for row in history if row["update"] == config.updates}
    final = {rule: [one[-1]["long_share"] for one in own] for rule, own in runs.items()}
    by = {row["rule"]: row for row in rows}
    first = numbers(start, config.limit)
    return Result(
        data={
            "gradients": rows,
            "start": first,
            "final_long_share": final,
            "ideal_long_share": {rule: [round(v, 6) for v in own] for rule, own in ideal.items()},
            "curves": {
                rule: [[round(step["long_share"], 6) for step in one] for one in own] for rule, own in runs.items()
            },
        },
        metrics=[*rows, *history],
        headline={
            **{f"{rule}_long_share": last[rule]["long_share"] for rule in RULES},
            "zero_score": last["zero"]["score"],
            "continue_score": last["continue"]["score"],
            "zero_cosine": by["zero"]["cosine_to_score"],
        },
        summary=[
            f"start    success {first['success']:.3f}, {first['long_share']:.3f} of it on the long cheap way, "
            f"{first['cut_share']:.3f} of the episodes cut at {config.limit}",
            "gradient cosine to that of the score without limit: "
            + ", ".join(f"{rule} {by[rule]['cosine_to_score']:.3f}" for rule in RULES),
            "learned  share of the long way: " + ", ".join(f"{rule} {last[rule]['long_share']:.3f}" for rule in RULES),
            "exact    share of it, without noise: " + ", ".join(f"{rule} {ideal[rule][-1]:.3f}" for rule in RULES),
            "score    without limit: " + ", ".join(f"{rule} {last[rule]['score']:.3f}" for rule in RULES),
        ],
        conclusion=verdict(final["zero"], final["continue"], last["zero"]["score"], last["continue"]["score"]),
        next=(
            "python -m labs.run --experiment truncation --set limit=5",
            "python -m labs.run --experiment truncation --set penalty=0.05",
        ),
    )


def compared(config: Config, rule: str) -> dict[str, Any]:
    """The step's expected gradient beside the exact ones, which no seed changes."""
    fixed = Config()
    return _compared(
        rule,
        config.head_start,
        fixed.limit if rule in ("continue", "shaping") else config.limit,
        config.penalty if rule == "shaping" else fixed.penalty,
    )


@cache
def _compared(rule: str, head_start: float, limit: int, penalty: float) -> dict[str, Any]:
    config, start = Config(limit=limit, penalty=penalty), knowing(head_start)
    found, own = expected(config, rule, start), gradient(config, rule, start)
    return {
        "rule": rule,
        "climbs": ESTIMANDS[rule],
        "cosine_to_own": cosine(found, own),
        "cosine_to_score": cosine(found, exact(start).objective.gradient),
        "scale": float((found * own).sum() / (own**2).sum()),
    }


def verdict(zero: Sequence[float], on: Sequence[float], zero_score: float, on_score: float) -> str:
    """Whether zero for cut rows made the policy leave the long way, against rows that were played on."""
    apart = t_interval([a - b for a, b in zip(zero, on, strict=True)])
    shares = (
        f"{sum(zero) / len(zero):.3f} of its successes went the long way, against {sum(on) / len(on):.3f} with continue"
    )
    if apart.low is None or apart.high is None or apart.low <= 0 <= apart.high:
        return (
            f"With zero for cut rows {shares}; from {len(zero)} run(s) each one cannot tell whether the rule makes a "
            "difference."
        )
    if apart.high < 0:
        return (
            f"Zero without telling prefers short episodes: {shares}, and it ends with a score of {zero_score:.3f} "
            f"instead of {on_score:.3f}."
        )
    return f"Zero for cut rows did not shorten episodes here: {shares}."


def knowing(bonus: float) -> Any:
    """Logits of a policy that knows both ways: `bonus` on every action of a right way, 0 elsewhere."""
    import numpy as np

    environment = environments["routes"]
    logits = np.zeros(environment.policy_shape)
    for f, (call, count) in enumerate((("add", "count_up"), ("subtract", "count_down"))):
        right = {"start": ["read"], "ready": [call, count], "counting": [count], "nearly": [count],
                 "computed": ["submit"]}  # fmt: skip
        for stage, actions in right.items():
            for action in actions:
                logits[f, environment.stages.index(stage), environment.actions.index(action)] = bonus
    return logits


def exact(logits: Any, limit: int | None = None) -> Truth:
    """Exact objects with the given limit, or without one that cuts anything."""
    from labs.exact import truth

    return truth(environments["routes"], logits, max_steps=limit)


@cache
def _frame(limit: int | None) -> Truth:
    """Classes and trajectories under a limit, which no policy changes."""
    return exact(knowing(0.0), limit)


def numbers(logits: Any, limit: int) -> dict[str, float]:
    """What a policy does without the limit, and how much the limit would cut; exact."""
    from labs.exact import log_softmax

    log_probs, whole, limited = log_softmax(logits), _frame(None), _frame(limit)
    chance, decisions, reward = whole.kinds.probability(log_probs), whole.kinds.decisions, whole.kinds.reward
    weighed = [(c.probability * chance[c.family], reward[i]) for i, c in enumerate(whole.classes)]
    right = sum(p * (r > 0) for p, r in weighed)
    cut = limited.kinds.probability(log_probs) @ [path.end == TIMEOUT for path in limited.kinds.paths]
    return {
        "long_share": float(right[decisions > 3].sum() / right.sum()),
        "score": float(sum(p @ r for p, r in weighed)),
        "success": float(right.sum()),
        "decisions": float(whole.family_weights @ (chance @ decisions)),
        "cut_share": float(whole.family_weights @ cut),
    }


def gradient(config: Config, rule: str, logits: Any) -> Array:
    """Exact gradient of what the rule climbs; of `mask` the expected update, as there is nothing that it climbs."""
    import numpy as np

    limit = None if rule in ("continue", "shaping") else config.limit
    policy, kinds = exact(logits, limit), _frame(limit).kinds
    environment = policy.environment
    if rule == "continue":
        return policy.objective.gradient
    ended = np.array([path.end != TIMEOUT for path in kinds.paths], dtype=np.float64)
    out = np.zeros(environment.policy_shape)
    values = exact(logits).row_values
    for i, c in enumerate(policy.classes):
        chance = kinds.probability(policy.log_probs)[c.family]
        scores, reward = kinds.scores(policy.log_probs[c.family]), kinds.reward[i]
        if rule == "zero":
            worth = reward * ended
        elif rule == "drop":
            share = chance @ ended
            worth = ended * (reward - chance @ (ended * reward) / share) / share
        elif rule == "mask":
            worth = ended * (reward - chance @ reward)
        elif rule == "bootstrap":
            ahead = [values[c.family, environment.stage_of[path.last]] for path in kinds.paths]
            worth = reward + (1 - ended) * np.array(ahead)
        else:
            lengths = [_tokens(environment, path) for path in kinds.paths]
            worth = reward - config.penalty * np.clip((np.array(lengths) - LONGEST + CACHE) / CACHE, 0, 1)
        out[c.family] += c.probability * np.einsum("k,ksa->sa", chance * worth, scores)
    return out


def _tokens(environment: Any, path: Any) -> int:
    """Response tokens of a trajectory: its decisions, and the replies between them."""
    return len(path.actions) + sum(environment.states[s].tokens for s in path.states[1:])


def step(config: Config, rule: str, estimator: str) -> StepConfig:
    """The step of a rule."""
    from labs.step import StepConfig

    shape = {"max_completion_len": LONGEST, "soft_punish_cache": CACHE, "penalty_factor": config.penalty}
    chain: dict[str, Any] = {"truncation": rule}
    if rule == "shaping":
        chain = {"rewards": (("soft_overlong", shape),)}
    elif rule == "continue" and estimator == "rloo_vectorized":
        chain = {}
    return StepConfig(estimator=estimator, loss="reinforce", loss_agg_mode="seq-mean-token-sum", **chain)


def expected(config: Config, rule: str, logits: Any) -> Array:
    """Exact expectation of the step's gradient, pairs with leave-one-out baseline, exact values for the bootstrap.

    `continue` meets finished episodes alone, all from one policy here.
    """
    import torch

    from labs.critic import ValueTable
    from labs.moments import moments
    from labs.policy import Policy

    environment = environments["routes"]
    limit = None if rule in ("continue", "shaping") else config.limit
    return moments(
        environment, Policy.of(environment, logits), step(config, rule, "rloo_vectorized"), group_size=2,
        max_steps=limit, critic=ValueTable(torch.from_numpy(exact(logits).row_values)),
    ).mean  # fmt: skip


def cosine(one: Array, other: Array) -> float:
    """Of two gradients."""
    import numpy as np

    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float((one * other).sum()) / size if size else 0.0


def _train(config: Config, rule: str, start: Any, seed: int) -> list[dict[str, float]]:
    import torch

    from labs.policy import Policy
    from labs.trainer import Trainer, TrainerConfig

    environment = environments["routes"]
    # Bootstrapping needs a critic, and so an estimator whose returns are what a critic should learn.
    trainer = Trainer(
        environment,
        TrainerConfig(
            step=step(config, rule, "gae_step" if rule == "bootstrap" else "rloo"),
            groups_per_update=config.groups_per_update, group_size=config.group_size, optimiser="adam",
            learning_rate=config.learning_rate, row_entropy_coeff=0.0,
            max_steps=None if rule == "shaping" else config.limit, verl_metrics=False,
        ),
        seed=seed % 2**63, policy=Policy.of(environment, start),
    )  # fmt: skip
    trainer.values.data.copy_(torch.from_numpy(exact(start).row_values))
    return [numbers(trainer.policy.logits.numpy(), config.limit) for _ in islice(trainer, config.updates)]


def _follow(config: Config, rule: str, start: Any) -> list[float]:
    """Share of the long way when Adam follows the exact gradient."""
    import torch

    logits = torch.from_numpy(start.copy())
    optimiser = torch.optim.Adam([logits], lr=config.learning_rate)
    out = []
    for _ in range(config.updates):
        logits.grad = -torch.from_numpy(gradient(config, rule, logits.numpy()).copy())
        optimiser.step()
        out.append(numbers(logits.numpy(), config.limit)["long_share"])
    return out


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`learning` (share of the long way, sampled and noiseless) and `gradients` (what each rule climbs)."""
    return {"learning": _learning(results), "gradients": _gradients(results[0])}


def _learning(results: Sequence[Result]) -> Figure:
    from labs import plots

    first = results[0]
    fig, axes = plots.figure(2, 3, height=6.0, sharex=True, sharey=True)
    x, name = list(range(1, first.config["updates"] + 1)), ""
    for ax, rule in zip(axes.ravel(), RULES, strict=True):
        runs = [one for result in results for one in result.data["curves"][rule]]
        name = plots.band(ax, x, runs, plots.BLUE, "sampled").replace("seeds", "runs")
        plots.exact(ax, x, first.data["ideal_long_share"][rule], "exact gradient (and exact values), no noise")
        plots.label(ax, "bootstrap, learnt critic" if rule == "bootstrap" else rule)
        ax.set_ylim(-0.03, 1.03)
    for ax in axes[1]:
        ax.set_xlabel("update")
    for ax in axes[:, 0]:
        ax.set_ylabel("share (1)")
    fig.suptitle(f"Successes on the long cheap way, limit {first.config['limit']} ({name or 'one run, no band'})")
    plots.legend_below(fig, axes[0][0])
    return fig


def _gradients(result: Result) -> Figure:
    from labs import plots

    rows = result.data["gradients"]
    fig, axes = plots.figure(height=4.4)
    table = [[row["cosine_to_own"], row["cosine_to_score"]] for row in rows]
    names = [f"{row['rule']}: {row['climbs']}" for row in rows]
    plots.heatmap(axes, table, names, ["its own function", "score without limit"], low=0, form="{:.3f}")
    plots.label(axes, "Cosine of the step's expected gradient (exact)", "to the gradient of; cosine (1)", "")
    return fig
