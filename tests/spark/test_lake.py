"""A container that Spark has no file system for: its tasks write tables there through fsspec, and read them."""

from datetime import UTC, datetime

import pytest
from azure.storage.blob import BlobServiceClient
from pyspark.sql import functions as F

from spark_jobs.cost.job import read_charges
from spark_jobs.per_target import arrivals_of
from spark_jobs.reports.report_files import write_report
from spark_jobs.reports.runs import runs_in
from spark_jobs.sources.files.spark_files import LISTED, list_files
from spark_jobs.tables.places import is_delta, is_pythons, local_folder
from spark_jobs.tables.plain import read_parquet
from spark_jobs.tables.results import Results, result_table
from tests.unit.analysis.cost.test_costs import FOCUS, WANTED
from tidemark.analysis.errors import InputError, JobError
from tidemark.analysis.report import Report

AT = datetime(2026, 11, 21, 8, 30, tzinfo=UTC)


@pytest.fixture
def container(spark, azurite, monkeypatch):
    """Its URL. The tasks, too, find its account in their environment."""
    name = "AZURE_STORAGE_CONNECTION_STRING"
    monkeypatch.setenv(name, azurite)
    monkeypatch.setitem(spark.sparkContext.environment, name, azurite)
    with BlobServiceClient.from_connection_string(azurite) as service:
        service.create_container("spark-lake")
        yield "az://spark-lake"
        service.delete_container("spark-lake")


def blobs(azurite, ending):
    with BlobServiceClient.from_connection_string(azurite) as service:
        return [
            name
            for name in service.get_container_client("spark-lake").list_blob_names()
            if name.endswith(ending)
        ]


@pytest.mark.wire
def test_the_results_of_runs_are_in_a_container(spark, azurite, container, tmp_path):
    out = f"{container}/jobs/out"
    rows = spark.range(6, numPartitions=2).select(
        "id", F.lit(AT).alias("at"), F.concat(F.lit("2026-11-2"), F.col("id") % 2).alias("day")
    )
    assert is_pythons(spark, out)
    assert is_pythons(spark, "abfss://spark-lake@devstoreaccount1.dfs.core.windows.net/out")
    assert not is_pythons(spark, str(tmp_path))
    assert local_folder(spark, out) is None
    assert not is_delta(spark, out)
    with pytest.raises(InputError, match="no run has finished"):
        result_table(spark, out, "gauges")

    for run in range(3):
        results = Results.begin(spark, out, job="test", fmt="parquet")
        results.write("gauges", rows.where(F.col("id") >= run))
        results.write("nothing", rows.where("id > 10"))
        sources = {f"2026-11-2{n}": str(run if n else 0) for n in range(2)}
        results.write_days("days", rows.drop("day"), F.concat(F.lit("2026-11-2"), F.col("id") % 2), sources)
        results.publish()
        results.export()
        results.vacuum(0.0)

    gauges = result_table(spark, out, "gauges")
    assert gauges.schema.simpleString() == rows.schema.simpleString()
    assert sorted(tuple(row) for row in gauges.collect()) == sorted(
        tuple(row) for row in rows.where("id >= 2").collect()
    )
    nothing = result_table(spark, out, "nothing")
    assert (nothing.schema, nothing.count()) == (gauges.schema, 0)
    assert sorted(row.id for row in result_table(spark, out, "days").collect()) == [*range(6)]
    assert sorted(read_parquet(spark, [f"{out}/parquet/gauges"]).collect()) == sorted(gauges.collect())
    assert read_parquet(spark, [f"{out}/parquet/nothing"]).count() == 0
    files = blobs(azurite, ".parquet")
    assert len([each for each in files if "/out/gauges/" in each]) <= 2  # what older versions name is gone
    assert {each.rpartition("/")[2][:2] for each in files if "/days/day=2026-11-20" in each} == {"r1"}
    assert [each.run for each in runs_in(out)] == [3, 2, 1]
    first, second = (Results.begin(spark, out, job="test", fmt="delta") for _ in range(2))
    first.publish()
    with pytest.raises(JobError, match="another run finished"):
        second.publish()

    page = write_report(spark, lambda: Report("Test", "of a lake"), out)
    assert [page.rpartition("/")[2]] == [blob.rpartition("/")[2] for blob in blobs(azurite, ".html")]


@pytest.mark.wire
def test_exports_and_arrivals_are_read_from_a_container(spark, azurite, container):
    with BlobServiceClient.from_connection_string(azurite) as service:
        folder = service.get_container_client("spark-lake")
        folder.upload_blob("costs/run/focus.CSV", FOCUS)
        folder.upload_blob("costs/run/manifest.json", "{}")
        folder.upload_blob("costs/_half.csv", "no export")
        folder.upload_blob("arrivals/one.csv", "t,arrivals\n0,5\n60,7\n")

    assert (
        list_files(spark, f"{container}/costs", [".csv"]).columns == LISTED.names
    )  # whose content no task reads
    charges = read_charges(spark, f"{container}/costs", WANTED, None)
    assert sorted(row["amount"] for row in charges.collect()) == [-2.0, 0.96, 4.8]
    arrivals = arrivals_of(spark, f"{container}/arrivals/")
    assert sorted((row.target, row.at, row.arrivals) for row in arrivals.collect()) == [
        ("one", 0, 5),
        ("one", 60, 7),
    ]
    with pytest.raises(InputError, match=r"--costs there are no files \(\*\.csv.* in 'az://spark-lake/none'"):
        read_charges(spark, f"{container}/none", WANTED, None)
