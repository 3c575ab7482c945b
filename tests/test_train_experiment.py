"""The experiment `train`: its headline against the exact value, its options, its sentences, and what it writes."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.train import CORRECTIONS, KL, MODES, TINY, TRUNCATION, Config
from experiments.train.running import _conclusion, _spelt, trainer_config
from labs import kl, truncation
from labs.correction import PRESETS
from labs.episodes import exact_outcomes
from labs.errors import InputError
from labs.experiment import Result, execute
from labs.explain import explain
from labs.masked import AGG_MODES
from labs.policy import Policy
from labs.registry import environments, experiments
from labs.settings import build, parse_pairs
from labs.stats import wilson


def config(*pairs: str, **values) -> Config:
    return build(Config, {**values, **parse_pairs(Config, pairs)})


@pytest.fixture(scope="module")
def default() -> Result:
    return execute("train", Config(), 7)


def test_the_default_solves_the_task_and_the_sampled_rate_agrees_with_the_exact_one(default: Result) -> None:
    after = default.data["after"]
    assert default.headline["exact_final_success_rate"] == after["exact_success_rate"] > 0.95
    interval = wilson(round(after["success_rate"] * 400), 400, z=3.3)
    assert interval.low <= after["exact_success_rate"] <= interval.high
    assert default.data["train_episodes"] == 19_200
    solved = default.data["solved_after_updates"]
    assert default.data["solved_after_trajectories"] == 192 * solved
    # Row u + 1 holds the exact success of the policy after update u.
    exact = [row["exact_success_rate"] for row in default.metrics]
    assert exact[solved] >= 0.95 > exact[solved - 1]
    assert default.conclusion.startswith("grpo with vanilla solved arithmetic in ")


def test_training_success_scatters_around_the_exact_one_as_192_draws_do(default: Result) -> None:
    z = [
        (row["train_success_rate"] - p) / (p * (1 - p) / 192) ** 0.5
        for row in default.metrics
        if 0.05 < (p := row["exact_success_rate"]) < 0.95
    ]
    assert len(z) > 20
    assert max(map(abs, z)) < 4
    assert 0.5 < sum(x * x for x in z) / len(z) < 2.0


def test_the_policy_it_writes_is_the_policy_it_judged(default: Result, tmp_path: Path) -> None:
    environment = environments["arithmetic"]
    path = tmp_path / "policy.json"
    path.write_bytes(default.files["policy.json"])
    policy = Policy.load(path, environment)
    assert policy.version == 100
    assert exact_outcomes(environment, policy).success == default.data["after"]["exact_success_rate"]
    shown = default.data["policy"]
    assert [row["operation"] for row in shown] == ["sum"] * 3 + ["difference"] * 3
    assert list(shown[0]["action_probabilities"].values()) == policy.as_list()[0][0]
    assert exact_outcomes(environment, policy, mode="greedy").success == 1.0


def test_shown_trajectories_say_who_chose_what(default: Result) -> None:
    assert len(default.trajectories) == 8
    for row in default.trajectories:
        assert {step["policy_version"] for step in row["steps"]} == {100}
        assert row["success"] == (row["reward"] == 1.0)
        assert row["steps"][0]["observation"] == {"operation": row["operation"], "stage": "start"}


def test_greedy_evaluation_and_temperature_change_the_judgement_and_not_the_training() -> None:
    plain, greedy, cold = (
        execute("train", config(*pairs, **TINY), 7)
        for pairs in ((), ("evaluation_mode=greedy",), ("evaluation_temperature=0.01",))
    )
    assert plain.metrics == greedy.metrics == cold.metrics
    rates = {round(r.data["after"]["exact_success_rate"], 6) for r in (plain, greedy, cold)}
    assert len(rates) > 1
    assert greedy.data["after"]["exact_success_rate"] in (0.0, 0.5, 1.0)


def test_options_reach_their_entries() -> None:
    chosen = trainer_config(
        config(
            "estimator=gae", "loss=trl_grpo", "masks=high_entropy", "rewards=naive,soft_overlong",
            "options=loss.loss_type=bnpo,high_entropy.top=0.5,estimator.lam=0.25,"
            "soft_overlong.max_completion_len=9,soft_overlong.soft_punish_cache=3,loss.clip_ratio_high=0.4",
            "correction=decoupled_k3_rs", "kl_target=0.1", "train_operands=1,3",
        )
    )  # fmt: skip
    step = chosen.step
    assert step.loss_options == {"loss_type": "bnpo", "clip_ratio_high": 0.4}
    assert step.estimator_options == {"lam": 0.25}
    assert step.masks == (("high_entropy", {"top": 0.5}),)
    assert step.rewards == (("naive", {}), ("soft_overlong", {"max_completion_len": 9, "soft_punish_cache": 3}))
    assert step.correction == PRESETS["decoupled_k3_rs"]()
    assert step.kl_ctrl == {"type": "adaptive", "kl_coef": 0.001, "target_kl": 0.1, "horizon": 1920}
    assert chosen.operands == (1, 3)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["estimator=grop"], "did you mean grpo"),
        (["options=clip_ratio_high=0.3"], "write entry.name=value with an entry in use: estimator, loss, naive"),
        (["options=high_entropy.top=0.3"], "entry in use: estimator, loss, naive"),
        (["options=loss.clip_ratio_hi=0.3"], "did you mean clip_ratio_high"),
        (["train_operands=5,1"], r"train_operands is \[5, 1\]; allowed: smallest,largest"),
        (["evaluation_operands=1"], r"evaluation_operands is \[1\]"),
        (["correction=bypass_pg_is"], "only the loss bypass_mode reads the correction"),
        (["loss=dro"], "dro_beta is None"),
        (["temperature=0"], "temperature is 0"),
        (["truncation=zeros"], "did you mean zero"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_sentence(pairs: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        execute("train", config(*pairs, updates=1), 7)
    assert "\n" not in str(caught.value)


def test_the_names_offered_are_the_names_that_exist() -> None:
    assert sorted(CORRECTIONS) == sorted(PRESETS)
    assert sorted(MODES) == sorted(AGG_MODES)
    assert sorted(TRUNCATION) == sorted(truncation.RULES)
    assert {name.removesuffix("+") for name in KL} == set(kl.ESTIMATORS)


@pytest.mark.parametrize(
    ("start", "end", "solved", "sentence"),
    [
        (0.02, 0.99, 1920, "grpo with vanilla solved arithmetic in 1,920 trajectories"),
        (0.02, 0.99, None, "grpo with vanilla solved arithmetic on the held-out tasks"),
        (0.02, 0.50, None, "grpo with vanilla learned a part of arithmetic"),
        (0.02, 0.03, None, "grpo with vanilla did not learn arithmetic in this many updates"),
        (0.02, 0.00, None, "grpo with vanilla unlearned arithmetic"),
    ],
)
def test_the_sentence_follows_from_the_exact_numbers(start, end, solved, sentence) -> None:
    data = {
        "before": {"exact_success_rate": start},
        "after": {"exact_success_rate": end},
        "solved_after_trajectories": solved,
    }
    said = _conclusion(Config(), data)
    assert said.startswith(sentence)
    assert said.endswith(f"exact success went from {start:.4f} to {end:.4f}.")


def test_the_next_command_spells_the_settings() -> None:
    given = config("estimator=rloo", "masks=truncated,high_entropy", "norm_adv_by_std_in_grpo=false", "kl_target=0.5")
    text = _spelt(given)
    assert text == (" --set estimator=rloo norm_adv_by_std_in_grpo=false masks=truncated,high_entropy kl_target=0.5")
    assert config(*text.removeprefix(" --set ").split()) == given


def test_a_run_can_be_explained_down_to_the_logits() -> None:
    module = experiments["train"]
    chosen = config("estimator=rloo", **TINY)
    text = explain(module.explained(chosen, 7, 3), (0, 0), "advantages")
    assert "advantages[0,0] = " in text
    assert "gradient of its logits" in text


def test_reading_its_settings_imports_nothing_heavy() -> None:
    code = "import sys; from experiments.train import Config; Config(); print({'torch', 'numpy'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "set()"
