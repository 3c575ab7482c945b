"""What one training step does: the settings of `labs.step`, under verl's names, and the columns they need."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from labs import truncation
from labs.actor_config import ActorConfig, PolicyLossConfig
from labs.correction import RolloutCorrectionConfig
from labs.errors import InputError, one_of
from labs.masked import AGG_MODES
from labs.registry import VERL_COLUMNS, estimators, losses, masks, rewards

#: One entry of a chain: its name and its options.
Choice = tuple[str, Mapping[str, Any]]

DENOMINATORS = ("loss_mask", "response_mask")

#: Parameters that every loss has; what a loss takes beyond them is an option or a column.
_LOSS_PARAMETERS = frozenset(
    {
        "old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config", "rollout_is_weights",
        "generator",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """What one step does, under verl's names.

    Attributes:
        estimator, estimator_options: entry of `labs.registry.estimators`; keywords for it.
        gamma, lam, norm_adv_by_std_in_grpo: read by the estimators that have them.
        gdpo_reward_keys, gdpo_reward_weights: components of `gdpo`, row columns of the batch.
        pf_ppo: verl's block of PF-PPO (resampling of rows by score, after `gae` only), None for none.
        loss, loss_options: entry of `labs.registry.losses`; fields of `ActorConfig` (`clip_ratio_low`), of
            `PolicyLossConfig` (`dro_beta`), or keywords of the entry.
        loss_agg_mode, loss_scale_factor: see `labs.masked.agg_loss`.
        denominators: `loss_mask` (verl's trainer: the token count of the original mask and all rows) or
            `response_mask` (what is left after rejection, rows with a token).
        entropy_coeff: weight of the aggregated token entropy in the loss.
        use_kl_loss, kl_loss_coef, kl_loss_type: KL to the reference in the loss.
        use_kl_in_reward, kl_penalty, kl_ctrl: KL to the reference in the reward; `kl_ctrl` is verl's block.
        rewards: chain of entries of `labs.registry.rewards` that shape the scores.
        correction: verl's block, or None for no correction and no diagnostics.
        masks: entries of `labs.registry.masks`, in order.
        truncation: rule of `labs.truncation` for rows cut by the step limit; None leaves the verifier's score.

    Raises:
        InputError: an unknown name, an option that its entry does not have, or bypass mode without its loss.
    """

    estimator: str = "grpo"
    estimator_options: Mapping[str, Any] = field(default_factory=dict)
    gamma: float = 1.0
    lam: float = 1.0
    norm_adv_by_std_in_grpo: bool = True
    gdpo_reward_keys: tuple[str, ...] = ("success", "valid")
    gdpo_reward_weights: tuple[float, ...] | None = None
    pf_ppo: Mapping[str, Any] | None = None
    loss: str = "vanilla"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: float | None = None
    denominators: str = "loss_mask"
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    use_kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_ctrl: Mapping[str, Any] = field(default_factory=dict)
    rewards: tuple[Choice, ...] = (("naive", {}),)
    correction: RolloutCorrectionConfig | None = None
    masks: tuple[Choice, ...] = ()
    truncation: str | None = None

    def __post_init__(self) -> None:
        _options("estimator", self.estimator, estimators[self.estimator], self.estimator_options)
        for name, options in self.rewards:
            _options("reward", name, rewards[name], options)
        for name, options in self.masks:
            _options("mask", name, masks[name], options)
        if self.truncation is not None and self.truncation not in truncation.RULES:
            raise one_of("truncation", self.truncation, list(truncation.RULES))
        for what, value, allowed in (
            ("loss_agg_mode", self.loss_agg_mode, AGG_MODES),
            ("denominators", self.denominators, DENOMINATORS),
        ):
            if value not in allowed:
                raise one_of(what, value, allowed)
        if self.pf_ppo is not None and self.estimator != "gae":
            raise InputError(f"pf_ppo is on and the estimator is {self.estimator!r}; it acts behind gae only")
        if "bootstrap_values" in estimators[self.estimator].needs and self.truncation not in (None, "bootstrap"):
            raise InputError(
                f"truncation is {self.truncation!r} and estimator {self.estimator} bootstraps truncated rows by "
                "itself: they would be worth two things at once; allowed: none, bootstrap"
            )
        if self.correction is not None and self.correction.bypass_mode and self.loss != "bypass_mode":
            raise InputError(
                f"correction.bypass_mode is on and the loss is {self.loss!r}: only the loss bypass_mode reads the "
                "correction then, any other would train as if nothing had been corrected"
            )
        self.actor()

    @property
    def estimator_bootstraps(self) -> bool:
        """Whether the estimator itself puts a value behind truncated rows: it needs to, or the rule asks for it.

        Then the rule adds nothing to the rewards, which would count the value twice; otherwise an estimator that
        could bootstrap is not shown which rows are truncated.
        """
        entry = estimators[self.estimator]
        asked = self.truncation == "bootstrap" or "bootstrap_values" in entry.needs
        return asked and "bootstrap_values" in inspect.signature(entry).parameters

    def actor(self) -> ActorConfig:
        """The settings that the loss reads."""
        entry = losses[self.loss]
        own = {f.name for f in fields(ActorConfig)} - {"policy_loss", "global_batch_info"}
        block = {f.name for f in fields(PolicyLossConfig)} - {"loss_mode", "options", "rollout_correction"}
        extra = set(inspect.signature(entry).parameters) - _LOSS_PARAMETERS
        for name in self.loss_options:
            if name not in own | block | extra:
                raise one_of(f"an option of loss {self.loss}", name, sorted(own | block | extra))

        def pick(names: set[str]) -> dict[str, Any]:
            return {n: v for n, v in self.loss_options.items() if n in names}

        correction: dict[str, Any] = {} if self.correction is None else {"rollout_correction": self.correction}
        policy_loss = PolicyLossConfig(
            loss_mode=self.loss, options=pick(extra - own - block), **correction, **pick(block)
        )
        settings: dict[str, Any] = {
            "loss_agg_mode": self.loss_agg_mode,
            "loss_scale_factor": self.loss_scale_factor,
            "entropy_coeff": self.entropy_coeff,
            "use_kl_loss": self.use_kl_loss,
            "kl_loss_coef": self.kl_loss_coef,
            "kl_loss_type": self.kl_loss_type,
        }
        return ActorConfig(**{**settings, **pick(own)}, policy_loss=policy_loss)

    def algorithm(self) -> dict[str, Any]:
        """The settings that the estimators read: verl's block `algorithm`."""
        return {
            "gamma": self.gamma,
            "lam": self.lam,
            "norm_adv_by_std_in_grpo": self.norm_adv_by_std_in_grpo,
            "gdpo_reward_keys": list(self.gdpo_reward_keys),
            "gdpo_reward_weights": None if self.gdpo_reward_weights is None else list(self.gdpo_reward_weights),
            "use_pf_ppo": self.pf_ppo is not None,
            "pf_ppo": self.pf_ppo or {},
        }


#: Parameters of entries that are columns or blocks and so no options.
_COLUMNS = VERL_COLUMNS - {"gamma", "lam", "norm_adv_by_std_in_grpo", "epsilon"} | {"scores"}


def _options(kind: str, name: str, entry: Callable[..., Any], options: Mapping[str, Any]) -> None:
    taken = _COLUMNS.union(entry.needs)  # type: ignore[attr-defined]
    parameters = inspect.signature(entry).parameters.values()
    known = sorted(p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in taken)
    for option in options:
        if option not in known:
            raise one_of(f"an option of {kind} {name}", option, known)


def required(config: StepConfig) -> frozenset[str]:
    """The columns that a batch must bring, beyond `scores` (or `token_level_scores`), for these settings."""
    wanted = {"response_mask", "old_log_probs", *estimators[config.estimator].needs}
    for name, _ in config.rewards:
        wanted |= set(rewards[name].needs)
    for name, _ in config.masks:
        wanted |= set(masks[name].needs) - {"advantages"}
    if config.truncation is not None:
        wanted |= {"truncated", *truncation.RULES[config.truncation].needs}
    if config.use_kl_in_reward or config.use_kl_loss:
        wanted.add("ref_log_prob")
    if config.correction is not None:
        wanted.add("rollout_log_probs")
    if "non_tensor_batch" in wanted:
        wanted |= {"prompts", *config.gdpo_reward_keys}
    renamed = {"index": "uid", "response_lengths": "attention_mask", "batch": "attention_mask",
               "action_lengths": "response_mask", "log_prob": "old_log_probs"}  # fmt: skip
    wanted = {renamed.get(name, name) for name in wanted}
    return frozenset(wanted - {"token_level_rewards", "non_tensor_batch"})
