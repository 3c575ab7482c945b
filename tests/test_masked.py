"""Masked sums, means, variances, groups and the five aggregations, beyond the recorded rows."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.errors import InputError
from labs.grouping import bessel_std, by_size, expect, group_ids, map_groups, mean_std, members
from labs.masked import (
    AGG_MODES,
    agg_loss,
    as_torch_index,
    get_response_mask,
    group_mean_std,
    masked_mean,
    masked_sum,
    masked_var,
    masked_whiten,
)
from tests.reference_advantages import verl_whiten

torch.set_num_threads(1)
QUICK = settings(max_examples=30, deadline=None)
values_and_masks = st.lists(
    st.tuples(st.floats(-5, 5, allow_nan=False), st.integers(0, 1)), min_size=3, max_size=12
).filter(lambda x: sum(m for _, m in x) >= 2)


@given(values_and_masks)
@QUICK
def test_masked_statistics_are_those_of_the_kept_values(pairs):
    x = torch.tensor([v for v, _ in pairs], dtype=torch.float64)
    mask = torch.tensor([m for _, m in pairs], dtype=torch.float64)
    kept = [v for v, m in pairs if m]
    assert masked_sum(x, mask).item() == pytest.approx(math.fsum(kept), abs=1e-9)
    assert masked_mean(x, mask).item() == pytest.approx(statistics.fmean(kept), rel=1e-7, abs=1e-7)
    assert masked_var(x, mask).item() == pytest.approx(statistics.variance(kept), rel=1e-6, abs=1e-6)
    assert masked_var(x, mask, unbiased=False).item() == pytest.approx(statistics.pvariance(kept), rel=1e-6, abs=1e-6)
    white = masked_whiten(x, mask)
    scale = 1 / math.sqrt(statistics.variance(kept) + 1e-8)
    assert white[0].item() == pytest.approx((pairs[0][0] - statistics.fmean(kept)) * scale, rel=1e-5, abs=1e-5)
    shifted = masked_whiten(x, mask, shift_mean=False) - white
    assert torch.allclose(shifted, masked_mean(x, mask).expand_as(x), atol=1e-9)


def test_what_stands_outside_the_mask_does_not_matter():
    x, mask = torch.tensor([[math.nan, 1.0], [math.inf, 3.0]]), torch.tensor([[0, 1], [0, 1]])
    assert masked_sum(x, mask).item() == 4.0
    assert masked_mean(x, mask, axis=-1).tolist() == [1.0, 3.0]


def test_an_empty_mask_means_zero_and_an_unbiased_variance_needs_two():
    x = torch.ones(2, 2)
    assert masked_mean(x, torch.zeros(2, 2)).item() == 0.0
    assert masked_var(x, torch.zeros(2, 2), unbiased=False).item() == 0.0
    for mask, message in ((torch.zeros(2, 2), "no valid"), (torch.tensor([[1, 0], [0, 0]]), "1 valid")):
        with pytest.raises(ValueError, match=message):
            masked_var(x, mask)
        with pytest.raises(ValueError, match=message):
            masked_whiten(x, mask)


def test_a_fraction_in_the_mask_is_a_weight():
    assert masked_mean(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 0.5])).item() == pytest.approx(2.0)


def test_whitening_moves_masked_positions_too_and_a_constant_gives_zero():
    white = masked_whiten(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[1, 1, 0]]))
    assert white[0, 2].item() == pytest.approx((9 - 2) / math.sqrt(2), rel=1e-6)
    assert masked_whiten(torch.full((2, 2), 3.0), torch.ones(2, 2)).abs().max() == 0


def test_integer_masks_have_float32_denominators():
    """So 1e-8 vanishes from a count of one, and float64 whitening is good to 3e-8 only."""
    x = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    ints, floats = torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.float64)
    assert masked_mean(x, ints).item() == 7 / 3
    assert masked_mean(x, floats).item() == 7 / (3 + 1e-8)
    assert masked_var(x, ints) != masked_var(x, floats)
    assert masked_var(x, ints).item() == pytest.approx(masked_var(x, floats).item(), rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32, torch.float64])
def test_whitening_has_the_bits_of_the_chain_of_fresh_tensors(dtype, mask_dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((20, 30), generator=generator).to(dtype)
    mask = (torch.rand((20, 30), generator=generator) < 0.6).to(mask_dtype)
    kept = x.clone(), mask.clone()
    white, want = masked_whiten(x, mask), verl_whiten(x, mask)
    assert white.dtype == want.dtype
    assert torch.equal(white, want)
    assert torch.equal(x, kept[0])
    assert torch.equal(mask, kept[1])


def test_statistics_can_be_differentiated():
    x = torch.randn((4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 1, 0]] * 4, dtype=torch.float64)
    for function in (masked_mean, masked_var, masked_whiten):
        assert torch.autograd.gradcheck(lambda y, f=function: f(y, mask), (x,))


def test_response_mask_ends_with_the_first_end_token():
    ids = torch.tensor([[5, 2, 7, 2], [3, 5, 5, 2], [5, 5, 5, 5]])
    assert get_response_mask(ids).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert get_response_mask(ids, [2, 3]).tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert get_response_mask(ids, 2, torch.bool).dtype == torch.bool


@pytest.mark.parametrize(
    ("labels", "ids"),
    [
        (["b", "a", "b"], [1, 0, 1]),
        (["7", "07", "3"], [7, 7, 3]),
        (["7", "x", "7"], [0, 1, 0]),
        (np.array([4, 4, 9]), [4, 4, 9]),
        ([True, False, True], [1, 0, 1]),
        ([2.0, 1.0000000001, 2.0], [2, 1, 2]),
        ([0.5, 0.25, 0.5], [1, 0, 1]),
        (torch.tensor([3, 1, 3]), [3, 1, 3]),
        (torch.tensor([3.0, 1.0, 3.0]), [3, 1, 3]),
        (["99999999999999999999", "1", "1"], [1, 0, 0]),
    ],
)
def test_labels_become_integers(labels, ids):
    found = as_torch_index(labels)
    assert found.dtype == torch.int64
    assert found.tolist() == ids


def test_group_mean_std_counts_gaps_and_lone_rows_as_neutral():
    mean, std, count = group_mean_std(torch.tensor([1.0, 3.0, 7.0], dtype=torch.float64), torch.tensor([0, 0, 2]))
    assert mean.tolist() == [2.0, 0.0, 0.0]
    assert std.tolist() == [pytest.approx(math.sqrt(2)), 1.0, 1.0]
    assert count.tolist() == [2.0, 0.0, 1.0]
    assert mean.dtype == torch.float32
    assert group_mean_std(torch.ones(2), torch.zeros(2), eps=0.25)[1].item() == 0.5
    assert group_mean_std(torch.ones(0), torch.ones(0))[0].shape == (0,)
    with pytest.raises(IndexError, match="-1"):
        group_mean_std(torch.ones(2), torch.tensor([-1, 0]))


@given(st.integers(2, 40), st.sampled_from([torch.float32, torch.float64, torch.float16]), st.integers(0, 999))
@QUICK
def test_statistics_of_stacked_groups_have_the_bits_of_lone_lists(size, dtype, seed):
    x = torch.randn(5, size, generator=torch.Generator().manual_seed(seed)).to(dtype)
    x[0] = 2.3
    lone = torch.stack([row.clone().std() for row in x])
    if dtype == torch.float64:  # torch fuses a multiply and an add there; one unit in the last place
        assert torch.allclose(bessel_std(x)[:, 0], lone, rtol=1e-15, atol=0)
    else:
        assert torch.equal(bessel_std(x)[:, 0], lone)
    assert torch.equal(mean_std(x)[0][:, 0], torch.stack([row.clone().mean() for row in x]))


def test_rows_are_grouped_by_equality_in_order_of_appearance():
    index = np.array(["b", "a", "b", "c"], dtype=object)
    assert members(index, 4) == {"b": [0, 2], "a": [1], "c": [3]}
    assert group_ids(index, 4).tolist() == [0, 1, 0, 2]
    assert [m.tolist() for m in by_size(index, 4)] == [[[0, 2]], [[1], [3]]]
    assert map_groups(lambda x: x - x.sum(dim=1, keepdim=True), index, torch.tensor([1.0, 2, 3, 4])).tolist() == [
        -3.0, 0.0, -1.0, 0.0,
    ]  # fmt: skip
    mean, std = mean_std(torch.ones(3, 1, dtype=torch.float64))
    assert (mean.item(), std.item(), std.dtype) == (0.0, 1.0, torch.float32)
    with pytest.raises(InputError, match="3 group labels, the batch has 4"):
        members(["a", "b", "c"], 4)


def test_columns_of_one_batch():
    mask = torch.ones(2, 3, dtype=torch.int64)
    expect(mask, values=torch.ones(2, 3), ref_log_prob=None, rows=[("b", torch.ones(2)), ("c", None)])
    for bad, name in (({"values": torch.ones(2, 2)}, "values"), ({"values": mask}, "floating-point")):
        with pytest.raises(RuntimeError, match=name):
            expect(mask, **bad)
    with pytest.raises(InputError, match=r"b has shape \(3,\)"):
        expect(mask, rows=[("b", torch.ones(3))])


# Aggregation.


def looped(loss, mask, mode):
    rows = [sum(x for x, m in zip(r, k, strict=True) if m) for r, k in zip(loss, mask, strict=True)]
    counts = [sum(k) for k in mask]
    if mode.startswith("token"):
        return sum(rows) / (sum(counts) if mode == "token-mean" else 1)
    if mode == "seq-mean-token-mean":
        rows = [r / c if c else 0.0 for r, c in zip(rows, counts, strict=True)]
    total = sum(rows) / sum(c > 0 for c in counts)
    return total / len(mask[0]) if mode.endswith("norm") else total


@pytest.mark.parametrize("mode", AGG_MODES)
@given(data=st.data())
@QUICK
def test_aggregations_are_their_loops(mode, data):
    shape = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    loss = [[data.draw(st.floats(-4, 4)) for _ in range(shape[1])] for _ in range(shape[0])]
    mask = [[data.draw(st.integers(0, 1)) for _ in range(shape[1])] for _ in range(shape[0])]
    mask[0][0] = 1
    got = agg_loss(torch.tensor(loss, dtype=torch.float64), torch.tensor(mask), mode)
    assert got.item() == pytest.approx(looped(loss, mask, mode), rel=1e-6, abs=1e-6)


def test_explicit_denominators():
    loss, mask = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 1], [1, 0]])
    assert agg_loss(loss, mask, "token-mean", 2, batch_num_tokens=12).item() == 1.0
    assert agg_loss(loss, mask, "token-sum", 2).item() == 12.0
    assert agg_loss(loss, mask, "seq-mean-token-sum", 2, global_batch_size=4).item() == 3.0
    assert agg_loss(loss, mask, "seq-mean-token-sum-norm", 1, None, 3, 4.0).item() == 0.5
    assert agg_loss(loss, mask, "seq-mean-token-sum-norm").item() == 1.5
    assert agg_loss(loss, mask, "seq-mean-token-mean", 4, global_batch_size=3).item() == pytest.approx(6.0)


@pytest.mark.parametrize("mode", AGG_MODES)
def test_an_all_masked_loss(mode):
    loss = torch.ones(2, 3, requires_grad=True)
    value = agg_loss(loss, torch.zeros(2, 3, dtype=torch.bool), mode)
    assert value.item() == 0.0 if mode == "token-sum" else value.isnan()
    value.backward()
    assert (loss.grad == 0).all()


@pytest.mark.parametrize("mode", AGG_MODES)
def test_nan_outside_the_mask_breaks_the_sequence_modes_only(mode):
    value = agg_loss(torch.tensor([[1.0, math.nan]]), torch.tensor([[1, 0]]), mode)
    assert value.isnan().item() == mode.startswith("seq")


@pytest.mark.parametrize("mode", AGG_MODES)
def test_several_ranks_need_the_global_denominator(mode):
    if mode == "token-sum":
        assert agg_loss(torch.ones(1, 1), torch.ones(1, 1), mode, dp_size=2).item() == 2.0
        return
    needed = "batch_num_tokens" if mode == "token-mean" else "global_batch_size"
    with pytest.raises(ValueError, match=needed):
        agg_loss(torch.ones(1, 1), torch.ones(1, 1), mode, dp_size=2)


def test_an_unknown_mode_is_answered_with_close_ones():
    with pytest.raises(InputError, match="did you mean token-mean"):
        agg_loss(torch.ones(1, 1), torch.ones(1, 1), "token_mean")


@pytest.mark.parametrize("kind", [torch.int8, torch.int32, torch.uint8, torch.int64])
def test_labels_of_any_integer_type_become_int64(kind):
    found = as_torch_index(torch.tensor([[3, 1], [1, 3]], dtype=kind))
    assert found.dtype == torch.int64
    assert found.tolist() == [3, 1, 1, 3]
