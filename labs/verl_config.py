"""What a verl configuration amounts to.

Reads the algorithm, actor, rollout, critic and reward blocks of a YAML file as verl 0.9.1 would and fills in verl's
defaults; the rules are in `labs/verl_config_rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labs.errors import InputError

#: verl 0.9.1's defaults for every setting that a rule or the summary reads.
DEFAULTS: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.kl_ctrl.horizon": 10000,
    "algorithm.kl_ctrl.target_kl": 0.1,
    "algorithm.use_pf_ppo": False,
    "algorithm.gdpo_reward_keys": None,
    "algorithm.gdpo_reward_weights": None,
    "algorithm.rollout_correction.rollout_is": None,
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    "algorithm.rollout_correction.rollout_is_batch_normalize": False,
    "algorithm.rollout_correction.rollout_rs": None,
    "algorithm.rollout_correction.rollout_rs_threshold": None,
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.rollout_correction.loss_type": "ppo_clip",
    "algorithm.filter_groups.enable": False,
    "algorithm.filter_groups.metric": "reward",
    "algorithm.filter_groups.max_num_gen_batches": 0,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.actor.policy_loss.dro_beta": None,
    "actor_rollout_ref.actor.policy_loss.rollout_correction": None,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.clip_ratio_low": 0.2,
    "actor_rollout_ref.actor.clip_ratio_high": 0.2,
    "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.loss_scale_factor": None,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 256,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "critic.enable": None,
    "critic.cliprange_value": 0.5,
    "data.train_batch_size": 1024,
    "reward.reward_manager.name": "naive",
    "reward.reward_kwargs.overlong_buffer_cfg.enable": False,
    "reward.reward_kwargs.overlong_buffer_cfg.len": 0,
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": 0.0,
    "reward.reward_kwargs.max_resp_len": None,
}  # fmt: skip

_BLOCKS = ("algorithm", "actor_rollout_ref", "critic", "reward", "data")
_C = "algorithm.rollout_correction."
_ACTOR = "actor_rollout_ref.actor."


class Settings(Mapping[str, Any]):
    """A configuration with verl's defaults underneath, by dotted name; `given` says whether the user set it."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def __getitem__(self, name: str) -> Any:
        if name in self._given:
            return self._given[name]
        return DEFAULTS[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**DEFAULTS, **self._given})

    def __len__(self) -> int:
        return len({**DEFAULTS, **self._given})

    def given(self, name: str) -> bool:
        """True when the file sets `name`, or something below it."""
        return any(key == name or key.startswith(name + ".") for key in self._given)


def read(path: Path) -> Settings:
    """Read a YAML file.

    Raises:
        InputError: no such file, not YAML, no mapping, or none of the blocks this tool reads.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path} cannot be read: {reason}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not any(str(key).split(".")[0] in _BLOCKS for key in document):
        raise InputError(f"{path} has none of the blocks {', '.join(_BLOCKS)} at its top level")
    return parse(document)


def parse(document: Mapping[str, Any]) -> Settings:
    """Flatten a nested mapping to dotted names, resolve `${a.b}` references to other settings, check the types.

    Raises:
        InputError: a number or a switch where verl needs another type.
    """
    flat: dict[str, Any] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, Mapping) and node:
            for key, value in node.items():
                walk(f"{prefix}.{key}" if prefix else str(key), value)
        else:
            flat[prefix] = node

    walk("", document)
    for _ in range(8):  # a reference may point at a reference; a circle is left as text
        for name, value in flat.items():
            reference = (
                re.fullmatch(r"\$\{(?:oc\.select:)?([\w.]+)(?:,.*)?\}", value) if isinstance(value, str) else None
            )
            if reference and reference[1] in {**DEFAULTS, **flat}:
                flat[name] = Settings(flat)[reference[1]]
    for name, value in flat.items():
        default = DEFAULTS.get(name)
        if isinstance(value, str) and "${" in value:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise InputError(f"{name} is {value!r}; it must be true or false")
        if isinstance(default, (int, float)) and not isinstance(default, bool) and value is not None and not number:
            if name == _C + "rollout_is_threshold" and isinstance(value, str):
                continue
            raise InputError(f"{name} is {value!r}; it must be a number")
    return Settings(flat)


def summary(settings: Settings) -> list[str]:
    """What the settings amount to, in a few lines."""
    from labs.registry import estimators, losses

    s = settings
    estimator, mode = s["algorithm.adv_estimator"], s[_ACTOR + "policy_loss.loss_mode"]
    bare, bare_mode = str(estimator).removeprefix("lab_"), str(mode).removeprefix("lab_")
    low, high = (s[_ACTOR + f"clip_ratio_{k}"] for k in ("low", "high"))
    low, high = (s[_ACTOR + "clip_ratio"] if x is None else x for x in (low, high))
    lines = [
        f"advantage    {estimator}: {estimators.describe(bare) if bare in estimators else 'unknown'}",
        f"loss         {mode}: {losses.describe(bare_mode) if bare_mode in losses else 'unknown'}",
        f"clip         ratio in [{1 - low:g}, {1 + high:g}], dual clip at {s[_ACTOR + 'clip_ratio_c']}",
        f"aggregation  {s[_ACTOR + 'loss_agg_mode']}",
        f"groups       {s['actor_rollout_ref.rollout.n']} rollouts a prompt, {s['data.train_batch_size']} prompts "
        f"a batch",
    ]
    kl = []
    if s["algorithm.use_kl_in_reward"]:
        kl.append(
            f"in the reward ({s['algorithm.kl_penalty']}, {s['algorithm.kl_ctrl.type']} "
            f"{s['algorithm.kl_ctrl.kl_coef']})"
        )
    if s[_ACTOR + "use_kl_loss"]:
        kl.append(f"in the loss ({s[_ACTOR + 'kl_loss_type']}, {s[_ACTOR + 'kl_loss_coef']})")
    lines.append(f"KL           {' and '.join(kl) or 'none'}")
    weights, rejection = s[_C + "rollout_is"], s[_C + "rollout_rs"]
    parts = [f"{weights} weights cut at {s[_C + 'rollout_is_threshold']}"] if weights else []
    parts += [f"rejection {rejection} at {s[_C + 'rollout_rs_threshold']}"] if rejection else []
    lines.append(f"correction   {' and '.join(parts) or 'none'}")
    return lines
