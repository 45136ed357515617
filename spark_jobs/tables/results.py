"""The results of a job: Delta tables in a folder that a run makes current together.

A run commits its tables one by one, and last of all a row of the table `runs`, which names their versions. Who reads a table by
the newest row (`result_table`) finds what the last finished run left, whatever stopped one since, and never the tables of two
runs side by side. Of two runs at the same time Delta refuses the row of the one that ends last.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Self

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.platform.progress import console
from spark_jobs.tables import plain
from spark_jobs.tables.places import check_folder, has, local_folder
from spark_jobs.tables.runs import DAY, RUNS, Run, newest
from spark_jobs.tables.stores import PlainStore, SparkStore, Store, store_of
from tidemark.analysis.errors import InputError, JobError

KEEP = 7 * 86_400.0
"""Seconds for which old versions of tables are kept, by default: what Delta Lake itself keeps."""


def runs_of(spark: SparkSession, folder: str) -> list[Run] | None:
    """The runs that finished in the folder, in their order; None where it holds no results. Raises InputError where it holds
    those of an earlier version, JobError where they cannot be read.
    """
    _refuse_old(spark, folder)
    return store_of(spark, folder, "parquet").runs()


def last_run(spark: SparkSession, folder: str) -> Run | None:
    """Raises as `runs_of`."""
    return newest(runs_of(spark, folder))


def result_table(spark: SparkSession, folder: str, name: str) -> DataFrame:
    """A table of the last finished run. Raises InputError where there is none."""
    run = last_run(spark, folder)
    if run is None:
        raise InputError(f"no run has finished in {folder}: its table {RUNS} names none")
    if name not in run.versions:
        raise InputError(
            f"run {run.run} of {run.job} in {folder} has no table '{name}'; there are: {', '.join(sorted(run.versions))}"
        )
    return _frame(store_of(spark, folder, "parquet"), run, name)


def _frame(store: Store, run: Run, name: str) -> DataFrame:
    frame = store.read(name, run.versions[name])
    return frame.drop(DAY) if name in run.sources else frame


def _refuse_old(spark: SparkSession, folder: str) -> None:
    if has(spark, folder, "manifest"):
        raise InputError(
            f"{folder} holds results of an earlier version of Tidemark (a manifest, and tables in a/ and b/), which this one"
            " does not read; give --output another folder, or delete them"
        )


@dataclass(frozen=True)
class Results:
    """The tables of one run, until `publish` makes them the folder's. Raises JobError and InputError."""

    spark: SparkSession
    folder: str
    fmt: str
    store: Store
    last: Run | None
    earlier: Sequence[Run]
    """All runs of the folder so far, this one's predecessor last."""
    new: Run
    written: set[str] = field(default_factory=set)

    @classmethod
    def begin(
        cls, spark: SparkSession, folder: str, *, job: str, fmt: str, about: Mapping[str, str] | None = None
    ) -> Self:
        """A new run. Raises InputError for an unknown format, for a folder whose name would be a pattern, and where it holds
        results of another job or of an earlier version; JobError where nothing here writes the format.
        """
        check_folder(folder, "--output")
        plain.check_runtime(spark, plain.check_format(fmt))
        _refuse_old(spark, folder)
        store = store_of(spark, folder, fmt)
        runs = store.runs()
        last = newest(runs)
        if last is not None and last.job != job:
            raise InputError(f"{folder} holds results of {last.job}; give --output another folder for {job}")
        number = 1 if last is None else last.run + 1
        new = Run(number, secrets.token_hex(8), 0.0, job, {}, {}, {}, [], dict(about or {}), {}, {})
        return cls(spark, folder, fmt, store, last, runs or [], new)

    def tell(
        self,
        *,
        inputs: Mapping[str, object] | None = None,
        counts: Mapping[str, float | None] | None = None,
        settings: Mapping[str, object] | None = None,
        failures: Sequence[str] = (),
    ) -> None:
        """What the run reports, more each time; what is None is left out. No secrets: anybody may read it."""
        for known, given in ((self.new.inputs, inputs), (self.new.settings, settings)):
            known |= {name: str(value) for name, value in (given or {}).items() if value is not None}
        self.new.counts.update(
            (name, float(value)) for name, value in (counts or {}).items() if value is not None
        )
        self.new.failures.extend(failures)

    def write(self, name: str, frame: DataFrame) -> None:
        """The whole table."""
        self._begin_writing()
        self._wrote(name, self.store.write(name, frame, self.new))

    def scratch(self, name: str) -> Path | None:
        """A folder of this machine for files that become the table with `take`; None where the results are not on it."""
        folder = local_folder(self.spark, self.folder)
        if folder is None or isinstance(self.store, SparkStore | PlainStore):
            return None if folder is None else folder / f".{name}.{self.new.key}"
        return self.store.scratch(name, self.new)

    def take(self, name: str, file: Path, schema: StructType) -> bool:
        """Makes a Parquet file in `scratch` the whole table, by moving it; False where the table has to be written by Spark."""
        if isinstance(self.store, SparkStore | PlainStore):
            return False
        self._begin_writing()
        self._wrote(name, self.store.take(name, file, schema, self.new))
        return True

    def write_days(self, name: str, frame: DataFrame, day: Column, sources: Mapping[str, str]) -> None:
        """A table by day, of which `frame` holds the days that `changed` gives; others stay as they are.

        `sources` has every day that the table has now, with what its rows are made of; `day` is a row's day as text.
        Each day has rows.
        """
        kept = self._kept(name)
        changed = self.changed(name, sources)
        replaced = [*changed, *sorted(kept.keys() - sources.keys())]
        self.new.sources[name] = dict(sorted(sources.items()))
        if kept and not replaced and self.last is not None:
            self.new.versions[name] = self.last.versions[name]
            return
        rows = frame.withColumn(DAY, day).where(F.col(DAY).isin(changed))
        self._begin_writing()
        days = replaced if kept else None
        self._wrote(name, self.store.write(name, rows, self.new, days))

    def changed(self, name: str, sources: Mapping[str, str]) -> list[str]:
        """The days whose rows are made of something else than what the last run made them of."""
        kept = self._kept(name)
        return [day for day, source in sources.items() if kept.get(day) != source]

    def _kept(self, name: str) -> Mapping[str, str]:
        """By day, what the rows are made of that the last run left of a table and this one may keep."""
        if self.last is None or name not in self.last.sources:
            return {}
        # A run that did not finish may have written to the table since: none of its days may stay.
        same = self.store.newest_version(name) == self.last.versions[name]
        return self.last.sources[name] if same else {}

    def _begin_writing(self) -> None:
        """From here on the folder has a table of runs, so that nobody takes the tables of one that did not finish for results."""
        if not self.written and not self.earlier:
            self.store.make_runs()

    def _wrote(self, name: str, version: int) -> None:
        self.new.versions[name] = version
        self.written.add(name)

    def table(self, name: str) -> DataFrame:
        """A table of this run, as written."""
        return _frame(self.store, self.new, name)

    def publish(self) -> None:
        """Makes this run's tables the folder's. Raises JobError where another run finished meanwhile."""
        new = msgspec.structs.replace(self.new, at=time.time())
        # What days were made of is asked of the newest run alone, and is long.
        earlier = [msgspec.structs.replace(run, sources={}) for run in self.earlier]
        self._begin_writing()
        if not self.store.publish([*earlier, new]):
            raise JobError(
                f"another run finished in {self.folder} meanwhile, and its results count; run the job again, and one at a time"
            )

    @property
    def keeps_runs(self) -> bool:
        """False where Delta cannot be written: then there is no table of runs."""
        return not isinstance(self.store, PlainStore)

    def export(self) -> None:
        """Writes the published tables in the format that was asked for, where that is not Delta."""
        if self.fmt != "delta" and self.keeps_runs:
            for name in self.new.versions:
                plain.write(self.table(name), self.folder, name, self.fmt)

    def export_note(self) -> str:
        """What readers of the exported tables have to know; nothing where there are none."""
        if self.fmt == "delta":
            return ""
        return (
            f"Tables as {self.fmt} are in {self.fmt}/ beside this page. Each is replaced as a whole, but not together: who reads"
            " while a run ends, or after one that was stopped there, may find the tables of two runs."
        )

    def vacuum(self, keep: float) -> None:
        """Removes what no version of the last `keep` seconds names, from the tables that the run wrote. A line says where that
        cannot be done: the results are complete.
        """
        try:
            for name in (*sorted(self.written), RUNS):
                self.store.vacuum(name, ceil(keep / 3600))
        except JobError as error:
            console.print(f"old versions stay: {error}", markup=False, soft_wrap=True)
