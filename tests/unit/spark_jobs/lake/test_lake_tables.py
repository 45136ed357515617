"""What a task does with its rows in a store without a file system of Spark's, and texts there."""

import itertools
import re
import uuid
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet
from pyspark.sql.types import StructType

from spark_jobs.lake import delta, tables
from spark_jobs.lake.file_systems import file_system, is_lake
from tidemark.analysis.errors import InputError


@pytest.fixture
def place():
    return f"memory://{uuid.uuid4()}"


@pytest.fixture
def task(monkeypatch):
    """Runs the work of one task after the other on batches, and gives the paths that are told."""
    numbers = itertools.count()

    def run(url, batches, by=None):
        number = next(numbers)
        context = SimpleNamespace(partitionId=lambda: number, taskAttemptId=lambda: number + 40)
        monkeypatch.setattr(tables.TaskContext, "get", lambda: context)
        [told] = tables._written(iter(batches), url=url, by=by, run="ab")
        return told.column("path").to_pylist()

    return run


def batch(*rows):
    return pa.RecordBatch.from_pylist([{"n": n, "day": day} for n, day in rows])


def rows_at(url, paths):
    asked = pa.RecordBatch.from_pylist([{"url": url, "path": path} for path in paths])
    return [row for each in tables._read(iter([asked])) for row in each.to_pylist()]


def test_each_task_writes_files_of_its_own_and_none_without_rows(place, task):
    one = task(place, [batch((1, "a")), batch((2, "b"))])
    two = task(place, [batch((3, "a"))])

    assert [path.rpartition("/")[2] for path in one + two] == [
        "part-00000-40-ab.parquet",
        "part-00001-41-ab.parquet",
    ]
    assert [row["n"] for row in rows_at(place, one + two)] == [1, 2, 3]
    assert task(place, [batch((1, "a"))[:0]]) == []
    assert sorted(file_system(place)[0].find(place)) == sorted(one + two)


def test_values_of_a_column_are_folders_of_rows_without_it(place, task):
    paths = task(place, [batch((1, "a"), (2, "b/c"), (3, "a")), batch((4, "a"), (5, None))], by="day")

    assert [path.rpartition("/")[0].rpartition("/")[2] for path in paths] == [
        *("day=a", "day=b%2Fc"),
        "day=__HIVE_DEFAULT_PARTITION__",
    ]
    assert rows_at(place, paths[:1]) == [{"n": 1}, {"n": 3}, {"n": 4}]
    assert rows_at(place, paths[1:]) == [{"n": 2}, {"n": 5}]


def test_what_was_there_goes_and_a_table_without_rows_has_its_columns(place, task):
    schema = StructType().add("n", "long").add("day", "timestamp")
    old = task(place, [batch((1, "a"), (2, "b"), (3, "c"))], by="day")
    new = task(place, [batch((4, "b"))], by="day")
    system, root = file_system(place)

    tables.replace_others(place, new, schema, partition_by=["day"], only=["b"])
    assert sorted(system.find(root)) == sorted([old[0], *new, old[2]])
    tables.replace_others(place, new, schema, partition_by=["day"])
    assert system.find(root) == new
    tables.replace_others(place, [], schema)
    [empty] = system.find(root)
    assert rows_at(place, [empty]) == []
    with system.open(empty) as file:
        assert parquet.read_schema(file).names == ["n", "day"]


@pytest.mark.parametrize("by", [None, "_delta_log"])
def test_tables_whose_files_do_not_tell_all_are_refused(place, task, by):
    if by is None:
        task(place, [batch((1, "a"))], by="day")
    else:
        task(f"{place}/{by}", [batch((1, "a"))])

    with pytest.raises(InputError, match="partitioned tables and Delta need"):
        tables.read_table(None, [place])


def test_a_line_replaces_the_one_before_it(place):
    assert tables.read_lines(f"{place}/manifest") == []
    for line in ("old", "new"):
        tables.write_line(line, f"{place}/manifest/a")
    tables.write_line("other", f"{place}/manifest/b")

    assert sorted(tables.read_lines(f"{place}/manifest")) == ["new", "other"]


def test_a_data_lake_is_told_by_its_url_and_other_kinds_are_refused():
    assert [is_lake(url) for url in ("az://c/x", "abfss://c@a/x", "/az/x", "s3://c/x")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(InputError, match="'nosuch://x' cannot be opened"):
        file_system("nosuch://x")


def test_a_merge_into_a_table_that_is_partitioned_by_a_text_with_a_space_replaces_its_rows(tmp_path):
    """Which deltalake 1.5.0 tripled, and 1.6.0 failed at."""
    table, rows = tmp_path / "table", tmp_path / "rows"
    rows.mkdir()
    start = pa.table({"target": ["a b", "a b", "c"], "at": [1, 2, 1], "value": [1.0, 2.0, 3.0]})
    write_deltalake(table, start, partition_by=["target"])
    parquet.write_table(
        pa.table({"target": ["a b", "d e"], "at": [2, 1], "value": [20.0, 4.0]}), rows / "r.parquet"
    )

    for _ in range(2):
        delta.merge(table, rows, ["target", "at"])

    found = pa.table(DeltaTable(table).to_pyarrow_table()).to_pylist()
    assert sorted((row["target"], row["at"], row["value"]) for row in found) == [
        ("a b", 1, 1.0), ("a b", 2, 20.0), ("c", 1, 3.0), ("d e", 1, 4.0),
    ]  # fmt: skip
    wanted = re.search(
        r'"deltalake>=([\d.]+)"', (Path(__file__).parents[4] / "cli" / "pyproject.toml").read_text()
    )
    assert tuple(map(int, wanted[1].split("."))) >= (1, 6, 6)
