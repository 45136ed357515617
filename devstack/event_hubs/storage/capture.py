"""Files as Event Hubs Capture writes them: Avro, one folder per partition, one file per window.

`write_capture` makes them from any events, without a server; a server that was given
`CaptureSettings` makes them from what its hubs receive (capturing.py).

Seen in files of the real service (2016 to 2023): the schema, codec null, times such as
"2/6/2023 6:29:45 PM", names that are the beginning of the window, and empty files with the schema
and no event. Inferred: what becomes of property values that the schema has no type for (see
`property_value`), and of a body that is no data section.

A window ends by time or by size, whichever comes first. A name that is taken, because a size ended
several windows in one second, moves on to the next second.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from string import Formatter
from typing import IO, Any, Literal, NamedTuple, Protocol
from uuid import UUID

import msgspec

from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    section_value,
    sections,
)
from devstack.amqp.wire.values import Described
from devstack.event_hubs.storage.log import Stored

SCHEMA: dict[str, Any] = {
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
TEMPLATE = "{Namespace}/{EventHub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}"

_OWN_FIELDS = frozenset(("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"))  # of the record
_MESSAGE_PROPERTIES = (
    *("message-id", "user-id", "to", "subject", "reply-to", "correlation-id", "content-type"),
    *("content-encoding", "absolute-expiry-time", "creation-time", "group-id", "group-sequence"),
    "reply-to-group-id",
)
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_LAST_SECOND = 1000  # names that are tried for one file


class CaptureError(Exception):
    """Capture files cannot be written."""


class CaptureSettings(msgspec.Struct, frozen=True):
    """Where and when to write. The defaults are the service's: 5 minutes or 300 MB.

    `emit_empty` writes a file without events for a window in which none came. The real service takes
    60 to 900 seconds and 10 to 500 MB, and writes codec null only.
    """

    folder: Path
    namespace: str = "local"
    every_seconds: int = 300
    every_bytes: int = 300 * 1024 * 1024  # of bodies and properties
    path_template: str = TEMPLATE
    codec: Literal["null", "deflate", "snappy"] = "null"
    emit_empty: bool = False

    def __post_init__(self) -> None:
        if self.every_seconds < 1 or self.every_bytes < 1:
            raise ValueError(
                f"a capture window of {self.every_seconds} seconds and {self.every_bytes} bytes, "
                "accepted: 1 or more of each"
            )
        wanted = sorted(name for _, name, _, _ in Formatter().parse(TEMPLATE) if name)
        fields = sorted(name for _, name, _, _ in Formatter().parse(self.path_template) if name is not None)
        if fields != wanted:
            raise ValueError(f"path_template is {self.path_template!r}, accepted: each of {wanted} once")


class CapturedEvent(NamedTuple):
    """An event as a capture file has it. `enqueued_at` is in UTC; files keep whole seconds of it."""

    partition: str
    sequence_number: int
    offset: str
    enqueued_at: datetime
    body: bytes | None
    properties: Mapping[str, Any] = {}
    system_properties: Mapping[str, Any] = {}

    @property
    def size(self) -> int:
        """Bytes that count for the window: the body, and names and values of the properties as text."""
        named = (*self.properties.items(), *self.system_properties.items())
        return len(self.body or b"") + sum(len(key) + len(str(value)) for key, value in named)

    def record(self) -> dict[str, Any]:
        """The Avro record."""
        return {
            "SequenceNumber": self.sequence_number,
            "Offset": self.offset,
            "EnqueuedTimeUtc": enqueued_time_utc(self.enqueued_at),
            "SystemProperties": {
                key: stored
                for key, value in self.system_properties.items()
                if (stored := property_value(value)) is not None
            },
            "Properties": {key: property_value(value) for key, value in self.properties.items()},
            "Body": self.body,
        }


def write_capture(
    folder: Path,
    hub: str,
    events: Iterable[CapturedEvent],
    *,
    namespace: str = "local",
    every_seconds: int = 300,
    every_bytes: int = 300 * 1024 * 1024,
    path_template: str = TEMPLATE,
    codec: Literal["null", "deflate", "snappy"] = "null",
    emit_empty: bool = False,
) -> list[Path]:
    """Write capture files from events; returns the paths, in the order in which they were finished.

    The events of one partition are in order; windows follow from their enqueued times and begin at
    multiples of `every_seconds`. With `emit_empty`, windows between two events get a file, too.
    Raises CaptureError without fastavro or what the codec needs, ValueError for settings that are not accepted.
    """
    settings = CaptureSettings(
        folder, namespace, every_seconds, every_bytes, path_template, codec, emit_empty=emit_empty
    )
    require_fastavro(codec)
    files: list[Path] = []
    writers: dict[str, PartitionWriter] = {}
    try:
        for event in events:
            if event.partition not in writers:
                writers[event.partition] = PartitionWriter(settings, hub, event.partition, files)
            writers[event.partition].add(event)
        for writer in writers.values():
            writer.close()
    finally:
        for writer in writers.values():
            writer.abandon()
    return files


class AvroWriter(Protocol):
    """What is used of fastavro's writer."""

    def write(self, record: dict[str, Any]) -> None: ...

    def flush(self) -> None: ...


class PartitionWriter:
    """Writes the files of one partition, window by window; `files` gets each path when it is whole.

    A file is called `.partial` until it is. `since` (seconds since 1970) is where windows without
    events begin to count; without it, at the first event. Blocks on the disk.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        hub: str,
        partition: str,
        files: list[Path],
        *,
        since: float | None = None,
    ) -> None:
        self._settings = settings
        self._hub = hub
        self._partition = partition
        self._files = files
        self._window: int | None = None if since is None else self._window_of(since)
        self._written_in_window = False
        self._file: IO[bytes] | None = None
        self._avro: AvroWriter | None = None
        self._path = settings.folder
        self._size = 0
        self.first_in_file: int | None = None  # sequence number; None if no file is being written

    def add(self, event: CapturedEvent) -> None:
        """Write one event, after ending the windows before its own."""
        seconds = event.enqueued_at.timestamp()
        self.advance(seconds)
        if self._avro is None:
            self._open(int(seconds) if self._written_in_window else self._window_start())
        assert self._avro is not None  # _open sets it
        self._avro.write(event.record())
        if self.first_in_file is None:
            self.first_in_file = event.sequence_number
        self._size += event.size
        if self._size >= self._settings.every_bytes:
            self._finish()

    def is_over(self, now: float) -> bool:
        """Whether the window that is being written has ended at `now` (seconds since 1970)."""
        return self._window is not None and self._window < self._window_of(now)

    def advance(self, now: float) -> None:
        """End the windows that are over at `now` (seconds since 1970)."""
        current = self._window_of(now)
        if self._window is None:
            self._window = current
        while self._window < current:
            if self._settings.emit_empty and not self._written_in_window:
                self._open(self._window_start())
            self._finish()
            self._window = self._window + 1 if self._settings.emit_empty else current
            self._written_in_window = False

    def close(self) -> None:
        """End the window although it is not over, if anything came in it."""
        self._finish()

    def abandon(self) -> None:
        """Remove the file that is not whole, if there is one."""
        if self._file is not None:
            self._file.close()
            with suppress(FileNotFoundError):
                Path(self._file.name).unlink()
            self._file = self._avro = None

    def _window_of(self, seconds: float) -> int:
        return int(seconds // self._settings.every_seconds)

    def _window_start(self) -> int:
        return (self._window or 0) * self._settings.every_seconds

    def _open(self, start: int) -> None:
        if self._avro is not None:
            return
        self._path = self._free_path(start)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.with_name(f".{self._path.name}.partial").open("wb")
        self._avro = new_avro_writer(self._file, self._settings.codec)
        self._size = 0
        self._written_in_window = True

    def _free_path(self, start: int) -> Path:
        for seconds in range(start, start + _LAST_SECOND):
            path = capture_path(self._settings, self._hub, self._partition, seconds)
            if not path.exists():
                return path
        raise CaptureError(f"{_LAST_SECOND} files from {path} back exist already, of one second each")

    def _finish(self) -> None:
        if self._file is None or self._avro is None:
            return
        self._avro.flush()
        self._file.close()
        Path(self._file.name).replace(self._path)
        self._file = self._avro = self.first_in_file = None
        self._files.append(self._path)


def capture_path(settings: CaptureSettings, hub: str, partition: str, start: int) -> Path:
    """The file of a window that begins at `start` (seconds since 1970)."""
    at = datetime.fromtimestamp(start, UTC)
    relative = settings.path_template.format(
        Namespace=settings.namespace,
        EventHub=hub,
        PartitionId=partition,
        Year=f"{at:%Y}",
        Month=f"{at:%m}",
        Day=f"{at:%d}",
        Hour=f"{at:%H}",
        Minute=f"{at:%M}",
        Second=f"{at:%S}",
    )
    return settings.folder / f"{relative}.avro"


def captured_event(partition: str, stored: Stored) -> CapturedEvent:
    """What Capture makes of an event as a partition keeps it.

    Raises ProtocolError for an event that is no AMQP message.
    """
    properties: dict[str, Any] = {}
    system: dict[str, Any] = {}
    body: bytes | None = None
    for code, _, value_start, _ in sections(stored.message):
        if code == APPLICATION_PROPERTIES:
            properties = section_value(stored.message, value_start, dict)
        elif code == MESSAGE_ANNOTATIONS:
            annotations = section_value(stored.message, value_start, dict)
            system |= {str(key): value for key, value in annotations.items() if key not in _OWN_FIELDS}
        elif code == PROPERTIES:
            values = section_value(stored.message, value_start, list)
            system |= {
                key: value
                for key, value in zip(_MESSAGE_PROPERTIES, values, strict=False)
                if value is not None
            }
        elif code == DATA:
            body = (body or b"") + section_value(stored.message, value_start, bytes)
        elif code == VALUE:
            body = _body_of_value(section_value(stored.message, value_start, object))
    enqueued_at = datetime.fromtimestamp(stored.enqueued_ms / 1000, UTC)
    return CapturedEvent(
        partition, stored.sequence_number, stored.offset, enqueued_at, body, properties, system
    )


def property_value(value: Any) -> int | float | str | bytes | None:
    """A property as one of the types of the schema.

    Whole numbers are longs, unless they are too large, and times are milliseconds since 1970; booleans
    are "True" and "False" as .NET writes them; whatever else there is becomes text.
    """
    if value is None or isinstance(value, float | str):
        return value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return int(value) if _LONG_MIN <= value <= _LONG_MAX else str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, Described):
        return property_value(value.value)
    return str(value) if isinstance(value, UUID) else json.dumps(value, default=str)


def enqueued_time_utc(at: datetime) -> str:
    """A time as Capture writes it, for instance "2/6/2023 6:29:45 PM"."""
    utc = at.astimezone(UTC)
    return f"{utc.month}/{utc.day}/{utc.year} {utc.hour % 12 or 12}:{utc:%M:%S} {'AM' if utc.hour < 12 else 'PM'}"


def require_fastavro(codec: str) -> None:
    """Raises CaptureError if capture files cannot be written for lack of it, or of what the codec needs."""
    try:
        import fastavro  # noqa: PLC0415 - only Capture needs it
    except ImportError as error:
        raise CaptureError(
            "capture files need the package fastavro, which comes with the extra 'spark' of tidemark"
        ) from error
    try:
        fastavro.writer(BytesIO(), "null", [None], codec)
    except ValueError as error:
        raise CaptureError(f"codec {codec!r} of the capture files: {error}") from error


def new_avro_writer(file: IO[bytes], codec: str) -> AvroWriter:
    """Writes records of SCHEMA."""
    from fastavro.write import Writer  # noqa: PLC0415 - only Capture needs it

    writer: AvroWriter = Writer(file, SCHEMA, codec)
    return writer


def _body_of_value(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, default=str).encode()
