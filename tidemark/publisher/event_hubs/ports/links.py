"""The way to the service: links to partitions, events as they go over them, and how a link fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage

from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.model import Claims, Stamp

PublishableEvent = EventData | AmqpAnnotatedMessage


class EncodedEvent(NamedTuple):
    """An event as AMQP; a stamp goes between the two parts. Without idempotence all of it is in the first, and none where
    the SDK is to encode the `source`.
    """

    head: bytes
    tail: bytes
    source: PublishableEvent


class LinkError(Exception):
    """The link could not be opened, or did not take the events; `link_lost`: it is of no more use."""

    def __init__(self, kind: FailureKind, story: str, *, link_lost: bool) -> None:
        super().__init__(story)
        self.kind = kind
        self.link_lost = link_lost


class InsidesError(LinkError):
    """Private names of the SDK failed, as names do that were moved: nothing that the service or the network did."""


class Link(Protocol):
    """A link to one partition. One transfer at a time."""

    claims: Claims
    max_message_size: int

    async def transfer(self, events: Sequence[EncodedEvent], stamp: Stamp | None, *, timeout: float) -> None:
        """Returns once the service has the events. Raises LinkError.

        Cancelled, it still ends as it would, if the answer comes within publisher.cancellation.SETTLING. Else it
        raises CancelledError, and the link can only be closed.
        """

    async def close(self) -> None:
        """Never raises, and takes seconds at most."""


class Links(Protocol):
    """A hub, as a producer reaches it."""

    namespace: str
    hub: str

    def encode(self, event: PublishableEvent, *, stamped: bool) -> tuple[EncodedEvent, int]:
        """The event, with room for a stamp if it is `stamped`, and the bytes that it adds to a batch."""

    async def partition_ids(self) -> list[str]:
        """Raises LinkError."""

    async def created_at(self) -> str | None:
        """When the hub was created, to the millisecond: it tells the hub from a later one of the same name. None where
        this client may not ask. Raises LinkError.
        """

    async def open(self, partition_id: str, claims: Claims | None, *, timeout: float) -> Link:
        """A link with these claims, None for one without idempotence. Raises LinkError."""

    async def close(self) -> None: ...
