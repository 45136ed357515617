"""Converts an event's body to the document that is written. Pure, and on the hot path: one decode, one encode. Where the body
is the document already, its bytes are kept (consumer.mapping.as_received).

The body must be a JSON object in UTF-8. Two things are repaired silently: a byte order mark is dropped, and of equal keys
the last one counts (RFC 8259 leaves it open; JavaScript and Python agree). Any other body is rejected, and so is a document
that Cosmos DB could never store; `REASONS` lists all reasons.

The document's `id` is set here, and replaces one that it may have:
- `field:<path>`: the value at the path, such as `field:order/number`; a whole number becomes its decimal text;
- `position`: hub, partition and sequence number, so that an event delivered twice is one document. In a hub that was
  created anew the partition is `0@<created, ms>`, so that its events replace no document of the hub before it.

Which operation a write asks for, and the stamps of the version guard, are in consumer.mapping.operations and consumer.versions;
consumer.mapping.changes makes patches and tombstones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Struct

from consumer.mapping import changes
from consumer.mapping.as_received import AsReceived
from consumer.mapping.limits import (
    ILLEGAL_IN_ID,
    encode_document,
    id_problem,
    kind_of,
    partition_key_problem,
    size_problem,
    too_deep,
)
from consumer.mapping.operations import WriteOptions, is_ttl
from consumer.mapping.partition_hash import EffectiveKey, Scalar, order_key, partition_key_text
from consumer.mapping.paths import Path, find, parse_path, put
from consumer.model import Event, Operation, Record, Rejection, Write
from consumer.versions import VERSION, Change, Stamp, order_in_event, version_of
from tidemark.foundation.errors import SettingsError
from tidemark.foundation.wording import count_text

REASONS = {
    "unreadable": "the message has no body of bytes",
    "empty": "the body is empty",
    "encoding": "the body is not UTF-8, or holds half of a surrogate pair",
    "json": "the body is not JSON",
    "number": "NaN, Infinity, or a number beyond a double's range",
    "nesting": "deeper than Cosmos DB's 128 levels",
    "not_object": "JSON, but not an object",
    "transform": "the transform failed or returned no mapping",
    "document": "the transform returned a value that JSON cannot hold",
    "id": "no legal id: missing, no text or whole number, empty, over 1,023 bytes, or with one of / \\ ? #",
    "partition_key": "an object, a list or over 2,048 bytes at a partition key path",
    "too_large": "the document, id and metadata included, is over 2 MB",
    "operation": "the field or property with the operation has another value than the accepted ones",
    "patch": "a patch with a step that cannot be, with too many steps or with none",
    "version": "the version guard finds no text or number at its path",
    "ttl": "the time to live is no whole number of seconds, or the container has none",
    "unexpected": "preparing the event failed in an unexpected way",
}
"""Every reason for a rejection in this module."""

META = "_tm"
"""The field for the event's position, if it is wanted: partition, sequence number, enqueued time."""
_META_FIELDS = ("partition", "sequence_number", "enqueued_at")

_BOM = b"\xef\xbb\xbf"

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class MappingOptions(Struct, frozen=True):
    """The settings of the mapping. Raises SettingsError for an unknown id strategy."""

    hub: str
    id_from: str = "field:id"
    """`position`, or `field:<path>`."""
    meta: bool = False
    """True: every document gets `_tm` with its event's partition, sequence number and enqueued time."""
    writing: WriteOptions = WriteOptions()

    def __post_init__(self) -> None:
        if self.id_path is None and ILLEGAL_IN_ID.search(self.hub):
            raise SettingsError(
                f"the hub's name '{self.hub}' cannot be part of a document id; use field:<path>"
            )

    @property
    def id_path(self) -> Path | None:
        """The path of the id; None means position."""
        kind, _, path = self.id_from.partition(":")
        if kind == "position" and not path:
            return None
        if kind == "field" and path:
            return parse_path(path if path.startswith("/") else f"/{path}")
        raise SettingsError(
            f"the id strategy '{self.id_from}' is not known; accepted: position, or field:<path> such as field:id "
            "or field:order/number"
        )


class DocumentMapper:
    """Prepares writes for one container.

    `partition_key_paths` are those of the container's definition; `effective_key` computes a record's route, which is ''
    without it, or where the key's hash is not certain. `has_ttl`: documents of the container may have a time to live. Raises
    SettingsError for an id or a partition key in `_tm` that can never be there.
    """

    def __init__(
        self,
        options: MappingOptions,
        partition_key_paths: Sequence[str] = ("/id",),
        effective_key: EffectiveKey | None = None,
        *,
        has_ttl: bool = True,
    ) -> None:
        self._hub = options.hub
        self._meta = options.meta
        self._id_path = options.id_path
        self._paths = tuple(parse_path(path) for path in partition_key_paths)
        self._effective_key = effective_key
        self._has_ttl = has_ttl
        self._writing = options.writing
        self._guarded = options.writing.guarded
        self._version_path = options.writing.version_path
        self._ttl = options.writing.ttl_rule
        self._changes = changes.Changes(options.writing, self._paths)
        self._sources: dict[str, str] = {}
        is_plain = not self._meta and options.writing == WriteOptions(source=options.writing.source)
        keeps = is_plain and self._id_path == ("id",)
        self._as_received = AsReceived(self._paths, effective_key) if keeps else None
        if self._meta:
            _check_meta_paths(self._paths, self._id_path)

    def prepare(self, write: Write) -> Record:
        """The record of a write; one that cannot be written has a rejection. Raises nothing but MemoryError."""
        event = write.event
        if self._as_received is not None and (record := self._as_received.prepare(write)) is not None:
            return record
        document = self._document(write)
        if isinstance(document, Rejection):
            return rejected(event, document)
        try:
            made = self._record(write, document)
        except UnicodeEncodeError:
            made = Rejection("encoding", "the transform left half of a surrogate pair in a text")
        return rejected(event, made) if isinstance(made, Rejection) else made

    def _document(self, write: Write) -> dict[str, Any] | Rejection:
        """A copy that may be changed: other writes of the event may have the same document."""
        if write.document is not None:
            return dict(write.document)
        if write.event.unreadable is None and self._writing.deletes_by_empty_body(write):
            return self._changes.keys_of(write, self._id_path)
        return read_object(write.event)

    def _record(self, write: Write, document: dict[str, Any]) -> Record | Rejection:
        event = write.event
        operation = self._writing.operation_of(write, lambda _: document)
        if isinstance(operation, Rejection):
            return operation
        if self._meta:  # first, because id and partition key may be taken from it
            values_of_event = (event.place, event.sequence_number, event.enqueued_at)
            document[META] = dict(zip(_META_FIELDS, values_of_event, strict=True))
        identity = self._identity(document, write)
        if isinstance(identity, Rejection):
            return identity
        document["id"] = identity
        values = self._key_values(document, write)
        if isinstance(values, Rejection):
            return values
        made = self._made(write, operation, identity, document)
        if isinstance(made, Rejection):
            return made
        partition_key = partition_key_text(values)
        route = self._effective_key(values) if self._effective_key else ""
        key = order_key(values, partition_key) + identity
        return Record(
            event, key, made.payload, partition_key, route, operation=made.operation, change=made.change
        )

    def _key_values(self, document: dict[str, Any], write: Write) -> list[Scalar] | Rejection:
        given = write.partition_key
        if given is not None:
            if len(given) != len(self._paths):
                return Rejection(
                    "partition_key",
                    f"{count_text(len(given), 'value is', 'values are')} given for {count_text(len(self._paths), 'path')}",
                )
            for path, value in zip(self._paths, given, strict=True):
                if not put(document, path, value):
                    return Rejection("partition_key", f"there is no object on the way to '/{'/'.join(path)}'")
        values: list[Scalar] = []
        for path in self._paths:
            value = find(document, path)
            problem = partition_key_problem(value, path)
            if problem is not None:
                return problem
            values.append(value)
        return values

    def _made(
        self, write: Write, operation: Operation, identity: str, document: dict[str, Any]
    ) -> changes.Made | Rejection:
        stamp = self._stamp(write, document) if self._guarded else None
        if isinstance(stamp, Rejection):
            return stamp
        ttl = self._ttl_of(write, document)
        if isinstance(ttl, Rejection):
            return ttl
        made: bytes | changes.Made | Rejection
        if operation is Operation.DELETE:
            made = self._changes.deletion(identity, document, stamp)
        elif operation is Operation.PATCH:
            made = self._changes.patch(write, identity, document, stamp, ttl, self._source(write.event))
        else:
            if ttl is not None:
                document["ttl"] = ttl
            if stamp is not None:
                document[VERSION] = stamp
            made = encode_document(document)
        if isinstance(made, Rejection):
            return made
        if isinstance(made, changes.Made):
            problem = size_problem(made.payload)
            return made if problem is None else problem
        needed = stamp is not None or operation is Operation.REPLACE
        return changes.Made(made, operation, Change(identity, stamp) if needed else None)

    def _source(self, event: Event) -> str:
        """The event's namespace, hub and partition. One text per partition, because every stamp refers to it."""
        place = event.place
        source = self._sources.get(place)
        if source is None:
            source = self._sources[place] = f"{self._writing.source or self._hub}/{place}"
        return source

    def _stamp(self, write: Write, document: Mapping[str, Any]) -> Stamp | Rejection:
        event, version = write.event, None
        if self._version_path is not None:
            value = find(document, self._version_path) if write.version is None else write.version
            version = version_of(value)
            if version is None:
                where = "/".join(self._version_path)
                return Rejection(
                    "version", f"'/{where}' is {kind_of(value)}; the version guard expects a number or a text"
                )
        order = order_in_event(write.index)
        return Stamp(event.sequence_number, event.enqueued_at, self._source(event), order, version)

    def _ttl_of(self, write: Write, document: Mapping[str, Any]) -> int | Rejection | None:
        ttl: Any = self._ttl if write.ttl is None else write.ttl
        if isinstance(ttl, tuple):
            stored_ttl = find(document, ttl)
            if stored_ttl is UNSET or stored_ttl is None:
                return None
            ttl = stored_ttl
        if ttl is None:
            return None
        if not is_ttl(ttl):
            return Rejection(
                "ttl", f"the time to live is {ttl!r}; expected whole seconds from 1, or -1 for never"
            )
        if not self._has_ttl:
            return Rejection(
                "ttl",
                "the container has no defaultTtl, so that a time to live would be plain data; set it to -1",
            )
        return int(ttl)

    def _identity(self, document: Mapping[str, Any], write: Write) -> str | Rejection:
        if write.id is not None:
            return id_problem(write.id) or write.id
        if self._id_path is None:
            event = write.event
            index = f"~{write.index}" if write.index else ""
            return f"{self._hub}~{event.place}~{event.sequence_number}{index}"
        value = find(document, self._id_path)
        if isinstance(value, str):
            return id_problem(value) or value
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if is_whole and not isinstance(value, bool):
            return str(int(value))
        where = "/".join(self._id_path)
        return Rejection("id", f"'{where}' is {kind_of(value)}; expected a text or a whole number")


def read_object(event: Event) -> dict[str, Any] | Rejection:
    """The event's body as a JSON object, or the rejection."""
    if event.unreadable is not None:
        return Rejection("unreadable", event.unreadable)
    body = event.body.removeprefix(_BOM)
    try:
        document = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _why_not_json(body, error)
    if not isinstance(document, dict):
        return Rejection("not_object", f"the body is {kind_of(document)}; expected a JSON object")
    return document


def _check_meta_paths(paths: Sequence[Path], id_path: Path | None) -> None:
    for path in paths:
        if path[0] == META and path[1:] not in {(name,) for name in _META_FIELDS}:
            raise SettingsError(
                f"the container is partitioned by /{'/'.join(path)}, which no document has: CONSUMER_META puts "
                f"{', '.join(_META_FIELDS)} into '{META}'; set CONSUMER_META=false if the events bring it themselves"
            )
    if id_path and id_path[0] == META and id_path[1:] not in {("partition",), ("sequence_number",)}:
        raise SettingsError(
            f"the id strategy field:{'/'.join(id_path)} finds no text or whole number: CONSUMER_META puts "
            f"{', '.join(_META_FIELDS)} into '{META}'; use position, which is unique, or field:{META}/sequence_number"
        )


def document_id(record: Record) -> str:
    """The id of a record's document."""
    return _decode_id(record.payload).id


class _Identified(Struct, frozen=True):
    id: str


_decode_id = msgspec.json.Decoder(_Identified).decode


def rejected(event: Event, rejection: Rejection) -> Record:
    """The record of an event that can never be written: it becomes a dead letter."""
    return Record(event, f"{event.partition}~{event.sequence_number}", rejection=rejection)


def _why_not_json(body: bytes, error: Exception) -> Rejection:
    """Examines a body again that could not be decoded, to name the cause."""
    if not body.strip():
        return Rejection("empty", "the body is empty")
    if isinstance(error, RecursionError):
        return too_deep()
    try:
        text = body.decode()
    except UnicodeDecodeError:
        zipped = " but compressed (gzip)" if body.startswith(b"\x1f\x8b") else ""
        return Rejection("encoding", f"the body is not UTF-8{zipped}")
    if isinstance(error, msgspec.ValidationError):
        return Rejection("number", str(error))
    try:
        json.loads(text, parse_constant=_not_finite)
    except ArithmeticError as constant:
        return Rejection("number", f"{constant} is no JSON number")
    except (ValueError, RecursionError):
        return Rejection("json", str(error))
    # The standard library accepts only this of what strict decoders refuse.
    return Rejection("encoding", "a text holds half of a surrogate pair")


def _not_finite(constant: str) -> NoReturn:
    raise ArithmeticError(constant)
