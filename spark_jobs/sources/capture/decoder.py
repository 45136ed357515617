"""Events of capture files as Arrow batches. Pure.

Event Hubs Capture writes one fixed record: number, offset, time, two maps, body. Records have no index, so each begins
where the one before ends. But every record has its time as text, "11/21/2026 8:02:14 AM", in which so much is fixed
that all places that look like one are found at once. From each the record's end follows, for all records together;
when every record ends exactly where the next begins, and the last where its block ends, then by induction the places
were right, and nothing was guessed. Where that does not hold, or the file's schema is another, the records are read one
by one (`avro_records`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from spark_jobs.sources.capture.avro_records import decode_records
from spark_jobs.sources.columns.avro_container import Block, CorruptFileError, Header, blocks, read_header
from spark_jobs.sources.columns.event_columns import EVENT_COLUMNS, Origin, batch_of, constant, instant
from spark_jobs.sources.columns.event_maps import map_column
from spark_jobs.sources.columns.slices import slices, text_slices
from spark_jobs.sources.columns.varints import KINDS, PADDING, UNKNOWN, Entries, Ints, Reader, UnprovenError

GROUP_BYTES = 1 << 20
"""Blocks are decoded together up to so many bytes: what is worked on stays in the processor's cache."""

_FIELDS = ["SequenceNumber", "Offset", "EnqueuedTimeUtc", "SystemProperties", "Properties", "Body"]
_SIZES = (19, 20, 21, 22)  # of the time's text: "1/1/2026 1:00:00 AM" to "12/31/2026 12:00:00 PM"
_U = np.uint64
_SHAPE_MASK, _SHAPE = _U(0x00FF0000FF0000FF), _U(0x002000003A00003A)  # the eight bytes before M: ":??:?? ?"


class Layout(NamedTuple):
    """Which branches the unions of a capture file have: the kinds by index, UNKNOWN at last."""

    system: Ints
    properties: Ints
    body: Ints


class Found(NamedTuple):
    """Where the records of a payload and their parts are; (start, size) each. All proven."""

    sequence_number: Ints
    offset: tuple[Ints, Ints]
    time: tuple[Ints, Ints]
    system: Entries | None
    properties: Entries | None
    body: tuple[Ints, Ints]
    has_body: NDArray[np.bool_]


def decode_file(
    data: memoryview, origin: Origin, columns: Collection[str] = EVENT_COLUMNS
) -> Iterator[pa.RecordBatch]:
    """The file's events as batches of `columns`, in order. Raises CorruptFileError, whose count of events is that of
    all blocks up to the defect.
    """
    header = read_header(data)
    layout = layout_of(header.schema)
    before = 0
    for group in _groups(blocks(data, header)):
        count = sum(block.records for block in group)
        try:
            yield _decode_group(group, header, layout, origin, columns)
        except CorruptFileError as error:
            raise CorruptFileError(str(error), events=before + count) from error
        before += count


def layout_of(schema: Any) -> Layout | None:
    """The layout of a schema that is the one Event Hubs writes; None for any other."""
    if not isinstance(schema, dict) or [field.get("name") for field in schema.get("fields", ())] != _FIELDS:
        return None
    types = [field["type"] for field in schema["fields"]]
    if types[:3] != ["long", "string", "string"]:
        return None
    system, properties, body = (_map_kinds(types[3]), _map_kinds(types[4]), _kinds(types[5]))
    if system is None or properties is None or body is None:
        return None
    return Layout(system, properties, body)


def _map_kinds(kind: Any) -> Ints | None:
    is_map = isinstance(kind, dict) and kind.get("type") == "map"
    return _kinds(kind.get("values")) if is_map else None


def _kinds(union: Any) -> Ints | None:
    if not isinstance(union, list) or not all(isinstance(each, str) and each in KINDS for each in union):
        return None
    return np.array([*(KINDS[each] for each in union), UNKNOWN], np.int64)


def _groups(found: Iterator[Block]) -> Iterator[list[Block]]:
    group: list[Block] = []
    size = 0
    for block in found:
        if group and size + len(block.payload) > GROUP_BYTES:
            yield group
            group, size = [], 0
        if block.records:
            group.append(block)
            size += len(block.payload)
        elif block.payload:
            raise CorruptFileError(f"a block of no records has {len(block.payload)} bytes")
    if group:
        yield group


def _decode_group(
    group: Sequence[Block], header: Header, layout: Layout | None, origin: Origin, columns: Collection[str]
) -> pa.RecordBatch:
    if layout is not None:
        data = b"".join((*(block.payload for block in group), bytes(PADDING)))
        reader = Reader(data)
        try:
            found = find_records(reader, layout, [(block.records, len(block.payload)) for block in group])
            return _batch(reader, found, data, origin, columns)
        except UnprovenError:
            pass  # a text that looks like a time is nothing wrong, or what is wrong is told by the other reader
    return batch_of(decode_records(group, header.schema), origin, columns)


# -- where the records are ---------------------------------------------------------------------------------


def find_records(reader: Reader, layout: Layout, sizes: Sequence[tuple[int, int]]) -> Found:
    """The records of blocks that follow each other, given as (records, bytes). Raises UnprovenError."""
    count = sum(records for records, _ in sizes)
    starts, ends = _times(reader)
    if len(starts) > count:  # bodies with times in them
        true = _chained(reader, layout, starts, ends, count)
        starts, ends = starts[true], ends[true]
    if len(starts) != count:
        raise UnprovenError(f"{len(starts)} times of {count} records")
    found, record_ends, times = _read(reader, layout, starts, ends)
    if not np.array_equal(times, starts):
        raise UnprovenError("a record does not begin where the one before ends")
    counted = np.cumsum([records for records, _ in sizes]) - 1
    if not np.array_equal(record_ends[counted], np.cumsum([size for _, size in sizes])):
        raise UnprovenError("a block does not end with its last record")
    return found


def _times(reader: Reader) -> tuple[Ints, Ints]:
    """Where the sizes of all texts stand that look like a time, and where the texts end; in order."""
    last = np.flatnonzero(reader.bytes[: reader.size] == ord("M"))
    last = last[last >= _SIZES[0]]
    last = last[(reader.words(last - 8) & _SHAPE_MASK) == _SHAPE]
    start = np.full(len(last), -1)
    for size in _SIZES:
        at = last - size
        start = np.where((at >= 0) & (reader.bytes[at] == 2 * size), at, start)
    real = start >= 0
    return start[real], last[real] + 1


def _read(reader: Reader, layout: Layout, starts: Ints, ends: Ints) -> tuple[Found, Ints, Ints]:
    """The records of these times, their ends, and where each record's time should begin by the end before."""
    at, system = reader.maps(ends, layout.system)
    at, properties = reader.maps(at, layout.properties)
    branch, at = reader.longs(at)
    kind = layout.body[np.clip(branch, -1, len(layout.body) - 1)]
    length, body = reader.longs(at)
    has_body = kind == KINDS["bytes"]
    record_ends = np.where(
        has_body, reader.after(body, length), np.where(kind == KINDS["null"], at, reader.behind)
    )
    number, at = reader.longs(np.concatenate(([0], record_ends[:-1])))
    size, offset = reader.longs(at)
    found = Found(
        number, (offset, size), (starts + 1, ends - starts - 1), system, properties, (body, length), has_body
    )
    return found, record_ends, reader.after(offset, size)


def _chained(reader: Reader, layout: Layout, starts: Ints, ends: Ints, count: int) -> list[int]:
    """Which of the times, of which there are too many, follow each other as records; nothing is proven by it."""
    _, record_ends, _ = _read(reader, layout, starts, ends)
    begins = np.concatenate(([0], record_ends))
    size, offset = reader.longs(reader.longs(begins)[1])
    due = reader.after(offset, size)
    index = np.minimum(np.searchsorted(starts, due), len(starts) - 1)
    # As an index into `begins`; 0 is the end.
    following = np.where(starts[index] == due, index + 1, 0).tolist()
    true: list[int] = []
    at = 0
    while len(true) < count and (at := following[at]):
        true.append(at - 1)
    return true


# -- and what they hold ------------------------------------------------------------------------------------


def _batch(
    reader: Reader, found: Found, data: bytes, origin: Origin, columns: Collection[str]
) -> pa.RecordBatch:
    count = len(found.sequence_number)
    make = {
        "hub": lambda: constant(origin.hub, count),
        "partition": lambda: constant(origin.partition, count),
        "sequence_number": lambda: pa.array(found.sequence_number),
        "offset": lambda: text_slices(data, *found.offset),
        "enqueued_at": lambda: _instants(reader, data, *found.time),
        "body": lambda: _bodies(data, found),
        "properties": lambda: map_column(data, found.properties, count),
        "system_properties": lambda: map_column(data, found.system, count),
        "file": lambda: constant(origin.file or "", count),
    }
    chosen = [column for column in EVENT_COLUMNS if column in columns]
    return pa.RecordBatch.from_arrays([make[column]() for column in chosen], names=chosen)


def _bodies(data: bytes, found: Found) -> pa.Array:
    if found.has_body.all():
        return slices(data, *found.body, pa.binary())
    start, size = found.body
    bodies = slices(data, start, np.where(found.has_body, size, 0), pa.binary())
    return pa.compute.if_else(pa.array(found.has_body), bodies, None)


def _instants(reader: Reader, data: bytes, start: Ints, size: Ints) -> pa.Array:
    """The times, parsed once for each run of equal texts: a text is exact to the second."""
    keep = (_U(1) << (_U(8) * (size.astype(np.uint64) - _U(16)))) - _U(1)  # of the third word
    texts = np.stack((reader.words(start), reader.words(start + 8), reader.words(start + 16) & keep))
    changes = (texts[:, 1:] != texts[:, :-1]).any(axis=0)
    firsts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    values = [
        instant(data[at : at + length].decode("ascii", "replace"))
        for at, length in zip(start[firsts].tolist(), size[firsts].tolist(), strict=True)
    ]
    runs = np.diff(np.append(firsts, len(start)))
    return pa.array(np.repeat(np.array(values, np.int64), runs)).cast(pa.timestamp("us", "UTC"))
