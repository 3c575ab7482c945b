"""verl 0.9.1 itself against the lab on fresh random batches, and lab entries run by verl's own dispatcher.

Runs in an environment of its own (see `tests/golden/README.md`); `.ci/nightly` makes it.
"""

import inspect
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.nightly
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="needs verl 0.9.1, which .ci/nightly installs")

from labs.registry import estimators, losses  # noqa: E402

ESTIMATORS = sorted(n for n in core_algos.ADV_ESTIMATOR_REGISTRY if not n.startswith("lab_"))
LOSSES = sorted(n for n in core_algos.POLICY_LOSS_REGISTRY if not n.startswith("lab_") and n != "bypass_mode")
FRESH = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class Config(dict):
    """What the estimators read: `.get` and attributes."""

    __getattr__ = dict.__getitem__


@st.composite
def batches(draw):
    """A ragged batch with tool holes, groups of varying size and binary or real rewards."""
    seed = draw(st.integers(0, 2**31 - 1))
    generator = torch.Generator().manual_seed(seed)
    rows, width = draw(st.integers(2, 9)), draw(st.integers(1, 9))
    rand = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    mask = (torch.arange(width) < lengths) & (rand(rows, width) > draw(st.sampled_from([0.0, 0.3])))
    scores = (rand(rows) > 0.5).to(dtype) if draw(st.booleans()) else rand(rows).to(dtype)
    rewards = torch.zeros(rows, width, dtype=dtype)
    rewards[torch.arange(rows), lengths[:, 0] - 1] = scores
    rollout = -2 * rand(rows, width).to(dtype)
    groups = draw(st.integers(1, 4))
    uid = np.array([f"g{int(i)}" for i in torch.randint(0, groups, (rows,), generator=generator)], dtype=object)
    return SimpleNamespace(
        token_level_rewards=rewards,
        response_mask=mask.to(torch.int64),
        index=uid,
        values=rand(rows, width).to(dtype),
        reward_baselines=rand(rows).to(dtype),
        old_log_probs=rollout,
        log_prob=rollout + 0.6 * (rand(rows, width).to(dtype) - 0.5),
        advantages=(rand(rows, width).to(dtype) - 0.5) * 4,
        sum_pi_squared=rand(rows, width).to(dtype),
        rollout_is_weights=rand(rows, width).to(dtype) + 0.5,
    )


def outcome(function, kwargs):
    """What a call returns, or the type it raises."""
    try:
        return function(**kwargs), None
    except Exception as error:
        return None, error


def same(ours, theirs, label):
    assert (ours[1] is None) == (theirs[1] is None), f"{label}: {ours[1]!r} against {theirs[1]!r}"
    if theirs[1] is not None:
        assert isinstance(ours[1], type(theirs[1])), f"{label}: {ours[1]!r} against {theirs[1]!r}"
        return
    for name, got, want in zip(("advantages", "returns"), ours[0], theirs[0], strict=True):
        assert got.dtype == want.dtype, f"{label}: {name} {got.dtype} against {want.dtype}"
        tight = want.dtype == torch.float64 and "vectorized" not in label
        rtol, atol = (2e-7, 1e-7) if tight else (2e-5, 2e-6)
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", ESTIMATORS)
@FRESH
@given(batch=batches(), normalise=st.booleans(), gamma=st.sampled_from([1.0, 0.9]))
def test_estimator_equals_verl(name, batch, normalise, gamma):
    theirs = core_algos.get_adv_estimator_fn(name)
    config = Config(norm_adv_by_std_in_grpo=normalise, gamma=gamma)
    offered = {**vars(batch), "gamma": gamma, "lam": 0.95, "config": config, "norm_adv_by_std_in_grpo": normalise}
    kwargs = {k: v for k, v in offered.items() if k in inspect.signature(theirs).parameters}
    same(outcome(estimators[name], kwargs), outcome(theirs, kwargs), name)


@pytest.mark.parametrize("name", LOSSES)
@FRESH
@given(
    batch=batches(),
    mode=st.sampled_from(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]),
    weighted=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_loss_equals_verl(name, batch, mode, weighted, seed):
    from verl.workers.config import ActorConfig, PolicyLossConfig

    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(dro_beta=0.1)
    )
    results = []
    for function in (losses[name], core_algos.get_policy_loss_fn(name)):
        log_prob = batch.log_prob.clone().requires_grad_()
        torch.manual_seed(seed)  # clip_cov draws from the global generator, in verl and under verl's name
        loss, metrics = function(
            batch.old_log_probs, log_prob, batch.advantages, batch.response_mask.bool(), mode, config,
            batch.rollout_is_weights if weighted else None,
        )  # fmt: skip
        if loss.requires_grad:
            loss.backward()
        results.append((loss.detach(), log_prob.grad, metrics))
    ours, theirs = results
    torch.testing.assert_close(ours[0], theirs[0], rtol=2e-5, atol=2e-6, equal_nan=True)
    if theirs[1] is not None:
        torch.testing.assert_close(ours[1], theirs[1], rtol=5e-5, atol=1e-7, equal_nan=True)
    assert set(ours[2]) == set(theirs[2])
    for key in theirs[2]:
        assert float(ours[2][key]) == pytest.approx(float(theirs[2][key]), rel=2e-5, abs=2e-6, nan_ok=True), key


def test_verl_loads_the_lab_and_runs_its_entries():
    code = """
import numpy as np, torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage
from omegaconf import OmegaConf
mask = torch.ones(4, 3, dtype=torch.int64)
rewards = torch.zeros(4, 3); rewards[:, 2] = torch.tensor([1.0, 0.0, 1.0, 0.0])
def data():
    batch = TensorDict({"token_level_rewards": rewards, "response_mask": mask}, batch_size=[4])
    return DataProto(batch=batch, non_tensor_batch={"uid": np.array(["a", "a", "b", "b"], dtype=object)})
config = OmegaConf.create({"norm_adv_by_std_in_grpo": True, "gamma": 1.0})
names = "rloo opo gpg reinforce_plus_plus reinforce_plus_plus_baseline grpo_vectorized grpo_passk"
for name in names.split():
    ours = compute_advantage(data(), adv_estimator="lab_" + name, config=config).batch["advantages"]
    theirs = compute_advantage(data(), adv_estimator=name, config=config).batch["advantages"]
    assert torch.allclose(ours, theirs), name
assert core_algos.get_policy_loss_fn("lab_vanilla").__module__ == "labs.losses.vanilla"
print("ran")
"""
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "labs.interop.verl"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("ran")
