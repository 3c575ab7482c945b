"""Every estimator against its transcription, the worked examples, and verl's surprises."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.errors import InputError
from labs.registry import estimators
from tests import reference_advantages as ref

CONFIG = {"gamma": 1.0}
torch.set_num_threads(1)
QUICK = settings(max_examples=25, deadline=None)


@st.composite
def batches(draw, min_tokens=2, pairs=False):
    """Lists for the transcriptions: rewards, mask, index, values, log-probabilities and the rest, all float64."""
    rows, width = draw(st.integers(2, 7)), draw(st.integers(1, 6))
    numbers = st.floats(-3, 3, allow_nan=False).map(lambda x: round(x, 3))

    def matrix(elements):
        return draw(st.lists(st.lists(elements, min_size=width, max_size=width), min_size=rows, max_size=rows))

    mask = matrix(st.integers(0, 1))
    if sum(map(sum, mask)) < min_tokens:
        mask[0][0] = mask[1][0] = 1
    index = [f"t{i // 2}" for i in range(rows - rows % 2)] + ["t0"] * (rows % 2)
    if not pairs:
        index = draw(st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows))
    row = st.lists(numbers, min_size=rows, max_size=rows)
    logs = st.floats(-3, -0.05)
    return {
        "r": matrix(numbers), "mask": mask, "index": index, "values": matrix(numbers), "old": matrix(logs),
        "rollout": matrix(logs), "squares": matrix(st.floats(0.3, 1.0)), "weights": matrix(st.floats(0.2, 2.0)),
        "baselines": draw(row), "bootstrap": draw(row),
        "cut": draw(st.lists(st.booleans(), min_size=rows, max_size=rows)),
        "gamma": draw(st.sampled_from([0.0, 0.9, 1.0])), "lam": draw(st.sampled_from([0.0, 0.95, 1.0])),
    }  # fmt: skip


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


def run(name, b, **more):
    """The lab's entry on a drawn batch, in float64 with an int64 mask."""
    return estimators[name](
        token_level_rewards=tensor(b["r"]),
        response_mask=torch.tensor(b["mask"]),
        index=np.array(b["index"], dtype=object),
        **more,
    )


def plain(x):
    return x.tolist() if isinstance(x, torch.Tensor) else x


def close(got, want, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(plain(got)), np.asarray(plain(want)), rtol=tolerance, atol=tolerance)


GROUPED = {
    "grpo": ref.grpo,
    "grpo_vectorized": ref.grpo,
    "dr_grpo": lambda r, m, i: ref.grpo(r, m, i, normalise=False),
    "grpo_population": ref.grpo_population,
    "rloo": ref.rloo,
    "rloo_vectorized": lambda r, m, i: ref.rloo(r, m, i, lone="zero"),
    "trl_rloo": lambda r, m, i: ref.rloo(r, m, i, lone="zero"),
    "opo": ref.opo,
    "gpg": ref.gpg,
    "reinforce_plus_plus_baseline": ref.reinforce_plus_plus_baseline,
    "gdpo": ref.gdpo,
}


def contrast(b):
    """Scores rounded to a grid, so that no group is equal up to rounding and a spread is never tiny."""
    return b | {"r": [[round(x * 2) / 2 for x in row] for row in b["r"]]}


@pytest.mark.parametrize("name", sorted(GROUPED))
@given(b=batches())
@QUICK
def test_grouped_estimators_are_their_formulas(name, b):
    b = contrast(b)
    advantages, returns = run(name, b)
    # The vectorised forms hold their statistics in float32.
    close(advantages, GROUPED[name](b["r"], b["mask"], b["index"]), 1e-5)
    assert returns is advantages


@given(b=batches(pairs=True), normalise=st.booleans())
@QUICK
def test_passk_is_its_formula(b, normalise):
    b = contrast(b)
    advantages, _ = run("grpo_passk", b, config={"norm_adv_by_std_in_grpo": normalise})
    want = ref.grpo_passk(b["r"], b["mask"], b["index"], normalise=normalise)
    # A tie at the top is worth 0 whoever is called the winner.
    close(advantages, want)


@given(b=batches())
@QUICK
def test_gdpo_places_components_on_the_last_attended_token_and_weights_them(b):
    rows, width = len(b["r"]), len(b["r"][0])
    parts = [[round(x) / 2 for x in b["baselines"]], [float(x > 0) for x in b["bootstrap"]]]
    config = {"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 0.25]}
    attention = torch.ones(rows, 3 + width, dtype=torch.int64)
    advantages, _ = run(
        "gdpo", b, config=config, batch={"prompts": attention[:, :3], "attention_mask": attention},
        non_tensor_batch={"a": np.array(parts[0]), "b": np.array(parts[1])},
    )  # fmt: skip
    assert advantages.dtype == torch.float32
    close(advantages, ref.gdpo(b["r"], b["mask"], b["index"], parts, [1.0, 0.25]), 2e-4)


@given(b=batches())
@QUICK
def test_gae_is_its_formula_whitened(b):
    advantages, returns = run("gae", b, values=tensor(b["values"]), gamma=b["gamma"], lam=b["lam"])
    want = ref.gae(b["r"], b["values"], b["mask"], b["gamma"], b["lam"])
    close(returns, np.asarray(want) + np.asarray(b["values"]))
    close(advantages, ref.whiten(want, b["mask"]), 1e-5)


@given(b=batches())
@QUICK
def test_gae_variants_are_their_formulas(b):
    values, gamma, lam = tensor(b["values"]), b["gamma"], b["lam"]
    masked_r, masked_v = ref.times(b["r"], b["mask"]), ref.times(b["values"], b["mask"])
    stepped, returns = run("gae_step", b, values=values, gamma=gamma, lam=lam)
    close(stepped, ref.gae_plain(masked_r, masked_v, gamma, lam))
    close(returns, stepped + tensor(masked_v))
    inside = [[float(any(row[t:])) for t in range(len(row))] for row in b["mask"]]
    ignored, _ = run("gae_ignore", b, values=values, gamma=gamma, lam=lam)
    close(ignored, ref.gae_plain(ref.times(b["r"], inside), ref.times(b["values"], inside), gamma, lam))


@given(b=batches())
@QUICK
def test_truncated_rows_bootstrap_and_terminated_rows_do_not(b):
    behind = [v if cut else 0.0 for v, cut in zip(b["bootstrap"], b["cut"], strict=True)]
    more = {"values": tensor(b["values"]), "truncated": torch.tensor(b["cut"]), "gamma": b["gamma"], "lam": b["lam"]}
    more["bootstrap_values"] = tensor(b["bootstrap"])
    want = ref.times(ref.gae(b["r"], b["values"], b["mask"], b["gamma"], b["lam"], behind), b["mask"])
    advantages, returns = run("gae_truncated", b, **more)
    close(advantages, want)
    close(returns, np.array(want) + np.array(ref.times(b["values"], b["mask"])))
    again, target = run("td_lambda", b, **more)
    close(again, want)
    close(target, returns)


@given(b=batches())
@QUICK
def test_vtrace_is_its_formula(b):
    behind = [v if cut else 0.0 for v, cut in zip(b["bootstrap"], b["cut"], strict=True)]
    advantages, targets = run(
        "vtrace", b, values=tensor(b["values"]), old_log_probs=tensor(b["old"]), rollout_log_probs=tensor(b["rollout"]),
        truncated=torch.tensor(b["cut"]), bootstrap_values=tensor(b["bootstrap"]), gamma=b["gamma"],
        rho_max=1.5, c_max=0.8,
    )  # fmt: skip
    want = ref.vtrace(b["r"], b["values"], b["mask"], b["old"], b["rollout"], b["gamma"], 1.5, 0.8, behind)
    close(advantages, want[0])
    close(targets, want[1])


@given(b=batches())
@QUICK
def test_returns_are_their_formulas(b):
    gamma = b["gamma"]
    for name in ("reinforce_plus_plus", "reinforce_plus_plus_reset", "reward_to_go"):
        advantages, returns = run(name, b, config={"gamma": gamma})
        want = getattr(ref, name)(b["r"], b["mask"], gamma)
        close(advantages, want[0], 1e-5)
        close(returns, want[1])
    advantages, returns = run("remax", b, reward_baselines=tensor(b["baselines"]))
    want = ref.remax(b["r"], b["mask"], b["baselines"])
    close(advantages, want[0])
    close(returns, want[1])


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
@given(b=batches(), tail=st.booleans(), weighted=st.booleans())
@QUICK
def test_optimal_baselines_are_their_formulas(name, b, tail, weighted):
    weights = b["weights"] if weighted else None
    advantages, returns = run(
        name, b, old_log_probs=tensor(b["old"]), sum_pi_squared=tensor(b["squares"]), handle_zero_tail=tail,
        rollout_is_weights=None if weights is None else tensor(weights), epsilon=0.5,
    )  # fmt: skip
    # w may be negative here, so a large epsilon keeps the denominators away from 0.
    want = getattr(ref, name)(b["r"], b["mask"], b["index"], b["old"], b["squares"], weights, tail, 0.5)
    if max(abs(x) for row in want[0] for x in row) < 50:
        close(advantages, want[0])
    close(returns, want[1])


# The worked examples of the course.


def test_gae_worked_example():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.3, 0.4]])
    _, returns = estimators["gae"](rewards, values, torch.ones(1, 3), 1.0, 0.95)
    close((returns - values)[0], [0.7365, 0.6700, 0.6000])
    close(returns[0], [0.9365, 0.97, 1.0])
    advantages, _ = estimators["gae_truncated"](rewards, values, torch.ones(1, 3), gamma=1.0, lam=0.95)
    close(advantages[0], [0.7365, 0.6700, 0.6000])


def test_grpo_and_rloo_worked_examples():
    columns = (torch.tensor([[1.0], [0.0], [0.5]]), torch.ones(3, 1), ["g"] * 3)
    assert [f"{x:.6f}" for x in estimators["grpo"](*columns)[0][:, 0]] == ["0.999998", "-0.999998", "0.000000"]
    close(estimators["rloo"](*columns)[0][:, 0], [0.75, -0.75, 0.0])


def test_reinforce_plus_plus_changed_what_a_tool_reply_does():
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1, 0, 1]])
    both = (rewards, mask, CONFIG)
    carried = estimators["reinforce_plus_plus"](rewards.repeat(2, 1), mask.repeat(2, 1), CONFIG)[1]
    assert carried.tolist() == [[1.0, 0.0, 1.0]] * 2
    assert estimators["reinforce_plus_plus_reset"](*both)[1].tolist() == [[0.0, 1.0, 1.0]]


# verl's surprises, each said in a docstring.


def test_equal_scores_that_a_float_cannot_average_get_a_signal():
    rewards = torch.full((15, 1), 2.3)
    advantages, _ = estimators["grpo"](rewards, torch.ones(15, 1, dtype=torch.int64), ["g"] * 15)
    assert (advantages > 0.18).all()
    assert (advantages < 0.20).all()
    assert (estimators["grpo_population"](rewards, torch.ones(15, 1), ["g"] * 15)[0] == 0).all()
    halves = estimators["grpo"](torch.full((15, 1), 0.5), torch.ones(15, 1), ["g"] * 15)[0]
    assert (halves == 0).all()


@pytest.mark.parametrize(
    ("name", "worth"),
    [("grpo", 3.0), ("gpg", 3.0), ("opo", 3.0), ("rloo", 3.0), ("dr_grpo", 3.0),
     ("rloo_vectorized", 0.0), ("trl_grpo", 0.0), ("trl_rloo", 0.0), ("grpo_population", 0.0)],
)  # fmt: skip
def test_a_lone_row_is_worth_its_score_or_nothing(name, worth):
    advantages, _ = estimators[name](
        token_level_rewards=torch.tensor([[3.0], [5.0], [1.0]]), response_mask=torch.ones(3, 1), index=["a", "b", "b"]
    )
    close(advantages[0, 0], worth, 1e-5)


def test_a_lone_row_stops_passk():
    with pytest.raises(ValueError, match="group 'a' has 1 row"):
        estimators["grpo_passk"](torch.ones(3, 1), torch.ones(3, 1), ["a", "b", "b"], config={})


def test_float64_lone_row_is_divided_by_a_float32_number():
    advantages, _ = estimators["grpo"](torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1), ["a"])
    assert advantages.item() == 1.0 / np.float64(np.float32(1) + np.float32(1e-6))


def test_gae_leaves_whitened_values_on_masked_positions_and_remax_leaves_returns():
    mask = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1]])
    rewards = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    advantages, _ = estimators["gae"](rewards, torch.zeros(2, 4), mask, 1.0, 1.0)
    assert advantages[0, 1] == advantages[0, 2]
    assert advantages[0, 3] < 0  # padding holds whitened 0
    left, _ = estimators["remax"](rewards, torch.tensor([0.5, 0.5]), mask)
    assert left[0].tolist() == [0.5, 1.0, 0.5, 0.0]


def test_gae_spreads_a_nan_from_a_masked_position():
    values = torch.tensor([[0.1, math.nan, 0.2], [0.1, 0.2, 0.3]])
    advantages, returns = estimators["gae"](torch.ones(2, 3), values, torch.tensor([[1, 0, 1], [1, 1, 1]]), 1.0, 1.0)
    assert advantages.isnan().all()
    assert not returns[1].isnan().any()


def test_a_group_without_any_token_is_nan_in_opo_and_zero_elsewhere():
    rewards, mask, index = torch.ones(4, 2), torch.tensor([[0, 0], [0, 0], [1, 1], [1, 0]]), ["a", "a", "b", "b"]
    assert estimators["opo"](rewards, mask, index)[0][:2].isnan().all()
    for name in ("grpo", "rloo", "gpg", "reinforce_plus_plus_baseline"):
        assert (estimators[name](rewards, mask, index)[0][:2] == 0).all()


def test_numeric_labels_merge_in_the_vectorised_form_alone():
    columns = (torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), np.array(["7", "07"], dtype=object))
    close(estimators["grpo"](*columns)[0][:, 0], [1.0, 0.0], 1e-5)
    close(estimators["grpo_vectorized"](*columns)[0][:, 0], [math.sqrt(0.5), -math.sqrt(0.5)], 1e-5)


def test_negative_labels_raise_in_the_vectorised_form():
    with pytest.raises(IndexError):
        estimators["grpo_vectorized"](torch.ones(2, 1), torch.ones(2, 1), np.array([-1, 0]))


def test_passk_reads_the_flag_from_the_config_and_overwrites_the_argument():
    columns = (torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), ["g", "g"])
    raw, _ = estimators["grpo_passk"](*columns, norm_adv_by_std_in_grpo=True, config={"norm_adv_by_std_in_grpo": False})
    assert raw[:, 0].tolist() == [1.0, 0.0]
    with pytest.raises(AssertionError):
        estimators["grpo_passk"](*columns)


def test_gpg_overwrites_alpha_and_counts_zero_scores():
    columns = (torch.tensor([[1.0], [0.0], [0.0], [0.0]]), torch.ones(4, 1), ["a", "a", "b", "b"])
    advantages, _ = estimators["gpg"](*columns, alpha=100.0, f_norm=2.0)
    close(advantages[:, 0], [1.0, -1.0, 0.0, 0.0])  # 4 rows / 1 non-zero * 0.5 / f_norm


def test_rewards_on_masked_positions_count_in_sums_and_are_lost_in_recursions():
    mask, moved = torch.tensor([[1, 0], [1, 0]]), torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    assert estimators["rloo"](moved, mask, ["g", "g"])[0][:, 0].tolist() == [4.0, -4.0]
    assert (estimators["reinforce_plus_plus"](moved, mask, CONFIG)[1] == 0).all()
    assert (estimators["remax"](moved, torch.zeros(2), mask)[1] == 0).all()


def test_reinforce_plus_plus_weighs_long_rows_more():
    rewards, mask = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    advantages, _ = estimators["reinforce_plus_plus_baseline"](rewards, mask, ["g", "g"])
    close((advantages * mask).sum(), 0.0, 1e-5)
    assert advantages[0, 0].abs() < advantages[1, 0].abs()


def test_the_zero_tail_of_otb_is_a_token_count_taken_as_a_column():
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1]])
    columns = (torch.tensor([[0.0, 1.0, 0, 0], [0, 0, 0, 1.0]]), mask, ["g", "g"])
    more = {"old_log_probs": torch.full((2, 4), -1.0), "sum_pi_squared": torch.full((2, 4), 0.5)}
    tail, returns = estimators["optimal_token_baseline"](*columns, **more)
    whole, _ = estimators["optimal_token_baseline"](*columns, **more, handle_zero_tail=False)
    # The second row has 3 tokens against 2: from column 2 on its baseline is gone, though that is its second token.
    assert tail[1].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert whole[1, 2:].abs().max() < 1e-6
    by_token, _ = estimators["tir_optimal_token_baseline"](*columns, **more)
    assert by_token[1, 3] == returns[1, 3]
    assert abs(by_token[1, 2]) < 1e-6


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_reset", "gdpo"])
def test_one_token_in_the_batch_cannot_be_whitened(name):
    more = {"values": torch.zeros(2, 2)} if name == "gae" else {}
    with pytest.raises(ValueError, match="at least 2"):
        estimators[name](
            token_level_rewards=torch.ones(2, 2), response_mask=torch.tensor([[1, 0], [0, 0]]), index=["a", "a"],
            config=CONFIG if "plus" in name else None, **more,
        )  # fmt: skip


def test_float16_stays_float16():
    rewards = torch.tensor([[1.0], [0.0], [0.5]], dtype=torch.float16)
    for name in ("grpo", "rloo", "opo", "gpg"):
        assert estimators[name](rewards, torch.ones(3, 1, dtype=torch.int64), ["g"] * 3)[0].dtype == torch.float16


# Bad input.

GOOD = {
    "token_level_rewards": torch.ones(4, 3), "response_mask": torch.ones(4, 3, dtype=torch.int64),
    "index": ["a", "a", "b", "b"], "values": torch.ones(4, 3), "reward_baselines": torch.ones(4), "config": CONFIG,
    "old_log_probs": torch.zeros(4, 3), "rollout_log_probs": torch.zeros(4, 3), "sum_pi_squared": torch.ones(4, 3),
    "truncated": torch.zeros(4, dtype=torch.bool), "bootstrap_values": torch.zeros(4), "batch": None,
    "non_tensor_batch": None,
}  # fmt: skip


def call_with(name, **bad):
    function = estimators[name]
    names = ["token_level_rewards", "response_mask", "config", *function.needs]
    return function(**{n: bad.get(n, GOOD[n]) for n in names})


@pytest.mark.parametrize("name", sorted(estimators))
def test_bad_input_is_named(name):
    call_with(name)
    wrong = {
        "token_level_rewards": [torch.ones(4, 2), torch.ones(4, 3, dtype=torch.int64)],
        "response_mask": [torch.ones(0, 3), torch.ones(4, 0), torch.ones(4)],
        "values": [torch.ones(4, 2)], "old_log_probs": [torch.ones(3, 3)], "sum_pi_squared": [torch.ones(4, 1)],
        "rollout_log_probs": [torch.ones(4)], "reward_baselines": [torch.ones(3)], "index": [["a", "b"]],
        "truncated": [torch.zeros(3, dtype=torch.bool)], "bootstrap_values": [torch.zeros(4, 3)],
    }  # fmt: skip
    used = {"token_level_rewards", "response_mask", *estimators[name].needs}
    for column in sorted(used & set(wrong)):
        for bad in wrong[column]:
            with pytest.raises(InputError) as raised:
                call_with(name, **{column: bad})
            assert isinstance(raised.value, RuntimeError)
            assert column in str(raised.value) or "response_mask" in str(raised.value)


def test_gae_refuses_a_bool_mask():
    with pytest.raises(RuntimeError, match="bool"):
        call_with("gae", response_mask=torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="bool"):
        call_with("reinforce_plus_plus", response_mask=torch.ones(4, 3, dtype=torch.bool))


def test_gdpo_names_what_is_missing():
    batch = {"prompts": torch.ones(4, 1), "attention_mask": torch.ones(4, 4, dtype=torch.int64)}
    parts = {"acc": np.ones(4)}
    with pytest.raises(AssertionError, match="gdpo_reward_keys"):
        call_with("gdpo", config={}, batch=batch, non_tensor_batch=parts)
    with pytest.raises(AssertionError, match="'nope'"):
        call_with("gdpo", config={"gdpo_reward_keys": ["nope"]}, batch=batch, non_tensor_batch=parts)
    few = {"gdpo_reward_keys": ["acc", "acc"], "gdpo_reward_weights": [1.0]}
    with pytest.raises(IndexError, match="1 numbers for 2"):
        call_with("gdpo", config=few, batch=batch, non_tensor_batch=parts)


def test_truncation_without_a_value_is_refused():
    with pytest.raises(InputError, match="bootstrap_values is None"):
        estimators["gae_truncated"](torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2), torch.tensor([True, False]))


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_plus_plus_reset"])
def test_returns_need_a_config_or_gamma(name):
    with pytest.raises(AssertionError, match="config"):
        estimators[name](torch.ones(2, 2), torch.ones(2, 2))
    a = estimators[name](torch.ones(2, 2), torch.ones(2, 2), gamma=0.5)
    b = estimators[name](torch.ones(2, 2), torch.ones(2, 2), {"gamma": 0.5})
    assert torch.equal(a[1], b[1])


@pytest.mark.parametrize("name", ["gae", "gae_step", "gae_ignore", "gae_truncated", "td_lambda", "vtrace"])
def test_gamma_and_lambda_are_read_from_the_config_where_no_argument_says(name):
    config = {"gamma": 0.5, "lam": 0.25}
    by_config = call_with(name, config=config)
    function = estimators[name]
    explicit = {k: v for k, v in config.items() if k in inspect.signature(function).parameters}
    by_argument = function(
        **{n: GOOD[n] for n in ("token_level_rewards", "response_mask", *function.needs)}, **explicit
    )
    assert torch.equal(by_config[1], by_argument[1])
    assert not torch.equal(by_config[1], call_with(name)[1])


@pytest.mark.parametrize("name", ["gae_step", "gae_ignore", "gae_truncated"])
def test_whitening_on_request_is_verls(name):
    from labs.masked import masked_whiten

    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4, 3, generator=generator)
    mask = torch.tensor([[1, 0, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    columns = {"token_level_rewards": values * 2, "values": values, "response_mask": mask}
    raw, _ = estimators[name](**columns)
    white, _ = estimators[name](**columns, whiten=True)
    assert torch.equal((white * mask), masked_whiten(raw, mask) * mask)


def test_gae_ignore_counts_a_reward_between_choices_and_loses_one_behind_the_last():
    mask, values = torch.tensor([[1, 0, 1, 0]]), torch.zeros(1, 4)
    for place, expected in ((1, [1.0, 0.0]), (2, [1.0, 1.0]), (3, [0.0, 0.0])):
        rewards = torch.zeros(1, 4)
        rewards[0, place] = 1.0
        advantages, _ = estimators["gae_ignore"](
            token_level_rewards=rewards, values=values, response_mask=mask, gamma=1.0, lam=1.0
        )
        assert advantages[0, [0, 2]].tolist() == expected
    assert estimators["gae_ignore"].meta["properties"].reward_on_masked == "between choices"
