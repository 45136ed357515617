"""The stream: records by day, exactly once, batch by batch, and which days' tables they change.

A micro-batch's valid records are written below `records/batch=N/day=D`: the same place when the batch runs again. Minutes older
than the newest record by more than `late` are closed; what comes for them afterwards is late and is kept apart. So is what lies
ahead of the clock: one record of 2099 would close all minutes until then.

A batch ends with its mark, one line that says which batches have records of each day. Before that line is written nothing of
the batch counts: with the source's offsets in Spark's checkpoint, each record counts once. The tables of a day are made of its
records by the batch job's functions, so the numbers are the batch job's; records grow with the input, and nothing is deleted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.platform.classic import SPARK_ERRORS
from spark_jobs.platform.failures import first_line, is_absence
from spark_jobs.platform.rows import cached, collected
from spark_jobs.tables.plain import read_parquet, write_parquet
from spark_jobs.telemetry_aggregation.datasets import Dataset
from spark_jobs.telemetry_aggregation.kernel.samples import MINUTE, WINDOWS
from spark_jobs.telemetry_aggregation.schemas import COUNTS
from spark_jobs.telemetry_aggregation.tables import InputRecords
from spark_jobs.telemetry_aggregation.transforms import distinct, floor_to, micros
from tidemark.analysis.errors import JobError
from tidemark.analysis.limits import check_sum

BEGINNING = -62_135_596_800_000_000
"""The year 1, in microseconds: days before it have no names. Records of then are of a broken clock."""

DAY = WINDOWS["1d"]

FOR_EVER = 1 << 62

ROWS_PER_FILE = 1_000_000
"""Records that one task writes: about 50 MB."""


class Piece(Struct, frozen=True, array_like=True):
    """A batch's records of a day: how many, and the times of the first and the last, in microseconds."""

    batch: int
    rows: int
    first: int
    last: int


Days = dict[int, list[Piece]]
"""By when the day begins, in microseconds."""


class Mark(Struct, frozen=True):
    """How a dataset stands after batch `number`. `newest` and `closed` in microseconds: minutes before `closed` are done.

    Counts are of all batches so far. `key` differs for a stream that began anew in the same folder, whose batches
    have the same numbers. `keeps` differs for an earlier layout, which kept no records.
    """

    keeps: Literal["records"]
    number: int = -1
    newest: int = BEGINNING
    closed: int = BEGINNING
    read: int = 0
    duplicates: int = 0
    late: int = 0
    ahead: int = 0
    invalid: int = 0
    days: Days = {}
    key: str = ""


NO_BATCH = Mark("records")


@dataclass(frozen=True)
class Incremental:
    """One dataset's records below `folder`; `step` is for foreachBatch. `late` in microseconds.

    `latest` gives the greatest time, in microseconds, that a record may have now. Records that came late or are ahead
    go to `aside`.
    """

    dataset: Dataset
    folder: str
    late: int
    latest: Callable[[], int]
    aside: str

    @property
    def _folder(self) -> str:
        return f"{self.folder}/{self.dataset.name}"

    def step(self, batch: DataFrame, number: int) -> None:
        """Takes micro-batch `number`; again with the same batch is harmless."""
        with cached(self.dataset.prepare(batch)) as rows:
            self._take(rows, number)

    def _take(self, rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession  # the stream's own: foreachBatch runs in a copy of the job's
        before = self._before(spark, number)
        at = micros("at")
        valid = self.dataset.valid & F.coalesce(at >= BEGINNING, F.expr("false"))
        latest = self.latest()
        is_late, is_ahead = valid & (at < before.closed), valid & (at > latest)
        seen = _seen(rows, valid, is_late, is_ahead)
        newest = max(before.newest, seen.newest)
        closed = max(before.closed, (newest - self.late) // MINUTE * MINUTE)
        with cached(self._once(rows.where(valid & ~is_late & ~is_ahead))) as kept:
            duplicates = self._duplicates(kept, before, seen, number)
            days = self._write(kept.drop("copies"), before, number)
        counts = {**seen.asDict(), "duplicates": duplicates}
        for name, wanted in (("late", is_late), ("ahead", is_ahead)):
            if counts[name]:
                write_parquet(rows.where(wanted), f"{self.aside}/{name}/{self.dataset.name}/batch={number}")
        totals = {name: getattr(before, name) + counts[name] for name in COUNTS}
        key = before.key if number > 0 else secrets.token_hex(8)
        mark = Mark("records", number, newest, closed, **totals, days=days, key=key)
        write_line(spark, msgspec.json.encode(mark).decode(), f"{self._folder}/marks/{number % 2}")

    def _before(self, spark: SparkSession, number: int) -> Mark:
        """Raises JobError where the batch before left no mark."""
        if number == 0:
            return NO_BATCH
        # The other place is this batch's own: it may hold half a mark of an attempt that was killed.
        marks = {mark.number: mark for mark in _marks(spark, self._folder, f"marks/{(number - 1) % 2}")}
        if number - 1 not in marks:
            raise JobError(
                f"{self._folder} lacks the mark of batch {number - 1}, found "
                f"{', '.join(map(str, marks)) or 'none'}: the checkpoint's parts do not belong together, or are of an"
                f" earlier version; {_ANEW}"
            )
        return marks[number - 1]

    def _once(self, records: DataFrame) -> DataFrame:
        return distinct(records, self.dataset.keys, copies=True)

    def _duplicates(self, kept: DataFrame, before: Mark, seen: Row, number: int) -> int:
        """How many of the batch's records are copies of each other, or of records of minutes that are still open.

        Raises JobError where a record is in no count.
        """
        sums = F.count("*").alias("kept"), F.coalesce(F.sum("copies"), F.lit(0)).alias("given")
        [sums_of_kept] = collected(kept.select(*sums))
        known = 0
        still = [*between(before.days, before.closed, FOR_EVER)]
        if still and sums_of_kept.kept:
            names = [name for name in kept.columns if name != "copies"]
            schema = kept.select(*names).schema
            earlier = _read(kept.sparkSession, self._folder, still, schema)
            open_ = self._once(earlier.where(micros("at") >= before.closed)).select(*names)
            again = self._once(kept.select(*names).unionByName(open_)).where("copies > 1")
            known = again.count()
        parts: dict[str, int] = {"late": seen.late, "ahead": seen.ahead, "invalid": seen.invalid}
        parts |= {
            "kept": sums_of_kept.kept - known,
            "duplicates": sums_of_kept.given - sums_of_kept.kept + known,
        }
        then = "the batch is not taken, and comes again with the next run"
        check_sum(f"--{self.dataset.name}, batch {number}", seen.read, parts, then)
        return parts["duplicates"]

    def _write(self, kept: DataFrame, before: Mark, number: int) -> Days:
        """The pieces of all days after this batch."""
        at = micros("at")
        laid = kept.withColumn("day", floor_to(at, DAY))
        ends = F.count("*").alias("rows"), F.min(at).alias("first"), F.max(at).alias("last")
        pieces = {
            row.day: Piece(number, row.rows, row.first, row.last)
            for row in collected(laid.groupBy("day").agg(*ends))
        }
        if not pieces:
            return before.days
        files = -(-sum(piece.rows for piece in pieces.values()) // ROWS_PER_FILE)
        # Ranges of time: one file is split between few days, and a day between few files.
        split = laid.coalesce(1) if files <= 1 else laid.repartitionByRange(files, "at")
        write_parquet(split, f"{self._folder}/records/batch={number}", ["day"])
        new = {day: [*before.days.get(day, []), piece] for day, piece in pieces.items()}
        return dict(sorted({**before.days, **new}.items()))


# -- the records of days


def between(days: Days, begin: int, end: int) -> Iterator[tuple[int, Piece]]:
    """Those that have any record of a time from `begin` until before `end` (microseconds), and their days."""
    for day, pieces in days.items():
        if begin - DAY < day < end:
            yield from ((day, piece) for piece in pieces if piece.first < end and piece.last >= begin)


def sources(dataset: Dataset, table: str, mark: Mark) -> dict[str, str]:
    """By day, in order, what a table's rows are made of: batches, and until when. Some days may turn out to have no rows."""
    reach = dataset.reach if table == "scaling" else 0
    by_day: dict[str, str] = {}
    for begin in sorted(_days(mark, reach)):
        until = min(mark.closed, begin + DAY + reach)
        batches = sorted({piece.batch for _, piece in between(mark.days, begin - reach, begin + DAY + reach)})
        by_day[_text(begin)] = f"{mark.key} {dataset.name} {' '.join(map(str, batches))} to {until}"
    return by_day


def _days(mark: Mark, reach: int) -> set[int]:
    """When the days begin that closed records can have rows in."""
    return {
        begin
        for pieces in mark.days.values()
        for piece in pieces
        if piece.first < mark.closed
        for begin in range(piece.first // DAY * DAY, min(piece.last + reach, mark.closed - 1) + 1, DAY)
    }


def records_of_days(
    spark: SparkSession, folder: str, dataset: Dataset, mark: Mark, days: Iterable[str], table: str
) -> InputRecords | None:
    """The closed records that the rows of a table on these days are made of; None for none. `folder` is the stream's."""
    reach = dataset.reach if table == "scaling" else 0
    begins = [round(datetime.fromisoformat(f"{day}T00:00Z").timestamp()) * 1_000_000 for day in days]
    pieces = {
        day_range for begin in begins for day_range in between(mark.days, begin - reach, begin + DAY + reach)
    }
    if not pieces:
        return None
    records = _read(spark, f"{folder}/{dataset.name}", pieces).where(micros("at") < mark.closed)
    if not dataset.has_copies:
        records = distinct(records, dataset.keys)
    rows = sum(piece.rows for _, piece in pieces) if dataset.has_copies else None
    return InputRecords(dataset, records, mark.closed, rows)


def _read(
    spark: SparkSession,
    folder: str,
    pieces: Iterable[tuple[int, Piece]],
    schema: StructType | None = None,
) -> DataFrame:
    paths = {f"{folder}/records/batch={piece.batch}/day={day}" for day, piece in pieces}
    return read_parquet(spark, sorted(paths), schema)


def latest_mark(spark: SparkSession, folder: str, dataset: Dataset) -> Mark:
    """How the dataset stands; NO_BATCH for a stream without a batch."""
    return max(_marks(spark, f"{folder}/{dataset.name}"), key=lambda mark: mark.number, default=NO_BATCH)


def _seen(rows: DataFrame, valid: Column, is_late: Column, is_ahead: Column) -> Row:
    """Counts of one batch's records; `newest` in microseconds, BEGINNING for none."""
    [row] = collected(
        rows.select(
            F.count("*").alias("read"),
            F.count_if(is_late).alias("late"),
            F.count_if(is_ahead).alias("ahead"),
            F.count_if(~valid).alias("invalid"),
            F.coalesce(F.max(F.when(valid & ~is_ahead, micros("at"))), F.lit(BEGINNING)).alias("newest"),
        )
    )
    return row


_ANEW = (
    "begin with a new --checkpoint: it reads all files again, and days of which there are no files any more leave the tables"
    " of --output"
)


def write_line(spark: SparkSession, line: str, path: str) -> None:
    """Writes one line of text as the folder `path`, over what is there: the line is there whole, or nothing is."""
    spark.createDataFrame([(line,)], "value string").coalesce(1).write.mode("overwrite").text(path)


def _marks(spark: SparkSession, folder: str, place: str = "marks") -> list[Mark]:
    """The last two batches', or what there is of them: two places take turns. Raises JobError where they cannot be read."""
    path = f"{folder}/{place}"
    try:
        lines = collected(spark.read.option("recursiveFileLookup", "true").text(path))
    except SPARK_ERRORS as error:
        if is_absence(error):
            return []
        raise JobError(f"{path} cannot be read: {first_line(error)}") from error
    try:
        return [msgspec.json.decode(line.value, type=Mark) for line in lines]
    except msgspec.DecodeError as error:
        raise JobError(f"{path} holds what is no mark of a batch: {error}; {_ANEW}") from error


def _text(begin: int) -> str:
    return datetime.fromtimestamp(begin // 1_000_000, UTC).date().isoformat()
