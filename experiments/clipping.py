"""What does clipping the ratio stop, and does it keep the policy near the one that sampled?

Three views of the same losses. One token: loss and gradient against the ratio, for a good and a bad token. In
expectation, exactly: how far the gradient on stale data is from the true one at the current policy. And many epochs on
one sampled batch: if every ratio stayed within [1 - low, 1 + high], the KL of no row of the policy could exceed

    -(high log(1 - low) + low log(1 + high)) / (low + high)

because ratios average to 1 under the old policy. But a clip only takes away the gradient of a token beyond its bound:
it adds none that would bring the token back, it cannot act on the first step, and it says nothing of actions that were
not sampled. The exact KL shows the difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments, estimators
from labs.registry import losses as registry
from labs.stats import t_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labs.exact import Truth

#: The loss `vanilla` with bounds that no ratio reaches.
PLAIN = "no clip"
OPEN = {"clip_ratio_low": 1.0, "clip_ratio_high": 1e6, "clip_ratio_c": 1e9}
#: Ratios of the curves, and the old probability of their token.
RATIOS, OLD = (0.25, 4.0, 61), 0.2
#: Losses that look at more than one token at a time, or need options, have no curve against one ratio.
LEFT_OUT = ("bypass_mode", "clip_cov", "kl_cov", "dro", "trl_grpo")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the comparison of clips."""

    environment: str = field("arithmetic", help="the environment", choices=environments)
    losses: tuple[str, ...] = field(
        ("vanilla", "cispo", "sapo", "dppo_tv", "gspo"), help="beside the loss without clip", choices=registry
    )
    clip_ratio_low: float = field(0.2, help="how far below 1 a ratio may go", above=0, below=1)
    clip_ratio_high: float = field(0.2, help="how far above 1 a ratio may go", above=0, high=100)
    clip_ratio_c: float = field(3.0, help="dual clip of a bad token's ratio", above=1)
    success: float = field(0.3, help="exact success of the policy that sampled", low=0, below=1)
    current_success: float = field(0.6, help="and of the current policy, for the exact bias", low=0, below=1)
    estimator: str = field("grpo", help="who writes the advantages of the batch", choices=estimators)
    groups_per_update: int = field(12, help="tasks of the batch", unit="group", low=1)
    group_size: int = field(16, help="trajectories a task", unit="trajectory", low=2)
    learning_rate: float = field(0.05, help="Adam's step size", above=0, high=1000)
    epochs: int = field(30, help="passes over the one batch", low=1, high=100_000)
    batches: int = field(3, help="sampled batches", low=1, high=1000)

    def check(self) -> None:
        """Losses that have a curve."""
        wrong = [name for name in self.losses if name in LEFT_OUT]
        if not self.losses or len(set(self.losses)) < len(self.losses) or wrong:
            raise InputError(
                f"losses is {list(self.losses)}; it takes at least one, none twice, and none of {', '.join(LEFT_OUT)}"
            )


TINY = {"losses": ("vanilla", "cispo"), "groups_per_update": 2, "group_size": 8, "epochs": 4, "batches": 2}
CHANGES = {
    "environment": "long_observations",
    "losses": ["sapo"],
    "clip_ratio_low": 0.1,
    "clip_ratio_high": 0.05,
    "clip_ratio_c": 1.5,
    "success": 0.2,
    "current_success": 0.7,
    "estimator": "rloo",
    "groups_per_update": 3,
    "group_size": 6,
    "learning_rate": 0.3,
    "epochs": 5,
    "batches": 3,
}

METRICS = (
    Metric(name="relative_bias", unit="1", formula="|E[g] - grad J| / |grad J|, stale data", low=0),
    Metric(name="cosine", unit="1", formula="between E[g] and grad J", low=-1 - 1e-9, high=1 + 1e-9),
    Metric(name="scale", unit="1", formula="<E[g], grad J> / |grad J|^2"),
    Metric(name="epoch", unit="1", formula="updates on the batch so far", low=1),
    Metric(
        name="largest_kl", unit="nat", formula="largest exact KL(old, current) of a row; mean over batches", low=-1e-12
    ),
    Metric(name="mean_kl", unit="nat", formula="mean of the same over the rows; mean over batches", low=-1e-12),
    Metric(name="clip_fraction", unit="1", formula="actor/pg_clipfrac of the pass; mean over batches", low=0, high=1),
    Metric(name="ppo_kl", unit="nat", formula="actor/ppo_kl of the pass; mean over batches"),
    Metric(name="implied_kl", unit="nat", formula="-(h log(1-l) + l log(1+h)) / (l+h), clip ratios l and h", low=0),
    Metric(name="clipped_kl", unit="nat", formula="largest_kl after the last epoch, first loss", low=-1e-12),
    Metric(name="plain_kl", unit="nat", formula="largest_kl after the last epoch, no clip", low=-1e-12),
    Metric(name="clipped_bias", unit="1", formula="relative_bias of the first loss", low=0),
    Metric(name="plain_bias", unit="1", formula="relative_bias without clip", low=0),
)


def implied_kl(low: float, high: float) -> float:
    """Largest `KL(old, new) = E_old[-log r]` with every ratio r in [1 - low, 1 + high] and E_old[r] = 1, nats.

    -log is convex, so that the worst r sits at both ends, with the weights that average to 1.
    """
    return -(high * math.log(1 - low) + low * math.log(1 + high)) / (low + high)


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Curves, exact bias and the epochs."""
    from labs.exact import ascend

    environment = environments[config.environment]
    own = {"clip_ratio_low": config.clip_ratio_low, "clip_ratio_high": config.clip_ratio_high,
           "clip_ratio_c": config.clip_ratio_c}  # fmt: skip
    chosen = {PLAIN: ("vanilla", OPEN), **{name: (name, own) for name in config.losses}}
    old, current = ascend(environment, config.success), ascend(environment, config.current_success)
    total, biases = len(chosen) * (1 + config.batches), []
    for label, (name, options) in chosen.items():
        biases.append({"loss": label, **bias(current, old, name, options)})
        if progress is not None:
            progress(len(biases), total)
    runs: dict[str, list[list[dict[str, float]]]] = {label: [] for label in chosen}
    for b in range(config.batches):
        for label, (name, options) in chosen.items():
            runs[label].append(_epochs(config, old, name, options, seed * 1000 + b))
            if progress is not None:
                progress(len(chosen) + sum(map(len, runs.values())), total)
    history = [
        {"loss": label, "epoch": e + 1, **{key: sum(s[key] for s in steps) / len(steps) for key in steps[0]}}
        for label, found in runs.items()
        for e, steps in enumerate(zip(*found, strict=True))
    ]
    bound, first = implied_kl(config.clip_ratio_low, config.clip_ratio_high), config.losses[0]
    final = {label: [one[-1]["largest_kl"] for one in found] for label, found in runs.items()}
    last = {row["loss"]: row for row in history if row["epoch"] == config.epochs}
    by = {row["loss"]: row for row in biases}
    straight = min(biases, key=lambda row: row["relative_bias"])
    return Result(
        data={
            "curves": curves(chosen),
            "bias": biases,
            "final_kl": final,
            "largest_kl": {k: [[round(s["largest_kl"], 6) for s in one] for one in found] for k, found in runs.items()},
            "clip_fraction": {
                k: [[round(s["clip_fraction"], 6) for s in one] for one in found] for k, found in runs.items()
            },
        },
        metrics=[*biases, *history],
        headline={
            "implied_kl": bound,
            "clipped_kl": last[first]["largest_kl"],
            "plain_kl": last[PLAIN]["largest_kl"],
            "clipped_bias": by[first]["relative_bias"],
            "plain_bias": by[PLAIN]["relative_bias"],
        },
        summary=[
            f"ratios within [{1 - config.clip_ratio_low:g}, {1 + config.clip_ratio_high:g}] would keep every row's KL "
            f"at or below {bound:.4f} nat",
            f"exact  largest KL after {config.epochs} epochs: "
            + ", ".join(f"{label} {row['largest_kl']:.3f}" for label, row in last.items()),
            "logged clip fraction then: "
            + ", ".join(f"{label} {row['clip_fraction']:.2f}" for label, row in last.items()),
            "stale  relative bias of the expected gradient, exact: "
            + ", ".join(f"{label} {row['relative_bias']:.3f}" for label, row in by.items()),
            f"least biased on stale data: {straight['loss']}, cosine {straight['cosine']:.4f}",
        ],
        conclusion=f"{verdict(first, final[first], bound)}; {_slower(first, final)}.",
        next=(
            "python -m labs.run --experiment clipping --set learning_rate=0.3",
            "python -m labs.run --experiment clipping --set clip_ratio_high=0.28 losses=vanilla,dppo_kl",
        ),
    )


def verdict(name: str, final: Sequence[float], bound: float) -> str:
    """Whether the largest exact KL of a clipped loss passes what its clip seems to promise."""
    found = t_interval(final)
    what = (
        f"with {name} the largest exact KL of a row ended at {found.value:.3f} nat, where ratios inside the clip allow"
    )
    if found.low is None or found.high is None or found.low <= bound <= found.high:
        return f"{what} {bound:.4f}; from {len(final)} batch(es) one cannot tell whether it passes that"
    if found.low > bound:
        return f"{what} {bound:.4f}, so the clip does not bound it"
    return f"{what} {bound:.4f}, which these few and small steps did not use up"


def _slower(name: str, final: Mapping[str, Sequence[float]]) -> str:
    """The clipped loss against the plain one on the same batches."""
    pairs = [a - b for a, b in zip(final[name], final[PLAIN], strict=True)]
    apart = t_interval(pairs)
    if apart.low is None or apart.high is None or apart.low <= 0 <= apart.high:
        return f"whether that is less than without a clip one cannot tell from {len(pairs)} batch(es)"
    return f"without a clip it is {'larger' if apart.high < 0 else 'smaller'} by {abs(apart.value):.3f}"


def curves(chosen: Mapping[str, tuple[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Loss and `d loss / d log_prob` of a row of one token against its ratio, for advantages 1 and -1."""
    import torch

    low, high, count = RATIOS
    ratio = torch.logspace(math.log10(low), math.log10(high), count, dtype=torch.float64)
    mask, start = torch.ones(count, 1, dtype=torch.float64), torch.full((count, 1), math.log(OLD), dtype=torch.float64)
    out: dict[str, Any] = {"ratio": ratio.tolist(), "good": {}, "bad": {}}
    for side, sign in (("good", 1.0), ("bad", -1.0)):
        for label, (name, options) in chosen.items():
            rows = []
            log_prob = (start + ratio.log()[:, None]).requires_grad_()
            for i in range(count):
                value, _ = registry[name](
                    start[i : i + 1], log_prob[i : i + 1], sign * mask[:1], mask[:1],
                    "seq-mean-token-sum", {"policy_loss": {"loss_mode": name}, **options},
                )  # fmt: skip
                rows.append(value)
            (gradient,) = torch.autograd.grad(torch.stack(rows).sum(), log_prob)
            out[side][label] = {
                "loss": [round(float(v.detach()), 6) for v in rows],
                "gradient": [round(v, 6) for v in gradient[:, 0].tolist()],
            }
    return out


def bias(current: Truth, old: Truth, name: str, options: Mapping[str, Any]) -> dict[str, float]:
    """Expected gradient of one episode that the old policy sampled, advantages R - J, against the true gradient."""
    import torch

    from labs.critic import ValueTable
    from labs.moments import moments
    from labs.policy import Policy
    from labs.step import StepConfig

    environment = current.environment
    value = torch.full(environment.policy_shape[:2], current.objective.value, dtype=torch.float64)
    # With a constant critic and gamma = lambda = 1 this estimator is the score minus the constant, unwhitened.
    found = moments(
        environment, Policy.of(environment, current.log_probs),
        StepConfig(estimator="gae_step", loss=name, loss_options=options, loss_agg_mode="seq-mean-token-sum"),
        group_size=1, old=Policy.of(environment, old.log_probs), critic=ValueTable(value),
    )  # fmt: skip
    return {"relative_bias": found.relative_bias, "cosine": found.cosine, "scale": found.scale}


def _epochs(config: Config, old: Truth, name: str, options: Mapping[str, Any], seed: int) -> list[dict[str, float]]:
    """Pass over one sampled batch again and again; the exact KL after every pass."""
    import torch

    from labs.policy import Policy, kl_divergence
    from labs.step import StepConfig, loss, stages
    from labs.trainer import Trainer, TrainerConfig

    start = Policy.of(old.environment, old.log_probs)
    step = StepConfig(estimator=config.estimator, loss=name, loss_options=options, loss_agg_mode="seq-mean-token-sum")
    trainer = Trainer(
        old.environment,
        TrainerConfig(step=step, groups_per_update=config.groups_per_update, group_size=config.group_size),
        seed=seed % 2**63, policy=start,
    )  # fmt: skip
    episodes, _ = trainer.collect()
    assert episodes is not None
    *_, (_, batch) = stages(trainer.prepare(episodes, start), step, generator=trainer.generator)
    logits = start.logits.clone().requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=config.learning_rate)
    out = []
    for _ in range(config.epochs):
        policy = Policy(logits)
        value, note = loss(batch, policy.token_log_probs(batch["table_index"]), step, generator=trainer.generator)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        rows = kl_divergence(start, Policy(logits.detach()))
        out.append(
            {
                "largest_kl": float(rows.max()),
                "mean_kl": float(rows.mean()),
                "clip_fraction": float(note.get("actor/pg_clipfrac", 0.0)),
                "ppo_kl": float(note.get("actor/ppo_kl", 0.0)),
            }
        )
    return out


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`ratio` (loss and gradient), `bias` and `kl` (exact KL and clip fraction over the epochs)."""
    return {"ratio": _ratio(results[0]), "bias": _bias(results[0]), "kl": _kl(results)}


STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))


def _ratio(result: Result) -> Figure:
    from labs import plots

    data = result.data["curves"]
    fig, axes = plots.figure(2, 2, height=6.6, sharex=True)
    for column, (side, word) in enumerate((("good", "A = +1"), ("bad", "A = -1"))):
        for row, key in enumerate(("loss", "gradient")):
            ax = axes[row][column]
            for i, (label, own) in enumerate(data[side].items()):
                # The value of a loss with a stopped gradient is as good as any other: all are drawn from 0 at ratio 1.
                middle = own[key][len(own[key]) // 2]
                y = [v - middle if key == "loss" else -v for v in own[key]]
                ax.plot(data["ratio"], y, color=plots.CYCLE[i % 7], ls=STYLES[i % 7],
                        lw=3.2 if i == 0 else 1.9, alpha=0.45 if i == 0 else 1, label=label)  # fmt: skip
            for edge in (1 - result.config["clip_ratio_low"], 1 + result.config["clip_ratio_high"]):
                ax.axvline(edge, color=plots.GREY, lw=1.0)
            ax.set_xscale("log")
            ax.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
            ax.minorticks_off()
            plots.label(
                ax, f"{'Loss' if row == 0 else 'Pull on log-probability'}, {word}",
                "ratio new / old (1)" if row else "", "L - L at ratio 1 (1)" if row == 0 else "-dL / dlog p (1)",
            )  # fmt: skip
            if key == "loss":
                ax.set_ylim(*((-3.1, 1.1) if side == "good" else (-1.1, 3.1)))
    fig.suptitle("One token, exact (no band); grey lines: the clip")
    plots.legend_below(fig, axes[0][0])
    return fig


def _bias(result: Result) -> Figure:
    from labs import plots

    rows = result.data["bias"][::-1]
    fig, axes = plots.figure(1, 2, height=1.8 + 0.4 * len(rows), sharey=True)
    for ax, key, title in zip(axes, ("relative_bias", "cosine"), ("Distance", "Direction"), strict=True):
        bars = ax.barh(range(len(rows)), [row[key] for row in rows], color=plots.BLUE, height=0.6)
        ax.bar_label(bars, [f"{row[key]:.3f}" for row in rows], padding=3)
        ax.margins(x=0.3 if key == "cosine" else 0.16)
        plots.label(ax, title, "|E[g] - true| / |true| (1)" if key == "relative_bias" else "cosine to the true one (1)")
        ax.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(rows)), [row["loss"] for row in rows])
    fig.suptitle(
        f"Expected gradient at success {result.config['current_success']:g} on data from "
        f"{result.config['success']:g}; exact, no band"
    )
    return fig


def _kl(results: Sequence[Result]) -> Figure:
    from labs import plots

    first = results[0]
    fig, axes = plots.figure(2, 1, height=6.6, sharex=True)
    x, name = list(range(1, first.config["epochs"] + 1)), ""
    for i, label in enumerate(first.data["largest_kl"]):
        for ax, key in zip(axes, ("largest_kl", "clip_fraction"), strict=True):
            runs = [one for result in results for one in result.data[key][label]]
            name = plots.band(ax, x, runs, plots.CYCLE[i % 7], label, ls=STYLES[i % 7]).replace("seeds", "batches")
    bound = implied_kl(first.config["clip_ratio_low"], first.config["clip_ratio_high"])
    plots.exact(axes[0], [x[0], x[-1]], [bound, bound], "most KL with all ratios inside the clip, exact")
    axes[0].set_yscale("log")
    axes[0].set_ylim(bottom=bound / 40)
    axes[1].set_ylim(-0.03, 1.03)
    plots.label(axes[0], "Largest KL(old, current) of a row, exact", "", "KL (nat)")
    plots.label(axes[1], "Clip fraction that is logged", "epochs on one batch", "share of tokens (1)")
    fig.suptitle(f"{name or 'one batch, no band'}; no expected update: off-policy after the first step")
    plots.legend_below(fig, axes[0], columns=3)
    return fig
