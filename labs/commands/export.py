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
    from labs.errors import InputError
    from labs.exporting import load
    from labs.registry import exports
    from labs.store import check_folder, check_writable

    write = exports[target]
    if target in ("tensorboard", "trackio"):
        check_folder(output, "--output")
    elif target != "mlflow" or not output.startswith(("http://", "https://")):
        check_writable(output, "--output")
    runs = load(run)
    try:
        click.echo(write(runs, output))
    except (FileNotFoundError, NotADirectoryError) as error:  # what the system answers to a folder below /proc
        raise InputError(f"--output {output} cannot be made: {error.strerror}") from None
