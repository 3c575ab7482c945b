"""The settings that verl's losses read, under verl's names and with verl 0.9.1's defaults.

A loss takes `config=None`, an `ActorConfig` of this module, a plain mapping, an OmegaConf node or verl's own
`ActorConfig`; `actor_settings` turns any of them into the first. verl's three clip ratios all default to 0.2 and
`clip_ratio` only stands in where `clip_ratio_low` or `clip_ratio_high` is null, so *setting `clip_ratio` alone
changes nothing*.

>>> actor_settings({"clip_ratio": 0.5}).clip_bounds
(0.2, 0.2)
>>> actor_settings({"clip_ratio": 0.5, "clip_ratio_low": None, "clip_ratio_high": None}).clip_bounds
(0.5, 0.5)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from labs.correction import RolloutCorrectionConfig
from labs.errors import InputError, one_of
from labs.masked import AGG_MODES
from labs.registry import opt

GLOBAL_BATCH_KEYS = ("dp_size", "batch_num_tokens", "global_batch_size", "loss_scale_factor")

# Fields of verl's actor block that no loss reads: a mapping may hold them, any other unknown key is a typing mistake.
_ELSEWHERE = frozenset(
    {
        "_target_", "strategy", "ppo_mini_batch_size", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu",
        "ppo_infer_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu",
        "ppo_infer_max_token_len_per_gpu", "freeze_vision_tower", "calculate_entropy", "calculate_sum_pi_squared",
        "use_prefix_grouper", "use_torch_compile", "ppo_epochs", "shuffle", "data_loader_seed", "checkpoint", "optim",
        "use_fused_kernels", "profiler", "engine", "rollout_n", "model_config", "qat", "grad_clip",
        "ulysses_sequence_parallel_size", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size",
        "entropy_checkpointing", "pad_to_length", "fsdp_config", "use_remove_padding", "use_rollout_log_probs",
        "router_replay", "megatron", "load_weight", "profile", "loss_mode",
    }
)  # fmt: skip

T = TypeVar("T")


class Block(Mapping[str, Any]):
    """A frozen dataclass that can also be read like a mapping, as verl's configuration blocks can."""

    def get(self, key: str, default: Any = None) -> Any:
        """The field `key`, or `default` when there is no such field."""
        return getattr(self, key, default)

    def __getitem__(self, key: str) -> Any:
        if key not in {f.name for f in fields(self)}:  # type: ignore[arg-type]
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in fields(self))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class PolicyLossConfig(Block):
    """`actor.policy_loss`: which loss, and the settings that only one loss reads.

    Attributes:
        loss_mode: name of the loss in `labs.registry.losses`.
        clip_cov_ratio, clip_cov_lb, clip_cov_ub: fraction of tokens and window of the covariance of `clip_cov`.
        kl_cov_ratio: fraction of tokens that `kl_cov` penalises, in (0, 1].
        ppo_kl_coef: penalty of `kl_cov`, in 1/nat.
        dro_beta: quadratic penalty of `dro`; required there.
        rollout_correction: the block that `bypass_mode` reads; verl's *dataclass* default weights whole sequences
            up to 2, its YAML default weights nothing.
        options: keyword options of a lab entry that verl has no field for, e.g. `{"delta": 4.0}` for `two_sided`.
    """

    loss_mode: str = "vanilla"
    clip_cov_ratio: float | None = 0.0002
    clip_cov_lb: float | None = 1.0
    clip_cov_ub: float | None = 5.0
    kl_cov_ratio: float | None = 0.0002
    ppo_kl_coef: float | None = 0.1
    dro_beta: float | None = None
    rollout_correction: Any = field(default_factory=RolloutCorrectionConfig)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.rollout_correction, dict):
            block = _block(RolloutCorrectionConfig, self.rollout_correction, "actor.policy_loss.rollout_correction")
            object.__setattr__(self, "rollout_correction", block)
        for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta"):
            number(f"actor.policy_loss.{name}", getattr(self, name), low=-math.inf, optional=True)


@dataclass(frozen=True, kw_only=True)
class ActorConfig(Block):
    """`actor_rollout_ref.actor`: what the policy losses and the whole actor loss read.

    Attributes:
        clip_ratio, clip_ratio_low, clip_ratio_high: PPO's epsilon and its two sides (see the module's note).
        clip_ratio_c: dual clip of `vanilla` and ratio cap of `dppo_*`; over 1.
        tau_pos, tau_neg: temperatures of `sapo` where the advantage is positive, and where not.
        loss_agg_mode, loss_scale_factor: aggregation of `labs.masked.agg_loss`.
        entropy_coeff: weight of the entropy in the actor loss, in 1/nat.
        use_kl_loss, kl_loss_coef, kl_loss_type: KL to the reference policy in the actor loss.
        policy_loss: the block of the losses.
        global_batch_info: the denominators of the whole batch: `dp_size`, `batch_num_tokens`, `global_batch_size`,
            `loss_scale_factor`. A loss called directly takes `loss_scale_factor` from here alone.

    Raises:
        InputError: an unknown aggregation mode, a negative or non-finite number, an unknown key of
            `global_batch_info`.
    """

    clip_ratio: float | None = 0.2
    clip_ratio_low: float | None = 0.2
    clip_ratio_high: float | None = 0.2
    clip_ratio_c: float = 3.0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: float | None = None
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    global_batch_info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.loss_agg_mode not in AGG_MODES:
            raise one_of("actor.loss_agg_mode", self.loss_agg_mode, AGG_MODES)
        for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"):
            number(f"actor.{name}", getattr(self, name), low=0.0, optional=True)
        for name in ("tau_pos", "tau_neg"):
            number(f"actor.{name}", getattr(self, name), low=0.0, strict=True)
        number("actor.clip_ratio_c", self.clip_ratio_c, low=-math.inf)
        number("actor.entropy_coeff", self.entropy_coeff, low=-math.inf)
        number("actor.kl_loss_coef", self.kl_loss_coef, low=-math.inf)
        number("actor.loss_scale_factor", self.loss_scale_factor, low=0.0, strict=True, optional=True)
        for name in self.global_batch_info:
            if name not in GLOBAL_BATCH_KEYS:
                raise one_of("a key of actor.global_batch_info", name, GLOBAL_BATCH_KEYS)

    @property
    def clip_bounds(self) -> tuple[float, float]:
        """`(low, high)`: how far the ratio may fall under and rise over 1 before PPO clips it."""
        low = self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low
        high = self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high
        if low is None or high is None:
            raise InputError(
                "actor.clip_ratio is null, and so is clip_ratio_low or clip_ratio_high: no clip range is set"
            )
        return low, high


@dataclass(frozen=True, kw_only=True)
class CriticConfig(Block):
    """`critic`: what the value loss reads; verl lets aggregation mode and scale factor follow the actor's."""

    cliprange_value: float = 0.5
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: float | None = None

    def __post_init__(self) -> None:
        if self.loss_agg_mode not in AGG_MODES:
            raise one_of("critic.loss_agg_mode", self.loss_agg_mode, AGG_MODES)
        number("critic.cliprange_value", self.cliprange_value, low=0.0)
        number("critic.loss_scale_factor", self.loss_scale_factor, low=0.0, strict=True, optional=True)


def number(what: str, value: Any, *, low: float, strict: bool = False, optional: bool = False) -> None:
    """Refuse a setting that is no finite number of at least (`strict`: over) `low`."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{what} is {value!r}; it takes a finite number{' or null' if optional else ''}")
    if value < low or (strict and value == low):
        raise InputError(f"{what} is {value!r}; it must be {'over' if strict else 'at least'} {low:g}")


def actor_settings(config: Any = None) -> ActorConfig:
    """Turn what a caller passes as `config` into an `ActorConfig`; None gives verl's defaults.

    Raises:
        InputError: a mapping with a key that verl's actor block does not have, or a value out of range.
    """
    if isinstance(config, ActorConfig):
        return config
    policy_loss = opt(config, "policy_loss")
    if not isinstance(policy_loss, PolicyLossConfig):
        policy_loss = _block(PolicyLossConfig, policy_loss, "actor.policy_loss")
    return _block(ActorConfig, config, "actor", policy_loss=policy_loss)


def critic_settings(config: Any = None) -> CriticConfig:
    """Turn what a caller passes as the critic's `config` into a `CriticConfig`."""
    return config if isinstance(config, CriticConfig) else _block(CriticConfig, config, "critic", check=False)


def _block(kind: type[T], config: Any, where: str, *, check: bool = True, **given: Any) -> T:
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    if isinstance(config, str | int | float | list | tuple):
        raise InputError(f"the config of {where} is {config!r}; it takes None, a mapping or an object with its fields")
    if check and isinstance(config, dict):
        stray = [k for k in config if k not in names and k not in _ELSEWHERE]
        if stray:
            raise one_of(f"a key of {where}", stray[0], names)
    missing = object()
    values = {n: opt(config, n, missing) for n in names if n not in given}
    return kind(**given, **{n: v for n, v in values.items() if v is not missing})
