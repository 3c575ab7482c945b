r"""What a row that ran out of steps is worth: five rules, five different questions.

`truncated` (the step limit) is not `terminated` (the environment ended the episode). With policy pi, score R and
the event T = "terminated within the limit", each rule makes the trainer climb another function:

| rule | stage | climbs | row in its group's baseline | others call it |
|---|---|---|---|---|
| zero | score | E[R 1(T)], success within the limit | yes, with score 0 | AReaL `mask_no_eos_with_zero`, ProRL with 0 |
| drop | score | E[R given T]: running long costs nothing | no, the row is gone | filtering of rollouts |
| mask | mask | none: gradient of E[R], truncated rows cut out | yes, score and all | TRL mask_truncated_completions |
| continue | episodes | E[R] without limit, on mixed policy versions | only once it is finished | partial rollout |
| bootstrap | advantage | E[R + gamma V(s)], no limit, as far as V is right | yes | torchrl, AReaL GAE |

`mask` is not the gradient of anything: the rows that would pay the price of running long are the ones cut out, so
that actions that lead to truncation are pushed down only through the softmax. Its denominator stays what the loss
says (`batch_num_tokens` from `loss_mask`); TRL's shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labs.batch import TokenBatch
from labs.errors import InputError, one_of


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One way to treat truncated rows.

    Attributes:
        name: as in a configuration.
        stage: the only stage of a step at which it acts (episodes, score, mask, advantage).
        estimand: what the expected update is the gradient of.
        in_baseline: whether the row takes part in its group's mean and standard deviation.
        needs: columns beyond `truncated`.
        apply: `(batch, gamma) -> batch`.
    """

    name: str
    stage: str
    estimand: str
    in_baseline: bool
    needs: tuple[str, ...] = ()
    apply: Callable[[TokenBatch, float], TokenBatch]


def _cut(batch: TokenBatch) -> Tensor:
    truncated: Tensor = batch["truncated"].bool()
    if "terminated" in batch and bool((truncated & batch["terminated"].bool()).any()):
        raise InputError("a row is both terminated and truncated; an episode ends in one of the two ways")
    return truncated


def _zero(batch: TokenBatch, gamma: float) -> TokenBatch:
    keep = (~_cut(batch)).unsqueeze(-1)
    columns = {n: batch[n] * keep for n in ("rm_scores", "token_level_scores") if n in batch}
    if not columns:
        raise InputError("truncation zero acts on rm_scores or token_level_scores, and the batch has neither")
    return batch.replace(**columns)


def _finished(batch: TokenBatch) -> TokenBatch:
    ended = ~_cut(batch)
    if not bool(ended.any()):
        raise InputError("every row of the batch is truncated: nothing is left; raise max_steps or choose another rule")
    return batch.select(ended.numpy())


def _mask(batch: TokenBatch, gamma: float) -> TokenBatch:
    keep = (~_cut(batch)).unsqueeze(-1)
    return batch.replace(response_mask=batch["response_mask"] * keep.to(batch["response_mask"].dtype))


def _bootstrap(batch: TokenBatch, gamma: float) -> TokenBatch:
    mask = batch["loss_mask" if "loss_mask" in batch else "response_mask"].bool()
    last = mask.shape[1] - 1 - mask.long().fliplr().argmax(dim=1)
    value = torch.where(_cut(batch) & mask.any(dim=1), gamma * batch["bootstrap_values"], 0.0)
    rewards = batch["token_level_rewards"].clone()
    rewards[torch.arange(batch.rows), last] += value.to(rewards.dtype)
    return batch.replace(token_level_rewards=rewards)


_RULES = (
    Rule(name="zero", stage="score", in_baseline=True, apply=_zero,
         estimand="E[score * 1(terminated within the limit)]"),
    Rule(name="drop", stage="score", in_baseline=False, apply=lambda batch, gamma: _finished(batch),
         estimand="E[score | terminated within the limit]"),
    Rule(name="mask", stage="mask", in_baseline=True, needs=("response_mask",), apply=_mask,
         estimand="none: the gradient of E[score] without the terms of truncated rows"),
    Rule(name="continue", stage="episodes", in_baseline=False, apply=lambda batch, gamma: _finished(batch),
         estimand="E[score] without a limit, sampled from the policies that wrote the parts"),
    Rule(name="bootstrap", stage="advantage", in_baseline=True, apply=_bootstrap,
         needs=("token_level_rewards", "bootstrap_values"),
         estimand="E[score + gamma * value of the state at the cut], exact if the values are"),
)  # fmt: skip

#: Name -> rule.
RULES: dict[str, Rule] = {rule.name: rule for rule in _RULES}


def at_stage(stage: str, batch: TokenBatch, rule: str, gamma: float = 1.0) -> TokenBatch:
    """The batch after `rule`, if this is the stage at which it acts; otherwise the batch itself.

    Args:
        stage: name of the stage that has just run.
        batch: needs `truncated` [B] and the rule's own columns. `bootstrap_values` [B] is the critic's value of the
            state in which the row was cut.
        rule: zero, drop, mask, continue or bootstrap.
        gamma: discount of the bootstrap. The value is added to the reward of the last token the policy chose, which
            GAE turns into exactly `gamma * V` after the last step.

    `drop` and `continue` return fewer rows; `unfinished` says which rows to go on with.

    Raises:
        InputError: unknown rule, a missing column, a row that is terminated and truncated, or nothing left.
    """
    if rule not in RULES:
        raise one_of("truncation", rule, list(RULES))
    chosen = RULES[rule]
    if chosen.stage != stage:
        return batch
    lacking = [n for n in ("truncated", *chosen.needs) if n not in batch]
    if lacking:
        raise InputError(f"truncation {rule} needs {', '.join(lacking)}; the batch has {', '.join(sorted(batch))}")
    return chosen.apply(batch, gamma)


def unfinished(batch: TokenBatch) -> list[int]:
    """Indices of the truncated rows, which `continue` sends back to the environment."""
    return [int(i) for i in _cut(batch).nonzero().ravel()]
