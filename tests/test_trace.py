"""The arithmetic that an explanation prints is the arithmetic that made the number."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.errors import InputError
from labs.masked import AGG_MODES, agg_loss, group_mean_std, masked_mean, masked_var, masked_whiten
from labs.trace import Tracer
from tests.arithmetic import evaluate

X = torch.tensor([[1.0, -2.0, 3.5], [0.5, 4.0, -1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 0, 1]])


def loop(x, m):
    out = torch.zeros_like(x)
    carried = x[:, 0] * 0
    for t in reversed(range(x.shape[1])):
        carried = x[:, t] + 0.9 * carried * m[:, t]
        out[:, t] = carried
    return out


PROGRAMS = {
    "mean": lambda x, m: masked_mean(x, m),
    "variance": lambda x, m: masked_var(x, m),
    "whiten": lambda x, m: masked_whiten(x, m),
    "loop with in-place writes": loop,
    "transposed view written through": lambda x, m: (lambda y: (y.t().__setitem__(1, 7 * y.t()[0]), y)[1])(x.clone()),
    "index_add": lambda x, m: torch.zeros(2, 3, dtype=x.dtype).index_add(0, torch.tensor([1, 1]), x),
    "index_put": lambda x, m: torch.zeros(3, dtype=x.dtype).index_put((torch.tensor([2, 0]),), x[:, 1]),
    "scatter_add": lambda x, m: torch.zeros(2, 3, dtype=x.dtype).scatter_add(
        1, torch.tensor([[0, 0, 2], [1, 1, 1]]), x
    ),
    "gather": lambda x, m: x.gather(1, torch.tensor([[2, 0], [1, 1]])),
    "cumsum and flip": lambda x, m: (x * m).flip(1).cumsum(1).flip(1),
    "std": lambda x, m: torch.std(x, dim=1, keepdim=True) + torch.std(x),
    "softmax": lambda x, m: torch.log_softmax(x, -1) + torch.softmax(x, -1) + torch.logsumexp(x, 1, keepdim=True),
    "stack and cat": lambda x, m: torch.cat([torch.stack([x[0], x[1]]), x * 2], dim=1),
    "where and clamp": lambda x, m: torch.where(x > 0, x.clamp(-1, 2), x.clamp(min=-1) * 3),
    "amax": lambda x, m: x.amax(1) - x.amin(1) + x.abs().sum(1),
    "matmul": lambda x, m: x @ x.t(),
    "powers": lambda x, m: (x.square() + 1).sqrt() + (x**2 + 2).rsqrt() + (x**2 + 1).reciprocal() + (1 - x),
    "advanced index": lambda x, m: x[torch.tensor([1, 0]), torch.tensor([0, 2])],
    "boolean index": lambda x, m: x[m.bool()],
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_entry_is_explained(program):
    x, m = X.clone(), MASK.clone()
    with Tracer() as tracer:
        tracer.name(x, "x")
        tracer.name(m, "mask")
        y = PROGRAMS[program](x, m)
    texts = [(i, tracer.explain(y, i, "y")) for i in itertools.product(*map(range, y.shape))]
    for index, text in texts:
        assert evaluate(text) == pytest.approx(float(y[index]), rel=1e-6, abs=1e-9), text
    assert any("x[" in text for _, text in texts), "the numbers have lost their past"


@pytest.mark.parametrize("mode", AGG_MODES)
def test_gradients_are_explained(mode):
    log_prob = X.clone().requires_grad_()
    with Tracer() as tracer:
        tracer.name(log_prob, "log_prob")
        tracer.name(MASK, "mask")
        loss = agg_loss(-torch.exp(log_prob) * 2, MASK, mode)
        (gradient,) = torch.autograd.grad(loss, log_prob)
    assert evaluate(tracer.explain(loss, (), "loss")) == pytest.approx(float(loss.detach()))
    for i in range(2):
        for t in range(3):
            assert evaluate(tracer.explain(gradient, (i, t), "g")) == pytest.approx(float(gradient[i, t]), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4))
def test_float32_statistics(values):
    scores = torch.tensor(values, dtype=torch.float32)
    with Tracer() as tracer:
        tracer.name(scores, "score")
        mean, _, _ = group_mean_std(scores, torch.tensor([0, 1, 0, 1]))
    assert evaluate(tracer.explain(mean, (1,), "mean")) == pytest.approx(float(mean[1]), rel=1e-4, abs=1e-5)


def test_an_operation_without_a_rule_gives_plain_numbers():
    x = X[0].clone()
    with Tracer() as tracer:
        tracer.name(x, "x")
        y = torch.sort(x).values * 2
    assert tracer.explain(y, (0,), "y") == "y[0] = -4"


def test_shared_parts_are_written_once():
    x = X[0].clone()
    with Tracer() as tracer:
        tracer.name(x, "x")
        y = (x.sum() + 1) * (x.sum() + 1)
    text = tracer.explain(y, (), "y")
    assert text.count("x[0] + x[1] + x[2]") == 1


def test_index_outside_the_tensor():
    with Tracer() as tracer:
        y = X * 2
    with pytest.raises(InputError, match=r"\(5, 0\) is outside a tensor of shape \(2, 3\)"):
        tracer.explain(y, (5, 0), "y")
