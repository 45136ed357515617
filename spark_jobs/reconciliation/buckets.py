"""Ranges of a partition's sequence numbers, a row for each: what a task looks at together. Arrow and numpy, no Spark.

An event is two numbers, and Spark would carry it from task to task as a row of its own. Here a row carries the events of
a bucket, up to 2 ** bits sequence numbers, as bytes: `rows` are a batch of Arrow. However many events a partition has, a
task holds those of one bucket, and Spark sorts and joins buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark_jobs.sources.columns.event_columns import STEP_BACK
from tidemark.analysis.arrow_columns import arrow_columns

CHUNKS = "partition text, bucket long, events long, rows bytes"
"""Some rows of a bucket, of which there may be more; `events` of them."""

BUCKETS = """
    partition text, bucket long, first long, last long, first_file text, last_file text, first_at time, last_at time,
    earliest time, latest time, events long, copies long, copied long, twice long, twice_at time, back long, back_at time,
    ahead_at time, rows bytes
"""
"""All `events` of a bucket, each once, in order: `first` to `last`. `copied` of them were there several times, `copies` times more
than once together; `twice` is a
number whose events were enqueued at several times; `back` is one that was enqueued at `back_at`, more than STEP_BACK before one of a
lower number, at `ahead_at`.
"""

STEPS = """
    partition text, first long, last long, after_file text, before_file text, enqueued_after time,
    enqueued_before time
"""
"""Numbers that are not there between two events of a bucket."""

KINDS = ("documents", "dead_letters", "parked")
"""Where an event that is settled may be."""

_CHUNK_ROWS = 1 << 16
_SKEW = 1000  # milliseconds: capture files have whole seconds
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
_Longs = NDArray[np.int64]


# -- rows as bytes


def pack(batches: Iterable[pa.RecordBatch], *, bits: int) -> Iterator[pa.RecordBatch]:
    """Rows with `partition` and `sequence_number`, both known, as CHUNKS."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(chunk.num_rows for chunk in waiting) >= _CHUNK_ROWS:
            yield from _cut(pa.Table.from_batches(waiting), bits)
            waiting = []
    if waiting:
        yield from _cut(pa.Table.from_batches(waiting), bits)


def _cut(table: pa.Table, bits: int) -> Iterator[pa.RecordBatch]:
    if not table.num_rows:
        return
    partitions = table["partition"].combine_chunks().dictionary_encode()
    partition = partitions.indices.to_numpy()
    bucket = _longs(table, "sequence_number") >> bits
    order = np.lexsort((bucket, partition))
    partition, bucket = partition[order], bucket[order]
    changes = (partition[1:] != partition[:-1]) | (bucket[1:] != bucket[:-1])
    begins = np.concatenate(([0], np.flatnonzero(changes) + 1))
    rows = table.drop_columns(["partition"])
    if len(begins) > 1:
        rows = rows.take(pa.array(order))
    sizes = np.diff(np.append(begins, len(order)))
    yield _batch(
        CHUNKS,
        partitions.dictionary.take(pa.array(partition[begins])),
        bucket[begins],
        sizes,
        [_bytes(rows.slice(begin, size)) for begin, size in zip(begins, sizes, strict=True)],
    )


def _bytes(rows: pa.Table) -> bytes:
    rows = rows.combine_chunks()
    if "file" in rows.column_names and not pa.types.is_dictionary(rows.schema.field("file").type):
        place = rows.column_names.index("file")
        rows = rows.set_column(place, "file", rows["file"].dictionary_encode())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _rows(chunks: pa.Table) -> pa.Table:
    """Those of all the chunks, which are at least one."""
    tables = [pa.ipc.open_stream(row.as_buffer()).read_all() for row in chunks["rows"]]
    # They come in any order, but hardly ever overlap: so what is in order within each is in order over all.
    tables.sort(key=lambda table: table["sequence_number"][0].as_py())
    # Columns that some lack are null there: documents whose ids are made of positions have no time.
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()


# -- events of a bucket


def merge(chunks: pa.Table) -> pa.Table:
    """BUCKETS of the CHUNKS of a bucket's events, with `copies` among the rows: how often each was there."""
    rows = _rows(chunks)
    number = _longs(rows, "sequence_number")
    copies = np.ones(len(number), np.int64)
    twice: tuple[int | None, Any] = (None, None)
    if (np.diff(number) <= 0).any():
        plain = rows.set_column(rows.column_names.index("file"), "file", rows["file"].cast(pa.string()))
        rows = plain.sort_by([(name, "ascending") for name in ("sequence_number", "enqueued_at", "file")])
        number = _longs(rows, "sequence_number")
        firsts = np.concatenate(([0], np.flatnonzero(np.diff(number)) + 1))
        copies = np.diff(np.append(firsts, len(number)))
        known = rows["enqueued_at"].is_valid().to_numpy()  # what is not comes last, and is no other time
        at = _micros(rows)
        again = np.flatnonzero((np.diff(number) == 0) & known[1:] & (np.diff(at) != 0))
        if len(again):
            place = int(np.searchsorted(number, number[again[0]]))
            twice = int(number[place]), rows["enqueued_at"][place].as_py()
        rows = rows.take(pa.array(firsts))
    ends = [rows.slice(place, 1) for place in (0, rows.num_rows - 1)]
    return _table(
        BUCKETS,
        *(chunks[name].slice(0, 1) for name in ("partition", "bucket")),
        *(
            end[name].cast(kind)
            for name, kind in (("sequence_number", pa.int64()), ("file", pa.string()), ("enqueued_at", _TIME))
            for end in ends
        ),
        *([end] for end in pc.min_max(rows["enqueued_at"]).as_py().values()),
        [rows.num_rows],
        [int((copies - 1).sum())],
        [np.count_nonzero(copies > 1)],
        *([count] for count in (*twice, *_step_back(rows))),
        [_bytes(rows.append_column("copies", pa.array(copies)))],
    )


def _step_back(rows: pa.Table) -> tuple[int | None, Any, Any]:
    """The first of BUCKETS' `back`, with both times."""
    at = _micros(rows)
    ahead = np.maximum.accumulate(np.where(at == 0, np.iinfo(np.int64).min, at))
    behind = np.flatnonzero((at != 0) & (ahead - at > STEP_BACK))
    if not len(behind):
        return None, None, None
    place = int(behind[0])
    return (
        rows["sequence_number"][place].as_py(),
        rows["enqueued_at"][place].as_py(),
        pa.scalar(int(ahead[place]), _TIME).as_py(),
    )


def steps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """STEPS of BUCKETS."""
    for batch in batches:
        for partition, data in zip(batch["partition"], batch["rows"], strict=True):
            rows = pa.ipc.open_stream(data.as_buffer()).read_all()
            number = _longs(rows, "sequence_number")
            place = np.flatnonzero(np.diff(number) > 1)
            if not len(place):
                continue
            before, after = rows.take(pa.array(place)), rows.take(pa.array(place + 1))
            yield _batch(
                STEPS,
                pa.repeat(partition, len(place)),
                number[place] + 1,
                number[place + 1] - 1,
                *(side[name] for name in ("file", "enqueued_at") for side in (before, after)),
            )


def count_settled(
    events: pa.Table,
    known: pa.Table,
    *,
    schema: pa.Schema,
    timed: bool,
    checked: Mapping[str, Sequence[tuple[int, int]]],
) -> pa.Table:
    """The rows of a bucket's events, by `schema`, with the `documents`, `dead_letters` and `parked` of each among the `known`, which
    are CHUNKS with `kind`. `timed`: a document is of an event only where both times agree. What the consumer keeps never is where
    they do not: a hub that was deleted and made anew has the numbers again. `checked`: by partition, ranges of numbers from first to
    last, in order, that do not overlap; it is a column, too.
    """
    if not events.num_rows:
        return schema.empty_table()
    rows = _rows(events)
    number, columns = _longs(rows, "sequence_number"), {name: rows[name] for name in rows.column_names}
    place_of = np.full(number[-1] - number[0] + 1, -1)  # no more than a bucket: looked up, not searched for
    place_of[number - number[0]] = np.arange(len(number))
    for kind in KINDS:
        of_kind = known.filter(pc.equal(known["kind"], kind))
        count = np.zeros(len(number), np.int64)
        if of_kind.num_rows:
            settled = _rows(of_kind)
            where = _longs(settled, "sequence_number")
            within = (where >= number[0]) & (where <= number[-1])
            place = place_of[np.where(within, where - number[0], 0)]
            hit = within & (place >= 0)
            is_kept = kind != "documents"
            if timed or is_kept:
                hit &= _same_time(_micros(rows)[place], _micros(settled), unknown=is_kept)
            count = np.bincount(place[hit], minlength=len(number))
        columns[kind] = pa.array(count, pa.int64())
    columns["partition"] = pa.repeat(events["partition"][0], len(number))
    columns["checked"] = pa.array(_within(number, checked.get(events["partition"][0].as_py(), ())))
    return pa.table(
        [
            columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(len(number), field.type)
            for field in schema
        ],
        schema=schema,
    )


def _same_time(one: _Longs, other: _Longs, *, unknown: bool) -> NDArray[np.bool_]:
    """Of two times each, as `_micros` gives them, whether they are the same one; `unknown` where either is missing."""
    same: NDArray[np.bool_] = np.abs(one // 1000 - other // 1000) <= _SKEW
    return np.where((one != 0) & (other != 0), same, unknown)


def _micros(rows: pa.Table) -> _Longs:
    """When they were enqueued; 0 where nobody knows: the consumer, too, writes 0 if its host gives no time."""
    micros: _Longs = pc.fill_null(rows["enqueued_at"].cast(pa.int64()), 0).to_numpy()
    return micros


def _within(number: _Longs, runs: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    if not runs:
        return np.zeros(len(number), np.bool_)
    first, last = np.array(runs, np.int64).T
    place = np.searchsorted(first, number, "right") - 1
    within: NDArray[np.bool_] = (place >= 0) & (number <= last[place])
    return within


def count_inside(known: pa.Table, gaps: pa.Table, *, schema: pa.Schema) -> pa.Table:
    """A bucket's `gaps`, by `schema`, with how many different numbers of its `known` each holds: `settled`."""
    if not gaps.num_rows:
        return schema.empty_table()
    number = np.unique(_longs(_rows(known), "sequence_number")) if known.num_rows else np.empty(0, np.int64)
    first, last = _longs(gaps, "first"), _longs(gaps, "last")
    settled = np.searchsorted(number, last, "right") - np.searchsorted(number, first)
    gaps = gaps.append_column("settled", pa.array(settled, pa.int64()))
    return gaps.select(schema.names).cast(schema)


# -- columns

_TIME = pa.timestamp("us", "UTC")


def _longs(table: pa.Table | pa.RecordBatch, name: str) -> _Longs:
    longs: _Longs = table[name].cast(pa.int64()).to_numpy()
    return longs


def _batch(schema: str, *columns: Any) -> pa.RecordBatch:
    [batch] = _table(schema, *columns).combine_chunks().to_batches()
    return batch


def _table(schema: str, *columns: Any) -> pa.Table:
    kinds = arrow_columns(schema)
    made = [
        column.cast(field.type)
        if isinstance(column, pa.Array | pa.ChunkedArray)
        else pa.array(column, field.type)
        for column, field in zip(columns, kinds, strict=True)
    ]
    return pa.table(made, schema=kinds)
