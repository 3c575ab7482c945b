"""What happens, tensor by tensor, between the scores of six rollouts and the gradient of the policy's table?

Two prompts of `arithmetic`, three rollouts each, decided by the uniform policy; the scores are given (by default 1, 0,
0.5 and 0, 0, 0). Every stage of the step is kept. Then the same batch is taken a second time after one update, where
the ratio is no longer 1, and the estimator and the loss change their names one at a time: an estimator only writes the
column `advantages`, so that its name changes no loss once that column is given. Batches sampled from the same policy
say how often one of this size teaches anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import environments, estimators, losses
from labs.stats import wilson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labs.batch import TokenBatch
    from labs.episodes import Episodes
    from labs.policy import Policy
    from labs.step import StepConfig

#: What the six rollouts do: the right tool, the wrong one, an invalid third action; wrong tool, too early, no operands.
ROLLOUTS = (
    ("sum", ("read", "add", "submit")),
    ("sum", ("read", "subtract", "submit")),
    ("sum", ("read", "add", "add")),
    ("difference", ("read", "add", "submit")),
    ("difference", ("read", "submit")),
    ("difference", ("add",)),
)
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
#: Columns that are kept, and their units where a figure shows them.
SHOWN = {"token_level_scores": "reward", "advantages": "1", "loss_weights": "1/token", "ratio after the update": "1"}
KEPT = {*SHOWN, "loss_mask", "response_mask", "token_level_rewards", "returns", "old_log_probs", "log_prob"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the walk through one step."""

    scores: tuple[float, ...] = field(
        (1.0, 0.0, 0.5, 0.0, 0.0, 0.0), help="scores of the six rollouts", unit="reward", low=-1000, high=1000
    )
    estimator: str = field("grpo", help="who writes the advantages", choices=estimators)
    loss: str = field("vanilla", help="what the advantages are weighed in", choices=losses)
    loss_agg_mode: str = field("token-mean", help="what the loss is divided by", choices=MODES)
    learning_rate: float = field(2.0, help="step size of the update between the two passes", low=0, high=1000)
    batches: int = field(400, help="sampled batches of the same size", low=1, high=100_000)

    def check(self) -> None:
        """One score a rollout, and a loss that needs no correction."""
        if len(self.scores) != len(ROLLOUTS):
            raise InputError(f"scores has {len(self.scores)} numbers; there are {len(ROLLOUTS)} rollouts")
        if self.loss == "bypass_mode":
            raise InputError("loss is bypass_mode, which needs a correction block; any other is allowed here")


TINY = {"batches": 20}
CHANGES = {"scores": [1.0, 0.0, 0.0, 0.0, 1.0, 0.0], "estimator": "rloo", "loss": "reinforce",
           "loss_agg_mode": "seq-mean-token-mean", "learning_rate": 4.0, "batches": 25}  # fmt: skip

_SHARE: Any = {"unit": "1", "low": 0, "high": 1, "scope": "run"}
METRICS = (
    Metric(name="loss", unit="1", formula="aggregated loss after one update", text="Ratios are no longer 1 there."),
    Metric(name="loss_of_shared_advantages", unit="1", text="The name of an estimator is in no loss.",
           formula="the same with the advantages of the configured estimator under this name"),
    Metric(name="gradient_norm", unit="1", formula="norm of the gradient of the table, first pass", low=0),
    Metric(name="cosine", unit="1", formula="between the batch's gradient and the exact gradient of the success rate",
           low=-1 - 1e-9, high=1 + 1e-9),
    Metric(name="first_advantage", unit="1", formula="advantage of the first rollout's first token", scope="token"),
    Metric(name="largest_loss_change", unit="1", low=0, scope="run",
           formula="largest change of the loss over all estimator names, advantages held"),
    Metric(name="chosen_tokens", unit="token", formula="tokens with response_mask 1", low=0),
    Metric(name="teaching_share", **_SHARE,
           formula="sampled batches of two groups of three with unequal scores in a group / batches"),
    Metric(name="exact_teaching_share", **_SHARE,
           formula="1 - product over the two prompts of P(three equal scores), by enumeration"),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Walk through the step twice, change the names, and sample batches like it."""
    import torch

    from labs.policy import Policy
    from labs.step import stages

    environment = environments["arithmetic"]
    policy, step, batch, _ = _batch(config)
    steps = list(stages(batch, step, generator=torch.Generator().manual_seed(seed)))
    done = steps[-1][1]
    first, gradient = _loss(done, policy, step, seed)
    moved = Policy.of(environment, policy.logits + config.learning_rate * gradient)
    second, left = _loss(done, moved, step, seed)
    exact = _truth().objective.gradient
    rows = _names(batch, policy, moved, step, done, seed, exact)
    same = [abs(row["loss_of_shared_advantages"] - second) for row in rows if row["kind"] == "estimator"]
    changed = 0.0 if all(map(math.isnan, same)) else max(same)
    teaching, exact_teaching = _teaching(config.batches, seed)
    if progress is not None:
        progress(1, 1)
    ratio = torch.exp(moved.token_log_probs(done["table_index"]) - done["old_log_probs"]) * done["loss_mask"]
    data = {
        "tokens": _tokens(done), "loss_first_pass": first, "loss_second_pass": second, "gradient": gradient.tolist(),
        "stages": [{"stage": name, "columns": _fresh(steps, i)} for i, (name, _) in enumerate(steps)],
        "ratio_after_update": ratio.tolist(), "gradient_second_pass": left.tolist(), "exact_gradient": exact.tolist(),
        "rows": [f"{family}, {stage}" for family in environment.families for stage in environment.stages],
        "actions": list(environment.actions), "names": rows,
        "teaching": {"batches": config.batches, "share": teaching, "exact": exact_teaching},
    }  # fmt: skip
    own = next(row for row in rows if row["name"] == config.estimator and row["kind"] == "estimator")
    norm = float((exact**2).sum() ** 0.5)
    spread = len({round(row["loss"], 12) for row in rows if row["kind"] == "estimator"})
    headline = {
        "first_advantage": float(done["advantages"][0, 0]), "loss": second, "gradient_norm": own["gradient_norm"],
        "cosine": own["cosine"], "largest_loss_change": changed, "teaching_share": teaching,
        "exact_teaching_share": exact_teaching, "chosen_tokens": float(done["response_mask"].sum()),
    }  # fmt: skip
    interval = wilson(round(teaching * config.batches), config.batches)
    return Result(
        data=data,
        metrics=rows,
        trajectories=_rollouts(config, done),
        headline=headline,
        summary=[
            f"scores {', '.join(f'{s:g}' for s in config.scores)} -> advantages "
            + ", ".join(f"{done['advantages'][i, 0]:+.4f}" for i in range(batch.rows)),
            f"loss {first:.6f} at ratio 1, {second:.6f} after one update of {config.learning_rate:g} x gradient",
            f"gradient of norm {own['gradient_norm']:.6f}, the exact one has {norm:.6f}; cosine {own['cosine']:.4f}",
            f"{len(same)} estimator names, advantages held: the loss changes by at most {changed:g}",
            f"of {config.batches} sampled batches {teaching:.3f} teach anything ({interval.name} {interval.low:.3f} to "
            f"{interval.high:.3f}; exact {exact_teaching:.4f})",
        ],
        conclusion=_conclusion(changed, spread, len(same), bool(done["advantages"].any())),
        next=(
            "python -m labs.run --experiment walkthrough --set estimator=rloo",
            "python -m labs.run --experiment walkthrough --set learning_rate=4",
        ),
    )


def _conclusion(changed: float, spread: int, names: int, signal: bool) -> str:
    """From the largest change of the loss over names, and how many different losses their own advantages give."""
    if not signal:
        return "This batch cannot tell what the name does: every advantage is 0, and with them every loss and gradient."
    if changed > 0:
        return f"The estimator's name changed the loss by {changed:g} at the same advantages."
    return (
        f"The estimator's name does not change the loss: {names} names give the same number on the same advantages, "
        f"while their own advantages give {spread} different ones."
    )


def explained(config: Config, seed: int, number: int) -> Any:
    """The one update of this run, for `python -m labs explain`."""
    import torch

    from labs.explain import of_batch

    policy, step, batch, episodes = _batch(config)
    return of_batch(environments["arithmetic"], batch, step, policy, episodes, torch.Generator().manual_seed(seed))


def _batch(config: Config) -> tuple[Policy, StepConfig, TokenBatch, Episodes]:
    """The six rollouts with the given scores and every column that any estimator reads, and who played them."""
    import torch

    from labs.columns import complete
    from labs.critic import ValueTable
    from labs.enumeration import trajectories
    from labs.environment import Task
    from labs.episodes import pack
    from labs.policy import Policy
    from labs.step import StepConfig, required

    environment = environments["arithmetic"]
    policy = Policy.uniform(environment)
    step = StepConfig(estimator=config.estimator, loss=config.loss, loss_agg_mode=config.loss_agg_mode)
    known = {tuple(environment.actions[a] for a in t.actions): t for t in trajectories(environment, 4)}
    tasks = [Task(family, (7, 5)) for family, _ in ROLLOUTS]
    names = [f"prompt {'AB'[family == 'difference']}" for family, _ in ROLLOUTS]
    episodes = pack(environment, tasks, [known[actions] for _, actions in ROLLOUTS], policy, names)
    batch = episodes.tokens().replace(scores=torch.tensor(config.scores, dtype=torch.float64))
    critic = ValueTable(torch.from_numpy(_truth().row_values))
    wanted = set().union(*(required(replace(step, estimator=name)) for name in estimators.sound()))
    rest: dict[str, Any] = {"critic": critic, "environment": environment, "tasks": dict(zip(names, tasks, strict=True))}
    return policy, step, complete(batch, sorted(wanted), old=policy, reference=policy, **rest), episodes


def _truth() -> Any:
    """Exact objects of the uniform policy."""
    import numpy as np

    from labs.exact import truth

    return truth(environments["arithmetic"], np.zeros(environments["arithmetic"].policy_shape))


def _loss(batch: TokenBatch, policy: Policy, step: StepConfig, seed: int) -> tuple[float, Any]:
    """The loss of the batch under a policy, and the gradient of the objective (minus the loss) on its table."""
    import torch

    from labs.policy import Policy as Table
    from labs.step import loss

    logits = policy.logits.clone().requires_grad_()
    log_prob = Table(logits).token_log_probs(batch["table_index"])
    value, _ = loss(batch, log_prob, step, generator=torch.Generator().manual_seed(seed))
    (gradient,) = torch.autograd.grad(value, logits)
    return float(value.detach()), 0 - gradient


def _names(
    batch: TokenBatch, policy: Policy, moved: Policy, step: StepConfig, done: TokenBatch, seed: int, exact: Any
) -> list[dict[str, Any]]:
    """One row for every estimator (own and shared advantages) and for every loss (shared advantages)."""
    import torch

    from labs.step import stages

    rows = []
    for name in estimators.sound():
        renamed = replace(step, estimator=name, estimator_options={})
        *_, (_, own) = stages(batch, renamed, generator=torch.Generator().manual_seed(seed))
        value, _ = _loss(own, moved, renamed, seed)
        _, gradient = _loss(own, policy, renamed, seed)
        shared, _ = _loss(done, moved, renamed, seed)
        rows.append(_row("estimator", name, value, shared, gradient, exact))
    for name in losses.sound():
        if name == "bypass_mode" or losses[name].meta["properties"].needs_config:
            continue
        renamed = replace(step, loss=name)
        value, _ = _loss(done, moved, renamed, seed)
        rows.append(_row("loss", name, value, value, _loss(done, policy, renamed, seed)[1], exact))
    return rows


def _row(kind: str, name: str, value: float, shared: float, gradient: Any, exact: Any) -> dict[str, Any]:
    norm = float(gradient.norm())
    size = norm * math.sqrt(float((exact**2).sum()))
    cosine = float((gradient.numpy() * exact).sum()) / size if size else 0.0
    numbers = {"loss": value, "loss_of_shared_advantages": shared, "gradient_norm": norm, "cosine": cosine}
    return {"kind": kind, "name": name, **numbers}


def _teaching(batches: int, seed: int) -> tuple[float, float]:
    """Sampled and exact share of batches in which some group of three has unequal scores."""
    import torch

    from labs.episodes import draw_tasks, play
    from labs.policy import Policy

    environment = environments["arithmetic"]
    generator = torch.Generator().manual_seed(seed)
    tasks = draw_tasks(environment, 2 * batches, generator)
    seen = play(environment, Policy.uniform(environment), tasks, 3, generator=generator)
    groups = seen.scores.reshape(batches, 2, 3)
    mixed = (groups.max(axis=2) > groups.min(axis=2)).any(axis=1)
    found = _truth()
    families = [0.0, 0.0]
    for own, equal in zip(found.classes, found.equal_groups(3).tolist(), strict=True):
        families[own.family] += own.probability / float(found.family_weights[own.family]) * equal
    return float(mixed.mean()), 1 - math.prod(families)


def _tokens(batch: TokenBatch) -> list[list[str]]:
    """What every token is: an action's name, `tool`, or nothing."""
    environment = environments["arithmetic"]
    actions = len(environment.actions)
    attended = batch["attention_mask"][:, -batch.width :]

    def word(index: int, here: int) -> str:
        return environment.actions[index % actions] if index >= 0 else "tool" if here else ""

    pairs = zip(batch["table_index"].tolist(), attended.tolist(), strict=True)
    return [[word(i, here) for i, here in zip(*row, strict=True)] for row in pairs]


def _fresh(steps: list[tuple[str, TokenBatch]], i: int) -> dict[str, Any]:
    """The columns that a stage wrote; adding 0 makes of -0 a 0."""
    before: Mapping[str, Any] = steps[i - 1][1] if i else {}
    return {n: (c + 0).tolist() for n, c in sorted(steps[i][1].items()) if n in KEPT and c is not before.get(n)}


def _rollouts(config: Config, done: TokenBatch) -> list[dict[str, Any]]:
    return [
        {"rollout": i, "uid": str(done["uid"][i]), "actions": list(actions), "score": config.scores[i],
         "advantage": float(done["advantages"][i, 0]), "weight": float(done["loss_weights"][i].sum())}
        for i, (_, actions) in enumerate(ROLLOUTS)
    ]  # fmt: skip


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`tensors` (by token), `gradient` (with the exact one), `names` (losses by name), `teaching` (over seeds)."""
    from experiments.walkthrough import drawing

    drawn = {"tensors": drawing.tensors, "gradient": drawing.gradients, "names": drawing.names}
    return {**{name: draw(results[0]) for name, draw in drawn.items()}, "teaching": drawing.share(results)}
