"""Capture files as Event Hubs Capture writes them."""

import io
from datetime import UTC, datetime

import fastavro

SCHEMA = {
    "type": "record",
    "name": "EventData",
    "namespace": "Microsoft.ServiceBus.Messaging",
    "fields": [
        {"name": "SequenceNumber", "type": "long"},
        {"name": "Offset", "type": "string"},
        {"name": "EnqueuedTimeUtc", "type": "string"},
        {
            "name": "SystemProperties",
            "type": {"type": "map", "values": ["long", "double", "string", "bytes"]},
        },
        {
            "name": "Properties",
            "type": {"type": "map", "values": ["long", "double", "string", "bytes", "null"]},
        },
        {"name": "Body", "type": ["null", "bytes"]},
    ],
}
START = datetime(2026, 11, 21, 8, tzinfo=UTC)


def us_text(moment):
    hour = moment.hour % 12 or 12
    half = "PM" if moment.hour >= 12 else "AM"
    return f"{moment.month}/{moment.day}/{moment.year} {hour}:{moment:%M:%S} {half}"


def avro(records, *, schema=SCHEMA, codec="null", block=500):
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec, sync_interval=block)
    return out.getvalue()


def record(number, *, body=b"{}", properties=None, system=None, at=START, offset=None):
    return {
        "SequenceNumber": number,
        "Offset": str(number * 96) if offset is None else offset,
        "EnqueuedTimeUtc": us_text(at),
        "SystemProperties": system or {},
        "Properties": properties or {},
        "Body": body,
    }


def place(root, partition, minute, data):
    """Puts a file where Capture would for hub "orders"."""
    file = root / "ns" / "orders" / str(partition) / "2026" / "11" / "21" / "08" / f"{minute:02d}" / "00.avro"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file
