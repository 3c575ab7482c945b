"""Pipelines small enough to check by hand: their slow settings, and their trajectories as rows."""

SLOW = {"workers": 2, "batch_size": 1, "training_seconds": 4.0, "ingestion": "train"}


def table(run, *fields):
    return [tuple(t.row()[field] for field in fields) for t in run.trajectories]
