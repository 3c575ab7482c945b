"""One Parquet file in long form: a row per number, for pandas, polars, duckdb and the like."""

from __future__ import annotations

from collections.abc import Sequence

from labs.exporting import Series, missing


def parquet(runs: Sequence[Series], output: str) -> str:
    """Write the file `output`.

    Columns: `experiment`, `fingerprint`, `seed`, `step`, `name`, `value`; the settings are in the schema's metadata as
    JSON under the key `config`. The same run gives the same bytes.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as files
    except ImportError:
        missing("pyarrow", "parquet")
    import io
    import json

    from labs.store import write

    rows = [(run.experiment, run.fingerprint, run.seed, *point) for run in runs for point in run.points()]
    kinds = (
        ("experiment", arrow.string()), ("fingerprint", arrow.string()), ("seed", arrow.int64()),
        ("step", arrow.int64()), ("name", arrow.string()), ("value", arrow.float64()),
    )  # fmt: skip
    schema = arrow.schema(kinds, metadata={"config": json.dumps(dict(runs[0].config), sort_keys=True)})
    columns = [arrow.array(column, kind) for column, (_, kind) in zip(zip(*rows, strict=True), kinds, strict=True)]
    text = io.BytesIO()
    files.write_table(arrow.Table.from_arrays(columns, schema=schema), text)
    write(output, text.getvalue())
    return f"wrote {len(rows):,} numbers of {len(runs)} run(s) to {output}"
