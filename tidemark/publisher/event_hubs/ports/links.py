"""Links to partitions of a hub, the events they transfer, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage

from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.model import Claims, Stamp

PublishableEvent = EventData | AmqpAnnotatedMessage


class EncodedEvent(NamedTuple):
    """An event as AMQP, in two parts with the stamp between them.

    Without idempotence, `head` has all of it; both parts are empty if the SDK encodes the `source`.
    """

    head: bytes
    tail: bytes
    source: PublishableEvent
    untraced: tuple[bytes, bytes] | None = None
    """Head and tail without the trace context that the producer put in; None: it put none in."""
    context: Mapping[str, str] | None = None
    """The trace context that the producer put in."""


class LinkError(Exception):
    """The link could not be opened, or did not accept the events. `link_lost`: open another one."""

    def __init__(self, kind: FailureKind, text: str, *, link_lost: bool) -> None:
        super().__init__(text)
        self.kind = kind
        self.link_lost = link_lost


class InsidesError(LinkError):
    """Private names of the SDK have changed. Neither the service nor the network is at fault."""


class Link(Protocol):
    """A link to one partition. One transfer at a time."""

    claims: Claims
    max_message_size: int

    async def transfer(self, events: Sequence[EncodedEvent], stamp: Stamp | None, *, timeout: float) -> None:
        """Returns once the service has stored the events. Raises LinkError.

        A cancelled transfer still waits CANCEL_GRACE seconds (publisher.cancellation) for the answer, and then returns or
        raises LinkError. Without an answer it raises CancelledError, and the link can only be closed.
        """

    async def close(self) -> None:
        """Never raises, and takes seconds at most."""


class Links(Protocol):
    """A hub, and the way to open links to it."""

    namespace: str
    hub: str

    def encode(self, event: PublishableEvent, *, stamped: bool) -> tuple[EncodedEvent, int]:
        """The event, with room for a stamp if it is `stamped`, and the bytes that it adds to a batch."""

    async def partition_ids(self) -> list[str]:
        """Raises LinkError."""

    async def created_at(self) -> str | None:
        """When the hub was created, to the millisecond, which distinguishes it from a later one of the same name.

        None where this client has no right to read it. Raises LinkError.
        """

    async def open(self, partition_id: str, claims: Claims | None, *, timeout: float) -> Link:
        """Open a link with these claims; None: without idempotence. Raises LinkError."""

    async def close(self) -> None: ...
