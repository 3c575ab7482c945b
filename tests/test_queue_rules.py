"""Limits, pause, queue, utilisation and switch threshold: conservation, bounds, refusals."""

from queue import Empty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import queue_rules as rules
from labs.errors import InputError


@given(st.integers(1, 128), st.floats(0, 4), st.integers(1, 8), st.integers(1, 16), st.integers(0, 5000))
def test_limits(required, staleness, trigger, replicas, total):
    limits = rules.fully_async_limits(required, staleness, trigger, replicas, total)
    assert required * trigger - 1 <= limits.max_required_samples <= required * trigger * (1 + staleness)
    assert limits.max_queue_size == limits.max_required_samples
    assert 0 < limits.max_concurrent_samples <= min(replicas * 16, limits.max_required_samples)
    assert limits.total_train_steps == total // (required * trigger)


@pytest.mark.parametrize(
    "bad",
    [{"required_samples": 0}, {"trigger_parameter_sync_step": 0}, {"replicas": 0}, {"staleness_threshold": -0.1},
     {"concurrent_samples_per_replica": 0}],
)  # fmt: skip
def test_limits_refuse(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        rules.fully_async_limits(**{"required_samples": 4, **bad})


def test_pause_and_reset():
    assert not rules.should_pause(9, 9, 10, 10)
    assert rules.should_pause(10, 0, 10, 10)
    assert rules.should_pause(0, 10, 10, 10)
    assert rules.staleness_after_sync(3, 4) == 7


@given(st.integers(1, 4), st.lists(st.booleans(), max_size=30))
def test_queue_conserves_and_keeps_order(size, puts):
    queue, out, count = rules.MessageQueue(size), [], 0
    for put in puts:
        if put:
            full = len(queue) == size
            assert queue.put(count) is (not full)
            count += 1
        else:
            try:
                item, left = queue.get()
                out.append(item)
                assert left == len(queue)
            except Empty:
                assert len(queue) == 0
        stats = queue.statistics()
        assert stats["total_produced"] == stats["total_consumed"] + stats["dropped_samples"] + stats["queue_size"]
        assert len(queue) <= size
    assert out == sorted(out)


def test_a_full_put_says_false_although_the_item_is_stored():
    queue = rules.MessageQueue(1)
    assert queue.put("a")
    assert not queue.put("b")
    assert queue.get() == ("b", 0)
    queue.put(None)
    queue.shutdown()
    assert queue.get() == (None, 0)
    assert queue.get() is None
    for bad in (0, None):
        with pytest.raises(InputError, match="at least 1"):
            rules.MessageQueue(bad)


def test_utilization():
    assert rules.rollout_utilization([(0, 1, 2), (1, 4, 2), (3, 0, 4), (4, 0, 0)]) == pytest.approx(
        (1 * 2 * 0.5 + 2 * 2 * 1.0 + 1 * 4 * 0.0) / (2 + 4 + 4)
    )
    assert rules.rollout_utilization([(0, 1, 0), (1, 1, 0)]) == 0
    assert rules.rollout_utilization([]) == 0


history = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 20), st.integers(0, 8)), max_size=10)


@given(history)
def test_utilization_is_a_share(points):
    assert 0 <= rules.rollout_utilization(sorted(points)) <= 1


def test_idle_ratio():
    assert rules.idle_ratio(0.0, 6.0, 8.0) == 0.25
    assert rules.idle_ratio(5.0, 4.0, 8.0) == 0


@given(st.integers(4, 200), st.integers(1, 4), st.floats(0, 1), st.lists(st.booleans(), max_size=30))
def test_switch_threshold_stays_between_a_mini_batch_and_the_batch(batch, sync, ratio, steps):
    switch = rules.SwitchThreshold(batch, sync, ratio)
    for idle in steps:
        before = switch.ratio
        switch.observe(idle)
        if idle:
            assert before <= switch.ratio <= 1
        assert batch // sync <= switch.threshold <= batch


def test_switch_moves_only_after_a_run_of_equal_steps():
    switch = rules.SwitchThreshold(64, 4, 0.4)
    ratios = []
    for idle in (True, False, True, True, True, False, False):
        switch.observe(idle)
        ratios.append(round(switch.ratio, 2))
    assert ratios == [0.4, 0.4, 0.4, 0.45, 0.5, 0.5, 0.47]
    with pytest.raises(InputError, match="parameter_sync_step 4"):
        rules.SwitchThreshold(3, 4)


def test_lending():
    assert not rules.should_lend(10, 10, 1.0, 0.0, 2.0)
    assert rules.should_lend(10, 6, None, 5.0, 2.0)
    assert rules.should_lend(10, 6, 1.0, None, 2.0)
    assert rules.should_lend(10, 6, 1.0, 1.9, 2.0)
    assert not rules.should_lend(10, 6, 1.0, 2.0, 2.0)
