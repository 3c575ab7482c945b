"""Export a stored run for another program: TensorBoard, MLflow, trackio or a Parquet file."""

from __future__ import annotations

import click


@click.command(short_help=__doc__)
@click.argument("run")
@click.option("--to", "target", required=True, metavar="NAME", help="tensorboard, mlflow, trackio or parquet.")
@click.option(
    "--output", required=True, metavar="PATH", help="Parquet, MLflow: a file; TensorBoard, trackio: a folder."
)
def command(run: str, target: str, output: str) -> None:
    """Write the numbers of the folder RUN under verl's names; numbers that verl does not log are called lab/NAME."""
    import os

    from labs.errors import InputError
    from labs.exporting import load
    from labs.registry import exports
    from labs.store import check_folder, check_writable

    write = exports[target]
    remote = output.startswith(("http://", "https://"))
    if target in ("tensorboard", "trackio"):
        if os.path.exists(output) and not os.path.isdir(output):
            raise InputError(f"--output {output} is a file; {target} takes a folder")
        check_folder(output)
    elif not remote:
        check_writable(output, "--output")
    click.echo(write(load(run), output))
