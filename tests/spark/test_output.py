"""Tables are there whole or not at all, as Parquet and as Delta."""

from datetime import UTC, datetime

import duckdb
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from spark_jobs.errors import InputError
from spark_jobs.output import read_table, write_table

AT = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)


@pytest.fixture
def rows(spark):
    return spark.createDataFrame(
        [(1, "a", AT), (2, "b", AT), (3, None, None)], "id long, name string, at timestamp"
    )


@pytest.mark.parametrize("fmt", ["parquet", "delta"])
def test_a_table_is_replaced_appended_to_and_read_back(spark, rows, tmp_path, fmt) -> None:
    path = str(tmp_path / "a folder" / "table")
    write_table(rows, path, fmt=fmt)
    write_table(rows.where("id > 1"), path, fmt=fmt)
    write_table(rows.where("id = 1"), path, fmt=fmt, mode="append")

    assert sorted(read_table(spark, path, fmt).collect()) == sorted(rows.collect())
    write_table(rows.select(F.col("id").alias("other")), path, fmt=fmt)
    assert read_table(spark, path, fmt).columns == ["other"]
    assert [entry.name for entry in (tmp_path / "a folder").iterdir()] == [
        "table"
    ]  # nothing is left beside it


def test_a_write_that_fails_leaves_the_old_table(spark, rows, tmp_path) -> None:
    path = str(tmp_path / "table")
    write_table(rows, path)
    failing = rows.withColumn("id", F.raise_error(F.lit("broken")).cast("long"))

    with pytest.raises((PySparkException, Py4JJavaError), match="broken"):
        write_table(failing, path)

    assert read_table(spark, path).count() == 3
    write_table(rows.where("id = 1"), path)  # what the failed write left is no hindrance
    assert read_table(spark, path).count() == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]


def test_other_engines_read_the_times_as_utc(rows, tmp_path) -> None:
    write_table(rows, str(tmp_path / "table"), partition_by=["name"])

    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    files = f"'{tmp_path}/table/*/*.parquet'"
    found = connection.execute(f'select epoch_us("at"), name from {files} where id = 2').fetchall()
    assert found == [(int(AT.timestamp() * 1e6), "b")]


def test_a_table_that_is_not_there_or_was_not_finished_is_an_error(spark, rows, tmp_path) -> None:
    rows.write.parquet(str(tmp_path / "half"))
    (tmp_path / "half" / "_SUCCESS").unlink()
    for path, fmt in (("no", "parquet"), ("half", "parquet"), ("no", "delta")):
        with pytest.raises(InputError, match=f"{path} holds no finished {fmt} table"):
            read_table(spark, str(tmp_path / path), fmt)


def test_an_unknown_format_is_an_error_that_names_the_option(rows, tmp_path) -> None:
    with pytest.raises(InputError, match=r"--format .* is 'csv'; accepted: parquet or delta"):
        write_table(rows, str(tmp_path / "table"), fmt="csv")
