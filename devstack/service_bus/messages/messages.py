"""A message as the broker keeps it: what was sent, and what became of it since."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from devstack.amqp.wire.decoder import decode
from devstack.amqp.wire.encoder import encode, encode_map_of, encode_timestamp
from devstack.amqp.wire.messages import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_section,
    section_value,
    sections,
)
from devstack.amqp.wire.values import Int, Symbol, UInt, ULong

_ANNOTATION = "x-opt-"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
PARTITION_KEY = "x-opt-partition-key"
ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2

# The broker's own annotations: what a sender says of them is dropped.
_BROKER_KEYS = frozenset(
    (
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        SCHEDULED_TIME,
    )
)
_ENQUEUED_KEY, _SEQUENCE_KEY, _LOCKED_KEY, _STATE_KEY, _SOURCE_KEY, _SCHEDULED_KEY = (
    encode(Symbol(key))
    for key in (
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        SCHEDULED_TIME,
    )
)
_ANNOTATIONS_PREFIX = b"\x00" + encode(ULong(MESSAGE_ANNOTATIONS))


def to_milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a sender handed over; shared by all subscriptions of a topic.

    `ttl` in seconds, None without limit; `scheduled_for` in seconds since 1970. `bare` holds
    the sections from properties on, as they came.
    """

    durable: bool | None
    priority: Any
    ttl: float | None
    scheduled_for: float | None
    annotations: bytes
    annotation_count: int
    bare: bytes

    @classmethod
    def parse(cls, payload: bytes) -> "Sent":
        """Gives the message an id where it has none, as the service does. Raises ProtocolError when it is no message."""
        header: list[Any] = []
        annotations: dict[Any, Any] = {}
        bare_start = len(payload)
        for code, start, value_start, _ in sections(payload):
            if code == HEADER:
                header = section_value(payload, value_start, list)
            elif code == MESSAGE_ANNOTATIONS:
                annotations = section_value(payload, value_start, dict)
            elif code != DELIVERY_ANNOTATIONS:
                bare_start = start
                break
        durable, priority, ttl = [*header, None, None, None][:3]
        scheduled = annotations.get(SCHEDULED_TIME)
        kept = {key: value for key, value in annotations.items() if key not in _BROKER_KEYS}
        return cls(
            durable=durable,
            priority=priority,
            ttl=ttl / 1000 if isinstance(ttl, int) else None,
            scheduled_for=scheduled / 1000 if isinstance(scheduled, int) else None,
            annotations=_encode_pairs(kept),
            annotation_count=len(kept),
            bare=_with_message_id(payload[bare_start:]),
        )

    def changed(self, properties: Mapping[Any, Any]) -> "Sent":
        """The message with changed application properties, or annotations where names say so (x-opt-...).

        What the broker says itself is dropped.
        """
        annotations = {
            key: value
            for key, value in properties.items()
            if str(key).startswith(_ANNOTATION) and key not in _BROKER_KEYS
        }
        others = {
            str(key): value for key, value in properties.items() if not str(key).startswith(_ANNOTATION)
        }
        sent = self
        if annotations:
            kept = {**decode_pairs(self.annotations, self.annotation_count), **annotations}
            sent = replace(sent, annotations=_encode_pairs(kept), annotation_count=len(kept))
        return replace(sent, bare=with_application_properties(self.bare, others)) if others else sent


@dataclass(frozen=True, slots=True)
class Identity:
    """The ids of a message that the broker may look at; None for what it does not have."""

    message_id: Any
    session_id: str | None
    partition_key: str | None


def identity(payload: bytes) -> Identity:
    """The ids of a message as a sender encoded it. Raises ProtocolError when the payload is no message."""
    properties: list[Any] = []
    annotations: dict[Any, Any] = {}
    for code, _, value_start, _ in sections(payload):
        if code == MESSAGE_ANNOTATIONS:
            annotations = section_value(payload, value_start, dict)
        elif code == PROPERTIES:
            properties = section_value(payload, value_start, list)
            break
        elif code > PROPERTIES:
            break
    padded = [*properties, *[None] * 11]
    return Identity(padded[0], padded[10], annotations.get(PARTITION_KEY))


@dataclass(slots=True)
class Message:
    """A message in one queue. Times in seconds since 1970; `delivery_count` counts failed deliveries."""

    sent: Sent
    sequence_number: int
    enqueued_at: float
    expires_at: float | None
    delivery_count: int = 0
    deferred: bool = False
    is_scheduled: bool = False
    lock_token: bytes | None = None
    locked_until: float = 0.0
    dead_letter: "DeadLetter | None" = None

    def encode(self) -> bytes:
        """The message as a receiver gets it."""
        sent = self.sent
        header = [
            sent.durable,
            sent.priority,
            None if sent.ttl is None else UInt(to_milliseconds(sent.ttl)),
            None,
            UInt(self.delivery_count),
        ]
        bare = sent.bare if self.dead_letter is None else _with_reason(sent.bare, self.dead_letter)
        return encode_section(HEADER, header) + self._encode_annotations() + bare

    def _encode_annotations(self) -> bytes:
        pairs = [
            self.sent.annotations,
            _SEQUENCE_KEY,
            encode(self.sequence_number),
            _ENQUEUED_KEY,
            encode_timestamp(to_milliseconds(self.enqueued_at)),
            _STATE_KEY,
            encode(Int(SCHEDULED if self.is_scheduled else DEFERRED if self.deferred else ACTIVE)),
        ]
        count = self.sent.annotation_count + 3
        if self.lock_token is not None:
            pairs += (_LOCKED_KEY, encode_timestamp(to_milliseconds(self.locked_until)))
            count += 1
        if self.is_scheduled and self.sent.scheduled_for is not None:
            pairs += (_SCHEDULED_KEY, encode_timestamp(to_milliseconds(self.sent.scheduled_for)))
            count += 1
        if self.dead_letter is not None:
            pairs += (_SOURCE_KEY, encode(self.dead_letter.source))
            count += 1
        return _ANNOTATIONS_PREFIX + encode_map_of(b"".join(pairs), count)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Why a message is dead, and the entity it died in."""

    reason: str
    description: str
    source: str


def _with_reason(bare: bytes, dead_letter: DeadLetter) -> bytes:
    """The bare message with the reason among its application properties."""
    reason = {
        "DeadLetterReason": dead_letter.reason,
        "DeadLetterErrorDescription": dead_letter.description,
    }
    return with_application_properties(bare, reason)


def with_application_properties(bare: bytes, changes: Mapping[str, Any]) -> bytes:
    """The bare message with more application properties, or other values of those it has."""
    properties: dict[Any, Any] = {}
    insert_at = rest_at = 0
    for code, start, value_start, end in sections(bare):
        if code == PROPERTIES:
            insert_at = rest_at = end
        elif code == APPLICATION_PROPERTIES:
            properties, _ = decode(bare, value_start)
            insert_at, rest_at = start, end
        else:
            break
    section = encode_section(APPLICATION_PROPERTIES, {**properties, **changes})
    return bare[:insert_at] + section + bare[rest_at:]


def with_sections(sent: "Sent", properties: list[Any], application_properties: Mapping[Any, Any]) -> "Sent":
    """The message with these in place of its own."""
    rest_at = 0
    for code, start, _, end in sections(sent.bare):
        rest_at = end if code in (PROPERTIES, APPLICATION_PROPERTIES) else rest_at
        if code > APPLICATION_PROPERTIES:
            rest_at = start
            break
    changed = encode_section(PROPERTIES, properties)
    if application_properties:
        changed += encode_section(APPLICATION_PROPERTIES, dict(application_properties))
    return replace(sent, bare=changed + sent.bare[rest_at:])


def _with_message_id(bare: bytes) -> bytes:
    properties: list[Any] = []
    rest_at = 0
    for code, _, value_start, end in sections(bare):
        if code == PROPERTIES:
            properties, rest_at = section_value(bare, value_start, list), end
        break
    if properties and properties[0] is not None:
        return bare
    return encode_section(PROPERTIES, [uuid4().hex, *properties[1:]]) + bare[rest_at:]


def _encode_pairs(pairs: Mapping[Any, Any]) -> bytes:
    return b"".join(encode(key) + encode(value) for key, value in pairs.items())


def decode_pairs(data: bytes, count: int) -> dict[Any, Any]:
    """What `_encode_pairs` wrote."""
    pairs, at = {}, 0
    for _ in range(count):
        key, at = decode(data, at)
        pairs[key], at = decode(data, at)
    return pairs
