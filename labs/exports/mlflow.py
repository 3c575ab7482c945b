"""Runs in an MLflow store: metrics under verl's names, settings as parameters."""

from __future__ import annotations

from collections.abc import Sequence

from labs.errors import InputError
from labs.exporting import Series, missing


def mlflow(runs: Sequence[Series], output: str) -> str:
    """Add one MLflow run per seed to the SQLite file `output`, or to the tracking server when it is an http address.

    The MLflow experiment is the lab's, the run's name `<fingerprint>-s<seed>`. A run of that name is there once: a
    second export of the same run is refused, since MLflow has no way to replace one. MLflow allows no "@" in a name;
    it becomes `_at_`, as verl's own logger writes it. Timestamps are the step in milliseconds.

    Raises:
        InputError: MLflow is not installed, or the run is in the store already.
    """
    try:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        missing("mlflow-skinny with sqlalchemy and alembic", "mlflow")
    import os

    remote = output.startswith(("http://", "https://"))
    try:
        client = MlflowClient(tracking_uri=output if remote else f"sqlite:///{os.path.abspath(output)}")
        found = client.get_experiment_by_name(runs[0].experiment)
        where = found.experiment_id if found else client.create_experiment(runs[0].experiment)
        there = {run.info.run_name for run in client.search_runs([where], max_results=50_000)}
        for run in runs:
            if run.name in there:
                raise InputError(f"{output} has the run {run.name} of {run.experiment} already; give another --output")
        for run in runs:
            made = client.create_run(where, run_name=run.name, start_time=0, tags={"seed": str(run.seed)})
            client.log_batch(made.info.run_id, params=[Param(k, str(v)) for k, v in run.config.items()])
            metrics = [Metric(name.replace("@", "_at_"), value, step, step) for step, name, value in run.points()]
            for first in range(0, len(metrics), 1000):  # what MLflow takes at once
                client.log_batch(made.info.run_id, metrics=metrics[first : first + 1000])
            client.set_terminated(made.info.run_id, end_time=run.steps[-1][0] if run.steps else 0)
    except MlflowException as error:
        raise InputError(f"MLflow refused {output}: {str(error).splitlines()[0]}") from error
    server = output if remote else f"sqlite:///{output}"
    return f"added {len(runs)} run(s) to the MLflow experiment {runs[0].experiment} in {server}"
