"""Tables of others, as Parquet and as Delta, and where Spark finds a path."""

import json
from datetime import UTC, datetime

import deltalake
import duckdb
import pytest
from pyspark.sql import functions as F

from spark_jobs.tables import merging
from spark_jobs.tables.committed import CommittedStore, nullable_json, read_live
from spark_jobs.tables.merging import merge_rows, read_delta, read_parquet_or_delta
from spark_jobs.tables.places import is_delta, local_folder
from spark_jobs.tables.plain import read_parquet, write_parquet
from spark_jobs.tables.runs import Run
from tidemark.analysis.errors import InputError, JobError

AT = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)


@pytest.fixture
def rows(spark):
    return spark.createDataFrame(
        [(1, "a", AT), (2, "b", AT), (3, None, None)], "id long, name string, at timestamp"
    )


def found(frame):
    return sorted(tuple(row) for row in frame.select("id", "name").collect())


@pytest.fixture
def store(spark, tmp_path):
    return CommittedStore(spark, str(tmp_path), is_here=True)


def test_a_table_is_replaced_and_read_back(spark, rows, tmp_path, store) -> None:
    first = store.write("a table", rows, Run(1, "k"))
    store.write("a table", rows.where("id > 1"), Run(2, "k2"))
    newest = store.write("a table", rows.select(F.col("id").alias("other")), Run(3, "k3"))

    assert sorted(store.read("a table", first).collect()) == sorted(rows.collect())
    assert store.read("a table", newest).columns == ["other"]
    assert store.newest_version("a table") == newest
    assert [entry.name for entry in tmp_path.iterdir()] == ["a table"]  # nothing is left beside it
    path = str(tmp_path / "plain")
    write_parquet(rows, path)
    write_parquet(rows.where("id > 1"), path)
    assert sorted(read_parquet(spark, [path]).collect()) == sorted(rows.where("id > 1").collect())


def test_what_is_committed_has_sparks_schema_and_asks_readers_for_no_feature(spark, store, tmp_path) -> None:
    """Of all kinds of columns that jobs write."""
    frame = spark.sql(
        "SELECT 1L AS id, 2 AS number, 1.5D AS value, true AS flag, timestamp'2026-11-21 08:30:00Z' AS at, x'00ff' AS bytes,"
        " map('a', 1.0D) AS numbers, array(named_struct('day', date'2026-11-21')) AS days, 'a' AS text"
    )

    version = store.write("all", frame, Run(1, "k"))

    table = deltalake.DeltaTable(tmp_path / "all")
    protocol = table.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
    assert "false" not in nullable_json(frame.schema)
    assert json.loads(table.schema().to_json()) == json.loads(nullable_json(frame.schema))
    assert store.read("all", version).collect() == frame.collect()


def test_times_that_spark_writes_as_int96_are_refused_and_nothing_is_committed(spark, rows, store) -> None:
    """deltalake would commit them as times in nanoseconds, which most readers refuse."""
    key = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(key)
    spark.conf.set(key, "INT96")
    try:
        with pytest.raises(
            JobError, match=r"times of table as INT96; set spark\.sql\.parquet.* to TIMESTAMP_MICROS"
        ):
            store.write("table", rows, Run(1, "k"))
    finally:
        spark.conf.set(key, before)
    assert store.newest_version("table") is None


def test_a_table_that_cannot_be_opened_is_one_line(spark, tmp_path, store) -> None:
    (tmp_path / "runs" / "_delta_log").mkdir(parents=True)
    (tmp_path / "runs" / "_delta_log" / "00000000000000000000.json").write_text("{")

    with pytest.raises(JobError, match="runs cannot be opened as a Delta table: "):
        store.runs()


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
    once = deltalake.DeltaTable(path).version()
    merge_rows(new, path, ["id", "window"])

    rows = {tuple(row) for row in read_delta(spark, path).collect()}
    assert rows == {
        (1, None, 7.0, "test"),
        (2, "b", 7.0, "test"),
        (3, "c", 3.0, "test"),
        (1, "new", 1.0, None),
    }
    assert deltalake.DeltaTable(path).version() == once
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
            deltalake.write_deltalake(path, first.toArrow())
        return found

    monkeypatch.setattr(merging, "is_delta", and_then_another_made_it)
    merge_rows(rows.where("id = 2"), path, ["id"])

    assert found(read_delta(spark, path)) == [(1, "a"), (2, "b")]
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
    deltalake.write_deltalake(path, frame.toArrow(), partition_by=["name"])
    first = deltalake.DeltaTable(path).version()
    deltalake.DeltaTable(path).delete("id = 2")  # rewrites a file; the old one stays on disk

    assert found(read_delta(spark, path)) == [(1, "007"), (3, "8")]
    assert found(read_live(spark, path, first, is_here=True)) == [(1, "007"), (2, "007"), (3, "8")]


def test_a_delta_table_whose_files_do_not_tell_all_is_refused(spark, rows, tmp_path) -> None:
    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, rows.toArrow())
    log = tmp_path / "table" / "_delta_log" / "00000000000000000001.json"
    features = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    log.write_text(json.dumps({"protocol": features}))

    with pytest.raises(JobError, match="deletionVectors"):
        read_delta(spark, path)


def test_other_engines_read_the_times_as_utc(rows, tmp_path) -> None:
    write_parquet(rows, str(tmp_path / "table"), ["name"])

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    files = f"'{tmp_path}/table/*/*.parquet'"
    told = connection.execute(f'select epoch_us("at"), name from {files} where id = 2').fetchall()
    assert told == [(int(AT.timestamp() * 1e6), "b")]


def test_a_table_that_is_not_there_is_an_error(spark, tmp_path) -> None:
    for fmt, read in (("parquet", read_parquet_or_delta), ("delta", read_delta)):
        with pytest.raises(InputError, match=f"no.*no finished {fmt} table"):
            read(spark, str(tmp_path / "no"))


def test_spark_says_which_folder_of_this_machine_a_path_means(spark, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir("/")
    for path in (str(tmp_path / "a folder"), f"file://{tmp_path}/a folder", f"file:{tmp_path}/a folder/"):
        assert local_folder(spark, path) == tmp_path / "a folder"
    with pytest.raises(InputError, match=r"Spark cannot look at 'nowhere://x/y': .*nowhere"):
        local_folder(spark, "nowhere://x/y")
