"""Event files for TensorBoard: a folder per seed, scalars under verl's names."""

from __future__ import annotations

from collections.abc import Sequence

from labs.exporting import Series, missing


def tensorboard(runs: Sequence[Series], output: str) -> str:
    """Write `output/<experiment>/<fingerprint>-s<seed>/events.out.tfevents.0.lab` for every seed.

    The wall time of an event is its step in seconds, since a run stores no time of its numbers; so the same run gives
    the same bytes, and TensorBoard's axes "step" and "relative" agree.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        missing("tensorboard", "tensorboard")
    import io
    import os

    from labs.store import write

    count = 0
    for run in runs:
        text = io.BytesIO()
        records = RecordWriter(text)
        records.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
        for step, values in run.steps:
            scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            event = Event(wall_time=float(step), step=step, summary=Summary(value=scalars))
            records.write(event.SerializeToString(deterministic=True))
            count += len(scalars)
        folder = os.path.join(output, run.experiment, run.name)
        os.makedirs(folder, exist_ok=True)
        write(os.path.join(folder, "events.out.tfevents.0.lab"), text.getvalue())
    return f"wrote {count:,} numbers of {len(runs)} run(s); tensorboard --logdir {output}"
