"""What the experiment measures: corrections by lag, laws of ratios, missing support, selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from labs.registry import environments

if TYPE_CHECKING:
    from experiments.offpolicy import Config
    from labs.exact import Truth
    from labs.step import StepConfig

NONE, EXACT, GATE = "no correction", "exact weights", "gate on stale work"
#: Above any ratio that float64 can tell from infinity.
OPEN = 1e9


def rules(config: Config) -> Mapping[str, StepConfig]:
    """The step under every rule; PPO's clip at 0.2 is in all but the last, around the old policy or as named."""
    from labs.correction import RolloutCorrectionConfig
    from labs.step import StepConfig

    bound, window = config.threshold, f"{1 / config.threshold!r}_{config.threshold!r}"
    blocks: dict[str, dict[str, Any]] = {
        NONE: {"rollout_is": None},
        "clip around behaviour": {"rollout_is": None, "bypass_mode": True},
        "token truncation": {"rollout_is": "token", "rollout_is_threshold": bound},
        "sequence truncation": {"rollout_is": "sequence", "rollout_is_threshold": bound},
        "token mask": {"rollout_is": "token", "rollout_is_threshold": window},
        "sequence mask": {"rollout_is": "sequence", "rollout_is_threshold": window},
        "token rejection": {"rollout_is": None, "rollout_rs": "token_k1", "rollout_rs_threshold": bound},
        "sequence rejection": {"rollout_is": None, "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": bound},
        "mean k3 rejection": {"rollout_is": None, "rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01},
        EXACT: {"rollout_is": "sequence", "rollout_is_threshold": OPEN, "bypass_mode": True, "loss_type": "reinforce"},
    }
    out = {}
    for name, block in blocks.items():
        correction = RolloutCorrectionConfig(**block)
        out[name] = StepConfig(loss="bypass_mode" if correction.bypass_mode else "vanilla", correction=correction)
    return out


@dataclass(frozen=True)
class Run:
    """The policies of a training run, one for every version; current and old are the last and `inner` before it."""

    versions: Sequence[Truth]
    inner: int

    def at(self, version: int) -> Truth:
        return self.versions[version]

    @property
    def current(self) -> Truth:
        return self.versions[-1]

    @property
    def old(self) -> Truth:
        return self.versions[len(self.versions) - 1 - self.inner]

    @property
    def reference(self) -> Truth:
        return self.versions[0]


def policies(config: Config, seed: int) -> Run:
    """Train `version + inner` updates on policy and keep every version."""
    from labs.exact import truth
    from labs.step import StepConfig
    from labs.trainer import Trainer, TrainerConfig

    environment = environments[config.environment]
    trainer = Trainer(
        environment,
        TrainerConfig(
            step=StepConfig(), groups_per_update=config.groups_per_update, group_size=config.group_size,
            learning_rate=config.learning_rate, verl_metrics=False,
        ),
        seed=seed % 2**63,
    )  # fmt: skip
    tables = [trainer.policy.logits.numpy()]
    for _ in islice(trainer, config.version + config.inner):
        tables.append(trainer.policy.logits.numpy())
    return Run([truth(environment, table) for table in tables], config.inner)


def corrections(config: Config, run: Run, behaviour: Truth) -> list[dict[str, Any]]:
    """One row a rule: bias, direction, noise and squared error of one step on the behaviour policy's episodes."""
    from labs.offpolicy import Behind

    behind = Behind.of(run.current, run.old, behaviour)
    size = len(run.current.environment.families)
    rows = []
    for name, step in rules(config).items():
        found = behind.estimate(step)
        rows.append(
            {
                "rule": name,
                "relative_bias": found.relative_bias,
                "cosine": found.cosine,
                "scale": found.scale,
                "noise": found.variance / float((found.truth**2).sum()),
                "squared_error": found.error(config.episodes / size),
                "kept": found.kept,
            }
        )
    return rows


def ratios(
    config: Config, run: Run, behaviour: Truth, seed: Sequence[int]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Numbers of the laws of current / behaviour, and both tails `P(w > x)` as steps, with those of a drawn batch."""
    import numpy as np

    from labs.offpolicy import Ratios

    sequence, token = Ratios.sequence(run.current, behaviour), Ratios.token(run.current, behaviour)
    drawn = sequence.draw(np.random.default_rng(seed), config.episodes)
    numbers = {
        "sequence_mean": sequence.mean,
        "sequence_largest": sequence.largest,
        "token_largest": token.largest,
        "sequence_chi2": sequence.chi2,
        "token_chi2": token.chi2,
        "effective": sequence.effective,
        "sampled_effective": float(drawn.sum() ** 2 / (drawn**2).sum() / len(drawn)),
        "above": sequence.tail(config.threshold),
        "carried": sequence.carried(config.threshold),
        "kl_behaviour": run.current.trajectory_kl(behaviour).value,
        "kl_old": run.current.trajectory_kl(run.old).value,
        "kl_reference": run.current.trajectory_kl(run.reference).value,
    }
    edges = np.logspace(-2, 3, 101)
    tails = {
        "x": edges.tolist(),
        "sequence": [sequence.tail(x) for x in edges],
        "token": [token.tail(x) for x in edges],
        "drawn": [float((drawn > x).mean()) for x in edges],
    }
    return numbers, {key: [float(f"{v:.6g}") for v in values] for key, values in tails.items()}


def supports(target: Truth) -> list[dict[str, Any]]:
    """Behaviour policies that are the target with top-k sampling, or without one action anywhere."""
    import numpy as np

    from labs.offpolicy import support, top_k, without

    actions = target.environment.actions
    tables = {f"top {k}": top_k(target, k) for k in range(len(actions), 0, -1)}
    for a, name in enumerate(actions):
        tables[f"never {name}"] = without(target, np.arange(len(actions)) == a)
    rows = []
    for name, table in tables.items():
        found = support(target, table, target.objective.value)
        rows.append(
            {
                "behaviour": name,
                "missing": found.missing,
                "unrepairable": found.unrepairable,
                "weighted_bias": found.weighted.relative_bias,
                "unweighted_bias": found.unweighted.relative_bias,
                "cosine": found.weighted.cosine,
            }
        )
    return rows


def selections(config: Config, target: Truth) -> list[dict[str, Any]]:
    """Rules that drop work: above a number of decisions, at the step limit, or by lag, to which long work is prone.

    An episode of L decisions spans `L / pace` updates; started at a random moment between two, it is older than
    `max_lag` at its end with probability `clip(L / pace - max_lag, 0, 1)`.
    """
    import numpy as np

    from labs.environment import TIMEOUT
    from labs.offpolicy import selection

    kinds = target.kinds
    chance = kinds.probability(target.log_probs).max(axis=0)
    longest = int(kinds.decisions.max())
    limits = range(longest - 1, 0, -1)
    keeps = {f"at most {n} decision{'s' * (n > 1)}": (kinds.decisions <= n) * 1.0 for n in limits}
    cut = np.array([path.end == TIMEOUT for path in kinds.paths])
    if cut.any():
        keeps = {"not cut by the step limit": ~cut * 1.0, **keeps}
    keeps = {GATE: 1 - np.clip(kinds.decisions / config.pace - config.max_lag, 0, 1), **keeps}
    rows = []
    for name, keep in keeps.items():
        if not (chance * keep).sum() > 0:
            rows.append({"selection": name, "kept": 0.0, "cosine": 0.0, "relative_bias": 1.0, "scale": 0.0})
            continue
        found = selection(target, keep)
        rows.append(
            {
                "selection": name,
                "kept": found.kept,
                "kept_decisions": found.kept_decisions,
                "decisions": found.decisions,
                "relative_bias": found.dropped.relative_bias,
                "cosine": found.dropped.cosine,
                "scale": found.dropped.scale,
            }
        )
    return rows
