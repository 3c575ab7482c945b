"""What a policy loss declares about itself, in words that `labs.contract_losses` can measure.

The vocabulary is small on purpose: two losses with the same row here treat a batch alike, and the table of all rows is
the comparison that a reader of ten papers has to make by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Size of the gradient of one token with respect to its log-probability, in units of |advantage|, at an extreme ratio:
#: exactly 0, under 0.1, up to 20, or beyond (it grows with the ratio).
Pull = Literal["zero", "vanishes", "bounded", "grows"]


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """What is left of a token's gradient when its log-ratio is +6 or -6 nat (ratio 403 or 0.0025).

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
    """The declaration of one loss; every field is proved by `labs.contract_losses.check_loss`.

    Masked positions never matter: that is no field but a condition on every loss.

    Attributes:
        ratio: the importance ratio is per token, per row, or there is none.
        aggregation: `honoured` (it follows `loss_agg_mode`), the mode that is forced, or `row-mean`: a mean over all
            rows, those without a valid token included.
        old_log_probs: they enter the `loss`, only the `metrics`, or are `unused`.
        on_policy: at ratio 1 the gradient is `reinforce`'s (-advantage per token, under the loss's own
            aggregation), that `scaled` by a constant, or `partial` (some tokens are left out).
        stop_gradient: the gradient is not the derivative of the value, because a factor is held constant.
        extremes: see `Extremes`.
        all_masked: a batch without a valid token gives `nan` (with zero gradient), `zero`, or `raises`.
        is_weights: `rollout_is_weights` multiply each `token`, each `row` (their geometric mean), or are `ignored`.
        row_order: permuting the rows permutes the gradient and leaves the loss.
        random: draws random numbers.
        needs_config: settings without a default.
    """

    ratio: Literal["token", "row", "none"] = "token"
    aggregation: str = "honoured"
    old_log_probs: Literal["loss", "metrics", "unused"] = "loss"
    on_policy: Literal["reinforce", "scaled", "partial"] = "reinforce"
    stop_gradient: bool = False
    extremes: Extremes
    all_masked: Literal["nan", "zero", "raises"] = "nan"
    is_weights: Literal["token", "row", "ignored"] = "token"
    row_order: bool = True
    random: bool = False
    needs_config: tuple[str, ...] = ()
