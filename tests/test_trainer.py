"""The trainer: the closed-form learner's numbers, the documented runs, every part once, and state that survives."""

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from envs.arithmetic import arithmetic
from labs import agent
from labs.checkpoint import restore, save
from labs.correction import RolloutCorrectionConfig
from labs.episodes import exact_outcomes, play
from labs.errors import InputError
from labs.policy import Policy
from labs.registry import environments
from labs.step import StepConfig
from labs.trainer import METRICS, Trainer, TrainerConfig
from labs.verl_metrics import METRICS as VERL

#: The choices of `labs.agent` in the words of the trainer.
AGENT = TrainerConfig(
    step=StepConfig(estimator="grpo_population", loss="reinforce", loss_agg_mode="seq-mean-token-sum"),
    learning_rate=0.8,
    row_entropy_coeff=0.01,
)
SMALL = {"groups_per_update": 4, "group_size": 4}


def able(name: str) -> Policy:
    """A policy that succeeds every now and then, so that short runs have something to learn from."""
    environment = environments[name]
    logits = torch.zeros(environment.policy_shape, dtype=torch.float64)
    for state, stage in enumerate(environment.stage_of):
        for action, cell in enumerate(environment.outcomes[state]):
            if cell[0].end != "invalid_action":
                logits[:, stage, action] = 1.5
    return Policy(logits)


def run(name: str, config: TrainerConfig, updates: int, seed: int = 0) -> tuple[Trainer, list[dict]]:
    """A short run from a policy that is `able`."""
    trainer = Trainer(environments[name], config, seed=seed, policy=able(name))
    return trainer, list(islice(trainer, updates))


@pytest.mark.parametrize(("name", "updates"), [("arithmetic", 100), ("arithmetic3", 20), ("flaky_tools", 20)])
def test_with_the_choices_of_the_closed_form_learner_it_learns_the_same_logits(name: str, updates: int) -> None:
    environment = environments[name]
    record: list[agent.Draws] = []
    theirs = list(agent.train(environment, seed=7, updates=updates, record=record))
    trainer = Trainer(environment, AGENT, seed=0)
    for update, draws in zip(theirs, record, strict=True):
        seen = play(environment, trainer.policy, draws.tasks, 16, uniforms=draws.uniforms,
                    outcome_uniforms=draws.outcome_uniforms)  # fmt: skip
        row = trainer.update(seen)
        assert row["update"] == update.number
        assert row["train_success_rate"] == update.success_rate
        assert row["train_invalid_rate"] == update.invalid_rate
        assert row["train_mean_actions"] == update.mean_actions
        assert row["mean_state_entropy"] == pytest.approx(update.mean_entropy, abs=1e-9)
        counts = ("groups", "all_wrong_groups", "all_right_groups", "zero_advantage_groups")
        assert [row[c] for c in counts] == [
            update.groups,
            update.all_wrong,
            update.all_right,
            update.zero_advantage_groups,
        ]
        assert np.abs(trainer.policy.logits.numpy() - np.array(update.logits)).max() < 1e-9


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("GRPO", TrainerConfig(step=StepConfig(estimator="grpo"))),
        ("RLOO", TrainerConfig(step=StepConfig(estimator="rloo"))),
        ("REINFORCE++", TrainerConfig(step=StepConfig(estimator="reinforce_plus_plus"))),
        ("GAE", TrainerConfig(step=StepConfig(estimator="gae"))),
        ("PPO", TrainerConfig(step=StepConfig(estimator="gae"), epochs=2, minibatches=2)),
    ],
)
def test_the_documented_runs_solve_the_task(name: str, config: TrainerConfig) -> None:
    trainer = Trainer(arithmetic, config, seed=0)
    rows = list(islice(trainer, 100))
    assert sum(row["trajectories"] for row in rows) == 19_200
    assert exact_outcomes(arithmetic, trainer.policy).success > 0.95
    assert rows[0]["exact_success_rate"] == pytest.approx(1 / 64)


PARTS = {
    "adam": {"optimiser": "adam", "learning_rate": 0.1},
    "minibatches": {"epochs": 2, "minibatches": 3},
    "lag": {"rollout_lag": 2, "step": StepConfig(correction=RolloutCorrectionConfig(rollout_is="token"))},
    "bypass": {
        "rollout_lag": 1,
        "step": StepConfig(loss="bypass_mode", correction=RolloutCorrectionConfig.bypass_pg_is()),
    },
    "critic": {"step": StepConfig(estimator="gae", lam=0.9), "epochs": 2},
    "bootstrap": {"step": StepConfig(estimator="gae", truncation="bootstrap"), "max_steps": 3},
    "continue": {"step": StepConfig(truncation="continue"), "max_steps": 3},
    "drop": {"step": StepConfig(truncation="drop"), "max_steps": 3},
    "adaptive-kl": {
        "step": StepConfig(use_kl_in_reward=True, kl_ctrl={"type": "adaptive", "kl_coef": 0.1, "horizon": 50}),
        "reference_refresh": 3,
    },
    "kl-loss": {"step": StepConfig(use_kl_loss=True, kl_loss_coef=0.1, entropy_coeff=0.02), "reference_refresh": 2},
    "filter": {"filter_groups": True},
    "turns": {"multi_turn_rows": True, "format_tokens": 2},
    "remax": {"step": StepConfig(estimator="remax")},
    "otb": {"step": StepConfig(estimator="optimal_token_baseline"), "format_tokens": 1},
    "gdpo": {"step": StepConfig(estimator="gdpo")},
    "draws": {"step": StepConfig(loss="clip_cov")},
    "clipped-gradient": {"max_grad_norm": 0.01},
    "temperature": {"temperature": 1.5},
    "shaped": {"step": StepConfig(rewards=(("tool_sum", {"weight": 0.1}),), masks=(("high_entropy", {}),))},
}


def config_of(part: str) -> TrainerConfig:
    return TrainerConfig(**{**SMALL, **PARTS[part]})


@pytest.mark.parametrize("part", PARTS)
def test_a_run_that_is_saved_and_restored_goes_on_with_the_same_numbers(part: str, tmp_path: Path) -> None:
    name, config = "flaky_tools", config_of(part)
    straight, rows = run(name, config, 7, seed=4)
    first, head = run(name, config, 4, seed=4)
    assert head == rows[:4], "the same seed gives the same records"
    save(first, tmp_path / "state.npz")
    second = restore(tmp_path / "state.npz", environments[name], config)
    tail = list(islice(second, 3))
    assert tail == rows[4:]
    assert torch.equal(second.policy.logits, straight.policy.logits)
    assert torch.equal(second.critic.values, straight.critic.values)
    assert torch.equal(second.generator.get_state(), straight.generator.get_state())
    assert second.controller.value == straight.controller.value
    other, _ = run(name, config, 7, seed=5)
    assert not torch.equal(other.policy.logits, straight.policy.logits)


@pytest.mark.parametrize("part", PARTS)
def test_every_number_of_a_record_lies_in_its_declared_range(part: str) -> None:
    declared = {m.name: m for m in (*VERL, *METRICS)}
    trainer, rows = run("flaky_tools", config_of(part), 4)
    for row in rows:
        assert {m.name for m in METRICS} - set(row) <= {"held_back", "groups_played"}
        if trainer.config.step.truncation is None and not trainer.config.filter_groups:
            assert "critic/score/mean" in row
        for name, value in row.items():
            # A batch without a valid token has no mean.
            assert math.isfinite(value) or name.startswith(("critic/", "actor/")), name
            if math.isnan(value):
                continue
            if name in declared:
                assert declared[name].holds(value, 1e-12), (name, value)
    assert trainer.number == 4
    assert trainer.policy.version == 4


def test_verl_s_numbers_are_about_the_batch_that_was_trained_on() -> None:
    trainer, rows = run("flaky_tools", TrainerConfig(**SMALL, step=StepConfig(estimator="gae")), 3)
    batch, row = trainer.batch, rows[-1]
    assert row["critic/score/mean"] == pytest.approx(float(batch["scores"].mean()))
    assert row["response_length/max"] == int(batch["attention_mask"][:, -batch.width :].sum(1).max()) == batch.width
    valid = batch["response_mask"].bool()
    assert row["critic/advantages/max"] == pytest.approx(float(batch["advantages"][valid].max()), abs=1e-6)
    assert "critic/vf_explained_var" in row
    bare, plain = run("flaky_tools", TrainerConfig(**SMALL, verl_metrics=False), 1)
    assert not any(name.startswith("response_length") for name in plain[0])
    assert bare.batch is not None


def test_a_state_of_another_configuration_is_refused(tmp_path: Path) -> None:
    trainer, _ = run("arithmetic", TrainerConfig(**SMALL), 1)
    save(trainer, tmp_path / "state.npz")
    with pytest.raises(InputError, match="saved under another environment or configuration"):
        restore(tmp_path / "state.npz", arithmetic, TrainerConfig(**SMALL, learning_rate=1.0))
    with pytest.raises(InputError, match="saved under another"):
        restore(tmp_path / "state.npz", environments["routes"], TrainerConfig(**SMALL))
    with pytest.raises(InputError, match="is no file"):
        restore(tmp_path / "none.npz", arithmetic, TrainerConfig(**SMALL))


def test_one_plain_update_is_the_weights_of_the_step_times_the_learning_rate() -> None:
    config = TrainerConfig(**SMALL, row_entropy_coeff=0.0)
    trainer, _ = run("arithmetic", config, 3)
    before = trainer.policy
    row = next(trainer)
    batch = trainer.batch
    logits = before.logits.clone().requires_grad_()
    (ascent,) = torch.autograd.grad(
        (batch["loss_weights"] * Policy(logits).token_log_probs(batch["table_index"])).sum(), logits
    )
    assert torch.allclose(trainer.policy.logits, before.logits + config.learning_rate * ascent, atol=1e-12)
    assert row["gradient_norm"] == pytest.approx(float(ascent.norm()))


def test_the_gradient_is_cut_to_its_longest_norm() -> None:
    _, rows = run("arithmetic", TrainerConfig(**SMALL), 12)
    norm = max(row["gradient_norm"] for row in rows)
    assert norm > 0.02
    cut, _ = run("arithmetic", TrainerConfig(**SMALL, max_grad_norm=0.01), 1)
    assert float((cut.policy.logits - able("arithmetic").logits).norm()) == pytest.approx(6.0 * 0.01)


def test_the_row_entropy_bonus_alone_pulls_to_uniform() -> None:
    start = Policy.of(arithmetic, torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    # A batch whose scores are all equal teaches nothing, so only the bonus is left.
    config = TrainerConfig(**SMALL, max_steps=1, row_entropy_coeff=1.0)
    trainer = Trainer(arithmetic, config, seed=0, policy=start)
    rows = list(islice(trainer, 40))
    assert {row["zero_advantage_groups"] for row in rows} == {4}
    entropies = [row["mean_state_entropy"] for row in rows]
    assert entropies == sorted(entropies)
    assert entropies[-1] > 1.3 > entropies[0]


def test_the_filter_trains_on_groups_with_signal_only_and_stops_at_its_budget() -> None:
    config = TrainerConfig(groups_per_update=4, group_size=8, filter_groups=True, filter_budget=20)
    trainer = Trainer(arithmetic, config, seed=0)
    for row in islice(trainer, 10):
        assert row["zero_advantage_groups"] == 0
        assert row["groups_played"] <= 80
        assert row["groups"] <= 4
    assert row["groups_played"] > 4
    hopeless = Trainer(arithmetic, replace(config, max_steps=2), seed=0)
    before = hopeless.policy
    row = next(hopeless)
    assert (row["groups_played"], row["trajectories"], row["gradient_norm"]) == (80.0, 0, 0.0)
    assert hopeless.batch is None
    assert torch.equal(hopeless.policy.logits, before.logits)


def test_continue_holds_groups_back_until_every_row_has_ended() -> None:
    config = TrainerConfig(**SMALL, step=StepConfig(truncation="continue"), max_steps=1)
    right = torch.zeros(2, 3, 4, dtype=torch.float64)
    for stage, actions in enumerate(((0, 0), (1, 2), (3, 3))):
        for family, action in enumerate(actions):
            right[family, stage, action] = 3.0
    trainer = Trainer(arithmetic, config, seed=1, policy=Policy(right))
    held, versions = [], set()
    for row in islice(trainer, 8):
        held.append(row["held_back"])
        if trainer.episodes is not None:
            assert not trainer.episodes.paths.truncated.any()
            groups = [trainer.episodes.uid.tolist().count(u) for u in set(trainer.episodes.uid.tolist())]
            assert set(groups) == {4}, "a group is trained whole or not at all"
            for path in map(trainer.episodes.path, range(len(trainer.episodes))):
                assert path.end in ("submitted", "invalid_action")
            versions |= {tuple(sorted(set(v.tolist()) - {-1})) for v in trainer.episodes.versions}
    assert max(held) > 0
    assert any(len(v) == 3 for v in versions), "a row of three decisions was written by three policies"


def test_a_lagging_sampler_is_older_by_exactly_its_lag() -> None:
    config = TrainerConfig(**SMALL, rollout_lag=3)
    trainer = Trainer(arithmetic, config, seed=0)
    for number in range(6):
        policy = trainer.policy
        row = next(trainer)
        versions = set(trainer.batch["versions"].unique().tolist()) - {-1}
        assert versions == {max(0, number - 3)}
        assert row["training/off_policy/trajectory_staleness/mean"] == min(number, 3)
        assert torch.equal(trainer.batch["old_log_probs"], policy.token_log_probs(trainer.batch["table_index"]))
    assert not torch.equal(trainer.batch["old_log_probs"], trainer.batch["rollout_log_probs"])


def test_the_reference_is_refreshed_when_asked_and_never_otherwise() -> None:
    step = StepConfig(use_kl_loss=True)
    fixed, _ = run("arithmetic", TrainerConfig(**SMALL, step=step), 5)
    assert torch.equal(fixed.reference.logits, able("arithmetic").logits)
    moving, _ = run("arithmetic", TrainerConfig(**SMALL, step=step, reference_refresh=2), 5)
    assert moving.reference.version == 4
    assert not torch.equal(moving.reference.logits, able("arithmetic").logits)


def test_kl_to_the_reference_holds_the_policy_back() -> None:
    def distance(**options) -> float:
        trainer, _ = run("arithmetic", TrainerConfig(step=StepConfig(**options)), 40)
        return float((trainer.policy.logits - able("arithmetic").logits).norm())

    free = distance()
    assert distance(use_kl_loss=True, kl_loss_coef=0.2) < free
    assert distance(use_kl_in_reward=True, kl_ctrl={"kl_coef": 0.3}) < free


def test_a_higher_temperature_keeps_the_sampler_more_undecided_for_the_same_logits() -> None:
    trainer, _ = run("arithmetic", TrainerConfig(**SMALL, temperature=2.0), 5)
    policy = trainer.policy
    assert policy.temperature == 2.0
    assert bool((policy.entropy >= policy.at(1.0).entropy).all())
    next(trainer)
    seen = trainer.batch
    assert torch.allclose(seen["rollout_log_probs"], policy.token_log_probs(seen["table_index"]))
    assert torch.equal(seen["old_log_probs"], seen["rollout_log_probs"])


def test_the_critic_learns_the_value_of_a_policy_that_stands_still() -> None:
    start = torch.zeros(2, 3, 4, dtype=torch.float64)
    start[:, 0, 0], start[0, 1, 1], start[1, 1, 2], start[:, 2, 3] = 1.0, 2.0, 1.0, 2.0
    config = TrainerConfig(step=StepConfig(estimator="gae"), learning_rate=1e-12, critic_learning_rate=0.02)
    trainer = Trainer(arithmetic, config, seed=0, policy=Policy(start))
    list(islice(trainer, 60))
    p = trainer.policy.probabilities
    right = torch.tensor([[0, 1, 3], [0, 2, 3]])
    steps = p.gather(-1, right.unsqueeze(-1)).squeeze(-1)
    # The value of a stage is the chance that everything from there on is right; in the last stage the number on the
    # scratchpad is right with the chance that the right tool was used.
    wrong_tool = torch.tensor([p[0, 1, 2], p[1, 1, 1]])
    last = steps[:, 2] * steps[:, 1] / (steps[:, 1] + wrong_tool)
    ready = steps[:, 1] * steps[:, 2]
    truth = torch.stack([steps[:, 0] * ready, ready, last], dim=1)
    assert float((trainer.critic.values - truth).abs().max()) < 0.08
    assert trainer.config.critic
    assert not TrainerConfig().critic


def test_torch_threads_are_one_during_an_update_and_as_before_after_it() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        a, _ = run("arithmetic", TrainerConfig(**SMALL), 3)
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        b, _ = run("arithmetic", TrainerConfig(**SMALL), 3)
        assert torch.equal(a.policy.logits, b.policy.logits)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimiser": "adamw"}, "optimiser is 'adamw'.*did you mean adam"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"group_size": 0}, "group_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be above 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"rollout_lag": -1}, "rollout_lag must be at least 0"),
        ({"multi_turn_rows": True, "filter_groups": True}, "do not go together"),
    ],
)
def test_configurations_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainerConfig(**options)
