"""What a path means: Spark is asked, no path is looked at to guess. And whether a table of Delta Lake is there."""

from __future__ import annotations

from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_jobs.platform.classic import SPARK_ERRORS
from spark_jobs.platform.failures import first_line, is_absence
from spark_jobs.tables.file_systems import file_system, is_lake
from tidemark.analysis.errors import InputError, JobError

_NOWHERE = "tidemark-no-such-file"
_NO_FILE_SYSTEM = ("No FileSystem for scheme", "ClassNotFoundException")  # what Hadoop says


def check_folder(path: str, option: str) -> str:
    """`path`, a folder to write to. Raises InputError for one that Spark would not find again: it reads by patterns."""
    wildcards = sorted(set(path) & set("*?[]{}\\"))
    if wildcards:
        raise InputError(
            f"{option} is '{path}', in which {' '.join(wildcards)} would be a pattern; accepted: a name without"
        )
    return path


def qualified(spark: SparkSession, path: str) -> str:
    """The URL that Spark's file systems give a path, which need not exist: file:/data/out, abfss://..., dbfs:/out.

    A path without a scheme belongs to Spark's default file system, which a platform chooses. Raises InputError where Spark
    has no file system for it.
    """
    try:
        _ = spark.read.text(f"{path.rstrip('/')}/{_NOWHERE}").schema
    except AnalysisException as error:
        named = (error.getMessageParameters() or {}).get("path", "")
        if is_absence(error) and named.endswith(_NOWHERE):
            return named.removesuffix(_NOWHERE).rstrip("/") or "/"
        raise InputError(f"Spark cannot look at '{path}': {first_line(error)}") from error
    except SPARK_ERRORS as error:
        raise InputError(f"Spark cannot look at '{path}': {first_line(error)}") from error
    raise InputError(f"'{path}/{_NOWHERE}' exists; give another folder")


def is_pythons(spark: SparkSession, path: str) -> bool:
    """True for a place in a data lake that Spark has no file system for: Python's tasks write there, and read."""
    if not is_lake(path):
        return False
    try:
        qualified(spark, path)
    except InputError as error:
        # Not where Spark has one that fails: with other rights, another might do what this may not.
        return any(sign in str(error.__cause__) for sign in _NO_FILE_SYSTEM)
    return False


def local_folder(spark: SparkSession, path: str) -> Path | None:
    """The folder on this machine that Spark means by the path; None where it means one elsewhere."""
    if is_pythons(spark, path):
        return None
    scheme, colon, rest = qualified(spark, path).partition(":")
    return Path("/" + rest.lstrip("/")) if colon and scheme == "file" else None


def has(spark: SparkSession, path: str, name: str) -> bool:
    """Whether the folder has something of this name. Raises JobError where Spark fails: an error is not the answer
    that nothing is there.
    """
    if is_pythons(spark, path):
        system, root = file_system(path)
        return bool(system.exists(f"{root}/{name}"))
    try:
        _ = spark.read.text(f"{path.rstrip('/')}/{name}").schema
    except SPARK_ERRORS as error:
        if is_absence(error):
            return False
        raise JobError(f"Spark cannot look at {path}: {first_line(error)}") from error
    return True


def is_delta(spark: SparkSession, path: str) -> bool:
    """True where the table at `path` is one of Delta Lake: it has a log. Raises JobError where Spark fails."""
    return has(spark, path, "_delta_log")


def has_source(spark: SparkSession, fmt: str) -> bool:
    """True where Spark itself reads and writes Delta Lake, or Iceberg."""
    try:
        _ = spark.read.format(fmt).load("/tidemark-no-such-table").schema
    except SPARK_ERRORS as error:
        # With the jar it is the table that is not found, or the catalog.
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True
