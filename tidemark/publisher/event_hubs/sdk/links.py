"""The Links of an EventHubProducerClient: over private names of the SDK in the checked version, over public ones otherwise.

Publishing without idempotence continues with public names after private names fail. Idempotent publishing needs the private
names, because the SDK does not offer it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from importlib import import_module

from azure.eventhub import EventDataBatch
from azure.eventhub.aio import EventHubProducerClient
from azure.eventhub.exceptions import AuthenticationError, EventDataError, EventHubError

from tidemark.publisher.cancellation import is_unexpected
from tidemark.publisher.errors import MessageTooLargeError, UnsupportedPublishingError
from tidemark.publisher.event_hubs.core.steps import FailureKind
from tidemark.publisher.event_hubs.ports import links as ports
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, LinkError, Links
from tidemark.publisher.model import Claims, Stamp
from tidemark.publisher.sdk_insides import CHANGED_SDK_ERRORS, reason_against_insides

SDK = "5.15."

_log = logging.getLogger(__name__)
_HOOKS = "tidemark.publisher.event_hubs.sdk.link_hooks"
_ANY_SIZE = 2**31 - 1
_NOT_OFFERED = "the SDK's public names offer no idempotent publishing"


def links_of(client: EventHubProducerClient, namespace: str, *, idempotent: bool, sdk_insides: bool) -> Links:
    """The links of a client. Raises UnsupportedPublishingError if idempotence is wanted and private names cannot be used."""
    reason = reason_against_insides("azure-eventhub", SDK, wanted=sdk_insides)
    hooks: Links | None = None
    if reason is None:
        try:
            hooks = import_module(_HOOKS).SdkLinks(client)
        except CHANGED_SDK_ERRORS as error:
            reason = f"private names of azure-eventhub have changed: {type(error).__name__}: {error}"
    if hooks is not None:
        return hooks if idempotent else FallbackLinks(hooks, PublicLinks(client, namespace))
    if idempotent:
        raise UnsupportedPublishingError(
            f"{reason}; idempotent publishing needs them. Create the producer with enable_idempotent_partitions=False, or "
            f"install azure-eventhub {SDK}*"
        )
    _log.info("publishing with the public names of azure-eventhub: %s", reason)
    return PublicLinks(client, namespace)


class FallbackLinks:
    """Links over private names until one of these fails, and over public names from then on."""

    def __init__(self, private: Links, public: Links) -> None:
        self._private, self._public = private, public
        self.chosen = private
        self.namespace, self.hub = private.namespace, private.hub

    def encode(self, event: ports.PublishableEvent, *, stamped: bool) -> tuple[EncodedEvent, int]:
        try:
            return self.chosen.encode(event, stamped=stamped)
        except CHANGED_SDK_ERRORS as error:
            encoded = self._public.encode(event, stamped=stamped)  # raises, if the fault is the event's
            self.drop(error)
            return encoded

    def drop(self, error: BaseException) -> None:
        if self.chosen is not self._public:
            self.chosen = self._public
            _log.warning(
                "a private name of azure-eventhub failed; the producer uses public names from now on",
                exc_info=error,
            )

    async def partition_ids(self) -> list[str]:
        return await self.chosen.partition_ids()

    async def created_at(self) -> str | None:
        return await self.chosen.created_at()

    async def open(self, partition_id: str, claims: Claims | None, *, timeout: float) -> ports.Link:
        if self.chosen is self._private:
            try:
                return _FallbackLink(await self._private.open(partition_id, claims, timeout=timeout), self)
            except ports.InsidesError as error:
                self.drop(error)
        return await self._public.open(partition_id, claims, timeout=timeout)

    async def close(self) -> None:
        await self.chosen.close()


class _FallbackLink:
    def __init__(self, link: ports.Link, links: FallbackLinks) -> None:
        self._link, self._links = link, links
        self.claims, self.max_message_size = link.claims, link.max_message_size

    async def transfer(self, events: Sequence[EncodedEvent], stamp: Stamp | None, *, timeout: float) -> None:
        if any(not event.head for event in events):
            raise LinkError(FailureKind.NOT_STORED, "the public names are used now", link_lost=True)
        try:
            await self._link.transfer(events, stamp, timeout=timeout)
        except ports.InsidesError as error:
            self._links.drop(error)
            raise

    async def close(self) -> None:
        await self._link.close()


class PublicLinks:
    """Links over public names of the SDK. They offer no idempotence, and the SDK repeats transfers that may have been stored."""

    def __init__(self, client: EventHubProducerClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace
        self.hub: str = client.eventhub_name

    def encode(self, event: ports.PublishableEvent, *, stamped: bool) -> tuple[EncodedEvent, int]:
        """The SDK encodes events when it sends them, and returns the size that each adds to a batch."""
        if stamped:
            raise UnsupportedPublishingError(_NOT_OFFERED)
        batch = EventDataBatch(max_size_in_bytes=_ANY_SIZE)
        empty = batch.size_in_bytes
        try:
            batch.add(event)
        except ValueError as error:
            raise MessageTooLargeError(str(error)) from None
        return EncodedEvent(b"", b"", event), batch.size_in_bytes - empty

    async def partition_ids(self) -> list[str]:
        try:
            return await self._client.get_partition_ids()
        except Exception as error:
            raise _not_opened(error, f"asking for the partitions of {self.hub}") from error

    async def created_at(self) -> str | None:
        return await created_at_of(self._client)

    async def open(self, partition_id: str, claims: Claims | None, *, timeout: float) -> ports.Link:
        """`timeout` is not used, because the SDK has its own."""
        if claims is not None:
            raise LinkError(FailureKind.UNSUPPORTED, _NOT_OFFERED, link_lost=True)
        try:
            batch = await self._client.create_batch(partition_id=partition_id)
        except Exception as error:
            raise _not_opened(error, f"opening a link to {self.hub}") from error
        return _PublicLink(self._client, partition_id, batch.max_size_in_bytes)

    async def close(self) -> None:
        await self._client.close()


@dataclass(eq=False)
class _PublicLink:
    _client: EventHubProducerClient
    _partition_id: str
    max_message_size: int
    claims = Claims()

    async def transfer(self, events: Sequence[EncodedEvent], stamp: Stamp | None, *, timeout: float) -> None:
        if stamp is not None:
            raise LinkError(FailureKind.UNSUPPORTED, "events without numbers only", link_lost=True)
        batch = await self._batch(events)
        try:
            await self._client.send_batch(batch, timeout=timeout)
        except BaseException as error:
            if not is_unexpected(error):
                raise
            kind = FailureKind.REFUSED if isinstance(error, AuthenticationError) else FailureKind.UNKNOWN
            raise LinkError(kind, f"{type(error).__name__}: {error}", link_lost=True) from error

    async def _batch(self, events: Sequence[EncodedEvent]) -> EventDataBatch:
        try:
            batch = await self._client.create_batch(partition_id=self._partition_id)
        except Exception as error:
            raise _not_opened(error, "opening a link") from error
        try:
            for event in events:
                batch.add(event.source)
        except (ValueError, EventDataError) as error:
            raise LinkError(FailureKind.TOO_LARGE, str(error), link_lost=False) from error
        return batch

    async def close(self) -> None:
        """Does nothing: the SDK keeps its links until the client is closed."""


def _not_opened(error: Exception, doing: str) -> LinkError:
    missing = isinstance(error, EventHubError) and "not-found" in str(error)
    refused = missing or isinstance(error, AuthenticationError)
    kind = FailureKind.REFUSED if refused else FailureKind.NOT_STORED
    return LinkError(kind, f"{doing}: {type(error).__name__}: {error}", link_lost=True)


async def created_at_of(client: EventHubProducerClient) -> str | None:
    """When the hub was created; None without the right to read it, and without a hub. Raises LinkError, after which another
    attempt may succeed.
    """
    try:
        created_at = (await client.get_eventhub_properties())["created_at"]
    except AuthenticationError:
        return None  # opening a link says whether it may publish
    except Exception as error:
        if "not-found" in str(error):
            return None  # as above
        reason = f"asking for the creation of {client.eventhub_name}: {type(error).__name__}: {error}"
        raise LinkError(FailureKind.NOT_STORED, reason, link_lost=False) from error
    # The SDK gives UTC without a zone, from a number of milliseconds.
    return str(created_at.replace(tzinfo=UTC).isoformat(timespec="milliseconds"))
