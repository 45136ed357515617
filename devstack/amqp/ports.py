"""What the parts of a connection ask of one another, and what passes between them.

A Wire is a connection as its sessions see it, Deliveries are a session as its links see it; a Sink and a
Source are what a service puts behind a link. All callbacks run on the event loop and must not block.
"""

from collections.abc import Iterable
from typing import Protocol

from devstack.amqp.wire.errors import MESSAGE_TOO_LARGE, AmqpError
from devstack.amqp.wire.performatives import Disposition, Performative, Transfer
from devstack.amqp.wire.values import Described, ULong

ACCEPTED = Described(ULong(0x24), [])


def rejected(error: AmqpError) -> Described:
    """The outcome that carries a refusal."""
    return Described(ULong(0x25), [error.described()])


def too_large(delivery_id: int, size: int, limit: int) -> AmqpError:
    """The refusal of a message for its size, in Azure's words: clients read the numbers."""
    return AmqpError(
        MESSAGE_TOO_LARGE,
        f"The received message (delivery-id:{delivery_id}, size:{size} bytes) exceeds the limit ({limit} bytes) "
        "currently allowed on the link.",
    )


class Delivery:
    """One whole message from the peer."""

    __slots__ = ("_session", "delivery_id", "message_format", "payload", "settled")

    def __init__(self, session: "Deliveries", first: Transfer, payload: bytes, *, settled: bool) -> None:
        self._session = session
        self.delivery_id = first.delivery_id or 0
        self.message_format = first.message_format or 0
        self.payload = payload
        self.settled = settled

    def settle(self, outcome: Described) -> None:
        """Tell the peer the outcome, unless it does not want to know or is gone."""
        if not self.settled:
            self._session.send(Disposition(role=True, first=self.delivery_id, settled=True, state=outcome))


class Settlement:
    """The peer's decision about a delivery of ours."""

    __slots__ = ("_delivery_id", "_session", "outcome", "settled", "tag")

    def __init__(
        self, session: "Deliveries", delivery_id: int, tag: bytes, outcome: Described | None, *, settled: bool
    ) -> None:
        self._session = session
        self._delivery_id = delivery_id
        self.tag = tag
        self.outcome = outcome
        self.settled = settled

    def confirm(self, outcome: Described | None) -> None:
        """Tell the peer what became of its decision, unless it does not want to know or is gone."""
        if not self.settled:
            self._session.send(Disposition(role=False, first=self._delivery_id, settled=True, state=outcome))


class Sink(Protocol):
    """Takes the messages of an incoming link."""

    def on_message(self, delivery: Delivery) -> None: ...

    def on_detached(self) -> None: ...


class Source(Protocol):
    """Gives messages to an outgoing link."""

    def on_credit(self) -> None:
        """The link may take more messages: `link.ready` says whether it still does."""

    def on_settlement(self, settlement: Settlement) -> None: ...

    def on_detached(self) -> None: ...


class LinkEnd(Protocol):
    """Our end of a link, as its session sees it."""

    handle: int
    attached: bool

    def on_detached(self) -> None: ...


class OutgoingEnd(LinkEnd, Protocol):
    pre_settled: bool
    source: Source


class Wire(Protocol):
    """What a session asks of its connection."""

    max_message_size: int
    peer_max_frame_size: int
    writable: bool

    def send(self, channel: int, performative: Performative, payload: bytes = b"") -> None: ...

    def write(self, frames: bytes) -> None: ...

    def forget(self, channel: int) -> None: ...

    def freeze(self) -> None: ...

    def drop(self) -> None: ...


class Deliveries(Protocol):
    """What a link asks of its session."""

    connection: Wire

    @property
    def remote_window(self) -> int: ...

    @property
    def open_for_transfers(self) -> bool: ...

    def send(self, performative: Performative) -> None: ...

    def send_flow(self, handle: int, delivery_count: int, credit: int, *, drain: bool = False) -> None: ...

    def send_transfer(self, link: OutgoingEnd, tag: bytes, payload: bytes) -> None: ...

    def answer_attach(self, link: LinkEnd) -> None:
        """Of a link that waited for it."""

    def refuse_attach(self, link: LinkEnd, error: AmqpError) -> None:
        """Of a link that waited for its answer."""

    def send_settled(self, link: OutgoingEnd, payloads: Iterable[bytes]) -> None: ...

    def forget(self, link: LinkEnd) -> None: ...
