"""Where the tables of a job's output are written to and read from: Delta by Spark, Delta by files that are committed
(`committed`), or plain tables where neither can be. All have the same methods.

A store gives each table that it writes a version, which stays readable. A table whose days are in the run's `sources` is
partitioned by the column DAY; of such a table only some `days` may be replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.platform.classic import SPARK_ERRORS, is_classic
from spark_jobs.platform.failures import first_line
from spark_jobs.platform.rows import collected
from spark_jobs.platform.session import try_setting
from spark_jobs.tables import plain
from spark_jobs.tables.places import has_source, is_delta, is_pythons, local_folder, qualified
from spark_jobs.tables.runs import (
    APPLICATION,
    COLUMNS,
    COMMITS_SEARCHED,
    DAY,
    KEPT_RUNS,
    RUNS,
    Run,
    changes_rows,
)
from tidemark.analysis.errors import JobError
from tidemark.foundation.version import install_hint

if TYPE_CHECKING:
    from spark_jobs.tables.committed import CommittedStore

Store: TypeAlias = "SparkStore | PlainStore | CommittedStore"

JAR = "spark-submit --packages io.delta:..."


def store_of(spark: SparkSession, folder: str, fmt: str) -> Store:
    """Raises JobError where Delta cannot be written there and `fmt` is no other."""
    if has_source(spark, "delta"):
        return SparkStore(spark, qualified(spark, folder))
    here = local_folder(spark, folder) if is_classic(spark) else None
    if here is not None or is_pythons(spark, folder):
        store: CommittedStore = committed().CommittedStore(spark, str(here or folder), here is not None)
        return store
    if fmt != "delta":
        return PlainStore(spark, folder, fmt)
    raise JobError(
        f"{folder} is where only Spark writes, and Spark has no Delta Lake: add its jar ({JAR}), or choose --format parquet,"
        " whose tables are replaced one by one, without a list of runs"
    )


def committed() -> Any:
    """The module that needs deltalake. Raises JobError where that is missing."""
    try:
        return import_module("spark_jobs.tables.committed")
    except ModuleNotFoundError:
        raise JobError(
            f"Delta tables need Delta Lake's jar in Spark ({JAR}) or the package deltalake: {install_hint('spark')}"
        ) from None


@dataclass(frozen=True)
class SparkStore:
    """By Spark's own Delta Lake. `folder` is its URL: Delta takes a relative path for the name of a table."""

    spark: SparkSession
    folder: str

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def runs(self) -> list[Run] | None:
        """In their order; None where there is no table of them."""
        if not is_delta(self.spark, self._path(RUNS)):
            return None
        rows = collected(self.spark.read.format("delta").load(self._path(RUNS)))
        return sorted((Run.of(row.asDict()) for row in rows), key=lambda run: run.run)

    def make_runs(self) -> None:
        """Makes the table of runs, without a row, unless there is one."""
        empty = self.spark.createDataFrame([], from_arrow_schema(COLUMNS))
        empty.write.format("delta").mode("ignore").save(self._path(RUNS))

    def publish(self, runs: Sequence[Run]) -> bool:
        """Makes these the runs, of which the last is new; False where another run of its number was published since."""
        new = runs[-1]
        rows = [tuple(run.row().values()) for run in runs[-KEPT_RUNS:]]
        frame = self.spark.createDataFrame(rows, from_arrow_schema(COLUMNS)).coalesce(1)
        # Delta passes over a transaction whose number an application has had, and refuses one that another run begins meanwhile.
        options = {
            "txnAppId": APPLICATION,
            "txnVersion": str(new.run),
            "userMetadata": new.key,
            "overwriteSchema": "true",
        }
        try:
            frame.write.format("delta").mode("overwrite").options(**options).save(self._path(RUNS))
        except SPARK_ERRORS as error:
            if "concurrent" not in str(error).lower():
                raise JobError(f"Spark cannot write {self._path(RUNS)}: {first_line(error)}") from error
            return False
        return any(run.key == new.key for run in self.runs() or ())

    def write(self, name: str, frame: DataFrame, run: Run, days: Collection[str] | None = None) -> int:
        """Writes the table, or only these days of it; returns the version."""
        writer = frame.write.format("delta").mode("overwrite").option("userMetadata", run.key)
        if name in run.sources:
            writer = writer.partitionBy(DAY)
        if days is None:
            writer = writer.option("overwriteSchema", "true")
        else:
            where = f"{DAY} IN ({', '.join(repr(day) for day in sorted(days))})"
            writer = writer.option("replaceWhere", where).option("mergeSchema", "true")
        writer.save(self._path(name))
        commits = self._history(name)
        versions = (row.version for row in commits if row.userMetadata == run.key)
        return int(next(versions, commits[0].version))  # where nothing changed, there is no commit

    def read(self, name: str, version: int) -> DataFrame:
        """All columns, but for the day where that is in no file."""
        return self.spark.read.format("delta").option("versionAsOf", str(version)).load(self._path(name))

    def newest_version(self, name: str) -> int | None:
        """Of the newest commit that may have changed rows; None where there is no table."""
        if not is_delta(self.spark, self._path(name)):
            return None
        return next((int(row.version) for row in self._history(name) if changes_rows(row.operation)), None)

    def _history(self, name: str) -> list[Row]:
        """The newest commits, the newest first."""
        history = self.spark.sql(f"DESCRIBE HISTORY delta.`{self._path(name)}` LIMIT {COMMITS_SEARCHED}")
        rows = collected(history.select("version", "operation", "userMetadata"))
        return sorted(rows, key=lambda row: row.version, reverse=True)

    def vacuum(self, name: str, hours: int) -> None:
        """Removes what no version of the last so many hours names."""
        # Delta asks for a week, in case a longer run writes to the table: here runs of a folder come one after the other.
        try_setting(self.spark, "spark.databricks.delta.retentionDurationCheck.enabled", "false")
        try:
            self.spark.sql(f"VACUUM delta.`{self._path(name)}` RETAIN {hours} HOURS")
        except SPARK_ERRORS as error:
            raise JobError(f"{self._path(name)} cannot be vacuumed: {first_line(error)}") from error


@dataclass(frozen=True)
class PlainStore:
    """Tables in another format alone, each replaced as a whole: without versions, and without runs."""

    spark: SparkSession
    folder: str
    fmt: str

    def runs(self) -> None:
        return None

    def make_runs(self) -> None:
        pass

    def publish(self, _runs: Sequence[Run]) -> bool:
        return True

    def write(self, name: str, frame: DataFrame, run: Run, _days: Collection[str] | None = None) -> int:
        plain.write(frame.drop(DAY) if name in run.sources else frame, self.folder, name, self.fmt)
        return run.run

    def read(self, name: str, _version: int) -> DataFrame:
        return plain.read(self.spark, self.folder, name, self.fmt)

    def newest_version(self, _name: str) -> None:
        return None

    def vacuum(self, _name: str, _hours: int) -> None:
        pass
