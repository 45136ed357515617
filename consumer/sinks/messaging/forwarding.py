"""What a forwarded event carries: its body, its key, and where it came from. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct

from consumer.mapping.documents import read_object, rejected
from consumer.mapping.paths import find
from consumer.mapping.sources import parse_source
from consumer.model import Operation, Record, Rejection, Stream, Write
from tidemark.foundation.errors import SettingsError

SOURCE, PARTITION, NUMBER, INDEX = (
    *("tidemark-source", "tidemark-partition"),
    *("tidemark-sequence-number", "tidemark-index"),
)
"""Properties of a forwarded event: namespace/hub, partition and sequence number of the event that it was, and which of that
event's documents it is, from 1 on (the first one has no such property)."""
PATH = "tidemark-path"
"""Property: every hub that the event has been in, oldest first, separated by spaces."""

FORWARDING = frozenset({Operation.UPSERT, Operation.CREATE})
JSON = "application/json"
MAX_KEY = 128
"""Characters of a partition key of Event Hubs, and of a session or message id of Service Bus."""


class Forwarded(Struct, frozen=True):
    """What is sent, without its body."""

    properties: dict[str | bytes, Any]
    """As the SDKs take them."""
    content_type: str | None
    content_encoding: str | None


class Forwarding:
    """Prepares events to be sent on to `target`: namespace/hub, or namespace/queue.

    `key` is the source of the partition key or session. With `body` "event", the body is sent as it came; with "document" as
    JSON of the document that the mapping made, if there is one. Raises SettingsError.
    """

    def __init__(self, target: str, stream: Stream, key: str, body: str) -> None:
        self.target = target.lower()
        self.key = key
        self._topic = stream.topic
        self._key = parse_source("key", key) if key else None
        self._sends_document = body == "document"
        if self.target == self._topic:
            raise SettingsError(
                f"{target} is the hub that the events come from: they would go round for ever. Name another hub as the target"
            )

    def prepare(self, write: Write) -> Record:
        """The record, whose `partition_key` is the key; '' without one."""
        event = write.event
        if write.operation not in FORWARDING:
            why = f"the operation {write.operation} is impossible here: messages are sent, never changed or deleted"
            return rejected(event, Rejection("operation", why))
        if self.target in str(event.properties.get(PATH, "")).split():
            why = f"the event has been in {self.target} already ({event.properties[PATH]}): it would go round for ever"
            return rejected(event, Rejection("loop", why))
        body, form = self._body(write)
        if isinstance(body, Rejection):
            return rejected(event, body)
        key = self._key_of(write)
        if isinstance(key, Rejection):
            return rejected(event, key)
        of_event = f"{event.partition}~{event.sequence_number}~{write.index}"
        return Record(
            event,
            key or of_event,
            body,
            key,
            form,
            operation=write.operation,
            sink=write.sink,
            index=write.index,
        )

    def _body(self, write: Write) -> tuple[bytes | Rejection, str]:
        """The body, and which of its forms it is: the record's route, which only `forwarded` reads."""
        event = write.event
        if self._sends_document and write.document is not None:
            return msgspec.json.encode(write.document), "document"
        if event.unreadable is not None:
            return Rejection("unreadable", event.unreadable), ""
        return (event.body, "event") if write.content is None else (write.content, "content")

    def _key_of(self, write: Write) -> str | Rejection:
        source, event = self._key, write.event
        if source is None:
            return ""
        if isinstance(source, str):
            value = self._topic if source == "topic" else getattr(event, source)
        else:
            document = read_object(event) if write.document is None else write.document
            if isinstance(document, Rejection):
                return document
            value = find(document, source)
        if value is None or value is UNSET:
            return ""
        if not isinstance(value, str | int) or isinstance(value, bool):
            return Rejection("key", f"the key is {value!r:.60}; accepted: a text or a whole number")
        text = str(value)
        if len(text) > MAX_KEY:
            return Rejection("key", f"the key has {len(text)} characters; at most {MAX_KEY} are accepted")
        return text

    def forwarded(self, record: Record) -> Forwarded:
        """The properties of the event, with those that say where it came from."""
        event = record.event
        came = str(event.properties.get(PATH, ""))
        properties: dict[str | bytes, Any] = {
            **amqp_properties(event.properties, event.property_types),
            SOURCE: self._topic,
            PARTITION: event.place,
            NUMBER: _as_amqp(event.sequence_number),
            PATH: f"{came} {self._topic}".strip(),
        }
        properties.pop(INDEX, None)
        if record.index:
            properties[INDEX] = str(record.index)
        return Forwarded(
            properties,
            JSON if record.route == "document" else event.content_type,
            event.content_encoding if record.route == "event" else None,  # `content` is unpacked
        )

    def message_id(self, record: Record) -> str:
        """Equal for each time that the record is sent, and different for any other event that can get into the target."""
        event = record.event
        digest = hashlib.blake2b(self._topic.encode(), digest_size=8).hexdigest()
        return f"{digest}~{event.place}~{event.sequence_number}~{record.index}"


def amqp_properties(properties: Mapping[str, Any], types: Mapping[str, str]) -> dict[str | bytes, Any]:
    """The properties as the SDKs take them, each of the AMQP type that it came with. Lists and maps, which are none that AMQP allows,
    are left out.
    """
    return {
        str(name): _as_amqp(value, types.get(name))
        for name, value in properties.items()
        if value is None or isinstance(value, _SIMPLE)
    }


def _as_amqp(value: Any, kind: str | None = None) -> Any:
    """Of a bare whole number the SDKs would make one of 32 bits, and refuse a longer one."""
    if type(value) is int:
        is_whole = kind in _WHOLE
        return {"TYPE": kind if is_whole else "LONG" if value < 1 << 63 else "ULONG", "VALUE": value}
    if isinstance(value, bytes) or (kind == "BINARY" and isinstance(value, str)):
        # Of bare bytes the SDK of Service Bus makes a string, which need not be UTF-8.
        return {"TYPE": "BINARY", "VALUE": value if isinstance(value, bytes) else value.encode()}
    if (kind, type(value)) in _OTHERS:
        return {"TYPE": kind, "VALUE": value}
    is_no_number = isinstance(value, Decimal) and not value.is_finite()  # which the SDKs cannot write
    return str(value) if is_no_number else value


def check_body(body: str) -> None:
    """Raises SettingsError."""
    if body not in {"document", "event"}:
        raise SettingsError(f"body is '{body}'; accepted: document, event")


_SIMPLE = (str, bytes, bool, int, float, Decimal, UUID, datetime)
_WHOLE = frozenset({"UBYTE", "BYTE", "USHORT", "SHORT", "UINT", "INT", "ULONG", "LONG", "TIMESTAMP"})
_OTHERS = frozenset({("FLOAT", float), ("SYMBOL", str)})
