"""Rollout correction against loops, its declared ranges, presets, and what it refuses."""

import inspect
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from labs import correction
from labs.batch import TokenBatch
from labs.correction.presets import PRESETS
from labs.correction.thresholds import parse_is_threshold, parse_rs_thresholds
from labs.errors import InputError
from tests import reference_correction as loops

run = correction.compute_rollout_correction_and_rejection_mask


@st.composite
def batches(draw, top=6.0, some=True):
    """(old, rollout, mask) as float64 and int64 tensors, at least one valid token."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    cells = st.lists(st.lists(st.floats(-top, 0), min_size=width, max_size=width), min_size=rows, max_size=rows)
    flags = st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows)
    old, rollout = (torch.tensor(draw(cells), dtype=torch.float64) for _ in range(2))
    mask = torch.tensor(draw(flags)).long()
    if some:
        mask[draw(st.integers(0, rows - 1)), draw(st.integers(0, width - 1))] = 1
    return old, rollout, mask


@given(batches(), st.sampled_from(correction.LEVELS), st.sampled_from([2.0, "1.5", "0.5_2", 0.3]), st.booleans())
def test_weights_equal_the_loop(batch, level, threshold, normalize):
    old, rollout, mask = batch
    weights, same_mask, metrics = run(old, rollout, mask, level, threshold, normalize)
    window = parse_is_threshold(threshold)
    lr = (old - rollout).tolist()
    assume(all(abs(x) > 1e-9 for row in lr for x in row))
    want = loops.weights(lr, mask.bool().tolist(), level, window.lower, window.upper, normalize)
    torch.testing.assert_close(weights, torch.tensor(want, dtype=torch.float64), rtol=1e-6, atol=1e-8)
    assert torch.equal(same_mask, mask)
    assert (weights[mask == 0] == 0).all()
    assert ("rollout_corr/rollout_is_oob_ratio" in metrics) == (window.lower is not None)
    assert ("rollout_corr/rollout_is_batch_norm_factor" in metrics) == normalize


@given(batches(top=2.0), st.lists(st.sampled_from(correction.OPTIONS), min_size=1, max_size=3), st.floats(1.05, 3))
def test_rejection_equals_the_loop(batch, options, bound):
    old, rollout, mask = batch
    _, kept, metrics = run(old, rollout, mask, rollout_rs=",".join(options), rollout_rs_threshold=bound)
    lr = (old - rollout).tolist()
    valid = mask.bool().tolist()
    want = [
        [m and all(column) for m, *column in zip(
            line, *(loops.keep(o, row, line, 1 / bound, bound) for o in options), strict=True
        )]
        for row, line in zip(lr, valid, strict=True)
    ]  # fmt: skip
    assert kept.bool().tolist() == want
    assert kept.dtype == mask.dtype
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(
        1 - kept.sum().item() / mask.sum().item(), abs=1e-6
    )


@given(batches(), st.sampled_from(correction.LEVELS), st.sampled_from([2.0, "0.5_2"]), st.booleans(),
       st.lists(st.sampled_from(correction.OPTIONS), max_size=3))  # fmt: skip
def test_every_metric_is_declared_and_in_its_range(batch, level, threshold, normalize, options):
    old, rollout, mask = batch
    rs = ",".join(options) or None
    _, _, metrics = run(old, rollout, mask, level, threshold, normalize, rs, None if rs is None else 1.5)
    declared = {m.name: m for m in correction.METRICS}
    for option in options:
        declared |= {m.name: m for m in correction.option_metrics(option)}
    assert set(metrics) <= set(declared)
    for name, value in metrics.items():
        assert declared[name].holds(value, slack=1e-6), (name, value)


@given(batches(top=2.0), st.permutations(range(4)))
def test_row_order_moves_with_the_rows(batch, order):
    old, rollout, mask = batch
    order = [i for i in order if i < len(old)]
    weights, kept, metrics = run(old, rollout, mask, "sequence", 2.0, True, "seq_mean_k3", 0.1)
    moved, moved_mask, moved_metrics = run(
        old[order], rollout[order], mask[order], "sequence", 2.0, True, "seq_mean_k3", 0.1
    )
    torch.testing.assert_close(moved, weights[order])
    assert torch.equal(moved_mask, kept[order])
    # The population spread is the root of a difference: equal numbers leave up to 1e-7 of rounding.
    assert moved_metrics == pytest.approx(metrics, abs=1e-6)


def _two_policies():
    """All trajectories of two independent draws from three actions, with their exact probabilities."""
    old = torch.log_softmax(torch.tensor([0.2, -0.5, 0.9], dtype=torch.float64), 0)
    rollout = torch.log_softmax(torch.tensor([-0.3, 0.4, 0.1], dtype=torch.float64), 0)
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    probability = rollout[pairs].sum(1).exp()
    reward = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)[pairs].prod(1)
    return old[pairs], rollout[pairs], probability, reward


def test_sequence_weights_are_unbiased_token_weights_are_not():
    old, rollout, probability, reward = _two_policies()
    mask = torch.ones_like(old).long()
    exact = (old.sum(1).exp() * reward).sum().item()
    by_row, _, _ = run(old, rollout, mask, "sequence", 1e9)
    by_token, _, _ = run(old, rollout, mask, "token", 1e9)
    assert (probability * by_row[:, 0] * reward).sum().item() == pytest.approx(exact, abs=1e-12)
    assert abs((probability * by_token.mean(1) * reward).sum().item() - exact) > 1e-3


def test_a_k1_window_bounds_rollout_over_old():
    ratio = torch.tensor([[0.66, 0.67, 1.0, 1.24, 1.26]], dtype=torch.float64)
    mask = torch.ones_like(ratio).long()
    _, kept, _ = run(ratio.log(), torch.zeros_like(ratio), mask, rollout_rs="token_k1", rollout_rs_threshold="0.8_1.5")
    assert kept.tolist() == [[0, 1, 1, 1, 0]]


def test_icepop_keeps_the_mask_and_its_bounds():
    ratio = torch.tensor([[0.4, 0.5, 1.0, 2.0, 2.1]], dtype=torch.float64)
    mask = torch.ones_like(ratio).long()
    weights, kept, metrics = run(ratio.log(), torch.zeros_like(ratio), mask, "token", "0.49_2.05")
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.5, 1.0, 2.0, 0.0]], dtype=torch.float64))
    assert torch.equal(kept, mask)
    assert metrics["rollout_corr/rollout_is_oob_ratio"] == pytest.approx(0.4)


def test_icepop_that_keeps_nothing_reports_no_effective_samples():
    old = torch.full((2, 3), -1.0)
    weights, _, metrics = run(old, old - 5, torch.ones(2, 3).long(), "token", "0.9_1.1")
    assert (weights == 0).all()
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == 0
    assert metrics["rollout_corr/rollout_is_oob_ratio"] == 1


def test_normalised_weights_have_mean_one_and_may_exceed_the_threshold():
    old = torch.tensor([[0.0, -3.0, -3.0]])
    weights, _, _ = run(old, torch.full((1, 3), -1.0), torch.ones(1, 3).long(), "token", 2.0, True)
    assert weights.mean().item() == pytest.approx(1.0)
    assert weights.max() > 2.0


def test_empty_rows_count_in_row_averages():
    old, mask = torch.full((2, 2), -1.0), torch.tensor([[1, 1], [0, 0]])
    _, _, metrics = run(old, old, mask, "sequence")
    assert metrics["rollout_corr/training_ppl"] == pytest.approx((math.e + 1) / 2)
    assert metrics["rollout_corr/rollout_is_seq_mean"] == pytest.approx(0.5)
    assert metrics["rollout_corr/rollout_is_seq_fraction_low"] == 0.5


def test_nan_ratio_passes_truncation_and_is_rejected():
    old = torch.tensor([[math.nan, -1.0]])
    rollout, mask = torch.full((1, 2), -1.0), torch.ones(1, 2).long()
    weights, _, _ = run(old, rollout, mask, "token", 2.0)
    assert weights[0, 0].isnan()
    _, kept, _ = run(old, rollout, mask, rollout_rs="token_k2", rollout_rs_threshold=1.0)
    assert kept.tolist() == [[0, 1]]


def test_weights_carry_no_gradient():
    old = torch.full((1, 2), -1.0, requires_grad=True)
    weights, _, _ = run(old, torch.full((1, 2), -1.5), torch.ones(1, 2).long(), "token")
    assert not weights.requires_grad


def test_on_the_batch():
    columns = {
        "response_mask": torch.ones(2, 3).long(),
        "loss_mask": torch.ones(2, 3).long(),
        "old_log_probs": torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -4.0, -1.0]]),
        "rollout_log_probs": torch.full((2, 3), -1.0),
    }
    batch = TokenBatch(columns)
    done, metrics = correction.compute_rollout_correction_and_add_to_batch(
        batch, correction.RolloutCorrectionConfig.decoupled_k3_rs_token_tis(rs_threshold=0.1)
    )
    assert done["response_mask"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert torch.equal(done["loss_mask"], columns["loss_mask"])
    assert done["rollout_is_weights"].shape == (2, 3)
    assert metrics["rollout_corr/rollout_rs_seq_mean_k3_seq_masked_fraction"] == 0.5
    plain, only = correction.compute_rollout_correction_and_add_to_batch(batch, {})
    assert "rollout_is_weights" not in plain
    assert only == correction.compute_rollout_corr_metrics_from_logprobs(
        batch["old_log_probs"], batch["rollout_log_probs"], batch["response_mask"]
    )
    bypass = correction.apply_bypass_mode(batch)
    assert torch.equal(bypass["old_log_probs"], batch["rollout_log_probs"])
    lacking = batch.replace(rollout_log_probs=None)
    for call in (correction.apply_bypass_mode, lambda b: correction.compute_rollout_correction_and_add_to_batch(b, {})):
        with pytest.raises(InputError, match="rollout_log_probs"):
            call(lacking)


def test_presets_run():
    old, rollout = torch.full((2, 3), -1.0), torch.full((2, 3), -1.001)
    assert len(correction.PRESETS) == 19
    for name, make in correction.PRESETS.items():
        config = make()
        weights, _, _ = run(
            old, rollout, torch.ones(2, 3).long(), config.rollout_is, config.rollout_is_threshold,
            config.rollout_is_batch_normalize, config.rollout_rs, config.rollout_rs_threshold,
        )  # fmt: skip
        assert (weights is None) == (config.rollout_is is None), name
        assert config.bypass_mode == name.startswith("bypass")


REFUSED = [
    ({"rollout_is": "geometric"}, ValueError, "token, sequence"),
    ({"rollout_is": "token", "rollout_is_threshold": True}, TypeError, "True"),
    ({"rollout_is": "token", "rollout_is_threshold": [1]}, TypeError, "number or a string"),
    ({"rollout_is": "token", "rollout_is_threshold": " "}, ValueError, "takes a number"),
    ({"rollout_is": "token", "rollout_is_threshold": "0.5_x"}, ValueError, "0.5_x"),
    ({"rollout_is": "token", "rollout_is_threshold": "2_1"}, ValueError, "exceeds"),
    ({"rollout_is": "token", "rollout_is_threshold": 0}, ValueError, "above 0"),
    ({"rollout_is": "token", "rollout_is_threshold": math.nan}, ValueError, "above 0"),
    ({"rollout_is": "token", "rollout_is_threshold": "1_2_3"}, ValueError, "one '_'"),
    ({"rollout_rs": "token_k1"}, ValueError, "rollout_rs_threshold is None"),
    ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 1}, ValueError, "seq_max_k2"),
    ({"rollout_rs": " , ", "rollout_rs_threshold": 1}, ValueError, "names no option"),
    ({"rollout_rs": 3, "rollout_rs_threshold": 1}, ValueError, "comma-separated"),
    ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.1_0.2"}, ValueError, "one upper bound"),
    ({"rollout_rs": "token_k2", "rollout_rs_threshold": ","}, ValueError, "0 values"),
    ({"rollout_rs": "token_k2,token_k3", "rollout_rs_threshold": "1,2,3"}, ValueError, "3 values"),
    ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}, ValueError, r"\[2, 0.5\]"),
    ({"rollout_rs": "token_k1", "rollout_rs_threshold": True}, TypeError, "True"),
]


@pytest.mark.parametrize(("options", "kind", "words"), REFUSED)
def test_bad_options_are_named(options, kind, words):
    with pytest.raises(kind, match=words) as caught:
        run(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1, 2).long(), **options)
    assert isinstance(caught.value, InputError)


def test_bad_shapes_and_empty_masks_are_named():
    with pytest.raises(InputError, match=r"old_log_prob \(1, 2\), rollout_log_prob \(1, 3\)"):
        run(torch.zeros(1, 2), torch.zeros(1, 3), torch.ones(1, 2).long())
    with pytest.raises(InputError, match="no valid token"):
        run(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2).long())
    with pytest.raises(InputError, match="no valid token"):
        run(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0, 2).long())


def test_thresholds():
    assert parse_is_threshold(" 1.5 ").upper == 1.5
    assert parse_is_threshold("0.5_2") == parse_is_threshold("0.5_2.0")
    windows = parse_rs_thresholds(["token_k1", "token_k3"], "1.25, 0.1")
    assert (windows["token_k1"].lower, windows["token_k3"].lower) == (0.8, None)
    assert parse_rs_thresholds(["token_k2", "seq_max_k3"], 0.2)["seq_max_k3"].upper == 0.2


def test_a_value_on_a_bound_is_kept_and_not_counted_outside():
    same = torch.zeros(2, 2, dtype=torch.float64)
    mask = torch.ones(2, 2).long()
    for option in ("token_k1", "seq_mean_k1"):
        for window in ("1_2", "0.5_1"):
            _, kept, metrics = run(same, same, mask, rollout_rs=option, rollout_rs_threshold=window)
            assert kept.sum() == 4
            outside = [v for n, v in metrics.items() if "fraction" in n]
            assert outside == [0] * len(outside)
    for level in correction.LEVELS:
        for window in (1.0, "1_2", "0.5_1"):
            weights, _, metrics = run(same, same, mask, level, window)
            assert (weights == 1).all()
            outside = [v for n, v in metrics.items() if "fraction" in n or "oob" in n]
            assert outside == [0] * len(outside)


def test_defaults_are_verls():
    old, rollout, mask = torch.tensor([[-1.0, -0.1]]), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2).long()
    weights, _ = correction.compute_rollout_correction_weights(old - rollout, mask)
    assert weights.tolist() == [[1, 2]]
    kept, _ = correction.compute_rollout_rejection_mask(old - rollout, mask, rollout_rs_threshold=1.5)
    assert kept.tolist() == [[1, 0]]
    none, same, _ = run(old, rollout, mask)
    assert none is None
    assert torch.equal(same, mask)
    by_token, _, _ = run(old, rollout, mask, "token")
    assert by_token.tolist() == [[1, 2]]


def test_effective_sample_size_of_tiny_weights_has_the_floor_in_it():
    """All weights 1e-8: the normalised weight is 1/2, so that the reported share is 4."""
    old = torch.full((1, 2), -20.0, dtype=torch.float64)
    rollout = old - math.log(1e-8)
    _, _, metrics = run(old, rollout, torch.ones(1, 2).long(), "token")
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(4, rel=1e-6)


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_keeps_the_thresholds_it_is_given(name):
    lower = {"threshold_lower": 0.25}
    given = {"threshold": 3.0, "is_threshold": 4.0, "rs_threshold": 0.75, **lower}
    taken = {n: given[n] for n in inspect.signature(PRESETS[name]).parameters}
    config = PRESETS[name](**taken)
    if "threshold_lower" in taken:
        assert config.rollout_is_threshold == "0.25_3.0"
    elif taken.keys() & {"threshold", "is_threshold"}:
        assert config.rollout_is_threshold == taken.get("threshold", taken.get("is_threshold"))
    if "rs_threshold" in taken:
        assert config.rollout_rs_threshold == 0.75


IS, RS = "rollout_is_threshold", "rollout_rs_threshold of"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: parse_is_threshold(0), f"{IS} is '0'; bounds must be above 0"),
        (lambda: parse_is_threshold(" -1 "), f"{IS} is ' -1 '; bounds must be above 0"),
        (lambda: parse_is_threshold("x"), f"{IS} is 'x'; it takes a number, or 'lo_hi' where a window is meant"),
        (lambda: parse_is_threshold("0_2"), f"{IS} is '0_2'; bounds must be above 0"),
        (lambda: parse_is_threshold("1_y"), f"{IS} is '1_y'; it takes a number, or 'lo_hi' where a window is meant"),
        (lambda: parse_is_threshold("1_2_3"), f"{IS} is '1_2_3'; a window has one '_' between its two bounds"),
        (
            lambda: parse_is_threshold("5_2"),
            f"{IS} is '5_2', the window [5, 2]; its lower bound exceeds the upper",
        ),
        (lambda: parse_rs_thresholds(["seq_sum_k1"], "0"), f"{RS} seq_sum_k1 is '0'; bounds must be above 0"),
        (
            lambda: parse_rs_thresholds(["seq_sum_k1"], 0.5),
            f"{RS} seq_sum_k1 is '0.5', the window [2, 0.5]; its lower bound exceeds the upper",
        ),
        (lambda: parse_rs_thresholds(["token_k3"], "-2"), f"{RS} token_k3 is '-2'; bounds must be above 0"),
        (
            lambda: parse_rs_thresholds(["token_k2"], "1_2"),
            f"{RS} token_k2 is '1_2'; k2 and k3 take one upper bound, without '_'",
        ),
    ],
)
def test_a_refused_threshold_is_named_and_shown(call, said):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == said
