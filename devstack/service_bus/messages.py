"""A message as the broker keeps it: what was sent, and what became of it since."""

from dataclasses import dataclass
from typing import Any

from devstack.amqp.decoder import decode
from devstack.amqp.encoder import encode, encode_map_of, encode_timestamp
from devstack.amqp.messages import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    encode_section,
    section_value,
    sections,
)
from devstack.amqp.values import Int, Symbol, UInt, ULong

SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
ACTIVE, DEFERRED = 0, 1  # values of x-opt-message-state

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
_ENQUEUED_KEY, _SEQUENCE_KEY, _LOCKED_KEY, _STATE_KEY, _SOURCE_KEY = (
    encode(Symbol(key))
    for key in (
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-deadletter-source",
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
        """Raises ProtocolError when the payload is no message."""
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
            annotations=b"".join(encode(key) + encode(value) for key, value in kept.items()),
            annotation_count=len(kept),
            bare=payload[bare_start:],
        )


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
    return Identity(padded[0], padded[10], annotations.get("x-opt-partition-key"))


@dataclass(slots=True)
class Message:
    """A message in one queue. Times in seconds since 1970; `delivery_count` counts failed deliveries."""

    sent: Sent
    sequence_number: int
    enqueued_at: float
    expires_at: float | None
    delivery_count: int = 0
    deferred: bool = False
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
            encode(Int(DEFERRED if self.deferred else ACTIVE)),
        ]
        count = self.sent.annotation_count + 3
        if self.lock_token is not None:
            pairs += (_LOCKED_KEY, encode_timestamp(to_milliseconds(self.locked_until)))
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
    properties = {
        **properties,
        "DeadLetterReason": dead_letter.reason,
        "DeadLetterErrorDescription": dead_letter.description,
    }
    return bare[:insert_at] + encode_section(APPLICATION_PROPERTIES, properties) + bare[rest_at:]
