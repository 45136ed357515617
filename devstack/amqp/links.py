"""The two kinds of link, seen from the listener.

An IncomingLink carries messages from the peer to a Sink, an OutgoingLink from a Source to the peer.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from devstack.amqp.ports import Deliveries, Delivery, Sink, Source, rejected, too_large
from devstack.amqp.wire.errors import AmqpError, ProtocolError
from devstack.amqp.wire.performatives import Attach, Detach, Flow, Transfer
from devstack.amqp.wire.values import Array, Described

PRE_SETTLED = 1  # snd-settle-mode "settled"
_CREDIT = 1000  # Azure grants 1000 to senders of Service Bus


class Service(Protocol):
    """What a listener puts behind the links of one connection. `attach_sink` and `attach_source` raise AmqpError to refuse a
    link; `attach_source` may also leave the answer for later, with `link.waits`.
    """

    def sign_in(self, name: str, password: str) -> bool:
        """Whether SASL PLAIN lets this one in. Then nothing more is asked of the connection."""

    def attach_sink(self, link: "IncomingLink") -> Sink: ...

    def attach_source(self, link: "OutgoingLink") -> Source: ...


def _address(terminus: Described | None) -> str:
    """The address of a source or target, without scheme and host."""
    fields = terminus.value if terminus is not None else None
    address = fields[0] if isinstance(fields, list) and fields else None
    if not isinstance(address, str):
        return ""
    if "://" in address:
        address = address.split("://", 1)[1].partition("/")[2]
    return address.strip("/")


class Link:
    """What both kinds have in common."""

    role: bool  # of our end: True if we receive

    def __init__(self, session: Deliveries, attach: Attach) -> None:
        self.session = session
        self.name = attach.name
        self.handle = attach.handle  # we answer with the handle that the peer chose
        self.attach = attach
        self.attached = True
        # What the answer to the attach says; a sink or source may set it while it attaches.
        self.offered_capabilities: Array | None = None
        self.properties: dict[str, Any] | None = None

    def detach(self, error: AmqpError | None = None) -> None:
        """Close the link from our end; the sink or source is told as if the peer had done it."""
        if self.attached:
            self.session.send(
                Detach(handle=self.handle, closed=True, error=error.described() if error else None)
            )
            self.session.forget(self)

    def on_flow(self, flow: Flow) -> None:
        raise NotImplementedError

    def on_detached(self) -> None:
        raise NotImplementedError


class IncomingLink(Link):
    role = True
    sink: Sink

    def __init__(self, session: Deliveries, attach: Attach, max_message_size: int) -> None:
        super().__init__(session, attach)
        self.address = _address(attach.target)
        self.max_message_size = max_message_size
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = 0
        self._first: Transfer | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self.on_part: Callable[[], None] | None = None  # told of every part of a message but the last

    def grant_credit(self) -> None:
        """Allow the peer to send on."""
        self._credit = _CREDIT
        self.session.send_flow(self.handle, self._delivery_count, self._credit)

    def on_flow(self, flow: Flow) -> None:
        if flow.echo:
            self.session.send_flow(self.handle, self._delivery_count, self._credit)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Collect the parts of a message; whole, it goes to the sink."""
        first = self._first
        if first is None:
            if transfer.delivery_id is None:
                raise ProtocolError("the first transfer of a delivery has no delivery-id")
            first = self._first = transfer
        self._parts.append(payload)
        self._size += len(payload)
        if transfer.more and not transfer.aborted:
            if self._size > self.max_message_size:
                self._parts.clear()  # its size is refused below, once the peer has said all
            if self.on_part is not None:
                self.on_part()
            return
        whole = payload if len(self._parts) == 1 else b"".join(self._parts)
        size, settled = self._size, bool(transfer.settled or first.settled)
        self._first, self._size = None, 0
        self._parts.clear()
        if not transfer.aborted:
            self._pass_on(Delivery(self.session, first, whole, settled=settled), size)

    def _pass_on(self, delivery: Delivery, size: int) -> None:
        self._delivery_count += 1
        self._credit -= 1
        if size > self.max_message_size:
            delivery.settle(rejected(too_large(delivery.delivery_id, size, self.max_message_size)))
        else:
            self.sink.on_message(delivery)
        # Some senders send on without credit; the count only has to keep the others going.
        if self._credit <= _CREDIT // 2 and self.attached:
            self.grant_credit()

    def on_detached(self) -> None:
        self.sink.on_detached()


class OutgoingLink(Link):
    role = False
    source: Source

    def __init__(self, session: Deliveries, attach: Attach) -> None:
        super().__init__(session, attach)
        self.address = _address(attach.source)
        self.reply_address = _address(attach.target)
        self.pre_settled = (
            attach.snd_settle_mode == PRE_SETTLED
        )  # a source may insist on it while it attaches
        self.waits = False  # for its attach to be answered
        self._delivery_count = 0
        self._credit = 0

    def admit(self, source: Source) -> None:
        """Answer the attach of a link that waits."""
        self.waits, self.source = False, source
        self.session.answer_attach(self)
        source.on_credit()

    def refuse(self, error: AmqpError) -> None:
        """Refuse a link that waits."""
        self.session.refuse_attach(self, error)

    @property
    def ready(self) -> bool:
        """Whether a message may be sent now."""
        return self._credit > 0 and self.attached and not self.waits and self.session.open_for_transfers

    def send(self, tag: bytes, payload: bytes) -> None:
        """Send one message; call it only when ready."""
        self._credit -= 1
        self._delivery_count += 1
        self.session.send_transfer(self, tag, payload)

    @property
    def room(self) -> int:
        """How many messages may be sent now."""
        return min(self._credit, self.session.remote_window) if self.ready else 0

    def send_settled(self, payloads: Sequence[bytes]) -> None:
        """Send messages on a link that is `pre_settled`; call it with at most `room` of them."""
        self._credit -= len(payloads)
        self._delivery_count += len(payloads)
        self.session.send_settled(self, payloads)

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            self._credit = (flow.delivery_count or 0) + flow.link_credit - self._delivery_count
        self.source.on_credit()
        if flow.drain and self.attached:
            self._delivery_count += max(self._credit, 0)
            self._credit = 0
        if (flow.drain or flow.echo) and self.attached:
            self.session.send_flow(self.handle, self._delivery_count, self._credit, drain=bool(flow.drain))

    def on_detached(self) -> None:
        self.source.on_detached()
