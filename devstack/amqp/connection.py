"""One connection: SASL, open, heartbeats and its sessions."""

import asyncio
from collections.abc import Callable

from devstack.amqp.links import Service
from devstack.amqp.session import Session
from devstack.amqp.wire.errors import FRAMING_ERROR, NOT_ALLOWED, AmqpError, ProtocolError
from devstack.amqp.wire.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL,
    SASL_HEADER,
    Frame,
    FrameParser,
    ProtocolHeader,
    encode_frame,
)
from devstack.amqp.wire.performatives import (
    Begin,
    Close,
    Open,
    Performative,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    decode_performative,
)
from devstack.amqp.wire.values import Array, Symbol

MAX_FRAME_SIZE = 65_536  # bytes; what the real service announces
_SPEC_MAX_FRAME_SIZE = 2**32 - 1  # an open that names none
_MIN_MAX_FRAME_SIZE = 512  # the least that the specification allows
_CHANNEL_MAX = 4999  # what the real service announces
_OK, _REFUSED = 0, 1  # outcomes of SASL
_PLAIN_PARTS = 3
_MECHANISMS = Array(map(Symbol, ("ANONYMOUS", "MSSBCBS", "PLAIN", "EXTERNAL")))


class Connection(asyncio.Protocol):
    """The listener's end of one connection, over any transport.

    SASL PLAIN takes the name of a key and the key, and then no token is needed; the other mechanisms let everybody in, who
    then has to put a token on $cbs.
    `lost` is called once, when the transport is gone and every link is detached.
    """

    def __init__(
        self,
        new_service: Callable[["Connection"], Service],
        *,
        container_id: str,
        max_message_size: int,
        lost: Callable[["Connection"], None],
    ) -> None:
        self.container_id = container_id
        self.max_message_size = max_message_size
        self.peer_max_frame_size = MAX_FRAME_SIZE
        self.writable = True
        self.service = new_service(self)
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = FrameParser(MAX_FRAME_SIZE)
        self._sessions: dict[int, Session] = {}
        self._pending: list[bytes] = []
        self._opened = self._closing = self._receiving = self._frozen = False
        self._heartbeat: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # narrows the type for streams
        self._transport = transport

    def connection_lost(self, _exc: Exception | None) -> None:
        self._transport = None
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()
        self._lost(self)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        if self._frozen:
            return
        self.writable = True
        for session in list(self._sessions.values()):
            session.resume()

    def data_received(self, data: bytes) -> None:
        self._receiving = True
        try:
            for item in self._parser.feed(data):
                if self._transport is None or self._closing or self._frozen:
                    break
                if isinstance(item, Frame):
                    self._on_frame(item)
                else:
                    self._on_header(item)
        except AmqpError as error:
            self.close(error)
        self._receiving = False
        self._flush()

    def send(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        self._write(encode_frame(channel, performative, payload))

    def write(self, frames: bytes) -> None:
        """Send frames that are encoded already, and so many that they had better not wait for others."""
        self._pending.append(frames)
        self._flush()

    def freeze(self) -> None:
        """Hear and say nothing any more without hanging up, as a host that lost its power does."""
        self._pending.clear()
        self._frozen, self.writable = True, False
        if self._transport is not None:
            self._transport.pause_reading()

    def forget(self, channel: int) -> None:
        """Drop a session that has ended."""
        self._sessions[channel].close()
        del self._sessions[channel]

    def close(self, error: AmqpError | None = None) -> None:
        """Say close and hang up; without an `open` before it, only hang up."""
        if self._transport is None or self._closing:
            return
        if self._opened:
            self.send(0, Close(error.described() if error else None))
        self._flush()
        self._closing = True
        self._transport.close()

    def drop(self) -> None:
        """Hang up in the middle of whatever is going on, as a failing network does."""
        self._pending.clear()
        self.writable = False
        self._closing = True  # what the same read brought is not heard any more
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        # One write for all that goes out in answer to one read, and none of it a turn of the loop later.
        if not self._pending and not self._receiving:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(data)

    def _flush(self) -> None:
        if self._pending and self._transport is not None and not self._closing and not self._frozen:
            self._transport.write(b"".join(self._pending))
        self._pending.clear()

    def _on_header(self, header: ProtocolHeader) -> None:
        if header not in (SASL_HEADER, AMQP_HEADER) or self._opened:
            self._write(SASL_HEADER.encode())  # says what we would accept
            raise ProtocolError(f"{header}, accepted: {SASL_HEADER} or {AMQP_HEADER}", FRAMING_ERROR)
        self._write(header.encode())
        if header == SASL_HEADER:
            self._write(encode_frame(0, SaslMechanisms(_MECHANISMS), type_=SASL))

    def _on_frame(self, frame: Frame) -> None:
        if not frame.body:
            return  # a heartbeat
        performative, payload_start = decode_performative(frame.body)
        if frame.type == SASL:
            self._on_sasl(performative)
        elif isinstance(performative, Open):
            self._on_open(performative)
        elif not self._opened:
            raise ProtocolError(f"{type(performative).__name__.lower()} before open", NOT_ALLOWED)
        elif isinstance(performative, Close):
            self.close()
        elif isinstance(performative, Begin):
            self._on_begin(frame.channel, performative)
        else:
            session = self._sessions.get(frame.channel)
            if session is None:
                raise ProtocolError(f"channel {frame.channel} has no session", NOT_ALLOWED)
            session.handle(performative, frame.body[payload_start:])

    def _on_sasl(self, performative: Performative) -> None:
        if not isinstance(performative, SaslInit) or self._opened:
            raise ProtocolError(f"{type(performative).__name__} where SaslInit is due", NOT_ALLOWED)
        is_accepted = performative.mechanism in _MECHANISMS
        if performative.mechanism == "PLAIN":
            is_accepted = self._signs_in(performative.initial_response or b"")
        self._write(encode_frame(0, SaslOutcome(_OK if is_accepted else _REFUSED), type_=SASL))
        if not is_accepted:
            self.close()

    def _signs_in(self, response: bytes) -> bool:
        """Of SASL PLAIN: who it is for, the name, and the password, with a zero between each two."""
        parts = response.split(b"\0")
        if len(parts) != _PLAIN_PARTS:
            return False
        _, name, password = (part.decode(errors="replace") for part in parts)
        return self.service.sign_in(name, password)

    def _on_open(self, peer: Open) -> None:
        if self._opened:
            raise ProtocolError("a second open", NOT_ALLOWED)
        size = peer.max_frame_size if peer.max_frame_size is not None else _SPEC_MAX_FRAME_SIZE
        if size < _MIN_MAX_FRAME_SIZE:
            raise ProtocolError(f"max-frame-size {size}, accepted: {_MIN_MAX_FRAME_SIZE} and more")
        self.peer_max_frame_size = min(size, MAX_FRAME_SIZE)
        self._opened = True
        self.send(
            0,
            Open(container_id=self.container_id, max_frame_size=MAX_FRAME_SIZE, channel_max=_CHANNEL_MAX),
        )
        if peer.idle_time_out:
            self._beat(peer.idle_time_out / 1000 / 2)

    def _beat(self, period: float) -> None:
        """Keep a peer that hangs up on silence from doing so; period in seconds."""
        if self._frozen:
            return
        self._write(EMPTY_FRAME)
        self._heartbeat = asyncio.get_running_loop().call_later(period, self._beat, period)

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if channel in self._sessions:
            raise ProtocolError(f"a second begin on channel {channel}", NOT_ALLOWED)
        self._sessions[channel] = Session(self, self.service, channel, begin)
