"""verl's `RolloutCorrectionConfig` and its 19 named presets.

Decoupled presets keep three policies (rollout, old, current) and correct the loss with weights or rejection;
bypass presets use the rollout policy as the old one (`bypass_mode`), where the loss mode must be `bypass_mode`.
`pg` means the REINFORCE loss with explicit weights, `geo` rejection on the row mean of k1, `k3` on that of k3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Threshold = str | float

_GEO = "0.999_1.001"


@dataclass(frozen=True, kw_only=True)
class RolloutCorrectionConfig:
    """Fields of verl's block `algorithm.rollout_correction`.

    The default of `rollout_is` is "sequence" here, as in verl's dataclass; the block of verl's YAML sets null.

    Attributes:
        rollout_is: None, token or sequence.
        rollout_is_threshold: a number truncates, "lo_hi" is IcePop, None disables weighting without a word.
        rollout_is_batch_normalize: divide the weights by their mean.
        rollout_rs: None or rejection options, comma-separated.
        rollout_rs_threshold: their thresholds.
        bypass_mode: use the rollout log-probabilities as the old ones.
        loss_type: in bypass mode, ppo_clip (the ratio corrects by itself) or reinforce (explicit weights).
    """

    rollout_is: str | None = "sequence"
    rollout_is_threshold: Threshold | None = 2.0
    rollout_is_batch_normalize: bool = False
    rollout_rs: str | None = None
    rollout_rs_threshold: Threshold | None = None
    bypass_mode: bool = False
    loss_type: str = "ppo_clip"

    @classmethod
    def decoupled_token_is(cls, threshold: float = 2.0) -> RolloutCorrectionConfig:
        """Truncated weights by token."""
        return cls(rollout_is="token", rollout_is_threshold=threshold)

    @classmethod
    def decoupled_seq_is(cls, threshold: float = 2.0) -> RolloutCorrectionConfig:
        """Truncated weights by sequence."""
        return cls(rollout_is="sequence", rollout_is_threshold=threshold)

    @classmethod
    def decoupled_token_icepop(cls, threshold: float = 5.0, threshold_lower: float = 0.5) -> RolloutCorrectionConfig:
        """Weights by token, zeroed outside the window."""
        return cls(rollout_is="token", rollout_is_threshold=f"{threshold_lower}_{threshold}")

    @classmethod
    def decoupled_seq_is_rs(
        cls, is_threshold: float = 2.0, rs_threshold: Threshold | None = "0.5_2.0"
    ) -> RolloutCorrectionConfig:
        """Weights and rejection by sequence product."""
        return cls(
            rollout_is="sequence",
            rollout_is_threshold=is_threshold,
            rollout_rs="seq_sum_k1",
            rollout_rs_threshold=rs_threshold,
        )

    @classmethod
    def decoupled_geo_rs(cls, rs_threshold: Threshold | None = _GEO) -> RolloutCorrectionConfig:
        """Rejection by the geometric mean ratio alone."""
        return cls(rollout_is=None, rollout_rs="seq_mean_k1", rollout_rs_threshold=rs_threshold)

    @classmethod
    def bypass_ppo_clip(cls) -> RolloutCorrectionConfig:
        """Two policies, the clipped ratio corrects."""
        return cls(rollout_is=None, bypass_mode=True)

    @classmethod
    def bypass_ppo_clip_geo_rs(cls, rs_threshold: Threshold | None = _GEO) -> RolloutCorrectionConfig:
        """Two policies, clipped ratio, rejection by the geometric mean ratio."""
        return cls(rollout_is=None, rollout_rs="seq_mean_k1", rollout_rs_threshold=rs_threshold, bypass_mode=True)

    @classmethod
    def bypass_ppo_clip_k3_rs(cls, rs_threshold: float = 0.01) -> RolloutCorrectionConfig:
        """Two policies, clipped ratio, rejection by the row mean of k3."""
        return cls(rollout_is=None, rollout_rs="seq_mean_k3", rollout_rs_threshold=rs_threshold, bypass_mode=True)

    @classmethod
    def bypass_pg_is(cls, threshold: float = 2.0) -> RolloutCorrectionConfig:
        """Two policies, REINFORCE with truncated sequence weights."""
        return cls(rollout_is_threshold=threshold, bypass_mode=True, loss_type="reinforce")

    @classmethod
    def bypass_pg_token_icepop(cls, threshold: float = 5.0, threshold_lower: float = 0.5) -> RolloutCorrectionConfig:
        """Two policies, REINFORCE with token weights, zeroed outside the window."""
        return cls(
            rollout_is="token",
            rollout_is_threshold=f"{threshold_lower}_{threshold}",
            bypass_mode=True,
            loss_type="reinforce",
        )

    @classmethod
    def bypass_pg_geo_rs(cls, rs_threshold: Threshold | None = _GEO) -> RolloutCorrectionConfig:
        """Two policies, REINFORCE without weights, rejection by the geometric mean ratio."""
        return cls(
            rollout_is=None,
            rollout_rs="seq_mean_k1",
            rollout_rs_threshold=rs_threshold,
            bypass_mode=True,
            loss_type="reinforce",
        )

    @classmethod
    def decoupled_geo_rs_seq_tis(
        cls, is_threshold: float = 2.0, rs_threshold: Threshold | None = _GEO
    ) -> RolloutCorrectionConfig:
        """Rejection by the geometric mean ratio, truncated sequence weights on what stays."""
        return cls(rollout_is_threshold=is_threshold, rollout_rs="seq_mean_k1", rollout_rs_threshold=rs_threshold)

    @classmethod
    def decoupled_geo_rs_token_tis(
        cls, is_threshold: float = 2.0, rs_threshold: Threshold | None = _GEO
    ) -> RolloutCorrectionConfig:
        """Rejection by the geometric mean ratio, truncated token weights on what stays."""
        return cls(
            rollout_is="token",
            rollout_is_threshold=is_threshold,
            rollout_rs="seq_mean_k1",
            rollout_rs_threshold=rs_threshold,
        )

    @classmethod
    def bypass_pg_geo_rs_seq_tis(
        cls, is_threshold: float = 2.0, rs_threshold: Threshold | None = _GEO
    ) -> RolloutCorrectionConfig:
        """Two policies, REINFORCE: rejection by the geometric mean ratio and truncated sequence weights."""
        return cls(
            rollout_is_threshold=is_threshold,
            rollout_rs="seq_mean_k1",
            rollout_rs_threshold=rs_threshold,
            bypass_mode=True,
            loss_type="reinforce",
        )

    @classmethod
    def bypass_pg_geo_rs_token_tis(
        cls, is_threshold: float = 2.0, rs_threshold: Threshold | None = _GEO
    ) -> RolloutCorrectionConfig:
        """Two policies, REINFORCE: rejection by the geometric mean ratio and truncated token weights."""
        return cls(
            rollout_is="token",
            rollout_is_threshold=is_threshold,
            rollout_rs="seq_mean_k1",
            rollout_rs_threshold=rs_threshold,
            bypass_mode=True,
            loss_type="reinforce",
        )

    @classmethod
    def decoupled_k3_rs(cls, rs_threshold: float = 0.01) -> RolloutCorrectionConfig:
        """Rejection by the row mean of k3 alone."""
        return cls(rollout_is=None, rollout_rs="seq_mean_k3", rollout_rs_threshold=rs_threshold)

    @classmethod
    def decoupled_k3_rs_seq_tis(cls, is_threshold: float = 2.0, rs_threshold: float = 0.01) -> RolloutCorrectionConfig:
        """Rejection by the row mean of k3, truncated sequence weights on what stays."""
        return cls(rollout_is_threshold=is_threshold, rollout_rs="seq_mean_k3", rollout_rs_threshold=rs_threshold)

    @classmethod
    def decoupled_k3_rs_token_tis(
        cls, is_threshold: float = 2.0, rs_threshold: float = 0.01
    ) -> RolloutCorrectionConfig:
        """Rejection by the row mean of k3, truncated token weights on what stays."""
        return cls(
            rollout_is="token",
            rollout_is_threshold=is_threshold,
            rollout_rs="seq_mean_k3",
            rollout_rs_threshold=rs_threshold,
        )

    @classmethod
    def disabled(cls) -> RolloutCorrectionConfig:
        """Metrics only."""
        return cls(rollout_is=None)


#: Name -> factory, in verl's order.
PRESETS: dict[str, Callable[..., RolloutCorrectionConfig]] = {
    name: getattr(RolloutCorrectionConfig, name)
    for name, attribute in vars(RolloutCorrectionConfig).items()
    if isinstance(attribute, classmethod)
}
