"""Delta tables out of files that are written already, committed by the package deltalake: where Spark has no Delta Lake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import parquet  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_jobs.platform.rows import collected
from spark_jobs.tables import delta_log, task_files
from spark_jobs.tables.delta_log import NewFile
from spark_jobs.tables.runs import DAY, Run
from tidemark.analysis.errors import JobError


@dataclass(frozen=True)
class CommittedStore:
    """Parquet files that Spark, or its tasks where Spark has no file system, write into the table's folder, and that the driver
    commits. `folder` is a path of this machine, or a URL of a data lake. As SparkStore.
    """

    spark: SparkSession
    folder: str
    is_here: bool

    def _path(self, name: str) -> str:
        return f"{self.folder.rstrip('/')}/{name}"

    def runs(self) -> list[Run] | None:
        return delta_log.read_runs(self.folder)

    def make_runs(self) -> None:
        delta_log.make_runs(self.folder)

    def publish(self, runs: Sequence[Run]) -> bool:
        return delta_log.publish(self.folder, runs)

    def write(self, name: str, frame: DataFrame, run: Run, days: Collection[str] | None = None) -> int:
        by_day = name in run.sources
        if self.is_here:
            files = self._written_here(name, frame, run, by_day=by_day)
        else:
            added = task_files.added(
                frame, self._path(name), DAY if by_day else None, f"r{run.run}-{run.key}"
            )
            files = [NewFile(*row) for row in collected(added)]
        schema = nullable_json(frame.schema)
        return delta_log.commit(self._path(name), files, schema, run.key, by_day=by_day, days=days)

    def take(self, name: str, file: Path, schema: StructType, run: Run) -> int:
        """Makes a file in `scratch` the whole table, by moving it; returns the version."""
        moved = self._moved(file, file.parent, name, run)
        return delta_log.commit(self._path(name), [moved], nullable_json(schema), run.key)

    def _written_here(self, name: str, frame: DataFrame, run: Run, *, by_day: bool) -> list[NewFile]:
        rows = self.scratch(name, run) / "rows"
        writer = frame.write.mode("overwrite")
        try:
            (writer.partitionBy(DAY) if by_day else writer).parquet(f"file:{rows}")
            return [self._moved(file, rows, name, run) for file in sorted(rows.rglob("*.parquet"))]
        finally:
            shutil.rmtree(rows.parent, ignore_errors=True)

    def scratch(self, name: str, run: Run) -> Path:
        """A folder for files of the run that are not of the table yet. What a killed run leaves there is removed with what
        else no version names, for it lies within the table's folder.
        """
        return Path(self._path(name), f"unfinished-r{run.run}-{run.key}")

    def _moved(self, file: Path, rows: Path, name: str, run: Run) -> NewFile:
        """Moves a file of `rows` into the table's folder, on the same disk."""
        place = file.relative_to(rows).with_name(f"r{run.run}-{run.key}-{file.name}")
        metadata = parquet.read_metadata(file)
        kinds = {metadata.schema.column(number).physical_type for number in range(len(metadata.schema))}
        if "INT96" in kinds:  # which deltalake would commit as a type that most readers refuse
            raise JobError(
                f"Spark wrote times of {name} as INT96; set spark.sql.parquet.outputTimestampType to TIMESTAMP_MICROS"
            )
        target = Path(self._path(name), place)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
        day = place.parent.name.partition("=")[2] or None
        return NewFile(place.as_posix(), target.stat().st_size, metadata.num_rows, day)

    def read(self, name: str, version: int) -> DataFrame:
        return read_live(self.spark, self._path(name), version, is_here=self.is_here)

    def newest_version(self, name: str) -> int | None:
        return delta_log.newest_version(self._path(name))

    def vacuum(self, name: str, hours: int) -> None:
        delta_log.vacuum(self._path(name), hours)


def read_live(spark: SparkSession, url: str, version: int | None, *, is_here: bool) -> DataFrame:
    """A version of a Delta table by the files that its log names. Of a table elsewhere than on this machine without the columns
    that it is partitioned by. Raises InputError and JobError as `delta_log.live`.
    """
    text, by, paths = delta_log.live(url, version)
    # From the log, since a partition's column is in no file: its type, too, would be a guess.
    schema = StructType.fromJson(json.loads(text))
    if not is_here:
        schema = StructType([field for field in schema if field.name not in by])
    if not paths:
        return spark.createDataFrame([], schema)
    if not is_here:
        return task_files.read(spark, [f"{url}/{path}" for path in paths], schema)
    reader = spark.read.schema(schema).option("basePath", f"file:{url}")
    return reader.parquet(*(f"file:{url}/{path}" for path in paths))


def nullable_json(schema: StructType) -> str:
    """The schema as JSON, in which all may be null, as in what Spark reads from files."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            flags = ("nullable", "containsNull", "valueContainsNull")
            return {name: True if name in flags else of(member) for name, member in value.items()}
        return [of(member) for member in value] if isinstance(value, list) else value

    return json.dumps(of(schema.jsonValue()))
