"""The sections of a message, read only as far as somebody asks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devstack.amqp.wire.decoder import decode, skip
from devstack.amqp.wire.encoder import encode
from devstack.amqp.wire.errors import ProtocolError
from devstack.amqp.wire.values import ULong

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

BATCH_FORMAT = 0x80013700
"""Message format of several messages in one transfer, each encoded in a data section of its own."""

_SECTIONS = frozenset(range(HEADER, FOOTER + 1))
_PREFIX = {code: b"\x00" + encode(ULong(code)) for code in _SECTIONS}


def encode_section(code: int, value: Any) -> bytes:
    return _PREFIX[code] + encode(value)


def sections(payload: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(code, where the section starts, where its value starts, where it ends) of every section.

    Raises ProtocolError for anything that is no section of a message.
    """
    start = 0
    while start < len(payload):
        if payload[start] != 0:
            raise ProtocolError(f"no message section begins at byte {start}")
        descriptor, value_start = decode(payload, start + 1)
        if not isinstance(descriptor, ULong) or descriptor not in _SECTIONS:
            raise ProtocolError(f"{descriptor!r} at byte {start} is no message section")
        end = skip(payload, value_start)
        yield int(descriptor), start, value_start, end
        start = end


def section_value(payload: bytes, value_start: int, kind: type) -> Any:
    """The decoded value of a section, which must be of `kind`."""
    value, _ = decode(payload, value_start)
    if not isinstance(value, kind):
        raise ProtocolError(f"a message section holds {type(value).__name__}, not {kind.__name__}")
    return value


def batched(payload: bytes) -> list[bytes]:
    """The messages of a transfer with BATCH_FORMAT, in order."""
    return [
        section_value(payload, value_start, bytes)
        for code, _, value_start, _ in sections(payload)
        if code == DATA
    ]


@dataclass(slots=True)
class Request:
    """A message of which all that a request may carry is decoded."""

    message_id: Any
    reply_to: str | None
    application_properties: dict[Any, Any]
    value: Any

    @classmethod
    def parse(cls, payload: bytes) -> "Request":
        """Raises ProtocolError when the payload is no message."""
        properties: list[Any] = []
        application_properties: dict[Any, Any] = {}
        value = None
        for code, _, value_start, _ in sections(payload):
            if code == PROPERTIES:
                properties = section_value(payload, value_start, list)
            elif code == APPLICATION_PROPERTIES:
                application_properties = section_value(payload, value_start, dict)
            elif code == VALUE:
                value = section_value(payload, value_start, object)
        padded = [*properties, None, None, None, None, None]
        reply_to = padded[4] if isinstance(padded[4], str) else None
        return cls(padded[0], reply_to, application_properties, value)


def encode_response(correlation_id: Any, application_properties: dict[str, Any], value: Any) -> bytes:
    """A message with a correlation id, application properties and one value."""
    properties = [None, None, None, None, None, correlation_id, *[None] * 7]
    return (
        encode_section(PROPERTIES, properties)
        + encode_section(APPLICATION_PROPERTIES, application_properties)
        + encode_section(VALUE, value)
    )
