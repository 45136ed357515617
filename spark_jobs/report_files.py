"""Puts a report where a job's tables are: a local folder, or whatever file system Spark reaches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.output import is_local, local
from spark_jobs.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_report(spark: SparkSession, report: Report, folder: str) -> str:
    """Writes the page and its pictures into `folder`, a path or a URL such as abfss://; returns the page's.

    A URL is written with Spark's own file system and credentials, whatever was there is replaced.
    """
    if is_local(folder):
        return str(report.write(Path(local(folder))))
    with tempfile.TemporaryDirectory() as scratch:
        page = report.write(Path(scratch))
        jvm: Any = spark._jvm  # noqa: SLF001 - pyspark has no public way to the file system
        for file in sorted(Path(scratch).iterdir()):
            source, target = (
                jvm.org.apache.hadoop.fs.Path(at) for at in (file.as_uri(), f"{folder}/{file.name}")
            )
            hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001
            target.getFileSystem(hadoop).copyFromLocalFile(False, True, source, target)  # noqa: FBT003 - delete source, overwrite
        return f"{folder}/{page.name}"
