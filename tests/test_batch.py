"""`TokenBatch`: what it accepts, what it refuses and with which sentence, and that it never changes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from labs.batch import TokenBatch
from labs.errors import InputError


def columns(**changes):
    data = {
        "prompts": torch.ones(2, 4, dtype=torch.int64),
        "responses": torch.tensor([[5, 6, 0], [7, 8, 9]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1]]),
        "response_mask": torch.tensor([[1, 0, 0], [1, 0, 1]]),
        "rollout_log_probs": torch.tensor([[-1.0, 0.0, 0.0], [-0.5, 0.0, -2.0]], dtype=torch.float64),
        "truncated": torch.tensor([False, True]),
        "uid": np.array(["a", "b"]),
    }
    return {**data, **changes}


def test_a_batch_is_a_mapping_with_rows_and_width() -> None:
    batch = TokenBatch(columns())
    assert (batch.rows, batch.width) == (2, 3)
    assert len(batch) == 7
    assert "uid" in batch
    assert set(batch) == set(columns())
    assert batch.get("values") is None
    assert repr(batch).startswith("TokenBatch(B=2, T=3, columns=['attention_mask', ")
    with pytest.raises(KeyError, match="no column 'values'; it has attention_mask, prompts"):
        batch["values"]


def test_nothing_can_be_set_and_replace_makes_another_batch() -> None:
    given = columns()
    batch = TokenBatch(given)
    with pytest.raises(TypeError):
        batch["uid"] = np.array(["x", "y"])
    with pytest.raises(AttributeError):
        batch.values = torch.zeros(2, 3)
    given["uid"] = np.array(["x", "y"])
    assert batch["uid"].tolist() == ["a", "b"], "the caller's dictionary is not the batch's"
    other = batch.replace(values=torch.zeros(2, 3), truncated=None)
    assert "values" in other
    assert "truncated" not in other
    assert "values" not in batch
    assert other["responses"] is batch["responses"]


@pytest.mark.parametrize("rows", [[1], slice(1, 2), np.array([False, True]), [1, 0, 1]])
def test_select_takes_every_column_along(rows) -> None:
    batch = TokenBatch(columns())
    picked = batch.select(rows)
    order = np.arange(2)[rows]
    assert picked.rows == len(order)
    assert picked["uid"].tolist() == [["a", "b"][i] for i in order]
    for name in ("responses", "prompts", "truncated", "rollout_log_probs"):
        assert torch.equal(picked[name], batch[name][torch.as_tensor(order)])


def test_labels_may_be_arrays_of_any_kind_and_long_rows_of_objects() -> None:
    batch = TokenBatch(columns(uid=np.array([3, 3]), extra=np.array([[1.0], []], dtype=object)))
    assert batch["uid"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"responses": None, "response_mask": None}, "needs the column responses, response_mask or loss_mask"),
        ({"responses": torch.zeros(0, 3, dtype=torch.int64)}, r"empty or not \[B, T\]: its shape is \(0, 3\)"),
        ({"responses": torch.zeros(3, dtype=torch.int64)}, r"empty or not \[B, T\]: its shape is \(3,\)"),
        ({"response_mask": torch.ones(2, 4)}, r"response_mask has shape \(2, 4\), the batch needs \(2, 3\)"),
        ({"truncated": torch.zeros(3)}, r"truncated has shape \(3,\), the batch needs \(2,\)"),
        ({"uid": np.array(["a", "b", "c"])}, r"uid has shape \(3,\), the batch needs \(2,\)"),
        ({"prompts": torch.ones(3, 4, dtype=torch.int64)}, r"prompts has shape \(3, 4\)"),
        ({"attention_mask": torch.ones(2, 3)}, r"attention_mask has shape \(2, 3\), the batch needs \(2, 7\)"),
        ({"response_mask": torch.tensor([[2, 0, 0], [1, 0, 1]])}, "response_mask is a mask and holds values other"),
        ({"response_mask": torch.tensor([[float("nan"), 0, 0], [1, 0, 1]])}, "holds values other than 0 and 1"),
        ({"responses": torch.zeros(2, 3)}, "responses has dtype torch.float32, it holds integers"),
        ({"versions": torch.zeros(2, 3)}, "versions has dtype torch.float32, it holds integers"),
        ({"values": torch.zeros(2, 1)}, r"values has shape \(2, 1\), the batch needs \(2, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_column_and_shape(changes: dict, message: str) -> None:
    data = {n: c for n, c in columns(**changes).items() if c is not None}
    with pytest.raises(InputError, match=message):
        TokenBatch(data)


def test_saving_and_loading_gives_the_same_bits_and_types(tmp_path: Path) -> None:
    batch = TokenBatch(columns(values=torch.tensor([[0.1, 1 / 3, 0.0]] * 2, dtype=torch.float64)))
    path = tmp_path / "batch.npz"
    batch.save(path)
    loaded = TokenBatch.load(path)
    assert set(loaded) == set(batch)
    for name, column in batch.items():
        if isinstance(column, torch.Tensor):
            assert loaded[name].dtype == column.dtype
            assert torch.equal(loaded[name], column)
        else:
            assert loaded[name].tolist() == column.tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["batch.npz"]


def test_a_file_that_would_be_unpickled_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.npz"
    np.savez(path, responses=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        TokenBatch.load(path)
