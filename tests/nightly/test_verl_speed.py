"""verl 0.9.1 itself against the lab in one process: never slower, its loops over tokens at least three times faster.

Runs in an environment of its own, which `.ci/nightly verl` makes. Every round runs verl, then the lab, on the same
tensors and one thread. What counts is processor time, so that a busy machine shifts nothing; the median over the rounds
of lab time over verl time is printed and bounded. A call may take 0.05 ms more than that: checking the input costs a
fixed time, which only calls that are as short themselves show. The large batch is that of a language model (1024 rows
of 8192 tokens, groups of 16, a fifth of it tool replies); the small one is the lab's own (12 tasks, 16 trajectories, 4
decisions).

    python -m pytest tests/nightly/test_verl_speed.py -m nightly -n0 -s
"""

import inspect
import statistics
import time

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.nightly
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl 0.9.1, which .ci/nightly installs")
from verl.utils import torch_functional  # noqa: E402
from verl.workers.config import ActorConfig, PolicyLossConfig  # noqa: E402

from labs import kl, masked  # noqa: E402
from labs.registry import estimators, losses  # noqa: E402

NEVER_SLOWER, TOKEN_LOOP = 1.10, 1 / 3
CHECKS = 0.05e-3
BOUNDS = {"gae": TOKEN_LOOP, "reinforce_plus_plus": TOKEN_LOOP}
ESTIMATORS = sorted(n for n in core_algos.ADV_ESTIMATOR_REGISTRY if not n.startswith("lab_"))
LOSSES = sorted(n for n in core_algos.POLICY_LOSS_REGISTRY if not n.startswith("lab_") and n != "bypass_mode")
PENALTIES = ("kl", "abs", "mse", "low_var_kl", "low_var_kl+")
#: Rows, width, rounds.
SIZES = {"large": (1024, 8192, 3), "small": (192, 4, 200)}


class Config(dict):
    """What the estimators read: `.get` and attributes."""

    __getattr__ = dict.__getitem__


@pytest.fixture(scope="module", params=SIZES)
def batch(request):
    """Columns by name, and how many rounds are worth it."""
    rows, width, rounds = SIZES[request.param]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rand = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    lengths = torch.randint(width // 4, width + 1, (rows, 1), generator=generator)
    span = min(64, width)
    mask = (torch.arange(width) < lengths) & ~(rand(rows, width // span) < 0.2).repeat_interleave(span, dim=1)
    old = -rand(rows, width)
    yield {
        "label": f"[{rows}, {width}]",
        "rounds": rounds,
        "mask": mask,
        "token_level_rewards": torch.zeros(rows, width).scatter_(1, lengths - 1, (rand(rows, 1) > 0.5).float()),
        "response_mask": mask.long(),
        "index": np.array([f"task{row // 16}" for row in range(rows)], dtype=object),
        "values": rand(rows, width),
        "reward_baselines": rand(rows),
        "old_log_probs": old,
        "sum_pi_squared": rand(rows, width),
        "log_prob": old + 0.3 * (rand(rows, width) - 0.5),
        "advantages": torch.randn((rows, width), generator=generator),
        "gamma": 1.0,
        "lam": 0.95,
        "config": Config(norm_adv_by_std_in_grpo=True, gamma=1.0, gdpo_reward_keys=("right", "format")),
        "non_tensor_batch": {"right": rand(rows).numpy(), "format": rand(rows).numpy()},
        "batch": {"prompts": torch.zeros(rows, 1), "attention_mask": torch.arange(-1, width) < lengths},
    }
    torch.set_num_threads(before)


def hold(what, batch, verl, lab, bound=NEVER_SLOWER):
    """Print and bound the median over rounds of lab time over verl time; over the bound, more rounds decide."""
    verl(), lab()
    ratios, seconds = [], {verl: [], lab: []}
    for _attempt in range(4):
        for _ in range(batch["rounds"]):
            for function in (verl, lab):
                start = time.process_time()
                function()
                seconds[function].append(time.process_time() - start)
            ratios.append((seconds[lab][-1] - CHECKS) / seconds[verl][-1])
        ratio = statistics.median(ratios)
        if ratio <= bound:
            break
    theirs, ours = (1e3 * statistics.median(seconds[who]) for who in (verl, lab))
    print(
        f"\n{what} {batch['label']}: verl {theirs:.3g} ms, lab {ours:.3g} ms, lab/verl {ours / theirs:.2f}", flush=True
    )
    assert ratio <= bound, f"{what}: lab/verl {ratio:.2f} without the checks, at most {bound:.2f}"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator(name, batch):
    theirs = core_algos.get_adv_estimator_fn(name)
    kwargs = {n: batch[n] for n in inspect.signature(theirs).parameters if n in batch}
    verl, lab = (lambda: theirs(**kwargs)), (lambda: estimators[name](**kwargs))
    torch.testing.assert_close(lab()[0], verl()[0], rtol=2e-4, atol=2e-4)
    hold(name, batch, verl, lab, BOUNDS.get(name, NEVER_SLOWER) if len(batch["mask"]) == 1024 else NEVER_SLOWER)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_forward_and_backward(name, batch):
    policy_loss = PolicyLossConfig(loss_mode=name, dro_beta=0.1)
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=policy_loss)
    given = (batch["old_log_probs"], batch["log_prob"], batch["advantages"], batch["mask"])

    def step(function):
        def run():
            torch.manual_seed(0)  # clip_cov draws from the global generator
            log_prob = given[1].clone().requires_grad_()
            loss, _metrics = function(given[0], log_prob, *given[2:], "token-mean", config)
            loss.backward()
            return loss.detach(), log_prob.grad

        return run

    verl, lab = step(core_algos.get_policy_loss_fn(name)), step(losses[name])
    for ours, theirs in zip(lab(), verl(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    hold(name, batch, verl, lab)


@pytest.mark.parametrize("mode", masked.AGG_MODES)
def test_aggregation_forward_and_backward(mode, batch):
    def step(function):
        def run():
            values = batch["advantages"].clone().requires_grad_()
            loss = function(values, batch["mask"], mode)
            loss.backward()
            return loss.detach()

        return run

    hold(f"agg_loss {mode}", batch, step(core_algos.agg_loss), step(masked.agg_loss))


@pytest.mark.parametrize("penalty", PENALTIES)
def test_kl_penalty(penalty, batch):
    given = (batch["log_prob"], batch["old_log_probs"], penalty)
    hold(f"kl {penalty}", batch, lambda: core_algos.kl_penalty(*given), lambda: kl.kl_penalty(*given))


@pytest.mark.parametrize("name", ["masked_mean", "masked_var", "masked_whiten"])
def test_masked_helper(name, batch):
    given = (batch["advantages"], batch["response_mask"])
    theirs, ours = getattr(torch_functional, name), getattr(masked, name)
    hold(name, batch, lambda: theirs(*given), lambda: ours(*given))
