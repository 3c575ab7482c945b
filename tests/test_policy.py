"""The table of logits in torch, held to the plain formulas of the learner and to files that cannot run code."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envs.arithmetic import arithmetic
from envs.arithmetic3 import arithmetic3
from labs import agent
from labs.errors import InputError
from labs.policy import Policy, kl_divergence

TABLES = st.lists(st.floats(-30, 30, width=32), min_size=24, max_size=24)


def of(values) -> Policy:
    return Policy(torch.tensor(values, dtype=torch.float64).reshape(2, 3, 4))


@given(TABLES)
def test_probabilities_and_entropy_are_the_learners(values: list[float]) -> None:
    policy = of(values)
    plain = policy.logits.tolist()
    assert np.allclose(policy.probabilities, agent.policy_table(plain), atol=1e-12)
    assert np.allclose(policy.log_probs.exp(), policy.probabilities, atol=1e-12)
    entropies = [[agent.entropy(agent.softmax(row)) for row in family] for family in plain]
    assert np.allclose(policy.entropy, entropies, atol=1e-9)
    assert bool((policy.entropy >= -1e-12).all())
    assert bool((policy.entropy <= math.log(4) + 1e-12).all())
    assert np.allclose(policy.sum_pi_squared, (policy.probabilities**2).sum(-1))


@given(TABLES, TABLES)
def test_the_exact_divergence_is_not_negative_and_zero_for_itself(first: list[float], second: list[float]) -> None:
    p, q = of(first), of(second)
    assert bool((kl_divergence(p, q) >= -1e-12).all())
    assert kl_divergence(p, p).abs().max() == 0
    by_hand = (p.probabilities * (p.log_probs - q.log_probs)).sum(-1)
    assert torch.allclose(kl_divergence(p, q), by_hand)


def test_an_excluded_action_counts_nothing_here_and_everything_there() -> None:
    closed = torch.zeros(1, 1, 2, dtype=torch.float64)
    closed[0, 0, 1] = -math.inf
    open_ = torch.zeros(1, 1, 2, dtype=torch.float64)
    assert float(kl_divergence(Policy(closed), Policy(open_))) == pytest.approx(math.log(2))
    assert float(kl_divergence(Policy(open_), Policy(closed))) == math.inf


def test_temperature_sharpens_and_flattens_and_greedy_breaks_ties_to_the_left() -> None:
    policy = of([1.0, 2.0, 0.0, 0.0] * 6)
    assert torch.allclose(policy.at(0.5).probabilities, torch.softmax(policy.logits * 2, -1))
    assert bool((policy.at(2.0).entropy > policy.entropy).all())
    assert bool((policy.at(0.1).entropy < policy.entropy).all())
    assert policy.greedy()[0, 0].tolist() == [0, 1, 0, 0]
    assert Policy.uniform(arithmetic).greedy()[1, 2].tolist() == [1, 0, 0, 0]
    assert torch.equal(policy.acting("greedy"), policy.greedy())
    assert policy.at(0.5).version == policy.version


def test_sampling_draws_once_a_row_and_follows_the_probabilities() -> None:
    policy = of(np.linspace(-1, 1, 24).tolist())
    rows = torch.tensor([[f, s] for f in range(2) for s in range(3)]).repeat(20_000, 1)
    g = torch.Generator().manual_seed(0)
    actions = policy.sample(rows, g)
    again = torch.Generator().manual_seed(0)
    draws = torch.rand(len(rows), generator=again, dtype=torch.float64)
    assert torch.equal(g.get_state(), again.get_state())
    counts = torch.zeros(2, 3, 4, dtype=torch.float64).index_put(
        (rows[:, 0], rows[:, 1], actions), torch.tensor(1.0, dtype=torch.float64), accumulate=True
    )
    p = policy.probabilities
    assert bool(((counts / 20_000 - p).abs() < 4.5 * (p * (1 - p) / 20_000).sqrt()).all())
    sums = p[rows[:6, 0], rows[:6, 1]].cumsum(-1)
    assert actions[:6].tolist() == [int((d >= s[:-1]).sum()) for d, s in zip(draws[:6], sums, strict=True)]


def test_tokens_read_their_logit_and_nothing_else() -> None:
    policy = of(np.arange(24.0).tolist())
    index = torch.tensor([[0, -1, 23], [-1, 13, -1]])
    log_probs = policy.token_log_probs(index)
    flat = policy.log_probs.reshape(-1)
    assert log_probs.tolist() == [[flat[0], 0, flat[23]], [0, flat[13], 0]]
    entropy = policy.token_rows(policy.entropy, index)
    rows = policy.entropy.reshape(-1)
    assert entropy.tolist() == [[rows[0], 0, rows[5]], [0, rows[3], 0]]
    logits = policy.logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Policy(logits).token_log_probs(index).sum(), logits)
    assert gradient[0, 1].abs().sum() == 0
    assert gradient[0, 0].tolist() == pytest.approx((torch.eye(4)[0] - policy.probabilities[0, 0]).tolist())


@pytest.mark.parametrize("suffix", ["npz", "json"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_saved_policy_comes_back_bit_for_bit(tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(1)
    policy = Policy(torch.randn(2, 3, 4, generator=g, dtype=dtype), temperature=0.7, version=12)
    path = tmp_path / f"policy.{suffix}"
    policy.save(path, arithmetic)
    found = Policy.load(path, arithmetic)
    assert torch.equal(found.logits, policy.logits)
    assert (found.logits.dtype, found.temperature, found.version) == (dtype, 0.7, 12)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(InputError, match=r"families are \['sum', 'difference'\], environment arithmetic3 has"):
        Policy.load(path, arithmetic3)


def test_the_json_form_can_be_read_by_a_person(tmp_path: Path) -> None:
    Policy.uniform(arithmetic).save(tmp_path / "p.json", arithmetic)
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["actions"] == ["read", "add", "subtract", "submit"]
    assert data["logits"] == [[[0.0] * 4] * 3] * 2


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", logits=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        Policy.load(tmp_path / "evil.npz", arithmetic)
    for name in ("p.pt", "missing.npz"):
        with pytest.raises(InputError, match=r"is no policy file; a policy is saved as .npz or .json"):
            Policy.load(tmp_path / name, arithmetic)
    with pytest.raises(InputError, match=r"saved as .npz or .json, not as p.pt"):
        Policy.uniform(arithmetic).save(tmp_path / "p.pt", arithmetic)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy(torch.zeros(2, 3)), r"shape \(2, 3\)"),
        (lambda: Policy(torch.zeros(2, 3, 0)), r"shape \(2, 3, 0\)"),
        (lambda: Policy(torch.zeros(2, 3, 4, dtype=torch.int64)), "dtype torch.int64"),
        (lambda: Policy(torch.full((1, 1, 2), math.nan)), "a logit that is NaN"),
        (lambda: Policy(torch.zeros(1, 1, 2), temperature=0.0), "temperature is 0.0; it must be above 0"),
        (lambda: Policy.of(arithmetic, torch.zeros(2, 3, 5)), r"environment arithmetic needs \(2, 3, 4\)"),
        (lambda: Policy.uniform(arithmetic).acting("best"), "mode is 'best'; allowed: sampled, greedy"),
    ],
)
def test_what_is_no_policy_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
