"""What `make dist` builds, given to spark-submit: Java processes of their own run the tasks, and a real cluster does."""

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyspark
import pytest

from devstack.demo.spark.child import SMALL_DATA
from spark_jobs import __main__ as script
from spark_jobs.platform.java import ensure_java
from tests.spark.result_files import read
from tests.unit.spark_jobs.sources.test_source_records import AT, entry

MINUTES = 30


@pytest.fixture
def spark_home(tmp_path) -> Path:
    """The installed Spark in a folder of this test, below which the cluster writes."""
    home = tmp_path / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(ensure_java()),
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
    }


@contextmanager
def cluster(home: Path, workers: int) -> Iterator[str]:
    """Spark's own cluster on this machine, a master and workers with a core each; gives the master's URL."""
    running: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []

    def started(kind: str, *arguments: str, said: str) -> str:
        process = subprocess.Popen(
            [
                home / "bin" / "spark-class",
                f"org.apache.spark.deploy.{kind}",
                "--host",
                "127.0.0.1",
                *arguments,
            ],
            env=environment(home),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stderr is not None
        line = next(line for line in process.stderr if said in line)
        threading.Thread(
            target=process.stderr.read, daemon=True
        ).start()  # else it blocks when the pipe is full
        return line.split(said)[1].strip()

    try:
        master = "spark://" + started("master.Master", "--port", "0", "--webui-port", "0", said="spark://")
        for number in range(workers):
            place = ("--work-dir", str(home / f"work-{number}"), "--webui-port", "0")
            size = ("--cores", "1", "--memory", "1g")
            started("worker.Worker", *place, *size, master, said="Successfully registered with master")
        yield master
    finally:
        for process in reversed(running):
            process.terminate()
        for reader in readers:
            reader.join()
        for process in running:
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


@pytest.mark.timeout(400)
def test_a_job_runs_on_executors_that_are_processes_of_their_own(spark_home, tmp_path) -> None:
    submit(spark_home, tmp_path, "local-cluster[1,2,1024]")

    assert [each.name for each in (spark_home / "work").iterdir()]  # it was not the driver who worked


@pytest.mark.torture
@pytest.mark.timeout(1800)  # six Javas start for it
def test_a_job_runs_on_a_cluster_of_two_workers(spark_home, tmp_path) -> None:
    with cluster(spark_home, 2) as master:
        submit(spark_home, tmp_path, master)

    assert all(list((spark_home / f"work-{number}").iterdir()) for number in range(2))


def submit(spark_home: Path, tmp_path: Path, master: str) -> None:
    """Runs a job with what `make dist` builds, and looks at what it gives."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0.jsonl").write_bytes(
        b"".join(msgspec.json.encode(entry(at=AT + 60 * minute)) + b"\n" for minute in range(MINUTES))
    )
    shutil.copy(script.__file__, tmp_path / "tidemark_spark.py")
    done = subprocess.run(
        [
            spark_home / "bin" / "spark-submit",
            *("--master", master, "--driver-memory", "512m"),
            *("--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *(option for name, value in SMALL_DATA.items() for option in ("--conf", f"{name}={value}")),
            *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.sql.adaptive.enabled=true"),
            *(tmp_path / "tidemark_spark.py", "telemetry-aggregation", "--decisions", tmp_path / "log"),
            *("--output", tmp_path / "out", "--cores", "7"),  # which a cluster does not heed
        ],
        env=environment(spark_home),
        cwd=tmp_path,  # the executor's Python finds the jobs where they are installed
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1] == str(tmp_path / "out" / "telemetry-aggregation.html")
    assert Path(done.stdout.splitlines()[-1]).exists()
    gauges = read(tmp_path / "out", "gauges").to_pylist()
    backlog = [row for row in gauges if row["metric"] == "backlog"]
    assert Counter(row["window"] for row in backlog)["1m"] == MINUTES
    assert {row["p95"] for row in backlog} == {120.0}
