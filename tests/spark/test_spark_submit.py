"""What `make dist` builds, given to spark-submit: Java processes of their own run the tasks, and a real cluster does."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from azure.storage.blob import BlobServiceClient

from spark_jobs import __main__ as script
from spark_jobs.telemetry_aggregation import local
from tests.spark.result_files import read, tables
from tests.spark.spark_processes import cluster, ended, spark_home, submitting
from tests.unit.spark_jobs.sources.test_source_records import AT, entry


@pytest.mark.timeout(600)
def test_a_job_runs_on_executors_that_are_processes_of_their_own(tmp_path) -> None:
    """Its gauges have the digits of the same samples without Spark, so that no session is needed beside its processes."""
    samples = [("plan", "backlog", AT + 60 * minute, 120.0 + minute % 7) for minute in range(30)]
    log = tmp_path / "log.jsonl"
    lines = [msgspec.json.encode(entry(at=at, metrics={name: value})) for _, name, at, value in samples]
    log.write_bytes(b"\n".join(lines))
    table = pa.Table.from_pylist(
        [
            {"target": target, "metric": name, "at": datetime.fromtimestamp(at, UTC), "value": value}
            for target, name, at, value in samples
        ]
    )
    pq.write_table(table, tmp_path / "samples.parquet")
    home = spark_home(tmp_path)

    submit(home, "local-cluster[1,2,1024]", str(log), str(tmp_path / "out"))

    local.run(tmp_path / "samples.parquet", tmp_path / "here", latest=datetime.now(UTC))
    here = pq.read_table(tmp_path / "here" / "gauges.parquet")
    found = read(tmp_path / "out", "gauges").select(here.column_names)
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, here.to_pylist()))
    assert here.num_rows == 32
    assert (tmp_path / "out" / "telemetry-aggregation.html").exists()
    assert [path.name for path in (home / "work").iterdir()]  # it was not the driver who worked


@pytest.mark.torture
@pytest.mark.wire
@pytest.mark.timeout(
    1800
)  # six Javas: 75 s of processor time in all, which may take long on a machine that is busy
def test_a_job_runs_on_two_workers_from_a_container_to_a_container(
    tmp_path, azurite, monkeypatch, request
) -> None:
    """Hadoop's file system for Azure is in no Python package: the executors read and write through fsspec."""
    aggregated = request.getfixturevalue("aggregated")  # in torture only: the other test needs no session
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite)
    home = spark_home(tmp_path)
    with (
        BlobServiceClient.from_connection_string(azurite) as service,
        service.create_container("two-workers") as container,
    ):
        for file in (aggregated / "log").iterdir():
            container.upload_blob(f"log/{file.name}", file.read_bytes())
        with cluster(home, 2) as master:
            submit(home, master, "az://two-workers/log", "az://two-workers/out")
        for name in container.list_blob_names(name_starts_with="out/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(container.download_blob(name).readall())

    assert tables(tmp_path / "out") == tables(aggregated / "out")
    assert (tmp_path / "out" / "telemetry-aggregation.html").exists()
    assert all(list((home / f"work-{number}").iterdir()) for number in range(2))


def submit(home: Path, master: str, decisions: str, output: str) -> None:
    """Runs a job with what `make dist` builds."""
    shutil.copy(script.__file__, home.parent / "tidemark_spark.py")
    status, told = ended(
        submitting(
            home,
            *("--master", master, "--driver-memory", "512m", "--conf", "spark.executor.memory=512m"),
            *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.sql.adaptive.enabled=true"),
            *("--conf", "spark.log.level=WARN"),
            # Its folder is not the one of the jobs: executors find them where they are installed.
            *(home.parent / "tidemark_spark.py", "telemetry-aggregation", "--decisions", decisions),
            *("--output", output, "--cores", "7"),  # which a cluster does not heed
        ),
        within=1500,
    )

    assert status == 0, told
