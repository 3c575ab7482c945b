"""Tensors and tables: names, padding, groups, weights; nothing that needs code to be run is ever opened."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labs.batch import TokenBatch
from labs.errors import InputError
from tests.dump_examples import EXAMPLES, batch_arrays, npz, pt, slime, trl_table
from tests.test_dumps import steps


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (sys.exit, (99,))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_is_refused_with_its_converter_and_never_run(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "batch.pkl"
    path.write_bytes(pickle.dumps({"batch": Bomb()}, protocol=protocol))
    with pytest.raises(InputError, match=r"""is a pickle.*np\.savez\("batch\.pkl\.npz\""""):
        steps(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_torch_file_with_code_in_it_is_refused(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "batch.pt"
    torch.save({"batch": Bomb()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match="is a pickle"):
        steps(path)


def test_an_object_array_in_an_archive_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "b.npz"
    np.savez(path, **{**batch_arrays(), "uid": np.array(["a", None, "b", "b"], dtype=object)})
    (step,) = steps(path)
    assert "uid" not in step.columns
    assert any("pickle" in note for note in step.notes)


def test_tensors_come_under_verls_names(tmp_path: Path) -> None:
    for step in (
        *steps(pt(tmp_path / "x.pt")),
        *steps(npz(tmp_path / "y3.npz")),
        *steps(EXAMPLES["safetensors"][1](tmp_path / "z")),
    ):
        assert step.step == 3
        assert list(step.columns["uid"]) == ["a", "a", "b", "b"]
        np.testing.assert_allclose(step.columns["advantages"], batch_arrays()["advantages"], atol=2e-3)
        assert step.columns["length"].tolist() == [4, 2, 4, 3]


def test_other_libraries_tensors_are_renamed_and_moved_to_the_left(tmp_path: Path) -> None:
    arrays = batch_arrays()
    mask = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    ids = np.array([[0, 0, 5, 6], [0, 7, 8, 9]])
    np.savez(tmp_path / "sky.npz", action_mask=mask, sequences=ids, action_log_probs=-0.1 * mask, rewards=[1.0, 0.0],
             uids=["a", "a"], advantages=np.zeros((3, 4)), extra=np.zeros((2, 4, 2)))  # fmt: skip
    (step,) = steps(tmp_path / "sky.npz")
    assert step.columns["response_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert step.columns["sequences"].tolist() == [[5, 6, 0, 0], [7, 8, 9, 0]]
    assert step.columns["old_log_probs"][0].tolist() == [-0.1, -0.1, 0, 0]
    assert step.columns["score"].tolist() == [1, 0]
    assert len([note for note in step.notes if "left out" in note]) == 2
    tools = np.array([[1, 0, 1, 1]] * 4)
    np.savez(tmp_path / "trl.npz", completion_ids=arrays["responses"], completion_mask=arrays["attention_mask"],
             tool_mask=tools, advantages=np.array([0.5, -0.5, 0.5, -0.5]))  # fmt: skip
    (step,) = steps(tmp_path / "trl.npz", n=2)
    assert step.columns["response_mask"].tolist() == (arrays["attention_mask"] * tools).tolist()
    assert step.columns["advantage"].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert list(step.columns["uid"]) == ["block0", "block0", "block1", "block1"]


def test_a_token_batch_is_read_back(tmp_path: Path) -> None:
    arrays = batch_arrays()
    batch = TokenBatch({n: (a if n == "uid" else torch.tensor(a)) for n, a in arrays.items()})
    batch.save(tmp_path / "step-0004.npz")
    (step,) = steps(tmp_path / "step-0004.npz")
    assert step.step == 4
    for name, array in arrays.items():
        assert step.columns[name].tolist() == array.tolist()


def test_tensorboards_scalars_and_a_file_that_is_cut(tmp_path: Path) -> None:
    path = EXAMPLES["tensorboard"][1](tmp_path / "x")
    first, second = steps(path)
    assert (first.step, second.step) == (7, 8)
    assert first.scalars == {"critic/score/mean": 1.75, "actor/entropy": 0.5}
    assert second.scalars == {"critic/score/mean": 2.0, "actor/entropy": 0.5}
    path.write_bytes(path.read_bytes()[:-20])
    *made, tail = steps(path)
    assert [step.step for step in made] == [7, 8]
    assert "cannot be read" in tail.found[0].what


def test_slimes_samples(tmp_path: Path) -> None:
    (step,) = steps(slime(tmp_path / "5.pt"))
    assert step.step == 5
    assert step.columns["response_mask"].tolist() == [[1, 0, 1], [0, 0, 0]]  # removed, and its reward still counts
    assert step.columns["loss_mask"].tolist() == [[1, 0, 1], [1, 1, 1]]
    assert step.columns["score"].tolist() == [1, 0]
    assert step.columns["responses"].tolist() == [[5, 9, 2]] * 2
    assert list(step.columns["finish_reason"]) == ["stop", "length"]
    assert step.columns["parts/format"][1] == 1


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.2)])
def test_trl_groups_and_weights_are_recovered(tmp_path: Path, weights: tuple[float, float]) -> None:
    (step,) = steps(trl_table(tmp_path / "completions_00050.parquet", weights=weights))
    assert step.step == 50
    assert step.facts["n"] == 4
    assert len(set(step.columns["uid"])) == 3
    parts = np.stack([step.columns["parts/accuracy_reward"], step.columns["parts/format_reward"]], 1)
    np.testing.assert_allclose(step.columns["score"], parts @ weights, atol=1e-3)
    assert any("reproduce all advantages" in note for note in step.notes)


def test_a_reward_function_that_returned_none_counts_as_zero(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(trl_table(tmp_path / "a.parquet", weights=(1.0, 1.0)))
    at = table.column_names.index("format_reward")
    values = [None if value == 0 else value for value in table["format_reward"].to_pylist()]
    pq.write_table(table.set_column(at, "format_reward", pa.array(values)), tmp_path / "b.parquet")
    (step,) = steps(tmp_path / "b.parquet")
    assert np.isfinite(step.columns["score"]).all()
    assert any("reproduce all advantages (up to a common factor): accuracy_reward 1, format" in n for n in step.notes)
    assert any("returned None" in note and f"format_reward {values.count(None)}" in note for note in step.notes)


def test_trl_tables_that_do_not_fit_are_not_guessed(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(trl_table(tmp_path / "a.parquet"))
    pq.write_table(table.slice(0, 11), tmp_path / "b.parquet")  # a row was lost
    (step,) = steps(tmp_path / "b.parquet")
    assert "uid" not in step.columns
    assert "groups unknown" in step.notes[0]
    pq.write_table(table.drop_columns(["completion"]), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="without prompt and completion"):
        steps(tmp_path / "c.parquet")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = trl_table(tmp_path / "a.parquet"), EXAMPLES["safetensors"][1](tmp_path / "b")
    for name in ("pyarrow", "pyarrow.parquet", "safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    for path, extra in zip(paths, ("parquet", "safetensors"), strict=True):
        with pytest.raises(InputError, match=rf"pip install 'tabular-agent-rl-lab\[{extra}\]'"):
            steps(path)
