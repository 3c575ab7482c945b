"""Is a KL negative that cannot be: sampled from another policy, a k1 in the loss, a controller gone below 0?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from labs.evidence import Finding, Step
from labs.faults import planted, run
from labs.readings import mask, numbers, share

CODE = "C2"
NEEDS = (
    ("old_log_probs", "ref_log_prob", "response_mask"),
    ("actor/kl_loss",),
    ("actor/reward_kl_penalty_coeff",),
    ("actor/reward_kl_penalty",),
    ("objective/kl",),
    ("kl_loss_type",),
)
UNLOCK = "save old_log_probs and ref_log_prob, or log actor/kl_loss and actor/reward_kl_penalty"

#: Standard errors below 0, and rows, from which a mean of k1 is no accident.
SIGMAS, ROWS = 4.0, 30


def check(step: Step, memory: dict[str, Any]) -> Iterator[Finding]:
    """Look at the sampled k1, then at the numbers that were logged."""
    yield from _sampled(step)
    kind = str(step.facts.get("kl_loss_type", ""))
    loss = step.scalars.get("actor/kl_loss", 0.0)
    if "said" not in memory and (kind in ("kl", "k1") or loss < -1e-7):
        memory["said"] = True
        seen = (
            f"kl_loss_type is {kind}"
            if kind in ("kl", "k1")
            else f"actor/kl_loss is {loss:.3g}, which k2 and k3 cannot be"
        )
        yield Finding(
            what=f"k1 is charged in the loss: {seen}",
            where=step.at(),
            share="every token",
            why="the gradient of k1 is 0 in expectation: it adds noise and does not hold the policy",
            advice="use k2 or k3+ in the loss, k1 in the reward",
            sure="certain",
            numbers={"kl_loss": loss},
        )
    beta = step.scalars.get("actor/reward_kl_penalty_coeff", 0.0)
    if beta < 0 and "beta" not in memory:
        memory["beta"] = True
        yield Finding(
            what=f"the KL coefficient is {beta:.4g}",
            where=step.at(),
            share="every row",
            why="a negative coefficient pays the policy for leaving the reference",
            advice="keep the rows of a step below 5 horizons: the controller's factor is 1 - 0.2 rows / horizon",
            sure="certain",
            numbers={"beta": beta},
        )
    for name in ("actor/reward_kl_penalty", "objective/kl"):
        if name in step.scalars:
            values = memory.setdefault(name, [])
            values.append(step.scalars[name])
            memory.setdefault("first", step.at())


def _sampled(step: Step) -> Iterator[Finding]:
    old, ref, kept = numbers(step, "old_log_probs"), numbers(step, "ref_log_prob"), mask(step)
    if old is None or ref is None or kept is None:
        return
    rows = np.where(kept, old - ref, 0.0).sum(axis=1)[kept.any(axis=1)]
    if len(rows) < ROWS or not np.isfinite(rows).all():
        return
    error = float(rows.std(ddof=1)) / math.sqrt(len(rows))
    mean, tokens = float(rows.sum() / kept.sum()), int(kept.sum())
    if error > 0 and rows.mean() < -SIGMAS * error:
        sigmas = -float(rows.mean()) / error
        yield Finding(
            what=f"mean k1 {mean:.3f} over {tokens} tokens, {sigmas:.1f} standard errors below 0",
            where=step.at(),
            share=share(tokens, kept.size, "positions"),
            why="a KL cannot be negative: the tokens were not sampled from the policy that scored them",
            advice="score with the temperature, the top-k and the cut-off of sampling, or correct for the difference",
            sure="certain",
            numbers={"k1": mean, "sigmas": sigmas},
        )


def finish(memory: dict[str, Any]) -> Iterator[Finding]:
    """A logged KL that is negative step after step."""
    for name in ("actor/reward_kl_penalty", "objective/kl"):
        values = np.array(memory.get(name, []))
        below = int((values < -1e-6).sum())
        if len(values) >= 5 and below >= 0.8 * len(values):
            yield Finding(
                what=f"{name} is negative in {below} of {len(values)} steps, {values.mean():.4g} on average",
                where=memory["first"],
                share=share(below, len(values), "steps"),
                why="one step may be negative by chance, most of them cannot: sampled and scored policy differ",
                advice="score with the temperature, the top-k and the cut-off of sampling",
                sure="likely",
                numbers={"kl": float(values.mean())},
            )


def reproduce(finding: Finding) -> dict[str, Any] | None:
    """The gradients of every penalty, exactly."""
    return {"experiment": "kl", "set": {"target_kl": 0.5} if "beta" in finding.numbers else {}}


def _reference_samples() -> list[Step]:
    """Rollouts of the reference, scored as if the policy had sampled them."""
    step = {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.001}}
    made = run(step=step, warmup=20, group_size=32, skill=0.5, learning_rate=4.0)
    return planted.altered(
        made,
        {"old_log_probs": lambda s: s.columns["ref_log_prob"], "ref_log_prob": lambda s: s.columns["old_log_probs"]},
    )


BAD = {
    "the reference sampled": _reference_samples,
    "k1 in the loss": lambda: planted.logged(planted.plain(steps=2), actor__kl_loss=-0.02),
    "a controller below 0": lambda: planted.logged(planted.plain(steps=2), actor__reward_kl_penalty_coeff=-0.02),
    "negative step after step": lambda: planted.logged(planted.plain(steps=6), actor__reward_kl_penalty=-0.01),
}
GOOD = {
    "k1 in the reward": lambda: run(step={"use_kl_in_reward": True}, warmup=6, steps=5),
    "k3 in the loss": lambda: run(step={"use_kl_loss": True}, warmup=6, steps=5),
}
