"""The stream: states of minutes that can change no more, exactly once, batch by batch.

A micro-batch's records join those of the minutes still open. Minutes older than the newest record by more than `late`
are closed: their states are written, never to change; what comes for them afterwards is late and is kept apart. So is
what lies ahead of the clock: one record of 2099 would close all minutes until then. The functions are the batch job's,
and so the numbers are.

A batch ends with its mark, one line that says which files hold the states of each day. Before that line is written
nothing of the batch counts, and a batch that runs again after a crash writes the same places again: with the source's
offsets in Spark's checkpoint, each record counts once. What only the batch before needs lies in two places that take
turns. States lie by day; a day's pieces become one when the day is over or has MOST_PIECES of them, and a place whose
pieces no mark names is written anew. So nothing grows but the days, and nothing is ever deleted: Spark writes all.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

from spark_jobs.errors import JobError
from spark_jobs.platform.output import read_lines, read_table, write_line, write_table
from spark_jobs.platform.rows import cached, collected
from spark_jobs.telemetry_aggregation.datasets import Dataset
from spark_jobs.telemetry_aggregation.minutes.samples import MINUTE
from spark_jobs.telemetry_aggregation.minutes.windows import day_of, micros
from spark_jobs.telemetry_aggregation.schemas import COUNTS
from spark_jobs.telemetry_aggregation.transforms import distinct
from tidemark.analysis.gates import check_sum

BEGINNING = -(1 << 62)  # before every record, in microseconds

MOST_PIECES = 8
"""Of a day: a run that reads a day opens few files, and rewrites its states once in so many batches."""

ROWS_PER_FILE = 250_000
"""States that one task writes: about 50 MB."""


class Piece(Struct, frozen=True, array_like=True):
    """Some of a day's states: in which place, and of which batch."""

    place: int
    batch: int


Pieces = dict[str, dict[str, list[Piece]]]
"""By table and day."""


class Mark(Struct, frozen=True):
    """How a dataset stands after batch `number`. `newest` and `closed` in microseconds: minutes before `closed` are done.

    Counts are of all batches so far. `key` tells this stream from one that began anew in the same folder, whose batches
    and places have the same numbers.
    """

    number: int = -1
    newest: int = BEGINNING
    closed: int = BEGINNING
    read: int = 0
    duplicates: int = 0
    late: int = 0
    ahead: int = 0
    invalid: int = 0
    pieces: Pieces = {}
    key: str = ""


@dataclass(frozen=True)
class Incremental:
    """One dataset's state below `folder`; `step` is for foreachBatch. `late` in microseconds.

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
        at, valid = micros("at"), self.dataset.valid & F.col("at").isNotNull()
        latest = self.latest()
        is_late, is_ahead = valid & (at < before.closed), valid & (at > latest)
        seen = _seen(rows, valid, is_late, is_ahead)
        newest = max(before.newest, seen.newest)
        closed = max(before.closed, (newest - self.late) // MINUTE * MINUTE)
        live = rows.where(valid & (at >= before.closed) & (at <= latest))
        still = rows.limit(0)
        if number > 0:
            still = read_table(spark, self._open(number - 1), schema=rows.schema)
            live = live.unionByName(still)
        with cached(distinct(live, self.dataset.keys, copies=True)) as counted:
            twice = F.coalesce(F.sum(F.col("copies") - 1), F.lit(0)).alias("duplicates")
            [taken] = collected(
                counted.select(F.count("*").alias("kept"), twice).crossJoin(
                    still.select(F.count("*").alias("open"))
                )
            )
            duplicates, kept = taken.duplicates, counted.select(*rows.columns)
            parts = {"late": seen.late, "ahead": seen.ahead, "invalid": seen.invalid}
            parts |= {"kept": taken.kept, "duplicates": duplicates}
            then = "the batch is not taken, and comes again with the next run"
            check_sum(f"--{self.dataset.name}, batch {number}", seen.read + taken.open, parts, then)
            pieces = self._write_states(kept, before, closed, number)
            self._write_open(kept, closed, number)
        counts = {**seen.asDict(), "duplicates": duplicates}
        for name, wanted in (("late", is_late), ("ahead", is_ahead)):
            if counts[name]:
                write_table(rows.where(wanted), f"{self.aside}/{name}/{self.dataset.name}/batch={number}")
        totals = {name: getattr(before, name) + counts[name] for name in COUNTS}
        key = before.key if number > 0 else secrets.token_hex(8)
        mark = Mark(number, newest, closed, **totals, pieces=pieces, key=key)
        write_line(spark, msgspec.json.encode(mark).decode(), f"{self._folder}/marks/{number % 2}")

    def _before(self, spark: SparkSession, number: int) -> Mark:
        """Raises JobError where the batch before left no mark."""
        if number == 0:
            return Mark()
        # The other place is this batch's own: it may hold half a mark of an attempt that was killed.
        marks = {mark.number: mark for mark in _marks(spark, self._folder, f"marks/{(number - 1) % 2}")}
        if number - 1 not in marks:
            raise JobError(
                f"{self._folder} lacks the mark of batch {number - 1}, found "
                f"{', '.join(map(str, marks)) or 'none'}: the checkpoint's parts do not belong together, or are of an"
                f" earlier version; {_ANEW}"
            )
        return marks[number - 1]

    def _write_states(self, kept: DataFrame, before: Mark, until: int, number: int) -> Pieces:
        """The pieces of all days after this batch."""
        closing = kept.where(micros("at") < until)
        made = self.dataset.states(closing, F.lit(before.closed), F.lit(until))
        return {
            table: self._write_table(table, states, before.pieces.get(table, {}), until, number)
            for table, states in made.items()
        }

    def _write_table(
        self, table: str, states: DataFrame, before: Mapping[str, list[Piece]], until: int, number: int
    ) -> dict[str, list[Piece]]:
        with cached(states.where(F.col("minute").isNotNull()).withColumn("day", day_of("minute"))) as laid:
            counts = {row.day: row["count"] for row in collected(laid.groupBy("day").count())}
            new = counts.keys()
            today = _day(until)
            joined = {
                day
                for day, pieces in before.items()
                if len(pieces) >= MOST_PIECES or (day < today and len(pieces) + (day in new) > 1)
            }
            if not new | joined:
                return dict(before)
            taken = {piece.place for pieces in before.values() for piece in pieces}
            piece = Piece(min(set(range(len(taken) + 1)) - taken), number)
            rows, count = laid, sum(counts.values())
            if joined:
                days = {day: before[day] for day in joined}
                old = states_of_days(laid.sparkSession, self._folder, table, days, states.schema)
                rows = laid.unionByName(old.withColumn("day", day_of("minute")))
                count = rows.count()
            files = -(-count // ROWS_PER_FILE)
            # Ranges of time: one file is split between few days, and a day between few files.
            split = rows.coalesce(1) if files <= 1 else rows.repartitionByRange(files, "minute")
            write_table(split, f"{self._folder}/{table}/place={piece.place}", partition_by=["day"])
        after = {**before, **{day: [*before.get(day, []), piece] for day in new}}
        return dict(sorted({**after, **{day: [piece] for day in joined}}.items()))

    def _write_open(self, kept: DataFrame, closed: int, number: int) -> None:
        still = kept.where(micros("at") >= closed)
        if self.dataset.carry is not None:
            still = still.unionByName(self.dataset.carry(kept, F.lit(closed)))
        write_table(still, self._open(number))

    def _open(self, number: int) -> str:
        """Records of minutes still open. Only the next batch needs them: two places take turns."""
        return f"{self._folder}/open/{number % 2}"


def sources(name: str, marks: Mapping[str, Mark], checkpoint: str) -> dict[str, str]:
    """By day, in order, the pieces of states that a table's rows are made of. `marks` are by input."""
    days: dict[str, list[str]] = {}
    for dataset, mark in sorted(marks.items()):
        for day, pieces in mark.pieces.get(name, {}).items():
            places = " ".join(f"{each.place}@{each.batch}" for each in pieces)
            days.setdefault(day, []).append(f"{checkpoint} {mark.key} {dataset} {places}")
    return {day: "; ".join(found) for day, found in sorted(days.items())}


def latest_mark(spark: SparkSession, folder: str, dataset: Dataset) -> Mark:
    """How the dataset stands; the mark of a stream without a batch is Mark()."""
    return max(_marks(spark, f"{folder}/{dataset.name}"), key=lambda mark: mark.number, default=Mark())


def states_of_days(
    spark: SparkSession,
    folder: str,
    table: str,
    days: Mapping[str, list[Piece]],
    schema: StructType | None = None,
) -> DataFrame:
    """The states of these days, of which there is one at least; `folder` is the dataset's. `schema` as in read_table."""
    paths = {
        f"{folder}/{table}/place={piece.place}/day={day}" for day, pieces in days.items() for piece in pieces
    }
    return read_table(spark, sorted(paths), schema=schema)


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


def _marks(spark: SparkSession, folder: str, place: str = "marks") -> list[Mark]:
    """The last two batches', or what there is of them: two places take turns."""
    return read_lines(spark, f"{folder}/{place}", Mark, what="mark of a batch", advice=_ANEW)


def _day(moment: int) -> str:
    """The day, as text, of a time in microseconds; before all days for one before the year 1."""
    seconds = moment // 1_000_000
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        return ""
