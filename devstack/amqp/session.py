"""One session: windows, links by handle, and deliveries that wait for the peer's decision."""

import struct
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, cast

from devstack.amqp.links import PRE_SETTLED, IncomingLink, Link, OutgoingLink, Service
from devstack.amqp.ports import LinkEnd, OutgoingEnd, Settlement, Wire
from devstack.amqp.wire.errors import NOT_ALLOWED, AmqpError, ProtocolError
from devstack.amqp.wire.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Performative,
    Transfer,
)

_WINDOW = 5000  # transfers; what the real service announces
_HANDLE_MAX = 255  # what the real service announces
_TRANSFER_ROOM = 128  # bytes of a frame that a transfer may take beside its payload
_ID_MODULUS = 2**32  # ids are serial numbers of 32 bits

# A whole pre-settled message in one frame, as encode_frame would write its transfer: size, then doff, type,
# channel, descriptor, list8, handle (all fixed per link), delivery-id, the head and value of a tag of 4 bytes
# and the fields from message-format on. Written out because it is what a log server does all day.
_SETTLED = struct.Struct(">I13sI2sI8s")
_SETTLED_FIXED = struct.Struct(">BBH7sBB")
_SETTLED_TAG, _SETTLED_REST = b"\xa0\x04", b"\x43\x41\x42\x40\x40\x40\x40\x40"


class Session:
    """Created when the peer begins it; `handle` takes every later performative of its channel."""

    def __init__(self, connection: Wire, service: Service, channel: int, begin: Begin) -> None:
        self.connection = connection
        self._service = service
        self.channel = channel
        self.links: dict[int, Link] = {}
        self._unsettled: dict[int, tuple[OutgoingEnd, bytes]] = {}
        self._next_outgoing_id = 1  # counts frames with a transfer; pyamqp takes 0 for "unset"
        self._next_delivery_id = 1  # counts deliveries, of one frame or more
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = begin.incoming_window
        self._incoming_window = _WINDOW
        self._ended = False
        self.send(
            Begin(
                remote_channel=channel,
                next_outgoing_id=self._next_outgoing_id,
                incoming_window=_WINDOW,
                outgoing_window=_WINDOW,
                handle_max=_HANDLE_MAX,
            )
        )

    @property
    def remote_window(self) -> int:
        """How many transfers the peer still takes."""
        return self._remote_window

    @property
    def open_for_transfers(self) -> bool:
        return self._remote_window > 0 and not self._ended and self.connection.writable

    def send(self, performative: Performative) -> None:
        if not self._ended:
            self.connection.send(self.channel, performative)

    def send_flow(self, handle: int, delivery_count: int, credit: int, *, drain: bool = False) -> None:
        self.send(
            Flow(
                next_incoming_id=self._next_incoming_id,
                incoming_window=self._incoming_window,
                next_outgoing_id=self._next_outgoing_id,
                outgoing_window=_WINDOW,
                handle=handle,
                delivery_count=delivery_count,
                link_credit=credit,
                drain=drain,
            )
        )

    def send_transfer(self, link: OutgoingEnd, tag: bytes, payload: bytes) -> None:
        """Send a message in as many frames as the peer's frame size asks for."""
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) % _ID_MODULUS
        if not link.pre_settled:
            self._unsettled[delivery_id] = (link, tag)
        room = self.connection.peer_max_frame_size - _TRANSFER_ROOM
        for start in range(0, len(payload) or 1, room):
            more = start + room < len(payload)
            transfer = Transfer(
                handle=link.handle,
                delivery_id=delivery_id,
                delivery_tag=tag,
                message_format=0,
                settled=link.pre_settled,
                more=more,
            )
            part = payload if start == 0 and not more else payload[start : start + room]
            self.connection.send(self.channel, transfer, part)
            self._next_outgoing_id = (self._next_outgoing_id + 1) % _ID_MODULUS
            self._remote_window -= 1

    def send_settled(self, link: OutgoingEnd, payloads: Iterable[bytes]) -> None:
        """Send messages that are settled as they go; many at once cost little more than their bytes."""
        fixed = _SETTLED_FIXED.pack(2, 0, self.channel, b"\x00\x53\x14\xc0\x16\x0b\x52", link.handle, 0x70)
        room = self.connection.peer_max_frame_size - _TRANSFER_ROOM
        head, delivery_id = _SETTLED.pack, self._next_delivery_id
        frames: list[bytes] = []
        for payload in payloads:
            if len(payload) > room:
                self.connection.write(b"".join(frames))
                frames.clear()
                self._advance(delivery_id)
                self.send_transfer(link, delivery_id.to_bytes(4, "big"), payload)
                delivery_id = self._next_delivery_id
                continue
            frames += (
                head(
                    _SETTLED.size + len(payload), fixed, delivery_id, _SETTLED_TAG, delivery_id, _SETTLED_REST
                ),
                payload,
            )
            delivery_id = (delivery_id + 1) % _ID_MODULUS
        self._advance(delivery_id)
        self.connection.write(b"".join(frames))

    def _advance(self, next_delivery_id: int) -> None:
        """Account for deliveries of one frame each, up to this one."""
        frames = (next_delivery_id - self._next_delivery_id) % _ID_MODULUS
        self._next_delivery_id = next_delivery_id
        self._next_outgoing_id = (self._next_outgoing_id + frames) % _ID_MODULUS
        self._remote_window -= frames

    def handle(self, performative: Performative, payload: bytes) -> None:
        """Act on what the peer sent; raises ProtocolError for what has no place in a session."""
        if isinstance(performative, Transfer):
            self._on_transfer(performative, payload)
            return
        handler = self._HANDLERS.get(type(performative))
        if handler is None:
            raise ProtocolError(f"{type(performative).__name__.lower()} in a session", NOT_ALLOWED)
        handler(self, performative)

    def forget(self, link: LinkEnd) -> None:
        """Drop a link that is detached, and with it what of it is not settled."""
        if self.links.get(link.handle) is link:
            del self.links[link.handle]
        link.attached = False
        self._unsettled = {key: value for key, value in self._unsettled.items() if value[0] is not link}
        link.on_detached()

    def close(self) -> None:
        """Detach everything without a word to the peer: it ended the session or is gone."""
        self._ended = True
        for link in list(self.links.values()):
            self.forget(link)

    def resume(self) -> None:
        """Let the sources continue after the peer or its socket had been full."""
        for link in list(self.links.values()):
            if isinstance(link, OutgoingLink):
                link.source.on_credit()

    def _on_attach(self, attach: Attach) -> None:
        if attach.handle in self.links:
            raise ProtocolError(f"handle {attach.handle} is attached already", "amqp:session:handle-in-use")
        link: Link
        try:
            if attach.role:
                link = outgoing = OutgoingLink(self, attach)
                outgoing.source = self._service.attach_source(outgoing)
            else:
                link = incoming = IncomingLink(self, attach, self.connection.max_message_size)
                incoming.sink = self._service.attach_sink(incoming)
        except AmqpError as error:
            self._refuse(attach, error)
            return
        self.links[attach.handle] = link
        if isinstance(link, IncomingLink):
            self.answer_attach(link)
            link.grant_credit()
        elif not outgoing.waits:
            self.answer_attach(link)

    def answer_attach(self, link: LinkEnd) -> None:
        end = cast("Link", link)
        self.send(self._attach_reply(end.attach, end))

    def refuse_attach(self, link: LinkEnd, error: AmqpError) -> None:
        self._refuse(cast("Link", link).attach, error)
        self.forget(link)

    def _attach_reply(self, attach: Attach, link: Link | None = None) -> Attach:
        pre_settled = isinstance(link, OutgoingLink) and link.pre_settled
        return Attach(
            name=attach.name,
            handle=attach.handle,
            role=not attach.role,
            snd_settle_mode=PRE_SETTLED if pre_settled else attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            source=attach.source,
            target=attach.target,
            initial_delivery_count=0 if attach.role else None,
            max_message_size=(
                link.max_message_size if isinstance(link, IncomingLink) else self.connection.max_message_size
            ),
            offered_capabilities=link.offered_capabilities if link is not None else None,
            properties=link.properties if link is not None else None,
        )

    def _refuse(self, attach: Attach, error: AmqpError) -> None:
        """As the specification wants it: an attach without the terminus asked for, then a detach."""
        reply = self._attach_reply(attach)
        self.send(reply._replace(source=None) if attach.role else reply._replace(target=None))
        self.send(Detach(handle=attach.handle, closed=True, error=error.described()))

    def _on_flow(self, flow: Flow) -> None:
        next_incoming_id = flow.next_incoming_id if flow.next_incoming_id is not None else 1
        in_flight = (self._next_outgoing_id - next_incoming_id) % _ID_MODULUS
        was_full = self._remote_window <= 0
        self._remote_window = flow.incoming_window - in_flight
        if flow.handle is not None:
            link = self.links.get(flow.handle)
            if link is not None:  # else it crossed our detach
                link.on_flow(flow)
        if flow.handle is None or was_full:
            self.resume()

    def _on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) % _ID_MODULUS
        self._incoming_window -= 1
        link = self.links.get(transfer.handle)
        if isinstance(link, IncomingLink):
            link.on_transfer(transfer, payload)
        if self._incoming_window <= _WINDOW // 2:
            self._incoming_window = _WINDOW
            self.send(
                Flow(
                    next_incoming_id=self._next_incoming_id,
                    incoming_window=_WINDOW,
                    next_outgoing_id=self._next_outgoing_id,
                    outgoing_window=_WINDOW,
                )
            )

    def _on_disposition(self, disposition: Disposition) -> None:
        if not disposition.role:
            return  # the peer settles what it sent: we have forgotten it already
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        if first == last:
            ids = [first] if first in self._unsettled else []
        else:  # both ends come from the peer: walk what we know, not the range
            span = (last - first) % _ID_MODULUS
            ids = [key for key in self._unsettled if (key - first) % _ID_MODULUS <= span]
        for delivery_id in ids:
            link, tag = self._unsettled.pop(delivery_id)
            link.source.on_settlement(
                Settlement(self, delivery_id, tag, disposition.state, settled=bool(disposition.settled))
            )

    def _on_detach(self, detach: Detach) -> None:
        link = self.links.get(detach.handle)
        if link is not None:
            self.send(Detach(handle=detach.handle, closed=detach.closed))
            self.forget(link)

    def _on_end(self, _end: End) -> None:
        self.send(End())
        self.connection.forget(self.channel)

    _HANDLERS: ClassVar[dict[type, Callable[["Session", Any], None]]] = {
        Attach: _on_attach,
        Flow: _on_flow,
        Disposition: _on_disposition,
        Detach: _on_detach,
        End: _on_end,
    }
