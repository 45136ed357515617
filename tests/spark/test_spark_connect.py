"""Sessions of Spark Connect, as serverless compute and standard access mode have them: no SparkContext, no `_jvm`."""

import os
import sys

import msgspec
import pytest

from devstack.cosmos import CosmosServer
from devstack.demo.spark.child import JobCall, read_results
from devstack.processes.child import ChildProcess
from spark_jobs.reconciliation.job import OnGap, run
from tests.spark.result_files import exported, tables
from tests.spark.spark_processes import connect_server, ended, spark_home
from tests.spark.test_reconciliation_job import HUB, Place
from tests.support.servers.threaded import running_in_thread


@pytest.mark.torture
@pytest.mark.wire
@pytest.mark.timeout(1800)  # of which most is for a machine that is busy
def test_jobs_run_over_spark_connect_and_find_the_same(aggregated, spark, azurite, tmp_path) -> None:
    """A batch, the same records as a stream, and a comparison with Cosmos DB, each by its command."""
    pytest.importorskip("grpc")  # the client's; the extra `spark` has none
    decisions = ("--decisions", str(aggregated / "log"))
    parquet = ("--format", "parquet")  # the server has no Delta Lake
    checkpoint = ("--checkpoint", str(tmp_path / "checkpoint"))
    with running_in_thread(CosmosServer) as threaded, connect_server(spark_home(tmp_path)) as url:
        threaded.call(lambda: threaded.server.create_container("db", HUB, "/dest", throughput=20_000))
        place = Place(azurite, threaded.server, tmp_path)
        place.capture_files()
        place.write(body for body in place.bodies if body != ("0", 5) and body[1] % 7)
        here, _ = run(place.job("here", checkpoints=False, on_gap=OnGap.REPORT), spark)
        calls = [
            JobCall("telemetry-aggregation", (*decisions, "--output", str(tmp_path / "refused"))),
            JobCall("telemetry-aggregation", (*decisions, *parquet, "--output", str(tmp_path / "out"))),
            JobCall(
                "telemetry-aggregation",
                (*decisions, *checkpoint, *parquet, "--output", str(tmp_path / "stream")),
            ),
            JobCall(
                "reconciliation",
                (
                    *("--capture", str(place.capture), "--no-checkpoints", "--on-gap", "report"),
                    *(*parquet, "--output", str(tmp_path / "there"), "--root", str(tmp_path)),
                ),
            ),
        ]
        status, told = ended(client(url, calls, tmp_path, place.settings), within=1500)

    assert status == 0, told
    assert [result.status for result in read_results(tmp_path / "results")] == [1, 0, 0, 3], told
    assert "Spark has no Delta Lake: add its jar" in told
    assert exported(tmp_path / "out") == tables(aggregated / "out")
    assert (tmp_path / "out" / "telemetry-aggregation.html").exists()
    minutes = [row for row in exported(tmp_path / "stream")["gauges"] if "1m" in row]
    assert minutes
    assert set(minutes) < set(tables(aggregated / "out")["gauges"])  # the last ten are still open
    assert here.unsettled_total
    there, of_here = (
        {name: found[name] for name in ("events", "unsettled", "duplicates", "hours", "gaps")}
        for found in (exported(tmp_path / "there"), tables(tmp_path / "here"))
    )
    assert there == of_here


def client(url, calls, folder, settings) -> ChildProcess:
    """The jobs in a process that could start no Java."""
    return ChildProcess(
        "the client of Spark Connect",
        [
            *(sys.executable, "-m", "devstack.demo.spark.child", msgspec.json.encode(calls).decode()),
            *(folder / "results", "aloud"),
        ],
        cwd=folder,
        env={
            **settings,
            "JAVA_HOME": "/nowhere",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "SPARK_HOME": "/nowhere",
            "SPARK_REMOTE": url,
        },
    )
