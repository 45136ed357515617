"""Results of a job for readers other than Spark: what the manifest names."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def manifest(folder):
    """The last finished run's; None where there is none."""
    lines = [file.read_text() for file in Path(folder).glob("manifest/*/part-*.txt")]
    return max((json.loads(line) for line in lines if line), key=lambda each: each["run"], default=None)


def places(folder, name):
    """The folders that hold the table."""
    return [Path(folder, part["path"]) for part in manifest(folder)["tables"][name].values()]


def read(folder, name):
    return pa.concat_tables([pq.read_table(place) for place in places(folder, name)])


def tables(folder):
    """All tables of the last finished run: their rows, in an order of their own."""
    return {
        name: sorted((tuple(row.values()) for row in read(folder, name).to_pylist()), key=repr)
        for name in manifest(folder)["tables"]
    }
