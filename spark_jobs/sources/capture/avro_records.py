"""Records of capture files read one by one, by whatever schema the file has. Pure.

Slow, and right for every layout: other orders of fields, more fields, other types of maps. It is also the judge of what
the fast reader does not accept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro

from spark_jobs.sources.columns.avro_container import Block, CorruptFileError
from spark_jobs.sources.columns.event_columns import EventRow, instant

_NEEDED = ("SequenceNumber", "Offset", "EnqueuedTimeUtc", "Body", "Properties", "SystemProperties")


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
