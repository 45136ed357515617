"""Results of a job for readers other than Spark: what the newest row of the table of runs names."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.tables import delta_log


def runs(folder):
    """Those that finished."""
    return delta_log.read_runs(str(folder)) or []


def files(folder, name):
    """The files of the table."""
    table = Path(folder, name)
    _, _, paths = delta_log.live(str(table), runs(folder)[-1].versions[name])
    return [table / path for path in paths]


def read(folder, name):
    return pa.concat_tables([pq.ParquetFile(file).read() for file in files(folder, name)])


def tables(folder):
    """All tables of the last finished run: their rows, in an order of their own."""
    return {name: _in_order(read(folder, name)) for name in runs(folder)[-1].versions}


def exported(folder):
    """As `tables`, of those that are Parquet alone."""
    return {place.name: _in_order(pq.read_table(place)) for place in Path(folder, "parquet").iterdir()}


def _in_order(table):
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
