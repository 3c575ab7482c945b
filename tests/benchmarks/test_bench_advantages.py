"""Estimators against the straightforward loops that training libraries run, in one process, one after the other.

The peer is a transcription written for this purpose (`tests/reference_advantages.py`): a Python loop over tokens, or
over rows, with the operations of verl's. Each round runs the peer, then the lab, so that both meet the same
neighbours on the machine; the ratio of the medians is printed:

    python -m pytest tests/benchmarks/test_bench_advantages.py -m slow --benchmark-enable -n0 -s
"""

import statistics
import time

import numpy as np
import pytest
import torch

from labs.recursion import carried_gae
from labs.registry import estimators
from tests import reference_advantages as ref

ROWS, WIDTH, GROUP = 1024, 8192, 16


@pytest.fixture(scope="module")
def batch():
    """Rows of a quarter to the full width, a fifth of it tool replies in blocks of 64; one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(WIDTH // 4, WIDTH + 1, (ROWS, 1), generator=generator)
    replies = (torch.rand((ROWS, WIDTH // 64), generator=generator) < 0.2).repeat_interleave(64, dim=1)
    yield {
        "mask": ((torch.arange(WIDTH) < lengths) & ~replies).float(),
        "rewards": torch.randn((ROWS, WIDTH), generator=generator) * 0.1,
        "values": torch.randn((ROWS, WIDTH), generator=generator),
        "index": np.array([f"task{row // GROUP}" for row in range(ROWS)], dtype=object),
    }
    torch.set_num_threads(threads)


def compare(benchmark, name, peer, lab, rounds=3):
    """Peer and lab in turn; the benchmark times the lab, the ratio of medians goes to the report and the screen."""
    seconds = {"peer": [], "lab": []}
    for _ in range(rounds):
        for who, function in (("peer", peer), ("lab", lab)):
            start = time.perf_counter()
            result = function()
            seconds[who].append(time.perf_counter() - start)
    middle = {who: statistics.median(found) for who, found in seconds.items()}
    ratio = middle["peer"] / middle["lab"]
    benchmark.extra_info |= {"peer_ms": middle["peer"] * 1e3, "lab_ms": middle["lab"] * 1e3, "ratio": ratio}
    print(f"\n{name}: peer {middle['peer'] * 1e3:.0f} ms, lab {middle['lab'] * 1e3:.0f} ms, ratio {ratio:.2f}")
    benchmark.pedantic(lab, rounds=1)
    del result
    return ratio


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(1.0, 1.0), (0.99, 0.95)])
def test_gae_is_three_times_faster_than_the_token_loop(benchmark, batch, rates):
    rewards, values, mask = batch["rewards"], batch["values"], batch["mask"]

    def peer():
        advantages = ref.verl_gae_loop(rewards, values, mask, *rates)
        return ref.verl_whiten(advantages, mask), advantages + values

    lab = lambda: estimators["gae"](rewards, values, mask, *rates)  # noqa: E731
    assert all(torch.equal(a, b) for a, b in zip(peer(), lab(), strict=True))
    assert compare(benchmark, f"gae {rates}", peer, lab) > 3


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_reinforce_plus_plus_is_three_times_faster_than_the_token_loop(benchmark, batch, gamma):
    rewards, mask = batch["rewards"], batch["mask"]

    def peer():
        returns = ref.verl_return_loop(rewards, mask, gamma)
        return ref.verl_whiten(returns, mask) * mask, returns

    lab = lambda: estimators["reinforce_plus_plus"](rewards, mask, gamma=gamma)  # noqa: E731
    assert all(torch.equal(a, b) for a, b in zip(peer(), lab(), strict=True))
    assert compare(benchmark, f"reinforce_plus_plus {gamma}", peer, lab) > 3


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, WIDTH])
def test_grpo_is_not_slower_than_the_row_loop(benchmark, batch, width):
    rewards, mask, index = batch["rewards"][:, :width], batch["mask"][:, :width], batch["index"]
    peer = lambda: ref.verl_group_loop(rewards, mask, index)  # noqa: E731
    lab = lambda: estimators["grpo"](rewards, mask, index)[0]  # noqa: E731
    assert torch.equal(peer(), lab())
    assert compare(benchmark, f"grpo [{ROWS}, {width}]", peer, lab, rounds=7) > 0.9


@pytest.mark.slow
def test_small_batches_are_not_slower_either(benchmark):
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn((2, 192, 8), generator=generator)
    mask = torch.ones(192, 8)
    peer = lambda: ref.verl_gae_loop(rewards, values, mask, 0.99, 0.95)  # noqa: E731
    lab = lambda: carried_gae(rewards, values, mask, 0.99, 0.95)  # noqa: E731
    assert torch.equal(peer(), lab())
    assert compare(benchmark, "gae [192, 8]", peer, lab, rounds=200) > 0.9
