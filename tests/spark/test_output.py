"""Tables as Parquet and as Delta, and where Spark finds a path."""

import json
from datetime import UTC, datetime

import deltalake
import duckdb
import pytest
from pyspark.sql import functions as F

from spark_jobs.platform import output
from spark_jobs.platform.output import (
    is_delta,
    local_folder,
    merge_rows,
    newest_version,
    read_lines,
    read_table,
    write_line,
    write_table,
)
from tidemark.analysis.errors import InputError, JobError

AT = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)


@pytest.fixture
def rows(spark):
    return spark.createDataFrame(
        [(1, "a", AT), (2, "b", AT), (3, None, None)], "id long, name string, at timestamp"
    )


def found(frame):
    return sorted(tuple(row) for row in frame.select("id", "name").collect())


@pytest.mark.parametrize("fmt", ["parquet", "delta"])
def test_a_table_is_replaced_and_read_back(spark, rows, tmp_path, fmt) -> None:
    path = str(tmp_path / "a folder" / "table")
    write_table(rows, path, fmt=fmt)
    write_table(rows.where("id > 1"), path, fmt=fmt)

    assert sorted(read_table(spark, path, fmt).collect()) == sorted(rows.where("id > 1").collect())
    write_table(rows.select(F.col("id").alias("other")), path, fmt=fmt)
    assert read_table(spark, path, fmt).columns == ["other"]
    assert [entry.name for entry in (tmp_path / "a folder").iterdir()] == [
        "table"
    ]  # nothing is left beside it


@pytest.mark.parametrize("fmt", ["parquet", "delta"])
def test_partitions_are_replaced_and_others_stay(spark, rows, tmp_path, fmt) -> None:
    path = str(tmp_path / "table")
    write_table(rows, path, fmt=fmt, partition_by=["name"])
    write_table(
        rows.where("id = 2").withColumn("id", F.lit(20).cast("long")),
        path,
        fmt=fmt,
        partition_by=["name"],
        only=["b"],
    )

    assert {(1, "a"), (20, "b"), (3, None)} == {
        tuple(r) for r in read_table(spark, path, fmt).select("id", "name").collect()
    }


def test_rows_are_merged_by_their_keys_into_a_table_that_has_others_and_more_columns(spark, tmp_path) -> None:
    path = str(tmp_path / "table")
    frame = spark.createDataFrame(
        [(1, None, 1.0), (2, "b", 2.0), (3, "c", 3.0)], "id long, window string, value double"
    )
    merge_rows(frame.withColumn("env", F.expr("if(id > 0, 'test', null)")), path, ["id", "window"])
    new = (
        frame.where("id < 3")
        .withColumn("value", F.lit(7.0))
        .union(frame.where("id = 3"))
        .union(frame.selectExpr("id", "'new'", "value").limit(1))
    )
    merge_rows(new, path, ["id", "window"])
    once = newest_version(spark, path, "delta")
    merge_rows(new, path, ["id", "window"])

    rows = {tuple(row) for row in read_table(spark, path, "delta").collect()}
    assert rows == {
        (1, None, 7.0, "test"),
        (2, "b", 7.0, "test"),
        (3, "c", 3.0, "test"),
        (1, "new", 1.0, None),
    }
    assert newest_version(spark, path, "delta") == once
    with pytest.raises(JobError, match=r"the rows cannot be merged into .*table: .*other"):
        merge_rows(new.withColumnRenamed("value", "other"), path, ["id", "window"])
    with pytest.raises(JobError, match=r"Spark cannot merge into no_catalog\.no\.table: "):
        merge_rows(new, "no_catalog.no.table", ["id"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_of_two_runs_that_make_a_table_at_once_neither_loses_its_rows(
    spark, rows, tmp_path, monkeypatch
) -> None:
    path = str(tmp_path / "table")
    first = rows.where("id = 1")

    def and_then_another_made_it(session, place):
        found = is_delta(session, place)
        if not found:
            write_table(first, path, fmt="delta")
        return found

    monkeypatch.setattr(output, "is_delta", and_then_another_made_it)
    merge_rows(rows.where("id = 2"), path, ["id"])

    assert found(read_table(spark, path, "delta")) == [(1, "a"), (2, "b")]
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_nothing_is_made_over_a_table_that_cannot_be_seen_or_is_another_kind(spark, rows, tmp_path) -> None:
    path = str(tmp_path / "table")
    (tmp_path / "table" / "metadata").mkdir(parents=True)
    with pytest.raises(InputError, match=r"table holds a table of Iceberg, .*by its name in a catalog"):
        merge_rows(rows, path, ["id"])
    with pytest.raises(JobError, match=r"Spark cannot look at unknown://there/table: .*unknown"):
        merge_rows(rows, "unknown://there/table", ["id"])
    with pytest.raises(JobError, match=r"Spark cannot merge into no-catalog\.no\.table: .*no-catalog"):
        merge_rows(rows, "no-catalog.no.table", ["id"])


def test_of_a_delta_table_only_live_files_are_read_with_the_types_of_its_log(spark, tmp_path) -> None:
    frame = spark.createDataFrame([("007", 1), ("007", 2), ("8", 3)], "name string, id long")
    path = str(tmp_path / "table")
    write_table(frame, path, fmt="delta", partition_by=["name"])
    first = newest_version(spark, path, "delta")
    deltalake.DeltaTable(path).delete("id = 2")  # rewrites a file; the old one stays on disk

    assert found(read_table(spark, path, "delta")) == [(1, "007"), (3, "8")]
    assert found(read_table(spark, path, "delta", version=first)) == [(1, "007"), (2, "007"), (3, "8")]


def test_a_delta_table_whose_files_do_not_tell_all_is_refused(spark, rows, tmp_path) -> None:
    path = str(tmp_path / "table")
    write_table(rows, path, fmt="delta")
    log = tmp_path / "table" / "_delta_log" / "00000000000000000001.json"
    features = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    log.write_text(json.dumps({"protocol": features}))

    with pytest.raises(JobError, match="deletionVectors"):
        read_table(spark, path, "delta")


def test_other_engines_read_the_times_as_utc(rows, tmp_path) -> None:
    write_table(rows, str(tmp_path / "table"), partition_by=["name"])

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    files = f"'{tmp_path}/table/*/*.parquet'"
    told = connection.execute(f'select epoch_us("at"), name from {files} where id = 2').fetchall()
    assert told == [(int(AT.timestamp() * 1e6), "b")]


def test_a_table_that_is_not_there_is_an_error(spark, tmp_path) -> None:
    for fmt in ("parquet", "delta"):
        with pytest.raises(InputError, match=f"no.*no finished {fmt} table"):
            read_table(spark, str(tmp_path / "no"), fmt)


def test_an_unknown_format_is_an_error_that_names_the_option(rows, tmp_path) -> None:
    with pytest.raises(InputError, match=r"--format .* is 'csv'; accepted: parquet, delta, iceberg"):
        write_table(rows, str(tmp_path / "table"), fmt="csv")


def test_a_line_is_there_whole_or_not_at_all(spark, tmp_path) -> None:
    path = str(tmp_path / "lines")

    def read(kind=str):
        return sorted(read_lines(spark, path, kind, what="text", advice="look"))

    assert read() == []
    for line in ("b c", "x" * 300_000):
        write_line(spark, json.dumps(line), f"{path}/0")
        assert read() == [line]
    write_line(spark, '"another"', f"{path}/1")
    assert read() == ["another", line]
    with pytest.raises(JobError, match=r"lines holds what is no text: .*; look"):
        read(int)


def test_spark_says_which_folder_of_this_machine_a_path_means(spark, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir("/")
    for path in (str(tmp_path / "a folder"), f"file://{tmp_path}/a folder", f"file:{tmp_path}/a folder/"):
        assert local_folder(spark, path) == tmp_path / "a folder"
    with pytest.raises(InputError, match=r"Spark cannot look at 'nowhere://x/y': .*nowhere"):
        local_folder(spark, "nowhere://x/y")
