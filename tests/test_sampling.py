"""Group filter and replay buffers: rules, order, conservation, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import sampling
from labs.errors import InputError
from labs.sampling import Group, ReplayBuffer, ReplayBufferAsync

MIXED, SAME = (0.0, 1.0), (1.0, 1.0)


def filled(buffer, *groups):
    for group in groups:
        buffer.add(group)
    return buffer


def uids(sample):
    return [g.uid for g in sample.groups]


def test_shared_value_is_exact():
    assert sampling.shared_value([1.0, 1.0]) == 1
    assert sampling.shared_value([0.0, 1.0]) is None
    assert sampling.shared_value([1.0]) is None
    # 0.1 three times has a mean one ulp off and a standard deviation of 1.4e-17: verl keeps the group
    assert np.std([0.1] * 3) > 0
    assert sampling.shared_value([0.1] * 3) is None


def test_carries_signal():
    keep = sampling.carries_signal([1, 1, 0, 1, 5], ["a", "a", "b", "b", "c"])
    assert keep.tolist() == [False, False, True, True, True]
    with pytest.raises(InputError, match=r"\(2,\)"):
        sampling.carries_signal([1, 1], ["a"])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10), st.integers(1, 10))
def test_oldest_first_and_ties_in_order_of_arrival(steps, batch_size):
    buffer = filled(ReplayBuffer(), *(Group(uid=str(i), step=s, scores=MIXED) for i, s in enumerate(steps)))
    sample = buffer.sample(10, batch_size)
    if batch_size > len(steps):
        assert sample is None
        assert len(buffer.groups) == len(steps)
        return
    assert uids(sample) == [str(i) for i in sorted(range(len(steps)), key=lambda i: (steps[i], i))[:batch_size]]
    assert len(buffer.groups) == len(steps) - batch_size


def test_sync_refills_twice_what_it_drops_within_its_slots_and_drains_before_it_samples():
    asked = []

    def refill(count):
        asked.append(count)
        for i in range(count):
            buffer.add(Group(uid=f"r{len(asked)}{i}", step=9, status="running"))

    buffer = ReplayBuffer(refill=refill, filter_groups_metric="reward", train_batch_size=3)
    filled(buffer, *(Group(uid=f"d{i}", step=1, scores=SAME) for i in range(3)))
    assert buffer.sample(1, 2) is None
    assert asked == [3]  # 6 credits, 3 slots
    assert buffer.sample(1, 2) is None
    assert asked == [3]
    filled(buffer, Group(uid="r10", step=9, scores=MIXED), Group(uid="r11", step=9, scores=MIXED))
    assert buffer.sample(1, 2) is None  # enough, but r12 is still in flight, and no refill any more
    assert asked == [3]
    buffer.add(Group(uid="r12", step=9, scores=MIXED))
    sample = buffer.sample(1, 2)
    assert uids(sample) == ["r10", "r11"]
    assert sample.metrics == {
        "training/filter_groups/evicted_samples": 3,
        "training/filter_groups/discarded_surplus_samples": 1,
    }
    assert sample.filtered == {1.0: 3}
    assert not buffer.groups


def test_credits_left_over_are_handed_out_when_slots_free_up_in_whole_chunks():
    asked = []
    buffer = ReplayBuffer(refill=asked.append, filter_groups_metric="reward", train_batch_size=4, gen_batch_size=2)
    busy = [Group(uid=f"b{i}", step=1, status="pending") for i in range(3)]
    filled(buffer, *busy, Group(uid="d", step=1, scores=SAME))
    assert buffer.sample(1, 2) is None
    assert asked == []  # 2 credits, 1 slot, chunks of 2
    buffer.add(Group(uid="b0", step=1, scores=MIXED))
    assert buffer.sample(1, 2) is None
    assert asked == [2]


def test_metrics_start_anew_with_each_served_step():
    buffer = ReplayBuffer(refill=lambda n: None, filter_groups_metric="reward", train_batch_size=1)
    filled(buffer, Group(uid="d", step=1, scores=SAME), Group(uid="m", step=1, scores=MIXED))
    assert buffer.sample(1, 1).metrics == {"training/filter_groups/evicted_samples": 1}
    assert filled(buffer, Group(uid="m", step=1, scores=MIXED)).sample(2, 1).metrics == {}


@pytest.mark.parametrize("strategy", sampling.STRATEGIES)
def test_async_bounds_the_span_in_two_ways(strategy):
    buffer = ReplayBufferAsync(max_off_policy_threshold=3, max_off_policy_strategy=strategy)
    filled(buffer, Group(uid="old", step=7, scores=MIXED), Group(uid="new", step=8, scores=MIXED))
    sample = buffer.sample(10, 1)
    assert uids(sample) == (["new"] if strategy == "drop" else ["old"])
    assert sample.metrics.get("training/off_policy/evicted_samples", 0) == (strategy == "drop")
    filled(buffer, Group(uid="m", step=10, scores=MIXED), Group(uid="flying", step=8, status="running"))
    assert (buffer.sample(10, 1) is None) == (strategy == "wait")


def test_async_replaces_each_evicted_group_once_and_weights_the_mean_span():
    asked = []
    later = [Group(uid="late", step=4, scores=MIXED)]

    def refill(count):
        asked.append(count)
        if later:
            buffer.add(later.pop())

    buffer = ReplayBufferAsync(refill=refill, max_off_policy_threshold=2, filter_groups_metric="acc")
    acc = {"acc": [1, 1]}
    filled(
        buffer,
        Group(uid="both", step=1, scores=MIXED, extra=acc),
        Group(uid="stale", step=2, scores=MIXED, extra={"acc": [0, 1]}),
        Group(uid="failed", step=9, status="failure", scores=(1.0,)),
        Group(uid="good", step=10, scores=SAME, extra={"acc": [0, 1]}),
    )
    later[0].extra = {"acc": [0, 1]}
    sample = buffer.sample(10, 1)
    assert uids(sample) == ["good"]
    assert asked == [3, 1]
    staleness = "training/off_policy/evicted_samples_staleness"
    assert sample.metrics == {
        "training/off_policy/evicted_samples": 3,
        f"{staleness}/mean": pytest.approx((10 + 9 + 7) / 3),
        f"{staleness}/max": 10,
        f"{staleness}/min": 7,
        "training/filter_groups/evicted_samples": 1,
        "training/rollout_failure/evicted_samples": 1,
    }
    declared = {m.name: m for m in sampling.METRICS}
    assert all(declared[name].holds(value) for name, value in sample.metrics.items())


def test_sampleable_counts_without_evicting():
    buffer = ReplayBufferAsync(max_off_policy_threshold=3)
    filled(buffer, Group(uid="old", step=1, scores=MIXED), Group(uid="new", step=9, scores=MIXED))
    assert buffer.sampleable(10) == 1
    assert len(buffer.groups) == 2
    assert buffer.sampleable(10, training=False) == 2
    assert uids(buffer.sample(10, 2, training=False)) == ["old", "new"]


groups_ = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(sampling.STATUSES), st.sampled_from([MIXED, SAME, ()])), max_size=12
)


@given(groups_, st.integers(1, 4), st.sampled_from([None, 1, 3, 8]), st.booleans())
def test_nothing_is_lost_and_nothing_is_sampled_twice(specs, batch_size, threshold, use_filter):
    asked = []
    buffer = ReplayBufferAsync(
        refill=asked.append, max_off_policy_threshold=threshold, filter_groups_metric="reward" if use_filter else None
    )
    for i, (step, status, scores) in enumerate(specs):
        buffer.add(Group(uid=str(i), step=step, status=status, scores=scores or MIXED))
    sample = buffer.sample(10, batch_size)
    taken = [] if sample is None else uids(sample)
    assert len(specs) == len(buffer.groups) + len(taken) + sum(asked)
    assert set(taken).isdisjoint(buffer.groups)
    for group in () if sample is None else sample.groups:
        assert group.status == "finished"
        assert threshold is None or 10 - group.step + 1 <= threshold
        assert not use_filter or group.scores == MIXED


def test_empty_failures():
    buffer = filled(ReplayBuffer(), Group(uid="f", step=1, status="failure"))
    with pytest.raises(RuntimeError, match="sync_refill_failed_groups=True"):
        buffer.sample(1, 1)
    asked = []
    buffer = ReplayBuffer(refill=asked.append, sync_refill_failed_groups=True)
    filled(buffer, Group(uid="f", step=1, status="failure"), Group(uid="half", step=1, status="failure", scores=(1.0,)))
    assert buffer.sample(1, 2) is None
    assert asked == [1]
    assert uids(buffer.sample(1, 1)) == ["half"]
    with pytest.raises(InputError, match="batch_size is 0"):
        buffer.sample(1, 0)


def test_missing_metric_is_named():
    buffer = ReplayBuffer(refill=lambda n: None, filter_groups_metric="acc", train_batch_size=1)
    with pytest.raises(RuntimeError, match=r"'g'.*'acc'"):
        filled(buffer, Group(uid="g", step=1, scores=MIXED)).sample(1, 1)


REFUSED = [
    ({"max_off_policy_threshold": 0}, AssertionError, "integer from 1"),
    ({"max_off_policy_threshold": True}, AssertionError, "integer from 1"),
    ({"max_off_policy_threshold": 2.5}, AssertionError, "integer from 1"),
    ({"max_off_policy_strategy": "dorp"}, AssertionError, "drop, wait"),
    ({"filter_groups_metric": "reward"}, ValueError, "need refill"),
    ({"filter_groups_metric": "reward", "refill": print}, ValueError, "train_batch_size"),
    (
        {"filter_groups_metric": "reward", "refill": print, "train_batch_size": 1, "max_inflight_gen_batches": 0},
        ValueError,
        "max_inflight_gen_batches",
    ),
    ({"sync_refill_failed_groups": True, "refill": print, "gen_batch_size": 2}, ValueError, "gen_batch_size 1"),
]


@pytest.mark.parametrize(("options", "kind", "words"), REFUSED)
def test_bad_settings_are_named(options, kind, words):
    with pytest.raises(kind, match=words) as caught:
        ReplayBuffer(**options)
    assert isinstance(caught.value, InputError)


def test_unknown_status_is_named():
    with pytest.raises(InputError, match="pending, running, finished, failure"):
        ReplayBuffer().add(Group(uid="a", step=1, status="finishd"))
