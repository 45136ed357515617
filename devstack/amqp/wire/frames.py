"""Frames out of a stream of bytes, however the stream is cut up."""

import struct
from typing import NamedTuple

from devstack.amqp.wire.errors import FRAMING_ERROR, ProtocolError
from devstack.amqp.wire.performatives import Performative, encode_performative

AMQP, SASL = 0, 1  # frame types, and protocol ids of the matching headers
SASL_PROTOCOL_ID = 3
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_PREFIX = struct.Struct(">IBBH")
_MIN_SIZE = 8


class ProtocolHeader(NamedTuple):
    protocol_id: int
    version: tuple[int, int, int]

    def encode(self) -> bytes:
        return bytes((*b"AMQP", self.protocol_id, *self.version))


AMQP_HEADER = ProtocolHeader(0, (1, 0, 0))
SASL_HEADER = ProtocolHeader(SASL_PROTOCOL_ID, (1, 0, 0))


class Frame(NamedTuple):
    """An empty body is a heartbeat."""

    type: int
    channel: int
    body: bytes


def encode_frame(channel: int, performative: Performative, payload: bytes = b"", type_: int = AMQP) -> bytes:
    body = encode_performative(performative)
    return _PREFIX.pack(_MIN_SIZE + len(body) + len(payload), 2, type_, channel) + body + payload


class FrameParser:
    """Keeps what does not make a whole frame yet.

    A protocol header needs no mode of its own: read as a frame it would be over 1 GB.
    """

    def __init__(self, max_frame_size: int) -> None:
        self._max_frame_size = max_frame_size
        self._rest = b""

    def feed(self, data: bytes) -> list[ProtocolHeader | Frame]:
        """What is complete now, in order. Raises ProtocolError when the stream makes no sense."""
        if self._rest:
            data = self._rest + data
        items: list[ProtocolHeader | Frame] = []
        position, available = 0, len(data)
        while available - position >= _MIN_SIZE:
            size, offset, type_, channel = _PREFIX.unpack_from(data, position)
            if data.startswith(b"AMQP", position):
                major, minor, revision = data[position + 5 : position + 8]
                items.append(ProtocolHeader(data[position + 4], (major, minor, revision)))
                position += _MIN_SIZE
                continue
            self._check(size, offset * 4)
            if available - position < size:
                break
            items.append(Frame(type_, channel, data[position + offset * 4 : position + size]))
            position += size
        self._rest = data[position:]
        return items

    def _check(self, size: int, offset: int) -> None:
        if not _MIN_SIZE <= size <= self._max_frame_size:
            raise ProtocolError(
                f"a frame of {size} bytes, accepted: {_MIN_SIZE} to {self._max_frame_size}", FRAMING_ERROR
            )
        if not _MIN_SIZE <= offset <= size:
            raise ProtocolError(f"the body of a frame of {size} bytes begins at {offset}", FRAMING_ERROR)
