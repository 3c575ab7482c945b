"""What an advantage estimator declares about itself, in words that `labs.contract` can measure.

The table of all declarations is the comparison that a course draws by hand: who needs a critic, who needs groups, what
a lone rollout or a group without contrast is worth, whose credit crosses a tool's reply. A declaration is a claim in
both directions: an entry that says `group_shift=False` must change under some shift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Credit = Literal["trajectory", "token"]
Scale = Literal["invariant", "linear", "other"]
Single = Literal["zero", "score", "return", "whitened", "raises", "no groups"]
Equal = Literal["zero", "other", "no groups"]
Returns = Literal["advantages", "reward to go", "value target"]


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The declaration of one estimator, at the default settings of its function.

    Attributes:
        credit: `trajectory`, every policy token of a row gets the same number; or `token`.
        groups: compares rows that carry the same `index`.
        critic: reads `values`.
        zero_where_masked: the advantage is exactly 0 on every position with mask 0.
        permutation: permuting the rows permutes the result.
        group_shift: adding a constant to the score of every row of a group (a different one per group) changes
            nothing, groups of one aside.
        scale: multiplying all rewards (and values and baselines) by a positive number leaves the result
            (`invariant`, up to epsilon), multiplies it (`linear`), or does something else (`other`).
        group_of_one: what a policy token of a lone row gets: `zero`; its `score`; its own `return`, the rewards from
            there on; the score after whitening over the batch (`whitened`); it `raises`; `no groups`.
        equal_group: a group whose scores are all equal, and whose rewards sit on the last token, gives `zero` to every
            token, or something `other`. Equal numbers that a float cannot hold exactly may leave a rounding residue.
        all_masked_row: a row without policy token is zero everywhere (True) or may be not (False).
        single_token: a batch with one policy token in total `works` or `raises` (whitening needs two).
        reward_on_masked: a reward on a position with mask 0 (a tool's reply, a rejected token) still counts.
        crosses_tools: a reward behind a tool's reply reaches the tokens before it.
        returns: what the second result is: the `advantages` again; the undiscounted `reward to go` (at gamma 1) on
            policy tokens; or a `value target` for the critic, which at gamma = lambda = 1 is the reward to go.
        unbiased: with exact enumeration of all rollouts, the mean of `sum_t A_t grad log pi_t` is the gradient of
            the expected score at gamma 1 (at lambda 1 where there is one).
        bias: why not, or for what the claim holds, in one sentence.
    """

    credit: Credit
    groups: bool = False
    critic: bool = False
    zero_where_masked: bool = True
    permutation: bool = True
    group_shift: bool = False
    scale: Scale = "linear"
    group_of_one: Single = "no groups"
    equal_group: Equal = "no groups"
    all_masked_row: bool = True
    single_token: Literal["works", "raises"] = "works"
    reward_on_masked: bool = False
    crosses_tools: bool = True
    returns: Returns = "advantages"
    unbiased: bool = False
    bias: str = ""
