"""The results of a job: tables in a folder that appear together, run by run.

A run writes its tables to places that no reader looks at, and last of all one line, the manifest, which says where each
table is. Readers begin with the manifest. So a run that fails or is killed, at whatever moment, leaves what the last
finished run left, and nobody meets the tables of two runs side by side.

Each table has two places, `a` and `b`; a run writes to the one that the manifest does not name, over what is there. The
manifest has two places in the same way, and the one with the greater number of a run counts. So nothing that is read is
renamed or deleted, and but for folders of this machine (`take`) Spark alone writes: it is all the same whether the folder
is on this disk or in a lake, and which rights Python has there. Two runs must not write to one folder at the same time; the one that ends last is refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.platform import output
from spark_jobs.platform.manifest import KEPT_RUNS, MANIFEST, PLACES, WHOLE, Manifest, Part, Told
from tidemark.analysis.errors import InputError, JobError


def manifest_of(spark: SparkSession, folder: str) -> Manifest | None:
    """What the last finished run left in the folder; None where none has finished. Raises JobError for what is none."""
    path, advice = (
        f"{folder}/{MANIFEST}",
        "give another --output, or empty it, which deletes the tables of its last run",
    )
    found = output.read_lines(spark, path, Manifest, what="manifest of a run", advice=advice)
    return max(found, key=lambda each: each.run, default=None)


def result_table(spark: SparkSession, folder: str, name: str) -> DataFrame:
    """A table of the last finished run. Raises InputError where there is none."""
    manifest = manifest_of(spark, folder)
    if manifest is None:
        raise InputError(f"no run has finished in {folder}: it holds no manifest")
    if name not in manifest.tables:
        raise InputError(
            f"run {manifest.run} of {manifest.job} in {folder} has no table '{name}'; there are: "
            f"{', '.join(sorted(manifest.tables))}"
        )
    return _frame(spark, folder, manifest.format, manifest.tables[name])


def _frame(
    spark: SparkSession,
    folder: str,
    fmt: str,
    parts: Mapping[str, Part],
    schema: StructType | None = None,
) -> DataFrame:
    paths = sorted({f"{folder}/{part.path}" for part in parts.values()})
    version = max((part.version for part in parts.values() if part.version is not None), default=None)
    frame = output.read_table(spark, paths, fmt, version=version, schema=schema)
    if WHOLE in parts:
        return frame
    # One table may have days that no run has left out of it yet.
    return (frame.where(F.col("day").isin([*parts])) if fmt in output.VERSIONED else frame).drop("day")


@dataclass(frozen=True)
class Results:
    """The tables of one run, until `publish` makes them the folder's. Raises JobError and InputError."""

    spark: SparkSession
    folder: str
    last: Manifest | None
    new: Manifest
    told: Told
    schemas: dict[str, StructType] = field(default_factory=dict)
    """Of the tables that this run wrote."""

    @classmethod
    def begin(
        cls, spark: SparkSession, folder: str, *, job: str, fmt: str, about: Mapping[str, str] | None = None
    ) -> Self:
        """A new run. Raises InputError for an unknown format, for a folder whose name would be a pattern, and where it holds
        results of another job; JobError where nothing here writes the format.
        """
        output.check_folder(folder, "--output")
        output.check_writer(spark, fmt)
        last = manifest_of(spark, folder)
        if last is not None and last.job != job:
            raise InputError(f"{folder} holds results of {last.job}; give --output another folder for {job}")
        number = 1 if last is None else last.run + 1
        new = Manifest(number, secrets.token_hex(8), job, fmt, {}, dict(about or {}))
        return cls(spark, folder, last, new, Told(number, inputs={}, counts={}, settings={}, closed=[]))

    def tell(
        self,
        *,
        inputs: Mapping[str, object] | None = None,
        counts: Mapping[str, float | None] | None = None,
        settings: Mapping[str, object] | None = None,
        closed: Sequence[str] = (),
    ) -> None:
        """What the run says of itself, more each time; what is None is left out. No secrets: anybody may read it."""
        for told, given in ((self.told.inputs, inputs), (self.told.settings, settings)):
            told |= {name: str(value) for name, value in (given or {}).items() if value is not None}
        self.told.counts.update((name, value) for name, value in (counts or {}).items() if value is not None)
        self.told.closed.extend(closed)

    def write(self, name: str, frame: DataFrame) -> None:
        """The whole table."""
        fmt = self.new.format
        if fmt in output.VERSIONED:  # its log keeps the version of the last run
            output.write_table(frame, f"{self.folder}/{name}", fmt=fmt)
            part = Part(name, output.newest_version(self.spark, f"{self.folder}/{name}", fmt))
        else:
            part = Part(f"{self._place(name, WHOLE)}/{name}")
            output.write_table(frame, f"{self.folder}/{part.path}")
        self.new.tables[name], self.schemas[name] = {WHOLE: part}, frame.schema

    def own_folder(self, name: str) -> Path | None:
        """A folder of this machine for files that become the table with `take`; None where the results are not on it."""
        folder = output.local_folder(self.spark, self.folder)
        return None if folder is None else folder / f".{name}.part"

    def take(self, name: str, files: Sequence[str]) -> bool:
        """Makes Parquet files the whole table, by moving them; False where the table has to be written by Spark."""
        folder = output.local_folder(self.spark, self.folder)
        if self.new.format != "parquet" or folder is None:
            return False
        part = Part(f"{self._place(name, WHOLE)}/{name}")
        output.move_files(files, folder / part.path)
        self.new.tables[name] = {WHOLE: part}
        return True

    def kept(self, name: str) -> dict[str, Part]:
        """By day, what the last run left of a table and this one may keep."""
        if self.last is None or self.last.format != self.new.format:
            return {}
        parts = {day: part for day, part in self.last.tables.get(name, {}).items() if day != WHOLE}
        if parts and self.new.format in output.VERSIONED:
            part = next(iter(parts.values()))
            now = output.newest_version(self.spark, f"{self.folder}/{part.path}", self.new.format)
            if now != part.version:
                return {}  # a run that did not finish wrote to the table since: none of its days may stay
        return parts

    def write_days(self, name: str, frame: DataFrame, day: Column, sources: Mapping[str, str]) -> None:
        """A table by day, of which `frame` holds the days that `changed` tells; others stay where they are.

        `sources` has every day that the table has now, with what its rows are made of; `day` is a row's day as text.
        Each day has rows.
        """
        kept = self.kept(name)
        changed = self.changed(name, sources)
        parts = {each: kept[each] for each in sources if each not in changed}
        fmt = self.new.format
        gone = sorted(kept.keys() - sources.keys()) if fmt in output.VERSIONED else []
        if not changed and not gone:
            self.new.tables[name] = parts
            return
        self.schemas[name] = frame.schema
        rows = frame.withColumn("day", day).where(F.col("day").isin(changed))
        if fmt in output.VERSIONED:  # one table, whose log keeps what stays; the day is a column of it
            path = f"{name}-by-day"
            only = [*changed, *gone] if kept else None
            output.write_table(rows, f"{self.folder}/{path}", fmt=fmt, partition_by=["day"], only=only)
            version = output.newest_version(self.spark, f"{self.folder}/{path}", fmt)
            parts = {each: Part(path, version, source) for each, source in sources.items()}
        else:
            for place in PLACES:
                here = [each for each in changed if self._place(name, each) == place]
                if here:
                    path = f"{place}/{name}-by-day"
                    chosen = rows.where(F.col("day").isin(here))
                    output.write_table(chosen, f"{self.folder}/{path}", partition_by=["day"], only=here)
                    parts |= {each: Part(f"{path}/day={each}", None, sources[each]) for each in here}
        self.new.tables[name] = dict(sorted(parts.items()))

    def changed(self, name: str, sources: Mapping[str, str]) -> list[str]:
        """The days whose rows are made of something else than what the last run made them of."""
        kept = self.kept(name)
        return [day for day, source in sources.items() if day not in kept or kept[day].source != source]

    def _place(self, name: str, day: str) -> str:
        """The place that the last run does not use for it."""
        used = None if self.last is None else self.last.tables.get(name, {}).get(day)
        return PLACES[1] if used is not None and used.path.startswith(f"{PLACES[0]}/") else PLACES[0]

    def table(self, name: str) -> DataFrame:
        """A table of this run, as written."""
        parts = self.new.tables[name]
        return _frame(self.spark, self.folder, self.new.format, parts, self.schemas.get(name))

    def publish(self) -> None:
        """Makes this run's tables the folder's. Raises JobError where another run finished meanwhile."""
        now = manifest_of(self.spark, self.folder)
        if (now and now.key) != (self.last and self.last.key):
            raise JobError(
                f"another run wrote to {self.folder} at the same time; its results may be mixed with this one's: run the"
                " job again, and one at a time"
            )
        told = msgspec.structs.replace(self.told, at=time.time())
        runs = [*(self.last.runs if self.last is not None else ()), told][-KEPT_RUNS:]
        new = msgspec.structs.replace(self.new, runs=runs)
        line, place = msgspec.json.encode(new).decode(), PLACES[self.new.run % 2]
        output.write_line(self.spark, line, f"{self.folder}/{MANIFEST}/{place}")
