"""The stages of one step: who writes what, in which order, for every entry; and that the weights are the gradient."""

import inspect

import numpy as np
import pytest
import torch

from labs.actor_config import PolicyLossConfig
from labs.batch import TokenBatch
from labs.columns import complete
from labs.correction import PRESETS, RolloutCorrectionConfig
from labs.critic import ValueTable
from labs.dispatch import compute_advantage
from labs.episodes import Episodes, draw_tasks, play
from labs.errors import InputError
from labs.kl import AdaptiveKLController
from labs.policy import Policy
from labs.registry import environments, estimators, losses, masks, rewards
from labs.step import STAGES, StepConfig, loss, required, stages
from labs.tokens import sessions
from labs.truncation import RULES

#: Options without which an entry does not run.
LOSS_OPTIONS = {"dro": {"dro_beta": 0.1}}
REWARD_OPTIONS = {
    "dapo": {"max_resp_len": 12, "overlong_buffer_cfg": {"enable": True, "len": 8}},
    "kimi_length": {},
    "soft_overlong": {"max_completion_len": 12, "soft_punish_cache": 6},
    "repetition": {},
    "stop_properly": {"coefficient": 0.5},
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ENVIRONMENT = environments["flaky_tools"]
OLD, BEHAVIOUR, REFERENCE, CURRENT = (
    Policy(0.6 * torch.randn(ENVIRONMENT.policy_shape, generator=generator(s), dtype=torch.float64)
           + torch.eye(4, dtype=torch.float64)[[0, 1, 1, 3]])
    for s in range(4)
)  # fmt: skip


def episodes(rows: int = 32, seed: int = 5) -> Episodes:
    g = generator(seed)
    tasks = draw_tasks(ENVIRONMENT, rows // 4, g)
    return play(ENVIRONMENT, BEHAVIOUR, tasks, 4, generator=g, max_steps=3)


def batch_for(config: StepConfig, played: Episodes | None = None, batch: TokenBatch | None = None) -> TokenBatch:
    played = episodes() if played is None else played
    values = torch.rand(2, 4, generator=generator(6), dtype=torch.float64)
    return complete(
        played.tokens() if batch is None else batch, required(config), old=OLD, reference=REFERENCE,
        critic=ValueTable(values), environment=ENVIRONMENT, generator=generator(7),
        tasks=dict(zip(played.uid.tolist(), played.tasks, strict=True)),
    )  # fmt: skip


def run(config: StepConfig, batch: TokenBatch | None = None, **options) -> dict[str, TokenBatch]:
    batch = batch_for(config) if batch is None else batch
    return dict(stages(batch, config, generator=generator(9), **options))


def every_config() -> list:
    made = [pytest.param(StepConfig(estimator=n), id=f"estimator-{n}") for n in estimators]
    made += [pytest.param(StepConfig(loss=n, loss_options=LOSS_OPTIONS.get(n, {})), id=f"loss-{n}") for n in losses]
    made += [pytest.param(StepConfig(masks=((n, {}),)), id=f"mask-{n}") for n in masks]
    made += [pytest.param(StepConfig(estimator="gae", truncation=n), id=f"truncation-{n}") for n in RULES]
    made += [pytest.param(StepConfig(estimator=n, truncation="bootstrap"), id=f"bootstrap-{n}")
             for n in ("td_lambda", "vtrace", "gae_truncated")]  # fmt: skip
    made += [pytest.param(StepConfig(rewards=((n, REWARD_OPTIONS.get(n, {})),)), id=f"reward-{n}") for n in rewards]
    made += [
        pytest.param(StepConfig(correction=c, loss="bypass_mode" if c.bypass_mode else "vanilla"), id=f"correction-{n}")
        for n, c in ((n, make()) for n, make in PRESETS.items())
    ]
    made += [
        pytest.param(StepConfig(use_kl_in_reward=True, use_kl_loss=True, kl_loss_type=k, kl_penalty=k), id=f"kl-{k}")
        for k in ("k1", "k2", "k3", "abs", "k3+")
    ]
    return made


@pytest.mark.parametrize("config", every_config())
def test_stages_come_in_order_and_only_mask_writes_the_mask(config: StepConfig) -> None:
    start = batch_for(config)
    seen = list(stages(start, config, generator=generator(9)))
    names = [name for name, _ in seen]
    reads_advantages = any("advantages" in masks[n].needs for n, _ in config.masks)
    assert names == list(STAGES) if not reads_advantages else [*STAGES[:5], "mask", "loss"]
    before = seen[0][1]
    for (name, batch), (_, previous) in zip(seen, [(None, before), *seen], strict=False):
        assert torch.equal(batch["loss_mask"], before["loss_mask"])
        if name != "mask":
            assert torch.equal(batch["response_mask"], previous["response_mask"]), name
        assert bool((batch["response_mask"] <= previous["response_mask"]).all()), "a mask never grows"
        if name in ("advantage", "loss"):
            assert torch.equal(batch["token_level_scores"], before["token_level_scores"])
    done = seen[-1][1]
    assert done["loss_weights"].shape == done["response_mask"].shape
    assert bool(done["loss_weights"].isfinite().all())
    assert float(done["loss_weights"][done["response_mask"] == 0].abs().sum()) == 0.0
    assert torch.equal(start["response_mask"], start["loss_mask"]), "the caller's batch is as it was"


@pytest.mark.parametrize("name", list(losses))
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_the_weights_times_the_score_are_the_parameter_gradient(name: str, mode: str) -> None:
    config = StepConfig(
        estimator="rloo", loss=name, loss_options=LOSS_OPTIONS.get(name, {}), loss_agg_mode=mode, use_kl_loss=True,
        kl_loss_coef=0.3, correction=RolloutCorrectionConfig(rollout_is="token", rollout_rs="token_k2",
                                                             rollout_rs_threshold=0.3),
    )  # fmt: skip
    batch = batch_for(config)
    batch = batch.replace(log_prob=CURRENT.token_log_probs(batch["table_index"]))
    done = run(config, batch)["loss"]
    logits = CURRENT.logits.clone().requires_grad_()
    log_prob = Policy(logits).token_log_probs(done["table_index"])
    value, _ = loss(done, log_prob, config, generator=generator(9))
    (whole,) = torch.autograd.grad(value, logits, retain_graph=True)
    (parts,) = torch.autograd.grad((done["loss_weights"] * log_prob).sum(), logits)
    assert torch.allclose(parts, -whole, atol=1e-12)
    assert float(whole.abs().max()) > 1e-6


def test_the_log_prob_of_the_first_minibatch_is_the_old_one() -> None:
    config = StepConfig()
    done = run(config)["loss"]
    assert torch.equal(done["log_prob"], done["old_log_probs"])
    advantages, mask = done["advantages"], done["response_mask"]
    # PPO at ratio 1 is REINFORCE: the weight of a token is its advantage over the token count.
    assert torch.allclose(done["loss_weights"], advantages * mask / mask.sum(), atol=1e-15)


@pytest.mark.parametrize("name", list(estimators))
def test_the_advantage_stage_is_the_estimator_on_the_columns_of_its_time(name: str) -> None:
    correction = RolloutCorrectionConfig(rollout_rs="seq_mean_k2", rollout_rs_threshold=0.1)
    config = StepConfig(estimator=name, gamma=0.9, lam=0.8, use_kl_in_reward=True, correction=correction)
    seen = run(config)
    late = seen["mask"]
    assert 0 < late["response_mask"].sum() < late["loss_mask"].sum()
    if name == "gdpo":
        late = late.replace(success=late["success"].numpy(), valid=late["valid"].numpy())
    if name in ("td_lambda", "vtrace"):
        late = late.replace(truncated=None)  # shown to them only where the rule is to bootstrap
    expected = compute_advantage(late, name, gamma=0.9, lam=0.8, config=config.algorithm())
    for column in ("advantages", "returns"):
        # opo gives NaN to a group that is rejected as a whole, as verl does.
        assert torch.allclose(seen["advantage"][column], expected[column], rtol=0, atol=0, equal_nan=True)


def test_kl_is_charged_on_the_original_mask_and_the_controller_moves_once() -> None:
    config = StepConfig(
        use_kl_in_reward=True, kl_ctrl={"type": "adaptive", "kl_coef": 0.5, "target_kl": 0.1, "horizon": 100},
        correction=RolloutCorrectionConfig(rollout_rs="token_k2", rollout_rs_threshold=0.05),
    )  # fmt: skip
    controller, metrics = AdaptiveKLController(0.5, 0.1, 100), {}
    seen = run(config, controller=controller, metrics=metrics)
    done = seen["loss"]
    divergence = (done["old_log_probs"] - done["ref_log_prob"]) * done["loss_mask"]
    assert torch.allclose(done["token_level_rewards"], done["token_level_scores"] - 0.5 * divergence)
    rejected = done["loss_mask"].bool() & ~done["response_mask"].bool()
    assert bool(rejected.any())
    assert float(done["token_level_rewards"][rejected].abs().sum()) > 0, "rejected tokens were charged too"
    assert controller.value != 0.5
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    assert torch.equal(
        run(config, controller=AdaptiveKLController(0.5, 0.1, 100))["loss"]["loss_weights"], done["loss_weights"]
    )


def test_correction_marks_and_the_mask_stage_acts() -> None:
    config = StepConfig(correction=RolloutCorrectionConfig(rollout_rs="seq_mean_k2", rollout_rs_threshold=0.1))
    metrics: dict[str, float] = {}
    seen = run(config, metrics=metrics)
    assert torch.equal(seen["correction"]["response_mask"], seen["kl"]["response_mask"])
    assert bool(seen["correction"]["rejected"].any())
    gone = seen["correction"]["response_mask"].bool() & ~seen["mask"]["response_mask"].bool()
    assert torch.equal(gone, seen["correction"]["rejected"])
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] > 0
    weights = (seen["loss"]["old_log_probs"] - seen["loss"]["rollout_log_probs"]) * seen["loss"]["loss_mask"]
    assert torch.allclose(seen["loss"]["rollout_is_weights"].amax(1), weights.sum(1).exp().clamp(max=2.0))


def test_denominators_come_from_the_original_mask_unless_asked_otherwise() -> None:
    correction = RolloutCorrectionConfig(rollout_is=None, rollout_rs="seq_mean_k2", rollout_rs_threshold=0.1)
    for mode in ("token-mean", "seq-mean-token-sum"):
        ours = run(StepConfig(correction=correction, loss_agg_mode=mode))["loss"]
        local = run(StepConfig(correction=correction, loss_agg_mode=mode, denominators="response_mask"))["loss"]
        if mode == "token-mean":
            factor = float(ours["loss_mask"].sum() / ours["response_mask"].sum())
        else:
            factor = ours.rows / float((ours["response_mask"].sum(1) > 0).sum())
        assert factor > 1.1
        assert torch.allclose(local["loss_weights"], factor * ours["loss_weights"])


def test_a_batch_split_up_with_the_denominators_of_the_whole_has_the_gradient_of_the_whole() -> None:
    for mode in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "token-sum"):
        config = StepConfig(loss_agg_mode=mode)
        done = run(config)["loss"]
        tokens, rows = float(done["loss_mask"].sum()), float(done.rows)
        total = 0.0
        for part in (done.select(slice(0, 5)), done.select(slice(5, None))):
            value, _ = loss(part, part["old_log_probs"], config, batch_num_tokens=tokens, global_batch_size=rows)
            total += float(value)
        assert total == pytest.approx(float(loss(done, done["old_log_probs"], config)[0]), abs=1e-12)


def test_every_truncation_rule_acts_at_its_own_stage() -> None:
    plain = run(StepConfig(estimator="gae"))
    cut = plain["loss"]["truncated"]
    assert 0 < cut.sum() < len(cut)
    zero = run(StepConfig(estimator="gae", truncation="zero"))
    assert float(zero["score"]["token_level_scores"][cut].abs().sum()) == 0.0
    drop = run(StepConfig(estimator="gae", truncation="drop"))
    assert drop["score"].rows == int((~cut).sum())
    mask = run(StepConfig(estimator="gae", truncation="mask"))
    assert int(mask["mask"]["response_mask"][cut].sum()) == 0
    assert mask["mask"].rows == len(cut)
    boot = run(StepConfig(estimator="gae", truncation="bootstrap", gamma=0.9))["advantage"]
    added = boot["token_level_rewards"] - plain["advantage"]["token_level_rewards"]
    assert torch.allclose(added.sum(1), torch.where(cut, 0.9 * boot["bootstrap_values"], 0.0))


def test_an_estimator_that_bootstraps_by_itself_is_not_paid_twice() -> None:
    columns = {}
    for rule in (None, "bootstrap"):
        for name in ("gae", "td_lambda", "gae_truncated"):
            columns[rule, name] = run(StepConfig(estimator=name, truncation=rule, gamma=0.9))["advantage"]
    rewards_ = {key: batch["token_level_rewards"] for key, batch in columns.items()}
    assert torch.equal(rewards_["bootstrap", "td_lambda"], rewards_[None, "td_lambda"])
    assert not torch.equal(rewards_["bootstrap", "gae"], rewards_[None, "gae"])
    # Without the rule td_lambda takes the cut for an end, with it the value behind the cut counts once, as for gae.
    assert not torch.equal(columns[None, "td_lambda"]["returns"], columns["bootstrap", "td_lambda"]["returns"])
    cut = columns[None, "gae"]["truncated"]
    chosen = columns[None, "gae"]["response_mask"].bool() & cut[:, None]
    ours, theirs = columns["bootstrap", "gae"]["returns"], columns["bootstrap", "td_lambda"]["returns"]
    assert torch.allclose(ours[chosen], theirs[chosen])
    assert torch.equal(columns[None, "gae_truncated"]["returns"], columns["bootstrap", "gae_truncated"]["returns"])
    assert "truncated" in columns[None, "td_lambda"]


def test_rules_that_read_advantages_run_after_them() -> None:
    config = StepConfig(masks=(("off_policy_sequence", {"threshold": 0.0}), ("high_entropy", {"top": 0.5})))
    seen = list(stages(batch_for(config), config))
    assert [n for n, _ in seen] == ["score", "kl", "correction", "mask", "advantage", "mask", "loss"]
    first, second = (b["response_mask"] for n, b in seen if n == "mask")
    assert second.sum() < first.sum() < seen[0][1]["response_mask"].sum()
    worse = seen[-1][1]["advantages"] < 0
    assert bool(((first - second).bool() <= worse).all()), "only tokens with a negative advantage went"


def test_bypass_mode_uses_the_rollout_policy_as_the_old_one_and_needs_its_loss() -> None:
    block = RolloutCorrectionConfig.bypass_ppo_clip()
    done = run(StepConfig(correction=block, loss="bypass_mode"))["loss"]
    assert torch.equal(done["old_log_probs"], done["rollout_log_probs"])
    assert "rejected" not in done
    with pytest.raises(InputError, match="only the loss bypass_mode reads the correction"):
        StepConfig(correction=block)


def test_turns_as_rows_go_through_the_rule_of_sessions() -> None:
    config = StepConfig(norm_adv_by_std_in_grpo=False)
    played = episodes()
    whole = run(config, batch_for(config, played))["loss"]
    split = run(config, batch_for(config, played, sessions(played)))["loss"]
    assert split.rows == int(whole["turns"].sum())
    by_session = dict(
        zip([str(k).rsplit("_", 1)[0] for k in split["session_keys"]], split["advantages"][:, 0], strict=True)
    )
    per_row = [float(whole["advantages"][i][whole["response_mask"][i].bool()][0]) for i in range(whole.rows)]
    assert [float(a) for a in by_session.values()] == pytest.approx(per_row)
    # Another estimator takes every turn for a rollout of its own, and so has another baseline.
    rloo = StepConfig(estimator="rloo")
    turns, rows = run(rloo, batch_for(rloo, played, sessions(played))), run(rloo, batch_for(rloo, played))
    assert set(turns["loss"]["advantages"].ravel().tolist()) != set(rows["loss"]["advantages"].ravel().tolist())


def test_pf_ppo_resamples_rows_behind_gae() -> None:
    block = {"reweight_method": "max_min"}
    plain, resampled = run(StepConfig(estimator="gae")), run(StepConfig(estimator="gae", pf_ppo=block))
    assert resampled["advantage"].rows == plain["advantage"].rows
    assert resampled["advantage"]["uid"].tolist() != plain["advantage"]["uid"].tolist()
    config = StepConfig(estimator="gae", pf_ppo=block)
    with pytest.raises(InputError, match="pf_ppo resamples rows and needs a generator"):
        list(stages(batch_for(config), config))


def test_worked_examples_of_scores_and_kl() -> None:
    # Scores 1, 0, 0.5 and a group of equal scores, on rows of one token.
    batch = TokenBatch(
        {
            "response_mask": torch.ones(6, 1, dtype=torch.int64),
            "old_log_probs": torch.zeros(6, 1, dtype=torch.float64),
            "token_level_scores": torch.tensor([[1.0], [0.0], [0.5], [0.0], [0.0], [0.0]], dtype=torch.float64),
            "uid": np.array(["a", "a", "a", "b", "b", "b"]),
        }
    )
    for name, expected in (("grpo", [0.999998, -0.999998, 0.0]), ("rloo", [0.75, -0.75, 0.0])):
        done = dict(stages(batch, StepConfig(estimator=name)))["loss"]
        assert done["advantages"].ravel().tolist() == pytest.approx([*expected, 0.0, 0.0, 0.0], abs=1e-6)
        assert done["loss_weights"].ravel().tolist() == pytest.approx([a / 6 for a in [*expected, 0, 0, 0]], abs=1e-6)
    row = TokenBatch(
        {
            "response_mask": torch.ones(1, 3, dtype=torch.int64),
            "old_log_probs": torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64),
            "ref_log_prob": torch.zeros(1, 3, dtype=torch.float64),
            "token_level_scores": torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64),
            "uid": np.array(["a"]),
        }
    )
    config = StepConfig(use_kl_in_reward=True, kl_ctrl={"kl_coef": 0.01})
    rewards_ = dict(stages(row, config))["kl"]["token_level_rewards"]
    assert rewards_.ravel().tolist() == pytest.approx([-0.001, -0.002, 0.997])


def test_scores_keep_their_precision() -> None:
    config = StepConfig()
    batch = batch_for(config)
    batch = batch.replace(scores=batch["scores"] - 0.1)
    done = run(config, batch)["score"]
    assert torch.equal(done["token_level_scores"].sum(1), batch["scores"])


def test_missing_columns_are_all_named() -> None:
    config = StepConfig(estimator="gae", use_kl_loss=True, truncation="mask")
    batch = episodes().tokens().replace(truncated=None, uid=None)
    with pytest.raises(InputError, match="needs the columns old_log_probs, ref_log_prob, truncated, values; the batch"):
        list(stages(batch, config))
    assert "uid" not in required(config)
    assert "uid" in required(StepConfig(estimator="rloo"))
    bare = batch_for(StepConfig()).replace(scores=None)
    with pytest.raises(InputError, match="needs the column scores"):
        list(stages(bare, StepConfig()))


def test_a_loss_that_draws_never_uses_the_global_generator() -> None:
    config = StepConfig(loss="clip_cov")
    batch = batch_for(config)
    with pytest.raises(InputError, match="loss clip_cov draws random numbers and needs a generator"):
        list(stages(batch, config))
    before = torch.random.get_rng_state()
    run(config, batch)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "grop"}, "did you mean grpo"),
        ({"loss": "vanila"}, "did you mean vanilla"),
        ({"masks": (("truncate", {}),)}, "did you mean truncated"),
        ({"rewards": (("naiv", {}),)}, "did you mean naive"),
        ({"truncation": "zero", "estimator": "gae_truncated"}, "bootstraps truncated rows by itself"),
        ({"pf_ppo": {}}, "the estimator is 'grpo'; it acts behind gae only"),
        ({"truncation": "zeros"}, "truncation is 'zeros'.*did you mean zero"),
        ({"loss_agg_mode": "token_mean"}, "did you mean token-mean"),
        ({"denominators": "loss"}, "denominators is 'loss'; allowed: loss_mask, response_mask"),
        ({"loss_options": {"clip_ratio_hi": 0.3}}, "loss vanilla is 'clip_ratio_hi'.*did you mean clip_ratio_high"),
        ({"estimator_options": {"epsilom": 1.0}}, "an option of estimator grpo is 'epsilom'.*did you mean epsilon"),
        ({"loss_options": {"clip_ratio_low": -1.0}}, "clip_ratio_low is -1.0; it must be at least 0"),
    ],
)  # fmt: skip
def test_configurations_that_cannot_be_are_refused_when_made(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        StepConfig(**options)


def test_loss_options_find_their_place() -> None:
    chosen = StepConfig(
        loss="dro", loss_options={"dro_beta": 0.2, "clip_ratio_high": 0.5, "loss_agg_mode": "token-sum"}
    )
    settings = chosen.actor()
    assert settings.policy_loss.dro_beta == 0.2
    assert settings.clip_ratio_high == 0.5
    assert settings.loss_agg_mode == "token-sum"
    own = StepConfig(loss="trl_grpo", loss_options={"loss_type": "bnpo"}).actor()
    assert own.policy_loss.options == {"loss_type": "bnpo"}
    assert isinstance(own.policy_loss, PolicyLossConfig)
    assert "loss_type" in inspect.signature(losses["trl_grpo"]).parameters
