"""Delta tables by the package deltalake: errors of one line, and what a vacuum leaves to runs that are not done."""

import os
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyarrow import parquet

from spark_jobs.tables import delta_log
from spark_jobs.tables.delta_log import NewFile
from tidemark.analysis.errors import JobError

ROWS = pa.table({"id": [1, 2]})


@pytest.mark.parametrize(
    "make", [lambda url: delta_log.make_table(url, Schema.from_arrow(ROWS.schema)), delta_log.make_runs]
)
def test_a_table_that_cannot_be_made_is_reported_in_one_line(tmp_path, make):
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(JobError, match=r"file.* cannot be made: ") as raised:
        make(str(tmp_path / "file"))

    assert "\n" not in str(raised.value)


def test_a_vacuum_leaves_the_new_files_of_a_run_that_has_not_committed_them(tmp_path):
    url, schema = str(tmp_path / "rows"), Schema.from_arrow(ROWS.schema)
    delta_log.make_table(url, schema)

    def written(name):
        parquet.write_table(ROWS, tmp_path / "rows" / name)
        return NewFile(name, (tmp_path / "rows" / name).stat().st_size, ROWS.num_rows)

    for key in ("first", "second"):
        delta_log.commit(url, [written(f"{key}.parquet")], schema.to_json(), key)
    other = written("another-run.parquet")
    written("killed.parquet")
    two_days_ago = time.time() - 2 * 86_400
    os.utime(tmp_path / "rows" / "killed.parquet", (two_days_ago, two_days_ago))

    delta_log.vacuum(url, 0)

    assert {file.name for file in (tmp_path / "rows").glob("*.parquet")} == {"second.parquet", other.path}
    delta_log.commit(url, [other], schema.to_json(), "another run")
    assert DeltaTable(url).to_pyarrow_table()["id"].to_pylist() == [1, 2]
