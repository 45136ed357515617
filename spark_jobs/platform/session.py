"""The Spark session of a job: the one that is there, or local mode on this machine."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.java import ensure_java, startable_java
from tidemark.analysis.errors import InputError, JobError

# Needed for right results or workable speed wherever a job runs; all may be set on a running session.
TIME_ZONE = "spark.sql.session.timeZone"
SETTINGS: dict[str, str] = {
    TIME_ZONE: "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # INT96, the default, is deprecated and has no statistics for skipping files.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Above this many groups a task sorts instead of hashing. 128, the default, is far below any job's groups.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000",
}

_LOCAL: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    # A job lives for minutes: most of what Java compiles after the usual number of calls never pays that back, so it takes
    # four times as many; and throughput counts more than short pauses. Both save 8 of 49 CPU seconds of a job over 160,000
    # samples (26 November 2026, Java 17, two cores).
    "spark.driver.defaultJavaOptions": "-XX:+UseParallelGC -XX:CompileThresholdScaling=4",
    # More tasks than the default's 128 MB give: both cores end together, and each task's groups fit its memory.
    "spark.sql.files.maxPartitionBytes": "32m",
}

SHUFFLE_PARTITIONS_PER_CORE = 4  # 200 in all, the default, is for clusters: a file per partition and task

# Set where somebody else chose the master: spark-submit, Spark Connect, Databricks.
_MANAGED = (
    "PYSPARK_GATEWAY_PORT",
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "DATABRICKS_RUNTIME_VERSION",
)


def prepared_session(
    name: str, *, cores: int | None = None, memory: str = "2g", extra: Mapping[str, str] | None = None
) -> SparkSession:
    """The active session, the one that spark-submit or a platform provides, or a local one.

    `cores` (default: all of this machine) and `memory` (of the one Java process) apply to local mode. `extra`
    applies where a session is made. Sets SETTINGS on the session.

    Raises InputError for cores below 1, JobError where no Java is found.
    """
    if cores is not None and cores < 1:
        raise InputError(f"--cores is {cores}; accepted: 1 or more")
    session = SparkSession.getActiveSession()
    if session is None:
        given = {**SETTINGS, **(extra or {})}
        if not is_managed(os.environ):
            return _local(name, cores, memory, given)  # to set them again takes Spark half a second
        session = _managed(name, given)
    for key, value in SETTINGS.items():
        if not try_setting(session, key, value) and key == TIME_ZONE:
            raise JobError(
                f"Spark refuses to set {TIME_ZONE}, which is '{session.conf.get(TIME_ZONE)}'; the jobs need UTC"
            )
    return session


def try_setting(session: SparkSession, key: str, value: str) -> bool:
    """Sets it on the running session; False where the platform does not allow that (serverless compute, most of them)."""
    try:
        session.conf.set(key, value)
    except PySparkException:
        return str(session.conf.get(key, None)) == value
    return True


def is_managed(environment: Mapping[str, str]) -> bool:
    """True where the master is not ours to choose."""
    return any(environment.get(variable) for variable in _MANAGED)


def _managed(name: str, settings: Mapping[str, str]) -> SparkSession:
    return SparkSession.Builder().appName(name).config(map={**settings}).getOrCreate()


def _local(name: str, cores: int | None, memory: str, settings: Mapping[str, str]) -> SparkSession:
    home = ensure_java()
    _hush_pandas()
    # Executors' Python is this one, also where PATH has another.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    scratch = tempfile.mkdtemp(prefix="tidemark-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    log4j = Path(__file__).parent / "log4j2.properties"
    local = {
        **_LOCAL,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j.as_uri()} -Dderby.system.home={scratch}",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS_PER_CORE * (cores or os.cpu_count() or 1)),
        **settings,
    }
    builder = SparkSession.Builder().appName(name).master(f"local[{cores or '*'}]")
    with startable_java(home, Path(scratch)):
        return builder.config(map={**local}).getOrCreate()


def _hush_pandas() -> None:
    """Spark 4 warns of pandas 3 in every process; what the jobs use of both is tested together."""
    text = "PySpark does not yet fully support pandas"
    warnings.filterwarnings("ignore", message=text, category=FutureWarning)
    os.environ.setdefault("PYTHONWARNINGS", f"ignore:{text}:FutureWarning")  # for Spark's Python workers
