"""What only a classic session has: one whose Python drives a Java process of its own, as spark-submit's.

Sessions of Spark Connect have no SparkContext and no `_jvm`; on Databricks these are all sessions on serverless compute
and in standard access mode. So everything here may be missing, says so by its answer, and nothing may depend on it.
No other module of the jobs touches these attributes (tests/unit/spark_jobs/test_spark_rules.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
except ModuleNotFoundError:  # the package pyspark-client is only a client of Spark Connect
    SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    SPARK_ERRORS = (PySparkException, Py4JError)
"""What an action or a write raises: Spark's own errors, and those that classic sessions do not translate."""


def is_classic(spark: SparkSession) -> bool:
    return getattr(spark, "_jvm", None) is not None


def running_tasks(spark: SparkSession) -> str:
    """Tasks done and to do of the running stages; nothing if the session does not know them."""
    context = getattr(spark, "sparkContext", None)
    if context is None:
        return ""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return ""
    done, total = sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)
    return f"stage {max(s.stageId for s in known)}: {done} of {total} tasks"


def copy_with_spark(spark: SparkSession, file: Path, url: str) -> bool:
    """Copies a local file with Spark's file systems and rights, over what is there. False where the session cannot."""
    if not is_classic(spark):
        return False
    jvm: Any = spark._jvm  # noqa: SLF001 - pyspark has no public way to the file system
    # Hadoop takes a path as it is written: what as_uri quotes would stay quoted.
    source, target = (jvm.org.apache.hadoop.fs.Path(at) for at in (f"file:{file}", url))
    hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001
    target.getFileSystem(hadoop).copyFromLocalFile(False, True, source, target)
    return True
