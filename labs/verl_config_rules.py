"""Which settings of a verl configuration do nothing, do harm, or stop the run.

Each rule is a function of the filled-in settings that yields findings. Each is a fact about verl 0.9.1's code path
(`tests/golden` has a recorded row for most of them), not an opinion about tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labs.registry import estimators, losses
from labs.verl_config import Settings

_A, _C, _F = "algorithm.", "algorithm.rollout_correction.", "algorithm.filter_groups."
_ACTOR = "actor_rollout_ref.actor."
ESTIMATORS = (
    "gae", "gdpo", "gpg", "grpo", "grpo_passk", "grpo_vectorized", "opo", "optimal_token_baseline",
    "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "rloo", "rloo_vectorized",
    "tir_optimal_token_baseline",
)  # fmt: skip
LOSSES = (
    "bypass_mode", "cispo", "clip_cov", "dppo_kl", "dppo_tv", "dro", "geo_mean", "gpg", "gspo", "kl_cov", "sapo",
    "vanilla",
)  # fmt: skip
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
_UNGROUPED = ("gae", "reinforce_plus_plus", "remax")
_GROUPED = tuple(name for name in ESTIMATORS if name not in _UNGROUPED)
_AGGREGATION_FIXED = {"sapo": "always takes seq-mean-token-mean", "geo_mean": "averages over all rows"}


@dataclass(frozen=True)
class Finding:
    """One fact about a configuration.

    `level` is `wrong` (verl stops), `dangerous` (it runs and does something else than it says), `inert` (the setting
    changes nothing) or `note`.
    """

    level: str
    setting: str
    text: str
    remedy: str = ""


RULES: list[Callable[[Settings], Iterator[Finding]]] = []


def _rule(function: Callable[[Settings], Iterator[Finding]]) -> Callable[[Settings], Iterator[Finding]]:
    RULES.append(function)
    return function


def examine(settings: Settings) -> list[Finding]:
    """All findings, the gravest first."""
    order = ("wrong", "dangerous", "inert", "note")
    found = [finding for rule in RULES for finding in rule(settings)]
    return sorted(found, key=lambda f: order.index(f.level))


def _known(s: Settings, name: str, allowed: tuple[str, ...]) -> Iterator[Finding]:
    if s[name] not in allowed:
        from difflib import get_close_matches

        near = get_close_matches(str(s[name]), allowed, n=3) or [a for a in allowed if not a.startswith("lab_")]
        yield Finding("wrong", name, f"is {s[name]!r}, which verl 0.9.1 does not know", "one of " + ", ".join(near))


@_rule
def _names(s: Settings) -> Iterator[Finding]:
    yield from _known(s, _A + "adv_estimator", (*ESTIMATORS, *(f"lab_{n}" for n in estimators)))
    yield from _known(s, _ACTOR + "policy_loss.loss_mode", (*LOSSES, *(f"lab_{n}" for n in losses)))
    yield from _known(s, _ACTOR + "loss_agg_mode", AGGREGATIONS)


@_rule
def _clip(s: Settings) -> Iterator[Finding]:
    name = _ACTOR + "clip_ratio"
    low, high = s[_ACTOR + "clip_ratio_low"], s[_ACTOR + "clip_ratio_high"]
    if s.given(name) and s[name] not in (low, high) and low is not None and high is not None:
        yield Finding(
            "inert",
            name,
            f"is {s[name]} but the loss clips to [{1 - low:g}, {1 + high:g}]: clip_ratio acts only where "
            f"clip_ratio_low "
            "or clip_ratio_high is null, and both default to 0.2",
            f"set clip_ratio_low and clip_ratio_high to {s[name]}",
        )
    if s[_ACTOR + "clip_ratio_c"] is not None and s[_ACTOR + "clip_ratio_c"] <= 1:
        yield Finding(
            "wrong", _ACTOR + "clip_ratio_c", f"is {s[_ACTOR + 'clip_ratio_c']}; verl asserts that it is over 1"
        )


@_rule
def _std_flag(s: Settings) -> Iterator[Finding]:
    name, estimator = _A + "norm_adv_by_std_in_grpo", s[_A + "adv_estimator"]
    if s[name] is False and estimator not in ("grpo", "grpo_passk"):
        if estimator in ("grpo_vectorized", "gdpo"):
            yield Finding(
                "dangerous",
                name,
                f"is false, but verl never passes it to {estimator}: the standard deviation is divided by all the same",
                "use adv_estimator=grpo",
            )
        else:
            yield Finding("inert", name, f"is read by grpo and grpo_passk only, not by {estimator}")


@_rule
def _bypass(s: Settings) -> Iterator[Finding]:
    mode = s[_ACTOR + "policy_loss.loss_mode"]
    if s[_C + "bypass_mode"] and mode != "bypass_mode":
        wanted = [k for k in ("rollout_is", "rollout_rs") if s[_C + k]]
        what = f", so {' and '.join(wanted)} {'does' if len(wanted) == 1 else 'do'} nothing" if wanted else ""
        yield Finding(
            "dangerous",
            _C + "bypass_mode",
            "is true, but nothing switches the loss to it: the rollout's "
            f"log-probabilities become old_log_probs and the correction is skipped{what}",
            "set actor.policy_loss.loss_mode=bypass_mode and actor.policy_loss.rollout_correction",
        )
    if mode == "bypass_mode" and not s.given(_ACTOR + "policy_loss.rollout_correction"):
        yield Finding(
            "dangerous",
            _ACTOR + "policy_loss.loss_mode",
            "is bypass_mode without actor.policy_loss."
            "rollout_correction: the loss then reads its own default (sequence weights cut at 2), not "
            "algorithm.rollout_correction",
            "copy the block there",
        )


@_rule
def _correction(s: Settings) -> Iterator[Finding]:
    if s[_C + "rollout_rs"] and s[_C + "rollout_rs_threshold"] is None:
        yield Finding(
            "wrong", _C + "rollout_rs_threshold", "is null although rollout_rs is set: verl raises ValueError"
        )
    if s[_C + "rollout_is"] and s[_C + "rollout_is_threshold"] is None:
        yield Finding("inert", _C + "rollout_is", "has no threshold, and a null threshold switches the weights off")
    if (s[_C + "rollout_is"] or s[_C + "rollout_rs"]) and not s["actor_rollout_ref.rollout.calculate_log_probs"]:
        yield Finding(
            "wrong",
            "actor_rollout_ref.rollout.calculate_log_probs",
            "is false, so there is no rollout log-probability to correct with",
        )
    if "k1" in str(s[_C + "rollout_rs"] or ""):
        yield Finding(
            "note",
            _C + "rollout_rs",
            "k1 bounds rollout / training, the inverse of the importance weight: a "
            "window 0.8_1.5 keeps training / rollout between 0.667 and 1.25",
        )


@_rule
def _groups(s: Settings) -> Iterator[Finding]:
    estimator, n = s[_A + "adv_estimator"], s["actor_rollout_ref.rollout.n"]
    if estimator in _GROUPED and n == 1:
        what = {"rloo_vectorized": "every advantage is 0", "grpo_passk": "verl raises ValueError"}.get(
            estimator, "there is no baseline, the advantage is the score itself"
        )
        level = "wrong" if estimator == "grpo_passk" else "dangerous"
        yield Finding(
            level, "actor_rollout_ref.rollout.n", f"is 1 with {estimator}: {what}", "use 4 to 16 rollouts a prompt"
        )
    if s[_F + "enable"]:
        if s[_F + "metric"] != "reward":
            yield Finding(
                "dangerous",
                _F + "metric",
                f"is {s[_F + 'metric']!r}, read from reward_extra_info when a group "
                "is complete: a score that arrives after sampling is missing there and verl raises RuntimeError",
                "use metric=reward, the sum of rm_scores, and a streaming reward",
            )
        if s.given(_F + "max_num_gen_batches"):
            yield Finding("inert", _F + "max_num_gen_batches", "is not read by the V1 trainer")
        yield Finding(
            "note",
            _F + "enable",
            "drops a group only if its standard deviation is exactly 0: three scores of 0.1 have 1.4e-17 and stay",
        )


@_rule
def _gdpo(s: Settings) -> Iterator[Finding]:
    if s[_A + "adv_estimator"] != "gdpo":
        return
    yield Finding(
        "wrong",
        _A + "adv_estimator",
        "gdpo needs prompts, attention_mask and the reward components in the "
        "batch; the default (V1) path has none of them and stops with an AssertionError or KeyError",
        "use the legacy trainer, or combine the components into one score",
    )
    keys, weights = s[_A + "gdpo_reward_keys"] or [], s[_A + "gdpo_reward_weights"]
    if not keys:
        yield Finding("wrong", _A + "gdpo_reward_keys", "is empty; gdpo asserts that it names the components")
    if weights is not None and len(weights) < len(keys):
        yield Finding("wrong", _A + "gdpo_reward_weights", f"has {len(weights)} weights for {len(keys)} components")


@_rule
def _tails(s: Settings) -> Iterator[Finding]:
    estimator = s[_A + "adv_estimator"]
    if estimator in ("optimal_token_baseline", "tir_optimal_token_baseline"):
        yield Finding(
            "dangerous",
            _A + "adv_estimator",
            f"{estimator} needs sum_pi_squared, which the V1 trainer does not fetch: AssertionError",
        )
    if estimator == "remax":
        yield Finding(
            "note",
            _A + "adv_estimator",
            "remax needs reward_baselines from a greedy rollout; at a tool reply "
            "its advantage is the later return, not 0",
        )
    if s.given("algorithm.lam") and estimator != "gae":
        yield Finding("inert", "algorithm.lam", f"is passed to gae only, not to {estimator}")
    if s.given("algorithm.gamma") and estimator not in ("gae", "reinforce_plus_plus") and s["algorithm.gamma"] != 1:
        yield Finding("inert", "algorithm.gamma", f"is not read by {estimator}")
    if s["algorithm.use_pf_ppo"] and estimator != "gae":
        yield Finding("inert", "algorithm.use_pf_ppo", f"acts after gae only, not after {estimator}")
    if s["critic.enable"] and estimator != "gae":
        yield Finding("inert", "critic.enable", f"trains a critic that {estimator} never reads")
    if s["critic.enable"] is False and estimator == "gae":
        yield Finding("wrong", "critic.enable", "is false, but gae needs values")


@_rule
def _loss(s: Settings) -> Iterator[Finding]:
    mode, agg = s[_ACTOR + "policy_loss.loss_mode"], _ACTOR + "loss_agg_mode"
    if mode in _AGGREGATION_FIXED and s.given(agg):
        yield Finding("inert", agg, f"is {s[agg]}, but {mode} {_AGGREGATION_FIXED[mode]} whatever is configured")
    if mode == "dro" and not (s[_ACTOR + "policy_loss.dro_beta"] or 0) > 0:
        yield Finding("wrong", _ACTOR + "policy_loss.dro_beta", "must be over 0 for dro; verl raises ValueError")
    if s.given(_ACTOR + "loss_scale_factor") and s[agg] != "seq-mean-token-sum-norm":
        yield Finding(
            "inert", _ACTOR + "loss_scale_factor", f"is read by seq-mean-token-sum-norm only, not by {s[agg]}"
        )
    if mode in ("kl_cov", "gpg", "dro") and (s.given(_ACTOR + "clip_ratio_low") or s.given(_ACTOR + "clip_ratio_high")):
        yield Finding("inert", _ACTOR + "clip_ratio_low", f"{mode} has no clip at all")
    if s[_A + "adv_estimator"] == "gpg" and mode != "gpg":
        yield Finding(
            "dangerous",
            _A + "adv_estimator",
            f"gpg sets the advantage only; the loss stays {mode}",
            "set actor.policy_loss.loss_mode=gpg too if GPG is meant",
        )
    yield Finding(
        "note",
        _A + "adv_estimator",
        f"{s[_A + 'adv_estimator']} changes advantages, not the loss: the loss is {mode} with {s[agg]}",
    )
    if s[_ACTOR + "ppo_epochs"] == 1 and s[_ACTOR + "ppo_mini_batch_size"] >= s["data.train_batch_size"]:
        yield Finding(
            "note",
            _ACTOR + "ppo_epochs",
            "1 with one mini-batch a step: on synchronous data every ratio is 1 "
            "when the gradient is taken, so no clip ever acts",
        )


@_rule
def _kl(s: Settings) -> Iterator[Finding]:
    if s["algorithm.use_kl_in_reward"] and s[_ACTOR + "use_kl_loss"]:
        yield Finding(
            "dangerous",
            "algorithm.use_kl_in_reward",
            "and actor.use_kl_loss are both on: the penalty is paid twice and verl only prints a notice",
            "keep one",
        )
    if s["algorithm.use_kl_in_reward"] and s[_A + "adv_estimator"] in _GROUPED:
        yield Finding(
            "note",
            "algorithm.use_kl_in_reward",
            "the KL of a row is summed into its score and enters the group's mean and standard deviation",
        )
    for name, used in (
        ("algorithm.kl_penalty", s["algorithm.use_kl_in_reward"]),
        (_ACTOR + "kl_loss_type", s[_ACTOR + "use_kl_loss"]),
        (_ACTOR + "kl_loss_coef", s[_ACTOR + "use_kl_loss"]),
    ):
        if s.given(name) and not used:
            yield Finding("inert", name, "is set, but that KL is switched off")
    if s["algorithm.use_kl_in_reward"] and s["algorithm.kl_ctrl.type"] == "adaptive":
        if not s["algorithm.kl_ctrl.horizon"] > 0:
            yield Finding("wrong", "algorithm.kl_ctrl.horizon", "must be over 0; verl asserts it")
        if s["algorithm.kl_ctrl.target_kl"] == 0:
            yield Finding("wrong", "algorithm.kl_ctrl.target_kl", "is 0: the controller divides by it")


@_rule
def _overlong(s: Settings) -> Iterator[Finding]:
    block = "reward.reward_kwargs.overlong_buffer_cfg."
    if s[block + "enable"] and s["reward.reward_manager.name"] != "dapo":
        yield Finding(
            "inert",
            block + "enable",
            f"is read by the dapo reward manager, not by {s['reward.reward_manager.name']}",
            "set reward.reward_manager.name=dapo",
        )
    elif s[block + "enable"]:
        if s[block + "penalty_factor"] < 0:
            yield Finding("dangerous", block + "penalty_factor", "is negative: it punishes short answers")
        longest = s["reward.reward_kwargs.max_resp_len"]
        if longest is None or s[block + "len"] <= 0 or longest < s[block + "len"]:
            yield Finding(
                "wrong",
                block + "len",
                f"is {s[block + 'len']} with max_resp_len {longest}; verl asserts 0 < len <= max_resp_len",
            )
