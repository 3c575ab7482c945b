"""KL: values against loops, gradients against the exact KL of a categorical policy, controllers, KL in reward."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labs import kl
from labs.batch import TokenBatch
from labs.errors import InputError
from tests import reference_kl

finite = st.floats(-30, 0)


@given(st.sampled_from(sorted(kl.ESTIMATORS)), st.lists(st.tuples(finite, finite), min_size=1, max_size=12))
def test_values_equal_the_loop(name, pairs):
    lp, ref = (torch.tensor(x, dtype=torch.float64)[None] for x in zip(*pairs, strict=True))
    got = kl.kl_penalty(lp, ref, name)
    want = [reference_kl.BY_NAME[name](a, b) for a, b in pairs]
    torch.testing.assert_close(got[0], torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@given(st.sampled_from(sorted(kl.ESTIMATORS)), finite, finite)
def test_plus_keeps_the_value_and_takes_the_gradient_of_k2(name, lp, ref):
    x = torch.tensor([[lp]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[ref]], dtype=torch.float64)
    value = kl.kl_penalty(x, y, name + "+")
    value.sum().backward()
    torch.testing.assert_close(value.detach(), kl.kl_penalty(x.detach(), y, name), rtol=1e-12, atol=1e-9)
    assert x.grad.item() == pytest.approx(lp - ref, abs=1e-12)


def _categorical():
    logits = torch.tensor([0.3, -0.7, 1.1, 0.0], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([-0.4, 0.5, 0.2, 0.9], dtype=torch.float64), 0)
    return logits, ref


def _gradient(value, logits):
    return torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_mean_value_is_the_divergence(name):
    logits, ref = _categorical()
    logp = torch.log_softmax(logits, 0)
    exact = (logp.exp() * (logp - ref)).sum()
    mean = (logp.exp() * kl.kl_penalty(logp, ref, name)).sum()
    assert mean.item() == pytest.approx(exact.item(), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "direction"), [("k1", None), ("k2", "reverse"), ("k3", "forward"), ("k1+", "reverse"), ("k3+", "reverse")]
)
def test_which_divergence_the_gradient_descends(name, direction):
    """Expectation over the policy of the per-token gradient, the sampling probabilities held constant."""
    logits, ref = _categorical()
    logp = torch.log_softmax(logits, 0)
    got = _gradient((logp.exp().detach() * kl.kl_penalty(logp, ref, name)).sum(), logits)
    logp = torch.log_softmax(logits, 0)
    exact = {
        None: torch.zeros(4, dtype=torch.float64),
        "reverse": _gradient((logp.exp() * (logp - ref)).sum(), logits),
        "forward": _gradient((ref.exp() * (ref - torch.log_softmax(logits, 0))).sum(), logits),
    }[direction]
    torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)


def test_k3_is_capped_with_zero_gradient_and_plus_is_not():
    x = torch.tensor([[-30.0, -1.0]], requires_grad=True)
    ref = torch.tensor([[0.0, -1.5]])
    value = kl.kl_penalty(x, ref, "k3")
    value.sum().backward()
    assert value[0, 0] == 10
    assert x.grad[0, 0] == 0
    assert x.grad[0, 1] == pytest.approx(1 - math.exp(-0.5), rel=1e-6)


def test_infinite_log_probabilities():
    inf = torch.tensor([[-math.inf]])
    assert kl.kl_penalty(inf, inf, "k3").isnan().all()
    assert kl.kl_penalty(inf, torch.zeros(1, 1), "k3").item() == 10
    assert kl.kl_penalty(inf, torch.zeros(1, 1), "k3+").isnan().all()


@pytest.mark.parametrize("name", ["full", "k4", "", "+", "k3++"])
def test_unknown_estimator_names_the_known_ones(name):
    with pytest.raises(NotImplementedError, match="low_var_kl") as caught:
        kl.kl_penalty(torch.zeros(1, 2), torch.zeros(1, 2), name)
    assert isinstance(caught.value, InputError)


def test_shapes_that_differ_are_named():
    with pytest.raises(InputError, match=r"logprob \(1, 2\), ref_logprob \(1, 3\)"):
        kl.kl_penalty(torch.zeros(1, 2), torch.zeros(1, 3), "k1")


rows = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.tuples(finite, finite, st.floats(-2, 2), st.booleans()), min_size=width, max_size=width),
        min_size=1,
        max_size=4,
    )
)


@given(rows, st.sampled_from(sorted(kl.ESTIMATORS)), st.floats(-1, 1))
def test_kl_in_reward_equals_the_loop(cells, name, coefficient):
    old, ref, scores, mask = ([[cell[i] for cell in row] for row in cells] for i in range(4))
    batch = TokenBatch(
        {
            "token_level_scores": torch.tensor(scores, dtype=torch.float64),
            "response_mask": torch.tensor(mask).long(),
            "old_log_probs": torch.tensor(old, dtype=torch.float64),
            "ref_log_prob": torch.tensor(ref, dtype=torch.float64),
        }
    )
    got, metrics = kl.apply_kl_penalty(batch, kl.FixedKLController(coefficient), name)
    want, mean = reference_kl.kl_in_reward(scores, old, ref, mask, coefficient, name)
    torch.testing.assert_close(got["token_level_rewards"], torch.tensor(want, dtype=torch.float64))
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert "token_level_rewards" not in batch
    for declared in kl.METRICS:
        assert declared.holds(metrics[declared.name])


def test_the_coefficient_of_a_step_is_the_one_before_its_update():
    batch = TokenBatch(
        {
            "token_level_scores": torch.zeros(2, 3),
            "response_mask": torch.ones(2, 3).long(),
            "old_log_probs": torch.zeros(2, 3),
            "ref_log_prob": torch.full((2, 3), -1.0),
        }
    )
    controller = kl.get_kl_controller({"type": "adaptive", "kl_coef": 0.5, "target_kl": 0.1, "horizon": 10})
    _, metrics = kl.apply_kl_penalty(batch, controller)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    assert controller.value == pytest.approx(0.5 * (1 + 0.2 * 2 / 10))


def test_controllers():
    assert kl.get_kl_controller({}).value == 0.001
    fixed = kl.get_kl_controller({"type": "fixed", "kl_coef": 0.3})
    fixed.update(100.0, 1000)
    assert fixed.value == 0.3
    with pytest.raises(AssertionError, match="horizon is 0"):
        kl.get_kl_controller({"type": "adaptive", "horizon": 0})
    with pytest.raises(NotImplementedError, match="fixed, adaptive"):
        kl.get_kl_controller({"type": "adaptiv"})
    with pytest.raises(ZeroDivisionError):
        kl.AdaptiveKLController(0.1, 0.0, 10).update(1.0, 1)


@given(st.floats(0.001, 1), st.floats(0, 100), st.integers(1, 100))
def test_adaptive_steps_are_bounded_and_go_the_right_way(value, current, steps):
    controller = kl.AdaptiveKLController(value, 1.0, 1000)
    controller.update(current, steps)
    assert abs(controller.value / value - 1) <= 0.2 * steps / 1000 + 1e-12
    assert (controller.value - value) * (current - 1.0) >= 0


def test_seed_example_of_kl_in_reward():
    scores, d = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.1, 0.2, 0.3]])
    rewards = kl.compute_rewards(scores, d, torch.zeros(1, 3), 0.01)
    torch.testing.assert_close(rewards, torch.tensor([[-0.001, -0.002, 0.997]]))


def test_openrlhf_differs_from_verl_where_documented():
    x, ref = torch.tensor([[-25.0]]), torch.tensor([[0.0]])
    assert kl.kl_penalty(x, ref, "k1").item() == -25
    assert kl.openrlhf_approx_kl(x, ref).item() == -10
    assert kl.openrlhf_approx_kl(x.double(), ref.double()).dtype == torch.float32
    with pytest.raises(InputError, match="k1, k2, k3"):
        kl.openrlhf_approx_kl(x, ref, kl_estimator="abs")


@given(st.floats(-3, 0), st.floats(-3, 0), st.floats(-9, 0))
def test_openrlhf_unbiased_gradient_is_the_capped_weight_times_d(lp, ref, old):
    for estimator in ("k1", "k2", "k3"):
        x = torch.tensor([[lp]], requires_grad=True)
        kl.openrlhf_approx_kl(x, torch.tensor([[ref]]), torch.tensor([[old]]), estimator, True).sum().backward()
        assert x.grad.item() == pytest.approx(min(math.exp(lp - old), 10) * (lp - ref), rel=1e-4, abs=1e-5)


def test_openrlhf_reward_of_an_empty_row_goes_to_the_last_column():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    kl_ = torch.ones(2, 3, dtype=torch.float64)
    rewards = kl.openrlhf_compute_reward(torch.tensor([1.0, 2.0]), 0.5, kl_, mask)
    assert rewards.tolist() == [[-0.5, 0.5, -0.5], [-0.5, -0.5, 1.5]]
    assert kl.openrlhf_compute_reward(torch.tensor([1.0, 2.0]), -1.0, kl_, mask).sum() == 3
    with pytest.raises(InputError, match="action_mask"):
        kl.openrlhf_compute_reward(torch.tensor([1.0]), 0.5, kl_, mask[:, :2])


def test_torchrl_penalty_shrinks_with_padding():
    lp, ref = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-2.0, -2.0]])
    _, full = kl.torchrl_kl_to_ref(lp, ref, torch.ones(1, 2).bool())
    _, half = kl.torchrl_kl_to_ref(lp, ref, torch.tensor([[True, False]]), 0.1)
    assert half.item() == pytest.approx(full.item() / 2)
    assert full.item() == pytest.approx(math.exp(-1), rel=1e-6)


def test_controller_defaults_are_verls():
    controller = kl.get_kl_controller({"type": "adaptive"})
    assert (controller.value, controller.target, controller.horizon) == (0.001, 0.1, 10000)
    assert isinstance(kl.get_kl_controller(None), kl.FixedKLController)


def test_openrlhf_unbiased_gradient_on_policy_is_verls_plus_form():
    x, ref = torch.tensor([[-0.5]], requires_grad=True), torch.tensor([[-1.25]])
    kl.openrlhf_approx_kl(x, ref, kl_estimator="k3", unbiased_gradient=True).sum().backward()
    assert x.grad.item() == 0.75


def test_openrlhf_values_are_capped_on_both_sides():
    x, ref = torch.tensor([[-25.0, -1.0]]), torch.tensor([[-1.0, -25.0]])
    assert kl.openrlhf_approx_kl(x, ref).tolist() == [[-10, 10]]
    assert kl.openrlhf_approx_kl(x, ref, kl_estimator="k2").tolist() == [[10, 10]]
    assert kl.openrlhf_approx_kl(x, ref, kl_estimator="k3").tolist() == [[10, 10]]


def test_a_horizon_of_one_row_is_a_horizon():
    controller = kl.get_kl_controller({"type": "adaptive", "kl_coef": 0.5, "target_kl": 1.0, "horizon": 1})
    controller.update(current_kl=1.1, n_steps=1)
    assert controller.value == pytest.approx(0.55)


def test_torchrl_weighs_with_one_by_default():
    generator = torch.Generator().manual_seed(3)
    logps, ref_logps = -torch.rand((2, 3, 4), generator=generator)
    weighed, plain = kl.torchrl_kl_to_ref(logps, ref_logps, torch.ones(3, 4))
    assert torch.equal(weighed, plain)
    assert float(plain) > 0
