"""verl's metrics against loops, declared ranges, the two aggregators, and the bootstrap without global state."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labs import verl_metrics as vm
from labs.batch import TokenBatch
from labs.errors import InputError
from labs.metrics import Metric, by_name
from tests import reference_metrics as loops

DECLARED = by_name(vm.METRICS)
f64 = torch.float64


@st.composite
def batches(draw):
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 5))

    def matrix(low, high):
        cells = st.lists(st.floats(low, high), min_size=width, max_size=width)
        return torch.tensor(draw(st.lists(cells, min_size=rows, max_size=rows)), dtype=f64)

    lengths = draw(st.lists(st.integers(0, width), min_size=rows, max_size=rows))
    attended = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    tools = torch.tensor(draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows,
                                       max_size=rows))).long()  # fmt: skip
    prompts = torch.tensor([[0] * (3 - n) + [1] * n for n in (i % 3 + 1 for i in range(rows))])
    return TokenBatch(
        {
            "prompts": torch.zeros(rows, 3).long(),
            "responses": torch.zeros(rows, width).long(),
            "attention_mask": torch.cat([prompts, attended], dim=1),
            "response_mask": attended * tools,
            "token_level_scores": matrix(-2, 2),
            "token_level_rewards": matrix(-2, 2),
            "advantages": matrix(-2, 2),
            "returns": matrix(-2, 2),
            "values": matrix(-2, 2),
            "old_log_probs": matrix(-4, 0),
            "rollout_log_probs": matrix(-4, 0),
            "sum_pi_squared": matrix(0, 1),
            "num_turns": torch.arange(rows) + 1,
            "tool_call_counts": torch.arange(rows),
        }
    )


def check_declared(metrics):
    for name, value in metrics.items():
        assert math.isnan(value) or DECLARED[name].holds(value, slack=1e-6), (name, value)


@given(batches(), st.booleans())
def test_data_metrics_equal_the_loops(batch, use_critic):
    got = vm.compute_data_metrics(batch, use_critic)
    check_declared(got)
    mask, attended = batch["response_mask"].tolist(), batch["attention_mask"].tolist()
    lengths = [sum(row[3:]) for row in attended]
    present = [i for i, n in enumerate(lengths) if n]
    sums = {
        n: [math.fsum(batch[n][i].tolist()) for i in present] for n in ("token_level_scores", "token_level_rewards")
    }
    want = {
        "critic/score": sums["token_level_scores"],
        "critic/rewards": sums["token_level_rewards"],
        "critic/advantages": loops.valid(batch["advantages"].tolist(), mask),
        "critic/returns": loops.valid(batch["returns"].tolist(), mask),
        "response_length": lengths,
        "response_length_non_aborted": [lengths[i] for i in present],
        "prompt_length": [sum(row[:3]) for row in attended],
        "num_turns": (torch.arange(batch.rows) + 1).tolist(),
    }
    if use_critic:
        want["critic/values"] = loops.valid(batch["values"].tolist(), mask)
        explained = loops.explained_variance(want["critic/returns"], want["critic/values"])
        assert got["critic/vf_explained_var"] == pytest.approx(explained, rel=1e-6, abs=1e-6, nan_ok=True)
    for name, values in want.items():
        found = [got[f"{name}/{how}"] for how in ("mean", "max", "min")]
        assert found == pytest.approx(loops.three(values), rel=1e-6, abs=1e-9, nan_ok=True), name
    assert got["response/aborted_ratio"] == pytest.approx(1 - len(present) / batch.rows)
    assert got["response_length/clip_ratio"] == pytest.approx(lengths.count(batch.width) / batch.rows)
    assert ("critic/values/mean" in got) == use_critic


def test_a_batch_padded_to_its_longest_row_always_shows_clipping():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    zero = torch.zeros(2, 3)
    batch = TokenBatch(
        {"prompts": torch.zeros(2, 1).long(), "responses": torch.zeros(2, 3).long(), "response_mask": mask,
         "attention_mask": torch.cat([torch.ones(2, 1).long(), mask], 1), "token_level_scores": zero,
         "token_level_rewards": zero, "advantages": zero, "returns": zero}
    )  # fmt: skip
    metrics = vm.compute_data_metrics(batch, use_critic=False)
    assert metrics["response_length/clip_ratio"] == 0.5
    assert metrics["prompt_length/clip_ratio"] == 1


@given(batches(), st.sampled_from([None, 0.0, 0.7]), st.sampled_from([None, 0.5, 2.0, 0.0]))
def test_variance_proxies_equal_the_loop(batch, norm, weight):
    weights = None
    if weight is not None:
        weights = torch.full((batch.rows, batch.width), weight, dtype=f64)
        weights[:, ::2] = 1.0
        batch = batch.replace(rollout_is_weights=weights)
        weights = weights.tolist()
    got = vm.compute_variance_proxy_metrics(batch, norm)
    check_declared({n: v for n, v in got.items() if n != "variance_proxy/expected_w"})
    want = loops.variance_proxies(
        batch["advantages"].tolist(), batch["old_log_probs"].tolist(), batch["sum_pi_squared"].tolist(),
        batch["response_mask"].tolist(), weights, norm,
    )  # fmt: skip
    names = ("proxy1_signal_strength", "proxy2_total_power", "proxy3_pure_noise", "expected_a_squared", "expected_w")
    assert [got[f"variance_proxy/{n}"] for n in names] == pytest.approx(want, rel=1e-5, abs=1e-6)
    assert vm.compute_variance_proxy_metrics(batch.replace(sum_pi_squared=None)) == {}


def test_w_is_the_squared_norm_of_the_score():
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=f64)
    p = torch.softmax(logits, 0)
    for action in range(3):
        score = torch.eye(3, dtype=f64)[action] - p
        batch = TokenBatch(
            {"response_mask": torch.ones(1, 1).long(), "advantages": torch.ones(1, 1, dtype=f64),
             "old_log_probs": p[action].log().reshape(1, 1), "sum_pi_squared": (p**2).sum().reshape(1, 1)}
        )  # fmt: skip
        metrics = vm.compute_variance_proxy_metrics(batch)
        assert metrics["variance_proxy/expected_w"] == pytest.approx((score**2).sum().item(), rel=1e-7)
        check_declared(metrics)


@given(batches())
def test_debug_metrics_equal_numpy(batch):
    got = vm.calculate_debug_metrics(batch)
    mask = batch["response_mask"].bool().numpy()
    a, b = (np.exp(batch[n].numpy())[mask] for n in ("old_log_probs", "rollout_log_probs"))
    check_declared(got)
    assert got["training/rollout_probs_diff_valid"] == (len(a) > 0)
    if len(a) > 1:
        gap = np.abs(a - b)
        assert got["training/rollout_probs_diff_mean"] == pytest.approx(gap.mean(), abs=1e-12)
        assert got["training/rollout_probs_diff_std"] == pytest.approx(gap.std(ddof=1), abs=1e-9)
        if a.std() > 1e-6 and b.std() > 1e-6:
            pearson = got["training/rollout_actor_probs_pearson_corr"]
            assert pearson == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-6)


def test_debug_metrics_choose_their_mask():
    columns = {
        "responses": torch.zeros(1, 2).long(),
        "rollout_log_probs": torch.tensor([[0.5, 0.25]]).log(),
        "old_log_probs": torch.tensor([[0.4, 0.25]]).log(),
    }
    with_tail = TokenBatch(
        {**columns, "prompts": torch.zeros(1, 1).long(), "attention_mask": torch.tensor([[1, 1, 0]])}
    )
    assert vm.calculate_debug_metrics(with_tail)["training/rollout_probs_diff_mean"] == pytest.approx(0.1)
    assert vm.calculate_debug_metrics(TokenBatch(columns))["training/rollout_probs_diff_mean"] == pytest.approx(0.05)


def test_off_policy_metrics():
    versions = torch.tensor([[3, -1, 5], [4, 4, -1], [-1, -1, -1]])
    metrics = vm.compute_off_policy_metrics(versions, global_steps=7)
    check_declared(metrics)
    prefix = "training/off_policy/trajectory"
    assert [metrics[f"{prefix}_spans/{h}"] for h in ("mean", "max", "min")] == [2, 3, 1]
    assert [metrics[f"{prefix}_staleness/{h}"] for h in ("mean", "max", "min")] == [1.5, 2, 1]
    assert [metrics[f"{prefix}_staleness_worst/{h}"] for h in ("mean", "max", "min")] == [2.5, 3, 2]


def test_timing_and_throughput():
    batch = TokenBatch(
        {"prompts": torch.zeros(1, 2).long(), "responses": torch.zeros(1, 3).long(),
         "attention_mask": torch.tensor([[0, 1, 1, 1, 0]])}
    )  # fmt: skip
    timing = {"gen": 2.0, "adv": 3.0, "step": 6.0}
    metrics = vm.compute_timing_metrics(batch, timing)
    assert metrics == {
        "timing_s/gen": 2, "timing_s/adv": 3, "timing_s/step": 6,
        "timing_per_token_ms/gen": 1000, "timing_per_token_ms/adv": 1000,
    }  # fmt: skip
    assert vm.compute_throughput_metrics(batch, timing, 2)["perf/throughput"] == 3 / 12
    for bad, gpus in (({}, 1), (timing, 0)):
        with pytest.raises(InputError, match="n_gpus"):
            vm.compute_throughput_metrics(batch, bad, gpus)


values_ = st.lists(st.floats(-2, 2), min_size=2, max_size=5)


@given(values_, st.integers(1, 3))
def test_bootstrap_is_close_to_all_subsets_and_leaves_numpy_alone(values, size):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    [(best, best_std), (mean, _)] = vm.bootstrap_metric(values, size, [np.max, np.mean])
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    tops = [max(subset) for subset in itertools.product(values, repeat=size)]
    spread = np.std(tops) / math.sqrt(1000)
    assert abs(best - np.mean(tops)) <= 5 * spread + 1e-9
    assert abs(mean - np.mean(values)) <= 5 * np.std(values) / math.sqrt(1000 * size) + 1e-9
    assert 0 <= best_std <= (max(values) - min(values)) / 2 + 1e-9
    assert vm.bootstrap_metric(values, size, [np.max]) == [(best, best_std)]


def test_majority():
    rows = [{"p": "b", "v": 0.1}, {"p": "a", "v": 0.2}, {"p": "a", "v": 0.3}, {"p": "b", "v": 0.4}]
    assert vm.calc_maj_val(rows, "p", "v") == 0.1
    assert vm.calc_maj_val(rows[1:], "p", "v") == 0.2
    for data, size in (([], 1), ([1], 0)):
        with pytest.raises(InputError, match="bootstrap needs"):
            vm.bootstrap_metric(data, size, [np.max])


def test_validation_metrics():
    sources, uids = ["s"] * 5 + ["t"], ["a", "a", "a", "b", "b", "c"]
    infos = {"acc": [1, 0, 1, 1, None, 0.5], "pred": list("xyxzzz"), "note": ["n"] * 6}
    result = vm.process_validation_metrics(sources, uids, infos)
    assert result["t"] == {"acc": {"mean@1": 0.5}}
    assert set(result["s"]) == {"acc"}
    acc = result["s"]["acc"]
    assert acc["mean@3"] == pytest.approx(2 / 3)
    assert acc["mean@1"] == 1
    assert acc["std@3"] == pytest.approx(np.std([1, 0, 1]))
    assert acc["worst@2/mean"] <= acc["mean@3"] <= acc["best@2/mean"] <= acc["best@3/mean"] <= 1
    assert acc["maj@3/mean"] > acc["mean@3"]
    assert "maj@1/mean" not in acc
    with pytest.raises(InputError, match="sample_uids has 5"):
        vm.process_validation_metrics(sources, uids[:5], infos)
    with pytest.raises(InputError, match="pred has 5"):
        vm.process_validation_metrics(sources, uids, {"pred": list("xyxzz")})


def test_missing_sessions_count_as_failures_where_accuracy_is_reported():
    result = vm.process_validation_metrics(
        ["s", "s", "r"], ["a", "a", "a"], {"acc": [1, 1, None], "reward": [1, 1, 1]},
        expected_acc_counts={("s", "a"): 4, ("s", "gone"): 2, ("r", "a"): 4},
    )  # fmt: skip
    assert result["s"]["acc"]["mean@4"] == 0.5
    assert result["s"]["acc"]["mean@2"] == 0
    assert result["s"]["acc_success_only"]["mean@2"] == 1
    assert set(result["r"]) == {"reward"}


STEPS = [
    ({"a": 1.0, "x/max": 5.0, "x/min": 5.0, "n/total": 2, "opt/lr": 0.1, "on": True, "text": "t",
      "training/off_policy/evicted_samples": 1, "training/off_policy/evicted_samples_staleness/mean": 8.0,
      "max/mean": 1.0, "t": torch.tensor(2.0), "wide": torch.zeros(2), "np": np.float32(1.0)}, 1),
    ({"a": 4.0, "x/max": 3.0, "x/min": 3.0, "n/total": 3, "opt/lr": 0.2, "on": False, "text": "t",
      "training/off_policy/evicted_samples": 3, "training/off_policy/evicted_samples_staleness/mean": 4.0,
      "max/mean": 2.0, "t": torch.tensor(4.0), "wide": torch.zeros(2), "np": np.float32(3.0)}, 3),
]  # fmt: skip


def merged(aggregator):
    for metrics, count in STEPS:
        aggregator.add_step_metrics(metrics, count)
    return aggregator.get_aggregated_metrics()


def test_the_two_aggregators_disagree_where_documented():
    v1, asynchronous = merged(vm.MetricsAggregator()), merged(vm.FullyAsyncMetricsAggregator(1))
    staleness = "training/off_policy/evicted_samples"
    assert v1 == {
        "a": 3.25, "x/max": 5, "x/min": 3, "n/total": 5, "opt/lr": 0.2, staleness: 4,
        f"{staleness}_staleness/mean": 5, "max/mean": 2, "t": 3.5, "np": 2.5,
    }  # fmt: skip
    assert asynchronous == pytest.approx({
        "a": 2.5, "x/max": 5, "x/min": 3, "n/total": 5, "opt/lr": 0.15, staleness: 2,
        f"{staleness}_staleness/mean": 6, "max/mean": 1.5, "t": 3.0, "on": 0.5, "np": 2.0,
    })  # fmt: skip


def test_aggregators_start_empty_and_reset():
    for aggregator in (vm.MetricsAggregator(), vm.FullyAsyncMetricsAggregator(1)):
        assert aggregator.get_aggregated_metrics() == {}
        merged(aggregator)
        aggregator.reset()
        assert aggregator.get_aggregated_metrics() == {}
        assert aggregator.step_count == 0
    v1 = vm.MetricsAggregator()
    v1.add_step_metrics({"a": 1.0})
    v1.add_step_metrics({"a": 2.0, "_dapo_filtered_reward_counts": {0.0: 2}})
    v1.add_step_metrics({"_dapo_filtered_reward_counts": {0.0: 1, 1.0: 1}})
    assert v1.get_aggregated_metrics() == {"a": 1.5, "_dapo_filtered_reward_counts": {0.0: 3, 1.0: 1}}


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 9)), min_size=1, max_size=6), st.sampled_from(
    ["loss", "x/max", "x/min", "x/mean", "opt/lr", "admin/mean"]))  # fmt: skip
def test_merged_numbers_stay_between_the_extremes(points, name):
    for aggregator in (vm.MetricsAggregator(), vm.FullyAsyncMetricsAggregator(1)):
        for value, count in points:
            aggregator.add_step_metrics({name: value}, count)
        low, high = min(v for v, _ in points), max(v for v, _ in points)
        assert low - 1e-9 <= aggregator.get_aggregated_metrics()[name] <= high + 1e-9


def test_ratios_are_recomputed_from_sums():
    aggregator = vm.FullyAsyncMetricsAggregator(4, hybrid_gpus=2, standalone_gpus=2)
    step = {
        "timing_s/step": 10.0, "timing_s/gen": 2.5, "perf/throughput": 99.0, "perf/total_num_tokens": 40.0,
        "perf/time_per_step": 10.0, "dynamic_resource/train_compute_time_s": 1.0,
        "dynamic_resource/train_allocated_time_s": 4.0,
    }  # fmt: skip
    aggregator.add_step_metrics(step)
    first = aggregator.get_aggregated_metrics(0.5)
    check_declared({n: v for n, v in first.items() if n in DECLARED})
    assert first["perf/throughput"] == 1.0
    assert first["fully_async/trainer/idle_ratio"] == 0.25
    assert first["dynamic_resource/resource_utilization"] == pytest.approx((2 * 0.25 + 2 * 0.5) / 4)
    assert "dynamic_resource/resource_utilization" not in aggregator.get_aggregated_metrics()


def test_declarations():
    assert len(by_name(vm.METRICS)) == len(vm.METRICS)
    loss = Metric(name="a", unit="1", formula="x")
    assert by_name([loss], [loss]) == {"a": loss}
    with pytest.raises(InputError, match="'a' is declared twice: x; y"):
        by_name([loss], [Metric(name="a", unit="1", formula="y")])
    assert Metric(name="a", unit="1", formula="x", low=0, high=1).holds(-1e-9, slack=1e-6)
    assert not loss.holds(math.nan)
