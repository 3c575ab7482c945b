"""Every mask rule: never adds a token, keeps the dtype, follows its rule; checked against loops and by hand."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.errors import InputError
from labs.registry import masks

torch.set_num_threads(1)


def batch(seed, rows=4, width=6):
    g = torch.Generator().manual_seed(seed)
    draw = lambda: torch.rand((rows, width), generator=g, dtype=torch.float64)  # noqa: E731
    old = -0.1 - 3 * draw()
    return {
        "response_mask": (draw() < 0.7).long(),
        "entropy": 2 * draw(),
        "advantages": draw() - 0.5,
        "log_prob": old + 0.3 * (draw() - 0.5),
        "old_log_probs": old,
        "rollout_log_probs": old + 0.6 * (draw() - 0.5),
        "truncated": torch.rand(rows, generator=g) < 0.5,
    }


def apply(name, columns, **options):
    needs = masks[name].needs
    return masks[name](response_mask=columns["response_mask"], **{n: columns[n] for n in needs}, **options)


@pytest.mark.parametrize("name", sorted(masks))
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), dtype=st.sampled_from([torch.bool, torch.int64, torch.float32]))
def test_every_rule_only_removes(name, seed, dtype):
    columns = batch(seed)
    columns["response_mask"][0, 0] = 1
    columns["response_mask"] = columns["response_mask"].to(dtype)
    kept = apply(name, columns)
    assert kept.dtype is dtype
    assert kept.shape == columns["response_mask"].shape
    assert bool((kept <= columns["response_mask"]).all())
    order = torch.tensor([2, 0, 3, 1])
    permuted = {n: c[order] for n, c in columns.items()}
    assert torch.equal(apply(name, permuted), kept[order])
    assert inspect.getdoc(masks[name])
    assert masks[name].meta["paper"]


@pytest.mark.parametrize("name", sorted(masks))
def test_every_rule_refuses_wrong_shapes(name):
    columns = batch(1)
    columns["response_mask"] = columns["response_mask"][:3, :4]
    with pytest.raises((ValueError, RuntimeError)) as error:
        apply(name, columns)
    if name != "rejection":
        assert isinstance(error.value, InputError)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), top=st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_high_entropy_keeps_a_quantile(seed, top):
    columns = batch(seed)
    kept = apply("high_entropy", columns, top=top)
    inside = columns["entropy"][columns["response_mask"].bool()].numpy().astype(np.float32)
    if inside.size == 0:
        assert not kept.any()
        return
    bound = np.quantile(inside, 1 - top)
    wanted = (columns["entropy"].float().numpy() >= bound - 1e-7) & columns["response_mask"].bool().numpy()
    assert np.array_equal(kept.bool().numpy(), wanted)
    if top == 0.0:
        assert kept.sum() == 1
    if top == 1.0:
        assert torch.equal(kept, columns["response_mask"])


def test_high_entropy_on_nothing_and_out_of_range():
    nothing = torch.zeros(2, 3, dtype=torch.int64)
    assert not masks["high_entropy"](response_mask=nothing, entropy=torch.rand(2, 3)).any()
    with pytest.raises(InputError, match="share of tokens"):
        masks["high_entropy"](response_mask=nothing, entropy=torch.rand(2, 3), top=1.2)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), threshold=st.sampled_from([-0.1, 0.0, 0.05]))
def test_off_policy_rows(seed, threshold):
    columns = batch(seed)
    kept = apply("off_policy_sequence", columns, threshold=threshold)
    for i, row in enumerate(columns["response_mask"].tolist()):
        valid = [t for t, m in enumerate(row) if m]
        drift = sum(float(columns["rollout_log_probs"][i, t] - columns["log_prob"][i, t]) for t in valid)
        stays = drift / max(len(valid), 1) <= threshold
        for t in valid:
            assert bool(kept[i, t]) == (stays or float(columns["advantages"][i, t]) >= 0)


def test_off_policy_takes_advantages_by_row_and_ignores_unscored_tokens():
    columns = batch(3) | {"response_mask": torch.ones(4, 6, dtype=torch.int64)}
    columns["advantages"] = torch.tensor([1.0, -1.0, -1.0, 0.0], dtype=torch.float64)
    columns["rollout_log_probs"] = columns["log_prob"] + 1.0
    columns["rollout_log_probs"][2] = torch.nan
    assert apply("off_policy_sequence", columns).sum(-1).tolist() == [6, 0, 6, 6]


def test_kl_mask_is_symmetric_and_bounded():
    old = torch.full((1, 4), -1.0)
    now = old + torch.tensor([[0.0, 0.3, -0.3, torch.nan]])
    kept = masks["kl_mask"](response_mask=torch.ones(1, 4), log_prob=now, rollout_log_probs=old, threshold=0.04)
    assert kept.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    wide = masks["kl_mask"](response_mask=torch.ones(1, 4), log_prob=now, rollout_log_probs=old, threshold=0.05)
    assert wide.tolist() == [[1.0, 1.0, 1.0, 0.0]]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), threshold=st.sampled_from([1e-6, 0.005, 0.03, 1.0]))
def test_second_moment_drops_the_fewest(seed, threshold):
    columns = batch(seed)
    kept = apply("second_moment", columns, threshold=threshold)
    squares = (columns["old_log_probs"] - columns["rollout_log_probs"]) ** 2
    inside = sorted(squares[columns["response_mask"].bool()].tolist())
    wanted = len(inside)
    while wanted > 1 and sum(inside[:wanted]) / wanted >= threshold:
        wanted -= 1
    assert int(kept.sum()) == wanted
    if wanted:
        assert float(squares[kept.bool()].max()) <= inside[wanted - 1]


def test_second_moment_refuses_no_budget():
    with pytest.raises(InputError, match="over 0"):
        apply("second_moment", batch(1), threshold=0.0)


def test_truncated_rows_leave_whole():
    columns = batch(2) | {"truncated": torch.tensor([True, False, False, True])}
    kept = apply("truncated", columns)
    assert kept.sum(-1).tolist() == [0, *columns["response_mask"][1:3].sum(-1).tolist(), 0]


def test_rejection_is_the_correction_of_verl():
    old, rollout = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-1.0, -1.5, -0.5]])
    kept = masks["rejection"](
        response_mask=torch.ones(1, 3), old_log_probs=old, rollout_log_probs=rollout,
        rollout_rs="token_k1", rollout_rs_threshold="0.7_10",
    )  # fmt: skip
    # The window bounds rollout / old: the second token's is exp(-0.5) = 0.61, the third's exp(0.5).
    assert kept.tolist() == [[1.0, 0.0, 1.0]]
