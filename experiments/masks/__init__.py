"""What does each mask decide, and what changes when a tool's reply is counted as if the policy had written it?

Sampled episodes of `arithmetic`, whose tools answer with 4 and 2 tokens. `response_mask` is set to 1 on those replies
by mistake; a language model has a probability for them too, so a second table of logits stands for it, and the gradient
that goes there changes text nobody chose. Beside it: the three masks through rejection; REINFORCE++ and GAE at tool
replies, each version in use; and what becomes of a terminal score that lands on a tool's token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.masks import measures
from labs.config import field
from labs.errors import InputError
from labs.experiment import Progress, Result
from labs.metrics import Metric
from labs.registry import estimators

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the batch and of the step."""

    estimator: str = field("grpo", help="who writes the advantages", choices=estimators)
    loss_agg_mode: str = field("token-mean", help="what the loss is divided by", choices=MODES)
    skill: float = field(2.0, help="logit of the right actions in the policy that samples", low=-20, high=20)
    drift: float = field(0.5, help="what the policy of the step has more of it", low=-20, high=20)
    threshold: float = field(1.25, help="rejection keeps ratios of rollout to step policy in [1/x, x]", low=1, high=1e6)
    groups: int = field(12, help="tasks in the batch; families alternate", unit="group", low=1, high=10_000)
    group_size: int = field(16, help="rollouts of each task", unit="trajectory", low=1, high=1000)
    gamma: float = field(0.9, help="discount", low=0, high=1)
    lam: float = field(0.9, help="lambda of GAE", low=0, high=1)

    def check(self) -> None:
        """A batch that a group estimator can compare."""
        if self.groups * self.group_size < 2:
            raise InputError("groups x group_size is 1; a batch needs at least 2 rollouts")


TINY = {"groups": 2, "group_size": 8}
CHANGES = {"estimator": "rloo", "loss_agg_mode": "seq-mean-token-mean", "skill": 3.0, "drift": 0.1, "threshold": 2.0,
           "groups": 4, "group_size": 6, "gamma": 0.5, "lam": 0.5}  # fmt: skip

METRICS = (
    Metric(name="chosen_tokens", unit="token", low=0, formula="tokens that the policy chose"),
    Metric(name="counted_tokens", unit="token", low=0, formula="tokens with response_mask 1"),
    Metric(name="loss", unit="1", formula="aggregated loss at ratio 1"),
    Metric(name="choice_gradient", unit="1", low=0, formula="norm of the gradient of the table of choices"),
    Metric(name="text_gradient", unit="1", low=0, formula="norm of the gradient of the table of tool text",
           text="0 unless a reply is counted: the policy never chose those tokens."),
    Metric(name="tool_share", unit="1", low=0, high=1, scope="batch",
           formula="tool tokens / all response tokens of the sampled batch"),
    Metric(name="exact_tool_share", unit="1", low=0, high=1, scope="run",
           formula="expected tool tokens / expected response tokens of an episode, by enumeration"),
    Metric(name="gradient_scale", unit="1", scope="batch",
           formula="<wrong, right> / |right|^2 of the gradient of the choices; 0 without a gradient"),
    Metric(name="gradient_cosine", unit="1", low=-1 - 1e-9, high=1 + 1e-9, scope="batch",
           formula="between the two gradients of the choices; 0 without a gradient"),
    Metric(name="rejected_share", unit="1", low=0, high=1, scope="batch", formula="rejected / chosen tokens"),
    Metric(name="losers_of_the_score", unit="estimator", low=0, scope="run",
           formula="entries to whom a score on a tool's token is no score"),
)  # fmt: skip


def run(config: Config, seed: int, progress: Progress | None = None) -> Result:
    """Measure the mistake on a sampled batch, reject, and put the versions side by side."""
    from labs.step import StepConfig

    behaviour = measures.skilled(config.skill)
    step = StepConfig(estimator=config.estimator, loss_agg_mode=config.loss_agg_mode, gamma=config.gamma,
                      lam=config.lam)  # fmt: skip
    batch, tasks = measures.sample(config, behaviour, seed)
    right, choices = measures.measure(batch, tasks, behaviour, step, seed, "response_mask")
    wrong, mistaken = measures.measure(batch, tasks, behaviour, step, seed, "attention")
    size = float((choices**2).sum())
    product = float((choices * mistaken).sum())
    scale = product / size if size else 0.0
    cosine = product / math.sqrt(size * float((mistaken**2).sum())) if size and mistaken.any() else 0.0
    rejection = measures.reject(config, batch, behaviour, seed)
    landing = measures.landing()
    lost = [row["estimator"] for row in landing if row["lost"]]
    chosen, counted = right["counted_tokens"], wrong["counted_tokens"]
    share, exact = 1 - chosen / counted, measures.exact_share(behaviour)
    holes = measures.holes(config)
    if progress is not None:
        progress(1, 1)
    return Result(
        data={"mistake": {"right": right, "wrong": wrong}, "rejection": rejection, "holes": holes, "landing": landing},
        metrics=[right, wrong],
        trajectories=measures.ledger(batch),
        headline={
            "tool_share": share, "exact_tool_share": exact, "gradient_scale": scale, "gradient_cosine": cosine,
            "text_gradient": wrong["text_gradient"], "rejected_share": rejection["rejected"] / chosen,
            "losers_of_the_score": float(len(lost)),
        },
        summary=[
            f"mistake  {counted - chosen:.0f} of {counted:.0f} tokens are the tool's: {share:.4f} (exact {exact:.4f})",
            f"choices  gradient of norm {right['choice_gradient']:.6f} -> {wrong['choice_gradient']:.6f}: "
            f"x {scale:.4f}, cosine {cosine:.6f}; chosen / counted tokens {chosen / counted:.4f}",
            f"text     gradient of norm {right['text_gradient']:.6f} -> {wrong['text_gradient']:.6f} on replies that "
            "the policy never chose",
            f"reject   {rejection['rejected']} of {chosen:.0f} chosen tokens leave response_mask, none loss_mask",
            f"score    on a tool's token it is lost to {len(lost)} of {len(landing)} estimators",
        ],
        conclusion=_conclusion(share, scale, cosine, wrong["text_gradient"], config.loss_agg_mode),
        next=(
            "python -m labs.run --experiment masks --set loss_agg_mode=seq-mean-token-mean",
            "python -m labs.run --experiment masks --set estimator=reinforce_plus_plus",
        ),
    )  # fmt: skip


def _conclusion(share: float, scale: float, cosine: float, text: float, mode: str) -> str:
    """From the measured gradients; a batch without a reply, or without a gradient, says nothing."""
    if share == 0:
        return "This batch cannot tell: no tool replied in it, so that the two masks are the same."
    if cosine == 0 and text == 0:
        return "This batch cannot tell: no advantage in it differs from 0, so that nothing has a gradient."
    if cosine > 1 - 1e-9:
        what = f"only scales the gradient of the policy's choices, by {scale:.4f}"
    else:
        what = f"turns the gradient of the policy's choices (cosine {cosine:.4f}) and scales it by {scale:.4f}"
    return (
        f"Counting tool text as chosen, {share:.1%} of the tokens, {what} under {mode}, and puts a gradient of norm "
        f"{text:.4g} on text that the policy never chose."
    )


def figures(results: Sequence[Result]) -> Mapping[str, Figure]:
    """`mistake` (gradients, over seeds), `rejection` (three masks), `holes` (versions), `landing` (the score)."""
    from experiments.masks import drawing

    first = results[0]
    return {
        "mistake": drawing.mistake(results),
        "rejection": drawing.rejection(first),
        "holes": drawing.holes(first),
        "landing": drawing.landing(first),
    }
