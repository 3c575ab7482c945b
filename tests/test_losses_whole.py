"""The whole actor loss, the value loss and the entropy: their composition, loops over floats, and refusals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.actor_config import ActorConfig, CriticConfig, critic_settings
from labs.actor_loss import ACTOR_METRICS, compute_policy_loss, get_policy_loss_fn, ppo_loss
from labs.batch import TokenBatch
from labs.critic import VALUE_METRICS, compute_value_loss, openrlhf_value_loss, value_loss
from labs.entropy import (
    AdaptiveEntropyController,
    compute_entropy_loss,
    entropy_from_logits,
    entropy_from_logits_with_chunking,
    logprobs_from_logits,
)
from labs.errors import InputError
from labs.kl import kl_penalty
from labs.loss_probe import draw
from labs.masked import AGG_MODES, agg_loss
from labs.registry import losses
from tests.reference_losses import Batch, aggregate, clip

torch.set_num_threads(1)


def batch(seed=1, **more):
    case = draw(seed, 0.2)
    columns = {"response_mask": case.response_mask.long(), "old_log_probs": case.old_log_prob,
               "advantages": case.advantages, "ref_log_prob": case.old_log_prob - 0.1}  # fmt: skip
    return case.log_prob, columns | more


@pytest.mark.parametrize("mode", AGG_MODES)
def test_the_actor_loss_is_the_sum_of_its_terms(mode):
    log_prob, columns = batch()
    entropy = torch.rand(4, 6, dtype=torch.float64)
    info = {"dp_size": 2, "batch_num_tokens": 40, "global_batch_size": 9, "loss_scale_factor": 5}
    config = ActorConfig(
        loss_agg_mode=mode,
        entropy_coeff=0.3,
        use_kl_loss=True,
        kl_loss_coef=0.2,
        kl_loss_type="k2",
        loss_scale_factor=5,
    )
    loss, metrics = ppo_loss(
        columns, log_prob, config, entropy=entropy, dp_size=2, batch_num_tokens=40, global_batch_size=9
    )
    mask = columns["response_mask"].bool()
    policy, inner = losses["vanilla"](
        columns["old_log_probs"], log_prob, columns["advantages"], mask, mode, ActorConfig(global_batch_info=info)
    )
    bonus = agg_loss(entropy, mask, mode, **info)
    divergence = agg_loss(kl_penalty(log_prob, columns["ref_log_prob"], "k2"), mask, mode, **info)
    assert float(loss) == pytest.approx(float(policy - 0.3 * bonus + 0.2 * divergence))
    assert metrics["actor/pg_loss"] == pytest.approx(float(policy))
    assert metrics["kl_coef"] == 0.2
    assert set(metrics) == set(inner) | {m.name for m in ACTOR_METRICS}
    for metric in ACTOR_METRICS:
        assert metric.holds(metrics[metric.name])


def test_entropy_is_logged_at_coefficient_zero_and_carries_no_gradient():
    log_prob, columns = batch()
    entropy = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    loss, metrics = ppo_loss(columns, log_prob.requires_grad_(), entropy=entropy)
    loss.backward()
    assert metrics["actor/entropy_loss"] > 0
    assert not entropy.grad.any()


def test_the_actor_loss_passes_options_and_takes_a_token_batch():
    log_prob, columns = batch()
    config = {"policy_loss": {"loss_mode": "cispo_variant", "options": {"cap": 0.5}}}
    with_cap = ppo_loss(TokenBatch(columns), log_prob, config)[0]
    direct = losses["cispo_variant"](
        columns["old_log_probs"], log_prob, columns["advantages"], columns["response_mask"], cap=0.5
    )[0]
    assert float(with_cap) == pytest.approx(float(direct))


def test_rejected_tokens_leave_the_denominator_of_the_whole_batch():
    log_prob, columns = batch()
    full = int(columns["response_mask"].sum())
    rejected = columns["response_mask"].clone()
    rejected[0] = 0
    local = ppo_loss(columns | {"response_mask": rejected}, log_prob)[0]
    whole = ppo_loss(columns | {"response_mask": rejected}, log_prob, batch_num_tokens=full)[0]
    assert float(whole) == pytest.approx(float(local) * int(rejected.sum()) / full)


def test_the_actor_loss_refuses_in_sentences():
    log_prob, columns = batch()
    del columns["ref_log_prob"]
    with pytest.raises(InputError, match="needs the column ref_log_prob; the batch has advantages"):
        ppo_loss(columns, log_prob, {"use_kl_loss": True})
    with pytest.raises(InputError, match="entropy has shape"):
        ppo_loss(columns, log_prob, entropy=torch.zeros(4, 5))
    with pytest.raises(InputError, match="did you mean vanilla"):
        ppo_loss(columns, log_prob, {"policy_loss": {"loss_mode": "vanila"}})
    with pytest.raises(InputError, match="tau_pos"):
        ppo_loss(columns, log_prob, {"tau_pos": 0.0})
    assert get_policy_loss_fn("gspo") is losses["gspo"]


def test_explicit_bounds():
    case = draw(1, 0.5)
    columns = (case.old_log_prob, case.log_prob, case.advantages, case.response_mask)
    loss, clipfrac, kl, lower = compute_policy_loss(*columns, cliprange=0.2)
    wanted, metrics = losses["vanilla"](*columns)
    assert float(loss) == float(wanted)
    assert [float(clipfrac), float(kl), float(lower)] == [
        metrics[f"actor/{n}"] for n in ("pg_clipfrac", "ppo_kl", "pg_clipfrac_lower")
    ]
    with pytest.raises(TypeError, match="give cliprange"):
        compute_policy_loss(*columns, cliprange_low=0.2)
    with pytest.raises(AssertionError, match="over 1"):
        compute_policy_loss(*columns, cliprange=0.2, clip_ratio_c=1.0)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), cliprange=st.sampled_from([0.0, 0.2, 0.5]), mode=st.sampled_from(AGG_MODES))
def test_value_loss_equals_the_loops(seed, cliprange, mode):
    case = draw(seed, 1.0, rows=3, width=4)
    predicted, old, target = case.log_prob, case.old_log_prob, case.advantages
    lists = [c.tolist() for c in (old, predicted, predicted, target, case.response_mask)]
    b = Batch(*lists)

    def per_token(i, t):
        v, o, r = b.new[i][t], b.old[i][t], b.adv[i][t]
        return 0.5 * max((v - r) ** 2, (clip(v, o - cliprange, o + cliprange) - r) ** 2)

    loss, clipfrac = compute_value_loss(predicted, target, old, case.response_mask, cliprange, mode)
    assert float(loss) == pytest.approx(aggregate(b, per_token, mode), rel=1e-6, abs=1e-9)
    clipped = [
        (clip(b.new[i][t], b.old[i][t] - cliprange, b.old[i][t] + cliprange) - b.adv[i][t]) ** 2
        > (b.new[i][t] - b.adv[i][t]) ** 2
        for i, t in b.tokens()
    ]
    assert float(clipfrac) == pytest.approx(sum(clipped) / len(clipped), abs=1e-6)


def test_the_critics_loss_and_its_metrics():
    case = draw(2, 0.5)
    columns = {"response_mask": case.response_mask.long(), "values": case.old_log_prob, "returns": case.advantages}
    loss, metrics = value_loss(columns, case.log_prob, {"cliprange_value": 0.1}, batch_num_tokens=100)
    wanted, _ = compute_value_loss(
        case.log_prob, case.advantages, case.old_log_prob, case.response_mask.bool(), 0.1, batch_num_tokens=100
    )
    assert float(loss) == pytest.approx(float(wanted))
    assert [m.name for m in VALUE_METRICS] == list(metrics)
    assert all(m.holds(metrics[m.name]) for m in VALUE_METRICS)
    inside = case.response_mask.bool()
    assert metrics["critic/vpred_mean"] == pytest.approx(float(case.log_prob[inside].mean()))
    assert critic_settings(CriticConfig(cliprange_value=0.3)).cliprange_value == 0.3


def test_a_moved_value_is_silenced_only_towards_the_return():
    mask = torch.ones(1, 2)
    leaf = torch.tensor([[1.0, -1.0]], requires_grad=True)
    compute_value_loss(leaf, torch.full((1, 2), 2.0), torch.zeros(1, 2), mask, 0.5)[0].backward()
    # Both values left [-0.5, 0.5]: the first moved towards the return and is silent, the second moved away.
    assert leaf.grad.tolist() == [[0.0, -1.5]]


def test_value_losses_refuse_in_sentences():
    one = torch.zeros(1, 2)
    with pytest.raises(InputError, match=r"returns has shape \(1, 3\), the mask has \(1, 2\)"):
        compute_value_loss(one, torch.zeros(1, 3), one, one, 0.5)
    with pytest.raises(InputError, match="floating point"):
        compute_value_loss(one.long(), one, one, one, 0.5)
    with pytest.raises(InputError, match="at least 0"):
        compute_value_loss(one, one, one, one, -0.5)
    with pytest.raises(InputError, match="loss_agg_mode"):
        CriticConfig(loss_agg_mode="mean")
    assert math.isnan(openrlhf_value_loss(one, one, one, one))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6))
def test_entropy_of_logits(row):
    logits = torch.tensor([row], dtype=torch.float64)
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    p = [w / sum(weights) for w in weights]
    wanted = -sum(q * math.log(q) for q in p if q > 0)
    assert float(entropy_from_logits(logits)) == pytest.approx(wanted, abs=1e-9)
    single = entropy_from_logits_with_chunking(logits.expand(5, -1), chunk_size=2)
    assert single.dtype is torch.float32
    assert single.tolist() == pytest.approx([wanted] * 5, abs=2e-5)
    labels = torch.tensor([len(row) - 1])
    assert float(logprobs_from_logits(logits, labels)) == pytest.approx(
        row[-1] - top - math.log(sum(weights)), abs=1e-9
    )


def test_a_forbidden_action_makes_the_entropy_nan():
    assert entropy_from_logits(torch.tensor([0.0, -torch.inf])).isnan()
    assert float(entropy_from_logits(torch.tensor([0.0, -1e9]))) == 0.0


def test_entropy_loss_and_refusals():
    logits, mask = torch.randn(2, 3, 4), torch.tensor([[1, 1, 0], [1, 0, 0]])
    wanted = agg_loss(entropy_from_logits(logits), mask, "token-mean")
    assert float(compute_entropy_loss(logits, mask)) == float(wanted)
    with pytest.raises(InputError, match="do not match the mask"):
        compute_entropy_loss(logits, mask[:, :2])
    with pytest.raises(InputError, match="floating point"):
        entropy_from_logits(logits.long())
    with pytest.raises(InputError, match=r"takes \[N, V\]"):
        entropy_from_logits_with_chunking(logits)
    with pytest.raises(InputError, match="labels"):
        logprobs_from_logits(logits, mask[:, :2])


def test_the_adaptive_coefficient_climbs_under_the_target_and_is_gated_over_it():
    control = AdaptiveEntropyController(0.1, target=1.0, delta=0.005, high=0.11)
    seen = []
    for entropy in (0.5, 0.5, 0.5, 2.0, 0.5):
        seen.append(control.applied)
        control.update(entropy)
    assert seen == pytest.approx([0.1, 0.105, 0.11, 0.11, 0.0])
    assert control.coefficient == pytest.approx(0.11)
    control.low, control.coefficient = 0.0, 0.002
    control.update(2.0)
    assert control.coefficient == 0.0
    with pytest.raises(InputError, match="low <= high"):
        AdaptiveEntropyController(0.1, 1.0, low=1.0, high=0.0)
