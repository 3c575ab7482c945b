"""The clipped loss against verl's own order of operations, eager, interleaved in one process.

    python -m pytest tests/benchmarks/test_bench_losses.py --benchmark-enable -n0 -s

The peer is written down here: four maskings, each a cast, a selection, a product and two sums; two products, a
maximum, a minimum and a selection for the bounds; every metric inside the graph. It follows
`compute_policy_loss_vanilla` of verl 0.9.1 (Apache-2.0). The lab may never be slower than it, neither on the large
batch of a language model nor on a small one.
"""

import statistics
import time

import pytest
import torch

from labs.actor_config import ActorConfig
from labs.losses.vanilla import vanilla

LARGE, SMALL = (1024, 8192), (16, 8)
CONFIG = ActorConfig()


def masked_mean(values, mask):
    return (torch.where(mask.bool(), values, 0.0) * mask).sum() / (mask.sum() + 1e-8)


def verl_order(old_log_prob, log_prob, advantages, response_mask, low=0.2, high=0.2, c=3.0):
    negative_approx_kl = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(negative_approx_kl)
    ppo_kl = masked_mean(-negative_approx_kl, response_mask)
    losses1 = -advantages * ratio
    losses2 = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    clipped1 = torch.maximum(losses1, losses2)
    clipfrac = masked_mean(torch.gt(losses2, losses1).float(), response_mask)
    losses3 = -advantages * c
    clipped2 = torch.min(losses3, clipped1)
    lower = masked_mean(torch.gt(clipped1, losses3) * (advantages < 0).float(), response_mask)
    losses = torch.where(advantages < 0, clipped2, clipped1)
    loss = (torch.where(response_mask.bool(), losses, 0.0) * response_mask).sum() / response_mask.sum()
    return loss, {
        "actor/pg_clipfrac": clipfrac.detach().item(),
        "actor/ppo_kl": ppo_kl.detach().item(),
        "actor/pg_clipfrac_lower": lower.detach().item(),
    }


def columns(shape, mask_dtype):
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(shape, generator=g)
    log_prob = old + 0.3 * torch.randn(shape, generator=g)
    advantages = torch.randn(shape, generator=g)
    length = torch.randint(shape[1] // 4, shape[1] + 1, (shape[0], 1), generator=g)
    mask = torch.arange(shape[1]) < length
    return old, log_prob.requires_grad_(), advantages, mask.to(mask_dtype)


def step(function, given, backward):
    given[1].grad = None
    loss, metrics = function(*given)
    if backward:
        loss.backward()
    return loss, metrics


def medians(functions, given, backward, rounds):
    """Median seconds of each function over interleaved rounds."""
    seconds = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            step(function, given, backward)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(all_of) for name, all_of in seconds.items()}


def lab(*given):
    return vanilla(*given, config=CONFIG)


@pytest.mark.benchmark
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32], ids=["bool", "float"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(("shape", "threads", "rounds"), [(LARGE, 2, 5), (SMALL, 1, 300)], ids=["large", "small"])
def test_clipped_loss(benchmark, request, shape, threads, rounds, backward, mask_dtype):
    measured = request.config.getoption("benchmark_enable")
    if not measured:
        shape, rounds = (32, 64), 1
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        given = columns(shape, mask_dtype)
        mine, theirs = step(lab, given, True), step(verl_order, given, True)
        torch.testing.assert_close(mine[0], theirs[0], rtol=1e-6, atol=1e-7)
        assert mine[1] == pytest.approx(theirs[1], rel=1e-4, abs=1e-7)
        benchmark.pedantic(step, args=(lab, given, backward), rounds=1)
        took = medians({"lab": lab, "verl": verl_order}, given, backward, rounds)
    finally:
        torch.set_num_threads(before)
    ratio = took["lab"] / took["verl"]
    print(f"\n{shape}, {mask_dtype}, {'forward + backward' if backward else 'forward'}: "
          f"lab {1e3 * took['lab']:.3g} ms, verl {1e3 * took['verl']:.3g} ms, lab/verl {ratio:.2f}")  # fmt: skip
    if measured:
        assert ratio < 1.1
