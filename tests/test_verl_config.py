"""Each rule fires on the configuration it is about and is silent on a sound one."""

import json
import subprocess
import sys

import pytest

from labs.errors import InputError
from labs.verl_config import parse, read, summary
from labs.verl_config_rules import AGGREGATIONS, ESTIMATORS, LOSSES, examine

SOUND = """
algorithm: {adv_estimator: grpo}
actor_rollout_ref:
  actor: {clip_ratio_low: 0.2, clip_ratio_high: 0.28, ppo_mini_batch_size: 64, loss_agg_mode: token-mean}
  rollout: {n: 8}
data: {train_batch_size: 256}
"""

# What to set on top of the sound configuration -> (level, setting, a word of the sentence).
FAULTS = {
    "clip_ratio alone": (
        {"actor_rollout_ref.actor.clip_ratio": 0.3}, "inert", "actor_rollout_ref.actor.clip_ratio", "clip_ratio_low"),
    "no std with the vectorised form": (
        {"algorithm.adv_estimator": "grpo_vectorized", "algorithm.norm_adv_by_std_in_grpo": False},
        "dangerous", "algorithm.norm_adv_by_std_in_grpo", "never passes"),
    "std flag elsewhere": (
        {"algorithm.adv_estimator": "rloo", "algorithm.norm_adv_by_std_in_grpo": False},
        "inert", "algorithm.norm_adv_by_std_in_grpo", "only"),
    "bypass without its loss": (
        {"algorithm.rollout_correction.bypass_mode": True, "algorithm.rollout_correction.rollout_is": "token"},
        "dangerous", "algorithm.rollout_correction.bypass_mode", "rollout_is does nothing"),
    "bypass loss without its block": (
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "bypass_mode"},
        "dangerous", "actor_rollout_ref.actor.policy_loss.loss_mode", "its own default"),
    "gdpo on the default path": (
        {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": ["a"]},
        "wrong", "algorithm.adv_estimator", "components"),
    "late filter metric": (
        {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "acc"},
        "dangerous", "algorithm.filter_groups.metric", "after sampling"),
    "one rollout": ({"actor_rollout_ref.rollout.n": 1}, "dangerous", "actor_rollout_ref.rollout.n", "no baseline"),
    "one rollout, vectorised leave-one-out": (
        {"actor_rollout_ref.rollout.n": 1, "algorithm.adv_estimator": "rloo_vectorized"},
        "dangerous", "actor_rollout_ref.rollout.n", "every advantage is 0"),
    "estimator is not a loss": (
        {"algorithm.adv_estimator": "gpg"}, "dangerous", "algorithm.adv_estimator", "loss stays vanilla"),
    "two KLs": (
        {"algorithm.use_kl_in_reward": True, "actor_rollout_ref.actor.use_kl_loss": True},
        "dangerous", "algorithm.use_kl_in_reward", "twice"),
    "KL type of a KL that is off": (
        {"actor_rollout_ref.actor.kl_loss_type": "k1"}, "inert", "actor_rollout_ref.actor.kl_loss_type", "off"),
    "rejection without a threshold": (
        {"algorithm.rollout_correction.rollout_rs": "token_k1"},
        "wrong", "algorithm.rollout_correction.rollout_rs_threshold", "ValueError"),
    "lambda without gae": ({"algorithm.lam": 0.9}, "inert", "algorithm.lam", "gae only"),
    "critic nobody reads": ({"critic.enable": True}, "inert", "critic.enable", "never reads"),
    "aggregation that is ignored": (
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "sapo"},
        "inert", "actor_rollout_ref.actor.loss_agg_mode", "whatever"),
    "unknown estimator": ({"algorithm.adv_estimator": "grop"}, "wrong", "algorithm.adv_estimator", "does not know"),
    "dro without beta": (
        {"actor_rollout_ref.actor.policy_loss.loss_mode": "dro"},
        "wrong", "actor_rollout_ref.actor.policy_loss.dro_beta", "over 0"),
    "overlong with another manager": (
        {"reward.reward_kwargs.overlong_buffer_cfg.enable": True},
        "inert", "reward.reward_kwargs.overlong_buffer_cfg.enable", "dapo"),
    "zero target": (
        {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.target_kl": 0},
        "wrong", "algorithm.kl_ctrl.target_kl", "divides"),
}  # fmt: skip


@pytest.fixture
def sound(tmp_path):
    path = tmp_path / "sound.yaml"
    path.write_text(SOUND)
    return path


def test_names_are_the_lab_s_and_the_aggregations_too():
    from labs.masked import AGG_MODES
    from labs.registry import estimators, losses

    assert set(ESTIMATORS) <= set(estimators)
    assert set(LOSSES) <= set(losses)
    assert AGGREGATIONS == AGG_MODES


def test_a_sound_configuration_has_notes_only(sound):
    assert {f.level for f in examine(read(sound))} == {"note"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(sound, fault):
    change, level, setting, word = FAULTS[fault]
    found = [f for f in examine(parse({**read(sound)._given, **change})) if f.level != "note"]
    hits = [f for f in found if (f.level, f.setting) == (level, setting) and word in f.text]
    assert hits, f"{fault}: found {found}"


def test_summary_says_what_it_amounts_to(sound):
    text = "\n".join(summary(read(sound)))
    assert "ratio in [0.8, 1.28]" in text
    assert "8 rollouts a prompt, 256 prompts" in text


def test_references_are_resolved():
    settings = parse({"data": {"train_batch_size": 64}, "actor_rollout_ref": {
        "actor": {"ppo_mini_batch_size": "${data.train_batch_size}"}}})  # fmt: skip
    assert settings["actor_rollout_ref.actor.ppo_mini_batch_size"] == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("trainer: {total_epochs: 3}", "has none of the blocks"),
        ("algorithm: {use_kl_in_reward: maybe}", "must be true or false"),
        ("actor_rollout_ref: {rollout: {n: many}}", "must be a number"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read(path)


def test_the_command(sound, tmp_path):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "labs", "verl-config", *arguments], capture_output=True, text=True, check=False
        )

    assert run(str(sound)).returncode == 0
    bad = tmp_path / "bad.yaml"
    bad.write_text(SOUND.replace("n: 8", "n: 1"))
    done = run(str(bad), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["setting"] == "actor_rollout_ref.rollout.n"
    missing = run(str(tmp_path / "none.yaml"))
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr
    assert len(missing.stderr.strip().splitlines()) == 1
