"""How far does any mix of estimator, loss, correction and optimiser get on any environment?

The general trainer with every part a setting: `--set estimator=rloo loss=reinforce environment=flaky_tools`. The
success of the policy is exact, by enumeration, before and after and at every update; the sampled one stands beside it.

The defaults train GRPO (clipped loss, token-mean, SGD at 6.0, 100 updates of 12 x 16 episodes). At the same defaults
`estimator=rloo`, `estimator=reinforce_plus_plus` and `estimator=gae` solve `arithmetic` as well, and so does PPO,
`estimator=gae epochs=2 minibatches=2`: exact success over 0.95 each.

Options of an entry are `options=estimator.epsilon=1e-4,loss.clip_ratio_high=0.28,high_entropy.top=0.5`: `estimator` and
`loss` mean the chosen ones, masks and rewards go by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.train.drawing import figures
from experiments.train.running import explained, run
from labs.config import field
from labs.errors import InputError
from labs.registry import environments, estimators, losses, masks, rewards

__all__ = ["CHANGES", "TINY", "Config", "explained", "figures", "run"]

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
MASKS = ("loss_mask", "response_mask")
KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k2+", "k3+")
TRUNCATION = ("zero", "drop", "mask", "continue", "bootstrap")
CORRECTIONS = (
    "decoupled_token_is", "decoupled_seq_is", "decoupled_token_icepop", "decoupled_seq_is_rs", "decoupled_geo_rs",
    "decoupled_geo_rs_seq_tis", "decoupled_geo_rs_token_tis", "decoupled_k3_rs", "decoupled_k3_rs_seq_tis",
    "decoupled_k3_rs_token_tis", "bypass_ppo_clip", "bypass_ppo_clip_geo_rs", "bypass_ppo_clip_k3_rs", "bypass_pg_is",
    "bypass_pg_token_icepop", "bypass_pg_geo_rs", "bypass_pg_geo_rs_seq_tis", "bypass_pg_geo_rs_token_tis", "disabled",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of the trainer and its tasks."""

    environment: str = field("arithmetic", help="the environment", choices=environments)
    estimator: str = field("grpo", help="advantage estimator", choices=estimators)
    loss: str = field("vanilla", help="policy loss", choices=losses)
    loss_agg_mode: str = field("token-mean", help="what the loss is divided by", choices=MODES)
    denominators: str = field(
        "loss_mask", help="mask whose counts divide: the original one or the one after rejection", choices=MASKS
    )
    gamma: float = field(1.0, help="discount", low=0, high=1)
    lam: float = field(1.0, help="lambda of GAE", low=0, high=1)
    norm_adv_by_std_in_grpo: bool = field(True, help="divide by the group's standard deviation, where verl reads it")
    options: tuple[str, ...] = field((), help="options of entries, such as loss.clip_ratio_high=0.28")
    rewards: tuple[str, ...] = field(("naive",), help="entries that shape the score, in order", choices=rewards)
    masks: tuple[str, ...] = field((), help="entries that take tokens out of the loss, in order", choices=masks)
    truncation: str | None = field(
        None, help="what an episode cut by the step limit is worth; none keeps the verifier's score", choices=TRUNCATION
    )
    correction: str | None = field(None, help="preset of verl's rollout correction", choices=CORRECTIONS)
    use_kl_in_reward: bool = field(False, help="charge KL to the reference policy in the reward")
    kl_penalty: str = field("kl", help="its estimator", choices=KL)
    kl_coef: float = field(0.001, help="its coefficient", unit="reward/nat", low=0, high=1000)
    kl_target: float | None = field(None, help="adapt the coefficient to this KL; none keeps it", unit="nat", above=0)
    use_kl_loss: bool = field(False, help="charge KL to the reference policy in the loss")
    kl_loss_type: str = field("low_var_kl", help="its estimator", choices=KL)
    kl_loss_coef: float = field(0.001, help="its coefficient", unit="1/nat", low=0, high=1000)
    entropy_coeff: float = field(0.0, help="weight of the token entropy in the loss", unit="1/nat", low=0, high=1000)
    row_entropy_coeff: float = field(
        0.01, help="weight of the mean entropy of the table's rows", unit="1/nat", low=0, high=1000
    )
    updates: int = field(100, help="policy updates", low=1)
    groups_per_update: int = field(12, help="tasks an update; families alternate", low=1)
    group_size: int = field(16, help="episodes of each task", unit="trajectory", low=1)
    max_steps: int | None = field(None, help="most decisions in an episode; none is the environment's own", low=1)
    temperature: float = field(1.0, help="sampling temperature, also in the loss", above=0, high=1000)
    rollout_lag: int = field(0, help="the policy that samples is this many updates old", low=0, high=1000)
    optimiser: str = field("sgd", help="of the policy", choices=("sgd", "adam"))
    learning_rate: float = field(6.0, help="step size; Adam wants about 0.1", above=0, high=1000)
    epochs: int = field(1, help="passes over each batch", low=1, high=1000)
    minibatches: int = field(1, help="parts of each pass", low=1, high=1000)
    max_grad_norm: float | None = field(None, help="longest gradient; none is any", above=0)
    critic_learning_rate: float = field(0.05, help="Adam's, on the table of values", above=0, high=1000)
    critic_epochs: int = field(4, help="passes of the critic over each batch", low=1, high=1000)
    reference_refresh: int | None = field(
        None, help="the reference becomes the current policy every so many updates; none is never", low=1
    )
    filter_groups: bool = field(False, help="drop groups of equal scores and play others instead")
    filter_budget: int = field(10, help="most groups played, as a multiple of groups_per_update", low=1, high=1000)
    format_tokens: int = field(0, help="tokens of probability 1 after each action", unit="token", low=0, high=100)
    multi_turn_rows: bool = field(False, help="one row of the batch for each turn")
    train_operands: tuple[int, ...] | None = field(
        None, help="smallest and largest operand in training; none is the environment's own", low=-(10**6), high=10**6
    )
    evaluation_operands: tuple[int, ...] | None = field(
        None, help="smallest and largest held-out operand; none is the environment's own", low=-(10**6), high=10**6
    )
    evaluation_episodes: int = field(400, help="held-out tasks, before and after", unit="episode", low=1)
    evaluation_mode: str = field("sampled", help="how the policy acts there", choices=("sampled", "greedy"))
    evaluation_temperature: float = field(1.0, help="its temperature there", above=0, high=1000)

    def check(self) -> None:
        """Ranges of operands have two ends in order; options name an entry that is in use."""
        for name in ("train_operands", "evaluation_operands"):
            ends = getattr(self, name)
            if ends is not None and not (len(ends) == 2 and 0 <= ends[1] - ends[0] < 1000):
                raise InputError(f"{name} is {list(ends)}; allowed: smallest,largest with at most 1000 numbers")
        used = ("estimator", "loss", *self.masks, *self.rewards)
        for text in self.options:
            entry, dot, rest = text.partition(".")
            if not dot or "=" not in rest or entry not in used:
                raise InputError(
                    f"options has {text!r}; write entry.name=value with an entry in use: {', '.join(used)}"
                )


TINY = {"updates": 4, "groups_per_update": 4, "group_size": 8, "evaluation_episodes": 20, "learning_rate": 20.0}
_TURNS = {"multi_turn_rows": True, "estimator": "rloo"}
CHANGES = {
    "environment": "arithmetic3", "estimator": "rloo", "loss": "geo_mean", "loss_agg_mode": "seq-mean-token-sum",
    "denominators": {"denominators": "response_mask", "masks": ["high_entropy"], "options": ["high_entropy.top=0.3"]},
    "gamma": {"gamma": 0.5, "estimator": "reinforce_plus_plus"}, "lam": {"lam": 0.3, "estimator": "gae"},
    "norm_adv_by_std_in_grpo": False, "options": ["estimator.epsilon=0.5"], "rewards": ["naive", "tool_sum"],
    "masks": {"masks": ["truncated"], "max_steps": 1, "rewards": ["tool_sum"]},
    "truncation": {"truncation": "zero", "max_steps": 1, "rewards": ["tool_sum"]},
    "correction": {"correction": "decoupled_token_is", "rollout_lag": 1}, "use_kl_in_reward": True,
    "kl_penalty": {"kl_penalty": "k2", "use_kl_in_reward": True, "kl_coef": 1.0},
    "kl_coef": {"kl_coef": 1.0, "use_kl_in_reward": True}, "kl_target": {"kl_target": 0.01, "use_kl_in_reward": True},
    "use_kl_loss": {"use_kl_loss": True, "kl_loss_coef": 1.0},
    "kl_loss_type": {"kl_loss_type": "k2", "use_kl_loss": True, "kl_loss_coef": 1.0},
    "kl_loss_coef": {"kl_loss_coef": 1.0, "use_kl_loss": True}, "entropy_coeff": 0.5, "row_entropy_coeff": 0.5,
    "updates": 5, "groups_per_update": 6, "group_size": 9, "max_steps": 2, "temperature": 0.5, "rollout_lag": 1,
    "optimiser": "adam", "learning_rate": 10.0, "epochs": 2, "minibatches": 2, "max_grad_norm": 0.001,
    "critic_learning_rate": {"critic_learning_rate": 0.5, "estimator": "gae"},
    "critic_epochs": {"critic_epochs": 1, "estimator": "gae"},
    "reference_refresh": {"reference_refresh": 1, "use_kl_loss": True}, "filter_groups": True,
    "filter_budget": {"filter_budget": 1, "filter_groups": True}, "format_tokens": 2, "multi_turn_rows": _TURNS,
    "train_operands": {"train_operands": [1, 2], "environment": "arithmetic3"},
    "evaluation_operands": [101, 105], "evaluation_episodes": 24, "evaluation_mode": "greedy",
    "evaluation_temperature": 0.2,
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """`METRICS` only when asked for: most are declared beside code that needs torch."""
    if name != "METRICS":
        raise AttributeError(name)
    from labs import kl, sampling, trainer
    from labs.actor_loss import ACTOR_METRICS
    from labs.correction import METRICS as CORRECTION
    from labs.correction import OPTIONS, option_metrics
    from labs.critic import VALUE_METRICS
    from labs.metrics import Metric
    from labs.verl_metrics import METRICS as BATCH

    rate: dict[str, Any] = {"unit": "1", "low": 0.0, "high": 1.0, "scope": "run"}
    own = (
        Metric(name="success_rate", **rate, better="higher", formula="right / held-out episodes, after training"),
        Metric(name="invalid_rate", **rate, better="lower", formula="ended by an invalid action / held-out episodes"),
        Metric(name="timeout_rate", **rate, better="lower", formula="cut by the step limit / held-out episodes"),
        Metric(name="mean_actions", unit="1", formula="decisions / held-out episodes", low=0, scope="run"),
        Metric(name="mean_score", unit="reward", formula="mean of the verifier's score, held out", scope="run",
               better="higher"),
        Metric(name="exact_final_success_rate", **rate, better="higher", text="What success_rate estimates.",
               formula="probability of success of the trained policy on the held-out tasks, by enumeration"),
        Metric(name="exact_final_score", unit="reward", formula="its expected score, by enumeration", scope="run",
               better="higher"),
    )  # fmt: skip
    entries = [m for n in losses.sound() for m in losses[n].meta.get("metrics", ())]
    options = [m for option in OPTIONS for m in option_metrics(option)]
    declared = [*own, *trainer.METRICS, *sampling.METRICS, *kl.METRICS, *ACTOR_METRICS, *VALUE_METRICS,
                *CORRECTION, *BATCH, *options, *entries]  # fmt: skip
    return tuple({metric.name: metric for metric in reversed(declared)}.values())
