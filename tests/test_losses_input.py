"""Policy losses: what is refused and how it is said, and where settings are read from."""

import pytest
import torch

from labs.actor_config import ActorConfig, PolicyLossConfig, actor_settings
from labs.errors import InputError
from labs.loss_probe import draw
from labs.registry import losses

torch.set_num_threads(1)


# Bad input.
def columns(**changed):
    case = draw(1, 0.1)
    return {"old_log_prob": case.old_log_prob, "log_prob": case.log_prob, "advantages": case.advantages,
            "response_mask": case.response_mask, **changed}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"advantages": torch.zeros(4, 5)}, r"advantages has shape \(4, 5\), log_prob has \(4, 6\)"),
        ({"log_prob": torch.zeros(24)}, r"a loss takes \[B, T\]"),
        ({"log_prob": torch.zeros(0, 6)}, "at least one row"),
        ({"advantages": torch.zeros(4, 6, dtype=torch.int64)}, "floating point"),
        ({"response_mask": [[1]]}, "response_mask is list"),
        ({"rollout_is_weights": torch.ones(4, 1)}, "rollout_is_weights has shape"),
        ({"loss_agg_mode": "token_mean"}, "did you mean token-mean"),
        ({"config": {"clip_ratio_hig": 0.3}}, "did you mean clip_ratio_high"),
        ({"config": {"policy_loss": {"beta": 0.3}}}, "a key of actor.policy_loss is 'beta'"),
        ({"config": {"clip_ratio_low": -0.1}}, "at least 0"),
        ({"config": {"clip_ratio_low": "wide"}}, "finite number"),
        ({"config": {"clip_ratio": None, "clip_ratio_low": None}}, "no clip range is set"),
        ({"config": {"global_batch_info": {"tokens": 3}}}, "global_batch_info is 'tokens'"),
        ({"config": {"global_batch_info": {"dp_size": 2}}}, "batch_num_tokens"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(changed, sentence):
    with pytest.raises(InputError, match=sentence):
        losses["vanilla"](**columns(**changed))


@pytest.mark.parametrize("column", ["log_prob", "old_log_prob", "advantages"])
def test_nan_where_it_counts_is_refused_with_its_place(column):
    values = columns()
    values[column] = values[column].clone()
    values[column][2, 0] = torch.nan
    with pytest.raises(InputError, match=f"{column} is nan at row 2, token 0"):
        losses["vanilla"](**values)


def test_settings_that_only_one_loss_needs():
    with pytest.raises(AssertionError, match="over 1"):
        losses["vanilla"](**columns(config={"clip_ratio_c": 1.0}))
    with pytest.raises(AssertionError, match="over 0"):
        losses["clip_cov"](**columns(config={"policy_loss": {"clip_cov_ratio": 0.0}}))
    with pytest.raises(AssertionError, match="over 0"):
        losses["kl_cov"](**columns(config={"policy_loss": {"kl_cov_ratio": 0.0}}))
    with pytest.raises(InputError, match="at most 1"):
        losses["kl_cov"](**columns(config={"policy_loss": {"kl_cov_ratio": 1.5}}))
    with pytest.raises(InputError, match="dro_beta"):
        losses["dro"](**columns())
    with pytest.raises(InputError, match="loss_type"):
        losses["bypass_mode"](**columns(config={"policy_loss": {"rollout_correction": {"loss_type": "ppo"}}}))
    with pytest.raises(InputError, match="rollout_correction is null"):
        losses["bypass_mode"](**columns(config={"policy_loss": {"rollout_correction": None}}))
    with pytest.raises(InputError, match="did you mean vanilla"):
        losses["vanila"]


def test_every_form_of_a_configuration_reads_alike():
    class Attributes:
        clip_ratio_high = 0.4
        policy_loss = None

    typed = ActorConfig(clip_ratio_high=0.4)
    forms = [typed, {"clip_ratio_high": 0.4}, Attributes(), {"clip_ratio_high": 0.4, "strategy": "fsdp"}]
    assert {actor_settings(f).clip_bounds for f in forms} == {(0.2, 0.4)}
    assert typed.get("clip_ratio_c") == typed["clip_ratio_c"] == 3.0
    assert typed.get("nothing", 5) == 5
    assert dict(typed)["tau_neg"] == 1.05
    assert len(typed) == len(list(typed))
    with pytest.raises(KeyError):
        typed["nothing"]
    assert actor_settings().policy_loss.rollout_correction.rollout_is == "sequence"
    assert PolicyLossConfig(rollout_correction={"rollout_rs": "token_k1"}).rollout_correction.rollout_is == "sequence"
