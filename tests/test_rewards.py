"""Reward entries: declared behaviour, worked examples, placement, and what they refuse."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labs import scores as stage
from labs.batch import TokenBatch
from labs.errors import InputError
from labs.registry import rewards

f64 = torch.float64


def batch_of(lengths, width=None, prompt=2, **columns):
    """A batch whose rows attend `lengths` response tokens, all chosen by the policy."""
    width = width or max(*lengths, 1)
    attended = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    return TokenBatch(
        {
            "responses": torch.zeros(len(lengths), width, dtype=torch.int64),
            "attention_mask": torch.cat([torch.ones(len(lengths), prompt).long(), attended], dim=1),
            "response_mask": attended,
            "loss_mask": attended,
            **columns,
        }
    )


def test_every_entry_is_listed_and_says_what_it_needs():
    assert {"naive", "dapo", "gar", "soft_overlong"} <= set(rewards)
    for name in rewards:
        entry = rewards[name]
        assert isinstance(entry.needs, tuple)
        assert entry.meta["properties"]["per"] == "row"
        assert rewards.describe(name)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.data())
def test_placement_conserves_the_score(lengths, data):
    values = data.draw(st.lists(st.floats(-2, 2, width=32), min_size=len(lengths), max_size=len(lengths)))
    batch = batch_of(lengths, width=8)
    done, extra = stage.score(batch, torch.tensor(values, dtype=f64))
    assert done["rm_scores"].dtype == torch.float32
    torch.testing.assert_close(done["rm_scores"].sum(1), torch.tensor(values))
    for row, n, value in zip(done["rm_scores"].tolist(), lengths, values, strict=True):
        assert row[n - 1] == value
    assert extra["acc"].tolist() == values
    assert "rm_scores" not in batch


def test_a_score_can_sit_on_a_tool_token():
    batch = batch_of([3]).replace(response_mask=torch.tensor([[1, 0, 0]]))
    assert stage.assemble_rm_scores(batch, [0.5]).tolist() == [[0, 0, 0.5]]
    assert stage.stream_rm_scores(torch.tensor([1, 1, 0]), 0.75).tolist() == [0, 0, 0.75]
    with pytest.raises(InputError, match="at least 1 token"):
        stage.stream_rm_scores(torch.zeros(0), 1.0)
    with pytest.raises(InputError, match=r"\(2,\)"):
        stage.assemble_rm_scores(batch, [0.5, 0.5])


def test_tool_rewards_are_reported_and_never_added_by_themselves():
    given_ = [[0.5, 0.25], []]
    zero = torch.zeros(2, dtype=f64)
    shaped, extra = rewards["naive"](scores=zero, tool_rewards=given_)
    assert shaped.tolist() == [0, 0]
    assert extra["tool_rewards"] == given_
    added, extra = stage.shape(batch_of([1, 2]), zero, [("tool_sum", {"weight": 2.0})], tool_rewards=given_)
    assert added.tolist() == [1.5, 0]
    assert extra["tool_reward_sum"].tolist() == [1.5, 0]
    with pytest.raises(InputError, match="2 rows"):
        rewards["tool_sum"](scores=torch.zeros(3), tool_rewards=given_)


def test_optional_columns_reach_the_entry_and_stray_ones_are_refused():
    batch, ones = batch_of([1, 2]), torch.ones(2, dtype=f64)
    _, extra = stage.shape(batch, ones, tool_rewards=[[1.0], []])
    assert extra["tool_rewards"] == [[1.0], []]
    grades = {"quality": torch.tensor([1.0, 0.5], dtype=f64), "index": [0, 0]}
    leaked, _ = stage.shape(batch, ones, [("gar", {})], **grades, leaked=torch.tensor([True, False]))
    assert leaked.tolist() == [-0.5, 0.5]
    by_uid, _ = stage.shape(batch.replace(uid=np.array(["a", "b"])), ones, [("gar", {})], quality=grades["quality"])
    assert by_uid.tolist() == [0, 0]
    with pytest.raises(InputError, match="naive takes turns"):
        stage.shape(batch, ones, turns=torch.ones(2))
    with pytest.raises(InputError, match="row 1 is NaN"):
        stage.shape(batch, torch.tensor([0.0, math.nan]))
    with pytest.raises(InputError, match=r"\(3,\)"):
        stage.shape(batch, torch.ones(3))


def test_a_chain_runs_in_order_and_names_what_lacks():
    batch = batch_of([2, 9], width=10, truncated=torch.tensor([False, True]))
    options = {"max_completion_len": 8, "soft_punish_cache": 4}
    ones = torch.ones(2, dtype=f64)
    first, _ = stage.shape(batch, ones, [("soft_overlong", options), ("stop_properly", {"coefficient": 0.5})])
    second, _ = stage.shape(batch, ones, [("stop_properly", {"coefficient": 0.5}), ("soft_overlong", options)])
    assert (first.tolist(), second.tolist()) == ([1, 0], [1, -0.5])
    with pytest.raises(InputError, match="quality"):
        stage.shape(batch, ones, [("gar", {})], index=["a", "a"])
    with pytest.raises(InputError, match="coeficient"):
        stage.shape(batch, ones, [("stop_properly", {"coeficient": 0.5})])


lengths_ = st.lists(st.integers(0, 40), min_size=1, max_size=8)


@given(lengths_, st.integers(1, 20), st.floats(0.1, 2))
def test_overlong_penalties(lengths, buffer, factor):
    limit = 20
    scores, n = torch.zeros(len(lengths), dtype=f64), torch.tensor(lengths)
    config = {"enable": True, "len": buffer, "penalty_factor": factor, "log": True}
    verl, extra = rewards["dapo"](scores=scores, response_lengths=n, max_resp_len=limit, overlong_buffer_cfg=config)
    trl, _ = rewards["soft_overlong"](
        scores=scores, response_lengths=n, max_completion_len=limit, soft_punish_cache=buffer, penalty_factor=factor
    )
    for i, length in enumerate(lengths):
        want = min(-(length - (limit - buffer)) / buffer * factor, 0)
        assert verl[i].item() == pytest.approx(want)
        assert trl[i].item() == pytest.approx(max(want, -factor))
    assert torch.equal(extra["overlong"], verl < 0)


def test_dapo_refuses_and_ignores():
    one, n = torch.ones(1), torch.tensor([3])
    for config, limit, words in [
        ({"enable": True, "len": 2}, None, "max_resp_len is None"),
        ({"enable": True, "len": 0}, 8, "must be above 0"),
        ({"enable": True}, 8, "is None"),
        ({"enable": True, "len": 9}, 8, "is below"),
    ]:
        with pytest.raises(AssertionError, match=words):
            rewards["dapo"](scores=one, response_lengths=n, max_resp_len=limit, overlong_buffer_cfg=config)
    same, extra = rewards["dapo"](scores=one, response_lengths=n, overlong_buffer_cfg={"enable": False, "len": 0})
    assert torch.equal(same, one)
    assert set(extra) == {"acc"}
    short, _ = rewards["dapo"](
        scores=one, response_lengths=n, max_resp_len=8,
        overlong_buffer_cfg={"enable": True, "len": 2, "penalty_factor": -1.0},
    )  # fmt: skip
    assert short.item() == 1 - 1.5
    with pytest.raises(InputError, match=r"0\.\.5"):
        rewards["soft_overlong"](scores=one, response_lengths=n, max_completion_len=5, soft_punish_cache=6)
    assert rewards["soft_overlong"](scores=one, response_lengths=n, max_completion_len=2, soft_punish_cache=0)[0] == 0


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(1, 4))
def test_repetition(ids, n):
    row = torch.tensor([ids + [9] * (12 - len(ids))])
    shaped, _ = rewards["repetition"](
        scores=torch.zeros(1, dtype=f64), responses=row, response_lengths=torch.tensor([len(ids)]), ngram_size=n
    )
    grams = [tuple(ids[i : i + n]) for i in range(len(ids)) if i + n <= len(ids)]
    want = -(1 - len(set(grams)) / len(grams)) if grams else 0
    assert shaped.item() == pytest.approx(want)
    assert -1 < shaped.item() <= 0


def test_repetition_and_stop_properly_refuse():
    row = {"scores": torch.zeros(1), "responses": torch.zeros(1, 2).long(), "response_lengths": torch.tensor([2])}
    with pytest.raises(InputError, match="not be positive"):
        rewards["repetition"](**row, max_penalty=0.5)
    with pytest.raises(InputError, match="at least 1"):
        rewards["repetition"](**row, ngram_size=0)
    cut = {"scores": torch.tensor([1.0, 1.0]), "truncated": torch.tensor([True, False])}
    assert rewards["stop_properly"](**cut, coefficient=-0.25)[0].tolist() == [-0.25, 1]
    assert rewards["stop_properly"](**cut)[0].tolist() == [0, 1]
    for bad in (1.5, math.nan):
        with pytest.raises(InputError, match="0 to 1 scales"):
            rewards["stop_properly"](**cut, coefficient=bad)


def test_kimi_length_worked():
    shaped, _ = rewards["kimi_length"](
        scores=torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], dtype=f64),
        index=["a", "a", "a", "a", "b", "b"],
        response_lengths=torch.tensor([10, 30, 10, 20, 5, 5]),
    )
    assert shaped.tolist() == [1.5, 0.5, 0.0, 0.0, 1.0, 0.0]


def test_linear_length_worked():
    columns = {
        "index": [0, 0, 1, 1],
        "action_lengths": torch.tensor([2, 4, 2, 4]),
        "response_lengths": torch.tensor([4, 4, 2, 4]),
        "turns": torch.tensor([1, 2, 1, 1]),
    }
    shaped, extra = rewards["linear_length"](scores=torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=f64), **columns)
    # group 0: pass rate 1/2; costs .25*1/2 + .1*1 + .1*1/2 and .25*1 + 0 + .1*1; group 1 never passes
    torch.testing.assert_close(extra["length_cost"], torch.tensor([0.1375, 0.175, 0, 0], dtype=f64))
    torch.testing.assert_close(shaped, torch.tensor([0.8625, -0.175, 0, 0], dtype=f64))
    del columns["turns"]
    _, extra = rewards["linear_length"](scores=torch.ones(4, dtype=f64), **columns)
    torch.testing.assert_close(extra["length_cost"], torch.tensor([0.225, 0.25, 0.125, 0.25], dtype=f64))


def test_success_length_worked():
    row = {"index": [0] * 4, "response_lengths": torch.tensor([10, 10, 19, 40])}
    scores = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=f64)
    shaped, _ = rewards["success_length"](scores=scores, **row, power=2.0)
    # l* = 10; 19 is 0.9 over, (0.9 - 0.1) / 0.9 squared, times 0.5
    torch.testing.assert_close(shaped, scores - torch.tensor([0, 0, 0.5 * (0.8 / 0.9) ** 2, 0], dtype=f64))
    hard, _ = rewards["success_length"](scores=scores, **row, pass_rate=0.8)
    assert torch.equal(hard, scores)
    for bad in ({"power": 0.5}, {"dead_zone": 1.0}, {"dead_zone": -0.1}):
        with pytest.raises(InputError, match="dead_zone < saturation"):
            rewards["success_length"](scores=scores, **row, **bad)


def gar(scores, quality, index=None, **options):
    return rewards["gar"](
        scores=torch.tensor(scores, dtype=f64),
        index=index or [0] * len(scores),
        quality=torch.tensor(quality, dtype=f64),
        **options,
    )


def test_gar_worked_example_of_the_report():
    plain, extra = gar([1, 1, 0, 0], [1, 0.5, 1, 1])
    torch.testing.assert_close(plain, torch.tensor([2 / 3, 1 / 3, -0.5, -0.5], dtype=f64))
    assert extra["gar_lambda"].tolist() == pytest.approx([4 / 3] * 4)
    capped, _ = gar([1, 1, 0, 0], [1, 0.5, 1, 1], cap=1.2)
    torch.testing.assert_close(capped, torch.tensor([0.625, 0.325, -0.475, -0.475], dtype=f64))
    assert capped[:2].sum() == pytest.approx(0.95)


groups = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.floats(0.1, 1)), min_size=1, max_size=10)


@given(groups, st.sampled_from([None, 1.1]))
def test_gar_properties(rows, cap):
    index, passed, quality = (list(x) for x in zip(*rows, strict=True))
    got, _ = gar([float(p) for p in passed], quality, index, cap=cap)
    for g in set(index):
        inside = [i for i in range(len(rows)) if index[i] == g]
        winners = [i for i in inside if passed[i]]
        assert got[inside].sum().item() == pytest.approx(0, abs=1e-9)
        share = len(winners) / len(inside)
        if share in (0, 1):
            assert (got[inside] == 0).all()
            continue
        order = sorted(winners, key=lambda i: quality[i])
        assert all(got[a] <= got[b] + 1e-12 for a, b in itertools.pairwise(order))
        if cap is None:
            assert got[winners].sum().item() == pytest.approx(len(winners) * (1 - share))
            assert all(got[i].item() == pytest.approx(-share) for i in inside if not passed[i])
        else:
            assert all(got[i] >= -share - 1e-12 for i in inside if not passed[i])


def test_gar_constant_quality_changes_nothing_and_unusable_grades_fall_back():
    same, _ = gar([1, 1, 0, 0], [0.3, 0.3, 1, 1])
    torch.testing.assert_close(same, torch.tensor([0.5, 0.5, -0.5, -0.5], dtype=f64))
    fallback, extra = gar([1, 1, 0, 0], [0.3, math.nan, math.nan, 7.0])
    torch.testing.assert_close(fallback, same)
    assert extra["gar_lambda"].isnan().all()
    leaked, _ = gar([1, 1, 0, 0], [1, 0.5, 1, 1], leaked=torch.tensor([True, False, False, False]))
    torch.testing.assert_close(leaked, torch.tensor([-0.25, 0.75, -0.25, -0.25], dtype=f64))
    for bad in ([1, 0, 1, 1], [1, 1.5, 1, 1]):
        with pytest.raises(InputError, match="outside"):
            gar([1, 1, 0, 0], bad)
    with pytest.raises(InputError, match="cap is 0"):
        gar([1, 0], [1, 1], cap=0)


def test_gar_expected_gradient_leaves_the_failing_arm_alone():
    """Three arms, good pass 0.2, poor pass 0.3 (f = 0.5), fail 0.5; every group of four enumerated."""
    probability, reward, grade = [0.2, 0.3, 0.5], [1.0, 1.0, 0.0], [1.0, 0.5, 1.0]
    expected = {name: torch.zeros(3, dtype=f64) for name in ("plain", "gar", "capped")}
    for arms in torch.cartesian_prod(*[torch.arange(3)] * 4).tolist():
        weight = math.prod(probability[a] for a in arms)
        r, f = [reward[a] for a in arms], [grade[a] for a in arms]
        score = torch.eye(3, dtype=f64)[arms] - torch.tensor(probability, dtype=f64)
        for name, advantage in (
            ("plain", gar(r, [1.0] * 4)[0]),
            ("gar", gar(r, f)[0]),
            ("capped", gar(r, f, cap=1.2)[0]),
        ):
            expected[name] += weight * (advantage[:, None] * score).mean(0)
    want = {
        "plain": [0.075, 0.1125, -0.1875],
        "gar": [0.087675, 0.099825, -0.1875],
        "capped": [0.0847875, 0.08325, -0.1680375],
    }
    for name, values in want.items():
        torch.testing.assert_close(expected[name], torch.tensor(values, dtype=f64), rtol=0, atol=1e-7)
