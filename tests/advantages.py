"""Batches for the tests of the advantage estimators, and how their results are compared."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from labs.registry import estimators

CONFIG = {"gamma": 1.0}


QUICK = settings(max_examples=25, deadline=None)


@st.composite
def batches(draw, min_tokens=2, pairs=False):
    """Lists for the transcriptions: rewards, mask, index, values, log-probabilities and the rest, all float64."""
    rows, width = draw(st.integers(2, 7)), draw(st.integers(1, 6))
    numbers = st.floats(-3, 3, allow_nan=False).map(lambda x: round(x, 3))

    def matrix(elements):
        return draw(st.lists(st.lists(elements, min_size=width, max_size=width), min_size=rows, max_size=rows))

    mask = matrix(st.integers(0, 1))
    if sum(map(sum, mask)) < min_tokens:
        mask[0][0] = mask[1][0] = 1
    index = [f"t{i // 2}" for i in range(rows - rows % 2)] + ["t0"] * (rows % 2)
    if not pairs:
        index = draw(st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows))
    row = st.lists(numbers, min_size=rows, max_size=rows)
    logs = st.floats(-3, -0.05)
    return {
        "r": matrix(numbers), "mask": mask, "index": index, "values": matrix(numbers), "old": matrix(logs),
        "rollout": matrix(logs), "squares": matrix(st.floats(0.3, 1.0)), "weights": matrix(st.floats(0.2, 2.0)),
        "baselines": draw(row), "bootstrap": draw(row),
        "cut": draw(st.lists(st.booleans(), min_size=rows, max_size=rows)),
        "gamma": draw(st.sampled_from([0.0, 0.9, 1.0])), "lam": draw(st.sampled_from([0.0, 0.95, 1.0])),
    }  # fmt: skip


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


def run(name, b, **more):
    """The lab's entry on a drawn batch, in float64 with an int64 mask."""
    return estimators[name](
        token_level_rewards=tensor(b["r"]),
        response_mask=torch.tensor(b["mask"]),
        index=np.array(b["index"], dtype=object),
        **more,
    )


def plain(x):
    return x.tolist() if isinstance(x, torch.Tensor) else x


def close(got, want, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(plain(got)), np.asarray(plain(want)), rtol=tolerance, atol=tolerance)
