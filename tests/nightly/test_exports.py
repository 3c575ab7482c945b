"""Exports whose libraries are large: MLflow and trackio, read back with themselves."""

import os

import pytest

from labs.errors import InputError
from labs.exporting import Series
from labs.exports.mlflow import mlflow
from labs.exports.trackio import trackio

pytestmark = pytest.mark.nightly

RUNS = [
    Series(
        experiment="agent",
        fingerprint="abc",
        seed=seed,
        config={"updates": 3, "learning_rate": 0.5},
        steps=[(step, {"critic/score/mean": step / 8 + seed, "val-core/a/acc/mean@1": 0.25}) for step in (1, 2, 3)],
    )
    for seed in (3, 4)
]


def test_mlflow_comes_back(tmp_path):
    from mlflow.tracking import MlflowClient

    path = str(tmp_path / "runs.db")
    mlflow(RUNS, path)
    client = MlflowClient(tracking_uri=f"sqlite:///{path}")
    where = client.get_experiment_by_name("agent").experiment_id
    found = {run.info.run_name: run for run in client.search_runs([where])}
    assert set(found) == {"abc-s3", "abc-s4"}
    for run in RUNS:
        got = client.get_metric_history(found[run.name].info.run_id, "critic/score/mean")
        assert [(m.step, m.value) for m in got] == [(s, v["critic/score/mean"]) for s, v in run.steps]
        assert len(client.get_metric_history(found[run.name].info.run_id, "val-core/a/acc/mean_at_1")) == 3
        assert found[run.name].data.params == {"updates": "3", "learning_rate": "0.5"}
    with pytest.raises(InputError, match="already"):
        mlflow(RUNS, path)


def test_trackio_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", os.environ.get("TRACKIO_DIR", ""))
    trackio(RUNS, str(tmp_path / "t"))
    import trackio as library
    from trackio.sqlite_storage import SQLiteStorage

    assert {run.name for run in library.Api().runs("agent")} == {"abc-s3", "abc-s4"}
    for run in RUNS:
        got = [(row["step"], row["critic/score/mean"]) for row in SQLiteStorage.get_logs("agent", run.name)]
        assert got == [(s, v["critic/score/mean"]) for s, v in run.steps]
    with pytest.raises(InputError, match="already"):
        trackio(RUNS, str(tmp_path / "t"))
    with pytest.raises(InputError, match="new Python process"):
        trackio(RUNS, str(tmp_path / "other"))
