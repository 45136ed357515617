"""Puts a report where a job's tables are: a local folder, or whatever file system Spark reaches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.platform.classic import copy_with_spark
from spark_jobs.platform.progress import console
from spark_jobs.sources.files.input_files import Folder
from spark_jobs.tables.places import is_pythons, local_folder, qualified
from tidemark.analysis.report import Report, page_or_reason


def write_report(spark: SparkSession, make: Callable[[], Report], folder: str) -> str:
    """Makes the page, and writes it and its pictures into `folder`, as Spark understands it, over what is there; returns the page's. What to
    run next is printed on the terminal.

    Elsewhere than on this machine Spark's own file system writes them. A session that has none (Spark Connect) leaves it
    to `Folder`, as it does reading; so is a place that Spark has no file system for. Where that cannot, the page is put below
    the working folder, and a line says so. Where there can be no page at all, a line says so, and the folder is returned.
    """
    return page_or_reason(make, partial(_write, spark, folder), folder, console)


def _write(spark: SparkSession, folder: str, report: Report) -> str:
    here = local_folder(spark, folder)
    if here is not None:
        return str(report.write(here))
    pythons = is_pythons(spark, folder)
    url = folder if pythons else qualified(spark, folder)
    with tempfile.TemporaryDirectory() as scratch:
        page = report.write(Path(scratch))
        try:
            for file in sorted(Path(scratch).iterdir()):
                if pythons or not copy_with_spark(spark, file, f"{url}/{file.name}"):
                    Folder(url).write(file.name, file.read_bytes())
        # Of whatever kind: each file system has errors of its own, and the tables are there already.
        except Exception as error:
            kept = report.write(Path("spark-output"))
            console.print(
                f"the report is not in {folder}: {error}; it is {kept}", markup=False, soft_wrap=True
            )
            return str(kept)
    return f"{folder}/{page.name}"
