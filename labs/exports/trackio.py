"""Runs in a local trackio folder: project per experiment, run per seed, verl's names."""

from __future__ import annotations

from collections.abc import Sequence

from labs.errors import InputError
from labs.exporting import Series, missing


def trackio(runs: Sequence[Series], output: str) -> str:
    """Add one trackio run per seed to the folder `output` (trackio's `TRACKIO_DIR`); nothing leaves the machine.

    The project is the experiment's name, the run's name `<fingerprint>-s<seed>`; one that is there already is refused.

    Raises:
        InputError: trackio is not installed, was imported before with another folder, or has the run already.
    """
    import contextlib
    import io
    import os
    import sys

    folder = os.path.abspath(output)
    # trackio reads its folder when it is imported, and nowhere else.
    if "trackio" in sys.modules and str(sys.modules["trackio"].TRACKIO_DIR) != folder:
        raise InputError(f"trackio is in use with another folder; export to {output} in a new Python process")
    os.environ["TRACKIO_DIR"] = folder
    try:
        import trackio as library
    except ImportError:
        missing("trackio", "trackio")
    try:
        there = {run.name for run in library.Api().runs(runs[0].experiment)}
    except ValueError:  # how it says that there is no such project yet
        there = set()
    for run in runs:
        if run.name in there:
            raise InputError(f"{output} has the run {run.name} of {run.experiment} already; give another --output")
    for run in runs:
        with contextlib.redirect_stdout(io.StringIO()):  # its advertisement is not this command's result
            library.init(
                project=run.experiment,
                name=run.name,
                config=dict(run.config),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            for step, values in run.steps:
                library.log(dict(values), step=step)
            library.finish()
    return f"added {len(runs)} run(s); TRACKIO_DIR={output} trackio show --project {runs[0].experiment}"
