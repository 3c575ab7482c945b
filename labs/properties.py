"""What an advantage estimator and a policy loss declare about themselves, in words that can be measured.

The table of all declarations is the comparison that a course draws by hand: who needs a critic, who needs groups, what
a lone rollout or a group without contrast is worth, whose credit crosses a tool's reply. A declaration is a claim in
both directions: an entry that says `group_shift=False` must change under some shift.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from labs.registry import Registry

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
        reward_on_masked: a reward on a position with mask 0 (a tool's reply, a rejected token) still counts: always,
            never, or only `between choices`, where behind a row's last policy token it is lost.
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
    reward_on_masked: bool | Literal["between choices"] = False
    crosses_tools: bool = True
    returns: Returns = "advantages"
    unbiased: bool = False
    bias: str = ""


Reach = Literal["token", "row", "metrics", "unused"]

#: Size of a token's gradient with respect to its log-probability at an extreme ratio, in units of the one it has at
#: ratio 1: (nearly exactly) 0, under 0.1, up to 20, or beyond (it grows with the ratio).
Pull = Literal["zero", "vanishes", "bounded", "grows"]


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """What is left of a token's gradient when every log-ratio of its row is +6 or -6 nat (ratio 403 or 0.0025).

    Attributes:
        good_up: positive advantage, the policy already made the token 403 times likelier.
        good_down: positive advantage, the token became 403 times rarer.
        bad_up: negative advantage, the token became likelier: the case that explodes without a second bound.
        bad_down: negative advantage, the token already became rarer.
    """

    good_up: Pull
    good_down: Pull
    bad_up: Pull
    bad_down: Pull


@dataclass(frozen=True, kw_only=True)
class LossProperties:
    """The declaration of one loss; every field is measured by `labs.loss_probe.measure`.

    Masked positions never matter: that is no field but a condition on every loss.

    Attributes:
        old_log_probs: how far the old log-probability of a token reaches: its own gradient (`token`), that of its whole
            `row`, only the `metrics`, or nothing (`unused`).
        aggregation: `honoured` (it follows `loss_agg_mode`), or the mode that is forced. `row-mean` and `row-sum` are
            means over *all* rows, those without a valid token included, of the row's mean or sum.
        on_policy: at ratio 1 the gradient is `reinforce`'s (-advantage per token, under the loss's own
            aggregation), that `scaled` by a constant, or `partial` (some tokens are left out).
        stop_gradient: the gradient is not the derivative of the value, because a factor is held constant.
        extremes: see `Extremes`.
        all_masked: a batch without a valid token gives `nan` (with zero gradient), `zero`, or `raises`.
        is_weights: a weight of `rollout_is_weights` scales the gradient of its `token` or of the whole `row`, or is
            `ignored`.
        row_order: permuting the rows permutes the gradient and leaves the loss.
        random: draws random numbers.
        needs_config: settings without a default.
    """

    old_log_probs: Reach = "token"
    aggregation: str = "honoured"
    on_policy: Literal["reinforce", "scaled", "partial"] = "reinforce"
    stop_gradient: bool = False
    extremes: Extremes
    all_masked: Literal["nan", "zero", "raises"] = "nan"
    is_weights: Literal["token", "row", "ignored"] = "token"
    row_order: bool = True
    random: bool = False
    needs_config: tuple[str, ...] = ()


def declared(registry: Registry, name: str) -> tuple[tuple[str, ...], Properties | LossProperties | None]:
    """What entry `name` declares: the columns it needs and its properties (None if it declares none).

    Read from its file without importing it where everything is written out, as it is in the lab's own; else imported.
    """
    try:
        tree = ast.parse(registry.path(name).read_text(encoding="utf-8"))
        given = next(_decorator(node) for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        properties = _value(given["properties"]) if "properties" in given else None
        return _value(given["needs"]) if "needs" in given else (), properties
    except (StopIteration, SyntaxError, ValueError, TypeError):
        entry = registry[name]
        return getattr(entry, "needs", ()), getattr(entry, "meta", {}).get("properties")


def _decorator(function: ast.FunctionDef) -> dict[str | None, ast.expr]:
    """The arguments of `@registry.entry(...)`."""
    calls = [d for d in function.decorator_list if isinstance(d, ast.Call) and ast.unparse(d.func).endswith(".entry")]
    return {keyword.arg: keyword.value for call in calls for keyword in call.keywords}


def _value(node: ast.expr) -> Any:
    """A literal, or a declaration made of literals; raises `ValueError` for anything else."""
    if isinstance(node, ast.Call):
        made = {c.__name__: c for c in (Properties, LossProperties, Extremes)}.get(ast.unparse(node.func))
        if made is None or node.args:
            raise ValueError(ast.unparse(node))
        return made(**{str(keyword.arg): _value(keyword.value) for keyword in node.keywords})
    return ast.literal_eval(node)
