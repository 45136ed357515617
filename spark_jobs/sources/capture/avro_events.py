"""Events of capture files as Arrow batches, by fastavro: every column, of whatever schema the file has. Pure.

Where only positions and times are asked for, `avro_positions` reads files of Capture's own layout seven to ten times as fast.
What it cannot prove is read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]

from spark_jobs.sources.capture.avro_positions import COLUMNS, Layout, UnprovenError, layout_of, positions_of
from spark_jobs.sources.columns.avro_container import Block, CorruptFileError, blocks, read_header
from spark_jobs.sources.columns.event_columns import EVENT_COLUMNS, EventRow, Origin, batch_of, instant

GROUP_BYTES = 1 << 20
"""Blocks are decoded together up to so many bytes: what `avro_positions` works on stays in the processor's cache."""

_NEEDED = ("SequenceNumber", "Offset", "EnqueuedTimeUtc", "Body", "Properties", "SystemProperties")


def decode_file(
    data: memoryview, origin: Origin, columns: Collection[str] = EVENT_COLUMNS
) -> Iterator[pa.RecordBatch]:
    """The file's events as batches of `columns`, in order. Raises CorruptFileError, whose count of events is that of
    all blocks up to the defect.
    """
    header = read_header(data)
    layout = layout_of(header.schema) if COLUMNS.issuperset(columns) else None
    before = 0
    for group in _groups(blocks(data, header)):
        count = sum(block.records for block in group)
        try:
            yield _batch(group, header.schema, layout, origin, columns)
        except CorruptFileError as error:
            raise CorruptFileError(str(error), events=before + count) from error
        before += count


def _batch(
    group: Sequence[Block], schema: Any, layout: Layout | None, origin: Origin, columns: Collection[str]
) -> pa.RecordBatch:
    if layout is not None:
        try:
            return positions_of(group, layout, origin, columns)
        except UnprovenError:
            pass  # the file may be right all the same, and what is wrong with it fastavro says
    return batch_of(decode_records(group, schema), origin, columns)


def _groups(read_blocks: Iterator[Block]) -> Iterator[list[Block]]:
    group: list[Block] = []
    size = 0
    for block in read_blocks:
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


def decode_records(group: Sequence[Block], schema: Any) -> Iterator[EventRow]:
    """Events in order. Raises CorruptFileError for a schema without the fields of events, and for bytes that are no
    records of the schema.
    """
    parsed = _parsed(schema)
    for block in group:
        stream = BytesIO(block.payload)
        for _ in range(block.records):
            yield _row(_record(stream, parsed))
        left = len(block.payload) - stream.tell()
        if left:
            raise CorruptFileError(f"a block has {left} bytes behind its {block.records} records")


def _parsed(schema: Any) -> Any:
    try:
        parsed = fastavro.parse_schema(schema)
    except Exception as error:  # fastavro has many errors for what is no schema
        raise CorruptFileError(f"the file's Avro schema is not readable: {error!r}") from error
    names = [field["name"] for field in parsed.get("fields", ())] if isinstance(parsed, dict) else []
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise CorruptFileError(
            f"the file's records have no field {', '.join(missing)}; found: {', '.join(names) or 'no fields'}; "
            f"a capture file has {', '.join(_NEEDED)}"
        )
    return parsed


def _record(stream: BytesIO, schema: Any) -> Mapping[str, Any]:
    try:
        record: Mapping[str, Any] = fastavro.schemaless_reader(stream, schema, None)  # type: ignore[assignment]
    except Exception as error:  # fastavro raises what it stumbles over
        raise CorruptFileError(
            f"a record before byte {stream.tell()} of its block is not readable: {error!r}"
        ) from error
    return record


def _row(record: Mapping[str, Any]) -> EventRow:
    number, offset, time, body, properties, system_properties = (record[name] for name in _NEEDED)
    if not isinstance(number, int):
        raise CorruptFileError(f"SequenceNumber is {str(number)[:40]!r}; a whole number is accepted")
    if body is not None and not isinstance(body, bytes):
        raise CorruptFileError(f"the body of event {number} is a {type(body).__name__}; bytes are accepted")
    return EventRow(number, str(offset), instant(str(time)), body, properties or {}, system_properties or {})
