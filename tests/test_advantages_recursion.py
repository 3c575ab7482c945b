"""Backward recursions: the bits of the plain loops, at widths around the block size, and inputs left alone."""

import pytest
import torch

from labs import recursion
from labs.advantages.gae import gae
from labs.errors import InputError
from labs.registry import estimators
from tests.reference_advantages import verl_gae_loop, verl_return_loop

SHAPES = [(1, 1), (3, 1), (1, 7), (5, 255), (4, 256), (6, 257), (2, 700)]
RATES = [(1.0, 1.0), (1.0, 0.95), (0.99, 0.95), (0.9, 0.0), (0.0, 1.0)]


def batch(rows, width, dtype=torch.float32, mask_dtype=torch.int64):
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    rewards, values = torch.randn((2, rows, width), generator=generator).to(dtype)
    mask = (torch.rand((rows, width), generator=generator) < 0.7).to(mask_dtype)
    return rewards, values, mask


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_carried_recursions_have_the_bits_of_the_loops(shape, rates, dtype):
    rewards, values, mask = batch(*shape, dtype)
    gamma, lam = rates
    kept = rewards.clone(), values.clone(), mask.clone()
    advantages = recursion.carried_gae(rewards, values, mask.to(dtype), gamma, lam)
    assert torch.equal(advantages, verl_gae_loop(rewards, values, mask, gamma, lam))
    returns = recursion.carried_return(rewards, mask.to(dtype), gamma)
    assert torch.equal(returns * mask, verl_return_loop(rewards, mask, gamma))
    assert all(torch.equal(a, b) for a, b in zip(kept, (rewards, values, mask), strict=True))


def test_a_fractional_mask_blends_as_the_loop_does():
    rewards, values, _ = batch(3, 9, torch.float64)
    mask = torch.rand(3, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(
        recursion.carried_gae(rewards, values, mask, 0.9, 0.8), verl_gae_loop(rewards, values, mask, 0.9, 0.8)
    )


def test_views_and_transposes_are_read_right():
    rewards, values, mask = (x.t().contiguous().t() for x in batch(4, 300, mask_dtype=torch.float32))
    assert not rewards.is_contiguous()
    assert torch.equal(
        recursion.carried_gae(rewards, values, mask, 0.9, 0.8), verl_gae_loop(rewards, values, mask, 0.9, 0.8)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_linear_is_its_loop(shape):
    a, c, _ = batch(*shape, torch.float64)
    kept = a.clone(), c.clone()
    for factor in (c, 1.0, 0.5, 0.0):
        for last in (None, torch.full((shape[0],), 2.0, dtype=torch.float64)):
            x, want = (torch.zeros(shape[0]) if last is None else last), []
            for t in reversed(range(shape[1])):
                x = a[:, t] + (factor[:, t] if torch.is_tensor(factor) else factor) * x
                want.append(x)
            torch.testing.assert_close(recursion.linear(a, factor, last), torch.stack(want[::-1], dim=1))
    assert torch.equal(a, kept[0])
    assert torch.equal(c, kept[1])


def test_done_and_terminated_are_two_things():
    """By hand, gamma 0.5, lambda 1: rewards 1, 1; values 2, 4; next values 4, 8; the first step ends an episode."""
    r, v, nv = torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 4.0]]), torch.tensor([[4.0, 8.0]])
    first, none = torch.tensor([[True, False]]), torch.tensor([[False, False]])
    # 1 + 0.5 * 8 - 4 = 1; 1 + 0.5 * 4 - 2 = 1, and 1 + 0 - 2 = -1 when the future is worth nothing
    assert recursion.gae(r, v, nv, 0.5, 1.0, none, none).tolist() == [[1.5, 1.0]]
    assert recursion.gae(r, v, nv, 0.5, 1.0, first, none).tolist() == [[1.0, 1.0]]
    assert recursion.gae(r, v, nv, 0.5, 1.0, first, first).tolist() == [[-1.0, 1.0]]
    assert recursion.discounted(r, 0.5, first).tolist() == [[1.0, 1.0]]
    assert recursion.discounted(r, 0.5).tolist() == [[1.5, 1.0]]


def test_lambda_returns_are_gae_plus_value_where_values_chain():
    _, v, _ = batch(3, 8, torch.float64)
    r, _, _ = batch(3, 8, torch.float64)
    nv = recursion.ahead(v, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    for lam in (0.0, 0.6, 1.0):
        torch.testing.assert_close(recursion.td_lambda(r, nv, 0.9, lam), recursion.gae(r, v, nv, 0.9, lam) + v)


def test_vtrace_on_policy_is_the_return_minus_the_value():
    r, v, _ = batch(3, 8, torch.float64)
    advantages, targets = recursion.vtrace(r, v, recursion.ahead(v), torch.zeros_like(r), 1.0)
    to_go = r.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(targets, to_go)
    torch.testing.assert_close(advantages, to_go - v)


def test_vtrace_behind_an_episode_end_sees_the_next_value_and_not_the_next_episode():
    one = torch.ones(1, 2)
    done = torch.tensor([[True, True]])
    advantages, _ = recursion.vtrace(one, 0 * one, 5 * one, 0 * one, 1.0, done=done, terminated=~done)
    assert advantages.tolist() == [[6.0, 6.0]]
    advantages, _ = recursion.vtrace(one, 0 * one, 5 * one, 0 * one, 1.0, done=done, terminated=done)
    assert advantages.tolist() == [[1.0, 1.0]]


def test_packing_moves_tokens_to_the_front_and_back():
    mask = torch.tensor([[0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]])
    x = torch.arange(1.0, 13.0).reshape(3, 4)
    packing = recursion.Packing(mask)
    assert packing.lengths.tolist() == [2, 3, 0]
    assert packing.ends.tolist() == [[False, True, False], [False, False, True], [False] * 3]
    packed = packing.pack(x)
    assert packed.tolist() == [[2.0, 4.0, 0.0], [5.0, 6.0, 7.0], [0.0, 0.0, 0.0]]
    assert torch.equal(packing.unpack(packed), x * mask)
    following = packing.following(packed, torch.tensor([10.0, 20.0, 30.0]))
    assert following.tolist() == [[4.0, 10.0, 0.0], [6.0, 7.0, 20.0], [0.0, 0.0, 0.0]]
    assert packing.following(packed, None).tolist() == [[4.0, 0.0, 0.0], [6.0, 7.0, 0.0], [0.0, 0.0, 0.0]]


def test_nothing_at_all_packs_to_one_column():
    packing = recursion.Packing(torch.zeros(2, 3))
    assert packing.ends.tolist() == [[False], [False]]
    assert packing.unpack(packing.pack(torch.ones(2, 3))).tolist() == [[0.0] * 3] * 2


def test_what_stands_behind_the_last_token():
    cut, value = torch.tensor([True, False]), torch.tensor([3.0, 4.0])
    assert recursion.behind(cut, value).tolist() == [3.0, 0.0]
    assert recursion.behind(None, value) is None
    assert recursion.behind(torch.tensor([False, False]), None) is None
    with pytest.raises(InputError, match="1 rows are truncated"):
        recursion.behind(cut, None)


def test_mixed_dtypes_promote_as_in_verl():
    rewards, values, mask = batch(3, 4)
    advantages, returns = gae(rewards, values.double(), mask, 1.0, 1.0)
    assert advantages.dtype == returns.dtype == torch.float64
    advantages, returns = estimators["reinforce_plus_plus"](rewards, mask.double(), {"gamma": 1.0})
    assert advantages.dtype == returns.dtype == torch.float64


def test_a_config_without_gamma_means_one():
    given = {"token_level_rewards": torch.ones(4, 3), "response_mask": torch.ones(4, 3)}
    found, wanted = (estimators["reinforce_plus_plus"](**given, config=c)[1] for c in ({}, {"gamma": 1.0}))
    assert torch.equal(found, wanted)
