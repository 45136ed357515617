"""Iceberg tables of one folder, whose writers are killed, compete, and change their columns."""

import itertools
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import StaticTable

from spark_jobs.errors import InputError, JobError
from spark_jobs.lake import iceberg


class Killed(BaseException):
    """Not an Exception: nobody may catch it on the way."""


@pytest.fixture
def put(tmp_path):
    """Writes rows as the table, or as some of its days."""

    def write(rows, only=None, partition_by=("day",)):
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        iceberg.replace(tmp_path / "a table", tmp_path / "rows.parquet", partition_by, only)

    return write


def seen(folder, version=None):
    _, files = iceberg.live(folder, version)
    return sorted(
        tuple(row.values()) for file in files for row in parquet.ParquetFile(file).read().to_pylist()
    )


def days(number):
    return [{"day": "20", "run": number}, {"day": "21", "run": number}]


def kill_at(monkeypatch, step):
    """Nothing of the folder's files is changed any more from this step on."""
    steps = itertools.count()

    def breaking(change):
        def call(*arguments, **options):
            if next(steps) >= step:
                raise Killed
            return change(*arguments, **options)

        return call

    of_paths = ((Path, name) for name in ("unlink", "write_text", "replace"))
    for owner, name in ((PyArrowFile, "create"), (os, "link"), *of_paths):
        monkeypatch.setattr(owner, name, breaking(getattr(owner, name)))


def test_a_writer_killed_before_any_change_of_a_file_leaves_the_old_rows_or_the_new_and_the_next_goes_on(
    put, tmp_path, monkeypatch
):
    folder = tmp_path / "a table"
    put(days(0))
    before, left = [("20", 0), ("21", 0)], []
    for step in itertools.count():
        with monkeypatch.context() as patched:
            kill_at(patched, step)
            try:
                put(days(step + 1)[1:], only=["21"])
            except Killed:
                left.append(seen(folder))
            else:
                break
        after = [("20", 0), ("21", step + 1)]
        assert left[-1] in (before, after)
        before = left[-1]
        if before == after:  # whoever goes by the hint sees one whole state, too
            hinted = StaticTable.from_metadata(str(folder)).scan().to_arrow().num_rows
            assert hinted == 2

    assert step > 6
    assert left[0] == left[3] == [("20", 0), ("21", 0)]
    assert seen(folder) == [("20", 0), ("21", step + 1)]
    assert StaticTable.from_metadata(str(folder)).current_snapshot().snapshot_id == iceberg.newest(folder)


def test_old_snapshots_are_read_with_their_columns_and_the_file_of_a_state_is_never_written_again(
    put, tmp_path
):
    folder = tmp_path / "a table"
    put(days(1))
    first, state = iceberg.newest(folder), folder / "metadata" / "v1.metadata.json"
    text = state.read_bytes()
    put([{"day": "22", "run": "text now", "more": [1]}])

    schema, _ = iceberg.live(folder, first)
    assert (schema.names, seen(folder, first)) == (["day", "run"], [("20", 1), ("21", 1)])
    assert seen(folder) == [("22", "text now", [1])]
    assert state.read_bytes() == text
    with pytest.raises(InputError, match=r"a table: the iceberg table has no snapshot 7; was it expired\?"):
        iceberg.live(folder, 7)


def test_a_large_result_is_written_piece_by_piece_and_an_empty_one_is_a_table(put, tmp_path, monkeypatch):
    monkeypatch.setattr(iceberg, "_CHUNK", 1)
    folder = tmp_path / "a table"
    parquet.write_table(pa.table({"id": range(5)}), tmp_path / "rows.parquet", row_group_size=2)
    iceberg.replace(folder, tmp_path / "rows.parquet", (), None)
    assert (seen(folder), len(iceberg.live(folder, None)[1])) == ([(n,) for n in range(5)], 3)

    parquet.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "rows.parquet")
    iceberg.replace(folder, tmp_path / "rows.parquet", (), None)
    assert (seen(folder), iceberg.live(folder, None)[0].names) == ([], ["id"])


@pytest.mark.parametrize("links", [True, False])
def test_of_two_writers_at_once_one_is_refused_also_where_files_cannot_be_linked(
    put, tmp_path, monkeypatch, links
):
    folder = tmp_path / "a table"
    put(days(1))
    other = iceberg._table(folder).transaction()
    if not links:

        def refuse(*_):
            raise PermissionError

        monkeypatch.setattr(os, "link", refuse)
    put(days(2))

    other.set_properties(a="b")
    with pytest.raises(JobError, match=r"another run wrote to .*a table at the same time"):
        other.commit_transaction()
    assert seen(folder) == [("20", 2), ("21", 2)]


def test_a_folder_without_a_table_and_one_that_no_url_names_are_told(tmp_path):
    with pytest.raises(InputError, match="holds no finished iceberg table"):
        iceberg.newest(tmp_path)
    with pytest.raises(InputError, match="accepted: a name without #"):
        iceberg.live(tmp_path / "a#b", None)
