"""The producer of docs/publishing.md, which publishes to Event Hubs so that no event is stored twice."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from azure.eventhub import EventData, amqp, parse_connection_string
from azure.eventhub.aio import EventHubProducerClient
from msgspec import Struct

from tidemark.foundation.keys import namespace_host
from tidemark.foundation.tracing.spans import Spans, carries_context
from tidemark.publisher import errors, model
from tidemark.publisher.event_hubs.batch import (
    PublishingBatch,
    SentSet,
    kept_set,
    mark_published,
    set_of,
)
from tidemark.publisher.event_hubs.core.producer_state import PartitionPublisher
from tidemark.publisher.event_hubs.core.steps import FailureKind, Identify
from tidemark.publisher.event_hubs.ports.links import EncodedEvent, LinkError, Links, PublishableEvent
from tidemark.publisher.event_hubs.ports.state_store import ProducerStateStore
from tidemark.publisher.event_hubs.sdk.links import links_of
from tidemark.publisher.event_hubs.shell import PartitionShell
from tidemark.publisher.model import PartitionPublishingOptions
from tidemark.publisher.tracing import spans_of


class ProducerOptions(Struct, frozen=True):
    """`partition_options` give the service the initial state by partition id; without them the service chooses it.

    With a `state_store`, which the producer closes, the state outlives the process; `producer_name` distinguishes producers of
    a hub. Without `sdk_insides` the producer uses no private names of the SDK, and cannot be idempotent. `resend_unknown`: if
    the service has forgotten the producer, the pending set of the saved state is sent again, which may store it twice.
    Raises PublishSettingsError.
    """

    enable_idempotent_partitions: bool = True
    partition_options: Mapping[str, PartitionPublishingOptions] | None = None
    state_store: ProducerStateStore | None = None
    producer_name: str = "default"
    retry: model.RetryPolicy | None = None
    sdk_insides: bool = True
    resend_unknown: bool = False
    tracing: bool | None = None
    """Whether sending makes spans, and events carry a trace context; None asks TIDEMARK_TRACING in the environment."""

    def __post_init__(self) -> None:
        if not self.enable_idempotent_partitions and (self.partition_options or self.state_store is not None):
            raise errors.PublishSettingsError(
                "partition_options and state_store need enable_idempotent_partitions=True: without it there is no state"
            )

    @classmethod
    def split_from(cls, options: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Split the keyword arguments of a constructor into these options and the others."""
        known = {name: options[name] for name in cls.__struct_fields__ if name in options}
        return cls(**known), {name: options[name] for name in options.keys() - known.keys()}


class IdempotentProducer(contextlib.AbstractAsyncContextManager["IdempotentProducer"]):
    """Publishes to the partitions of one hub, independently of each other. Raises PublishErrors (tidemark.publisher.errors).

    `options` are those of ProducerOptions; others go to the SDK's EventHubProducerClient. Idempotence cannot be changed later.
    Use the producer as a context manager, in one event loop.
    """

    def __init__(
        self, fully_qualified_namespace: str, eventhub_name: str, credential: Any, **options: Any
    ) -> None:
        producer_options, client_options = ProducerOptions.split_from(options)
        client = EventHubProducerClient(
            fully_qualified_namespace, eventhub_name, credential, **client_options
        )
        self._connect(client, fully_qualified_namespace, producer_options)

    @classmethod
    def from_connection_string(
        cls, connection: str, eventhub_name: str | None = None, **options: Any
    ) -> Self:
        """As the constructor; the hub's name may be in the connection string."""
        producer_options, client_options = ProducerOptions.split_from(options)
        try:
            client = EventHubProducerClient.from_connection_string(
                connection, eventhub_name=eventhub_name, **client_options
            )
        except ValueError as error:
            raise errors.PublishSettingsError(f"connection: {error}") from None
        namespace = parse_connection_string(connection).fully_qualified_namespace
        self = cls.__new__(cls)
        return self._connect(client, namespace, producer_options)

    @classmethod
    def over(cls, links: Links, **options: Any) -> Self:
        """A producer over other Links than the SDK's. `options` are those of ProducerOptions."""
        self = cls.__new__(cls)
        return self._set_up(links, ProducerOptions(**options))

    def _connect(self, client: EventHubProducerClient, namespace: str, options: ProducerOptions) -> Self:
        idempotent = options.enable_idempotent_partitions
        links = links_of(client, namespace, idempotent=idempotent, sdk_insides=options.sdk_insides)
        return self._set_up(links, options)

    def _set_up(self, links: Links, options: ProducerOptions) -> Self:
        self._links = links
        self._options = options
        self._writer = None if options.state_store is None else f"{options.producer_name}~{uuid.uuid4().hex}"
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._spans = spans_of(links.hub, on=options.tracing)
        self._retry = options.retry or model.RetryPolicy()
        self._partitions: dict[str, PartitionShell] = {}
        self._known_ids: list[str] | None = None
        self._hub_created_at: str | None = None
        self._is_closed = False
        return self

    # --- for applications

    @property
    def is_idempotent(self) -> bool:
        """Whether events get sequence numbers; set when the producer was created."""
        return self._options.enable_idempotent_partitions

    @property
    def eventhub_name(self) -> str:
        return self._links.hub

    @property
    def fully_qualified_namespace(self) -> str:
        return self._links.namespace

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def get_partition_ids(self) -> list[str]:
        """In the order of the service. Raises PublishRefusedError and PublishUnavailableError."""
        self._require_open()
        if self._known_ids is None:
            try:
                self._known_ids = await self._links.partition_ids()
            except LinkError as error:
                if error.kind is FailureKind.REFUSED:
                    raise errors.PublishRefusedError(str(error)) from error
                raise errors.PublishUnavailableError(str(error)) from error
        return list(self._known_ids)

    async def get_partition_publishing_properties(
        self, partition_id: str
    ) -> model.PartitionPublishingProperties:
        """The publishing state of the partition. Opens its link if necessary."""
        shell = self._partition(partition_id)
        if self.is_idempotent:
            await shell.prepare()
        return shell.publisher.properties

    async def create_batch(
        self,
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        max_size_in_bytes: int | None = None,
    ) -> PublishingBatch:
        """An empty batch for the partition, of at most the size that its link accepts."""
        shell = self._partition(_require_partition_id(partition_id, partition_key))
        return self._batch(shell, await shell.max_message_size(), max_size_in_bytes)

    def create_batch_at_once(
        self, partition_id: str | None, max_size_in_bytes: int | None = None
    ) -> PublishingBatch | None:
        """As `create_batch`, if the link of the partition is open; otherwise None. Other threads may call it."""
        shell = None if partition_id is None else self._partitions.get(partition_id)
        limit = 0 if shell is None or self._is_closed else shell.size_of_open_link
        return self._batch(shell, limit, max_size_in_bytes) if shell and limit else None

    def _batch(self, shell: PartitionShell, limit: int, max_size_in_bytes: int | None) -> PublishingBatch:
        if max_size_in_bytes is not None and not 0 < max_size_in_bytes <= limit:
            raise errors.PublishSettingsError(
                f"max_size_in_bytes is {max_size_in_bytes}, accepted: 1 to {limit}"
            )
        return PublishingBatch(shell.publisher.partition_id, max_size_in_bytes or limit, self.encode)

    async def send_batch(
        self,
        batch: PublishingBatch,
        *,
        bookmark: str | None = None,
        timeout: float | None = None,
        keep_events: bool = False,
    ) -> None:
        """Publish the batch. Returns once the service has stored it; the batch then has its number and stays locked.

        `bookmark` is the position of the application's input after this batch, and is saved with the state. `timeout` in
        seconds bounds all attempts together. A cancelled call first waits up to 5 s for the answer of a running transfer;
        then the batch has a number if it was published. `keep_events` saves the events with the state until they are
        confirmed, so that the next process can send them by `resend_pending`, whatever its input is by then.
        """
        if not len(batch):
            return
        shell = self._partition(batch.partition_id)
        with self._spans.span("send", batch.partition_id, len(batch), batch.contexts):
            begin = partial(batch.begin, bookmark, keep_events=keep_events)
            await shell.publish(begin, batch.end, batch.withdraw, timeout=timeout)

    async def send_events(
        self,
        events: Sequence[PublishableEvent],
        *,
        partition_id: str | None = None,
        partition_key: str | None = None,
        bookmark: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish the events as one set, as `send_batch` does; each gets its `published_sequence_number`."""
        shell = self._partition(_require_partition_id(partition_id, partition_key))
        if not events:
            return
        limit = await shell.max_message_size()
        begin = partial(set_of, events, encode=self.encode, max_size=limit, bookmark=bookmark)
        with self._spans.span("send", shell.publisher.partition_id, len(events)):
            await shell.publish(begin, partial(mark_published, events), timeout=timeout)

    async def send_set(self, partition_id: str, events: SentSet, *, timeout: float | None = None) -> None:
        """Publish events that are already encoded and fit into one message."""
        contexts = (event.context for event in events.encoded if event.context is not None)
        with self._spans.span("send", partition_id, len(events.encoded), contexts):
            await self._partition(partition_id).publish(lambda: events, events.mark, timeout=timeout)

    def encode(self, event: PublishableEvent) -> tuple[EncodedEvent, int]:
        """The encoded event for `send_set`, and the bytes that it adds to a set."""
        encoded, size = self._links.encode(event, stamped=self.is_idempotent)
        if not self._spans.are_on or (traced := with_context(event, self._spans)) is None:
            return encoded, size
        carrier, context = traced
        marked, size = self._links.encode(carrier, stamped=self.is_idempotent)
        # An event that the SDK encodes when it sends has no bytes yet, and gets no number either.
        source = event if marked.head or marked.tail else carrier
        return marked._replace(source=source, untraced=encoded[:2], context=context), size

    async def max_message_size(self, partition_id: str) -> int:
        """The largest set of events for the partition, in bytes. Opens its link if necessary."""
        return await self._partition(partition_id).max_message_size()

    async def saved_state(self, partition_id: str) -> model.SavedState:
        """Where to go on after a restart: see SavedState."""
        return await self._partition(partition_id).saved_state()

    async def resend_pending(self, partition_id: str) -> None:
        """Send the pending set of a process before this one again, under the same numbers, if its events were kept.

        Does nothing without such a set. Raises as `send_batch`.
        """
        shell = self._partition(partition_id)
        await shell.saved_state()
        pending = shell.publisher.loaded_pending
        events = None if pending is None else kept_set(pending)
        if events is not None:
            await self.send_set(partition_id, events)

    async def abandon_pending(self, partition_id: str) -> None:
        """Give up the pending set, which may be stored or not. See SavedState."""
        await self._partition(partition_id).abandon_pending()

    async def close(self, *, timeout: float = 10.0) -> None:
        """Save what was confirmed, and close links, connections and the state store. Calls under way end first.

        Raises PublishErrors of the last save, after everything is closed: the next start then sends a set again,
        which the service drops.
        """
        if self._is_closed:
            return
        self._is_closed = True
        deadline = asyncio.get_running_loop().time() + timeout
        shells = list(self._partitions.values())
        try:
            saves = await asyncio.gather(
                *(shell.settle(deadline) for shell in shells), return_exceptions=True
            )
        finally:
            async with contextlib.AsyncExitStack() as closing:  # closes all, even if one raises
                if self._options.state_store is not None:
                    closing.push_async_callback(self._options.state_store.aclose)
                closing.push_async_callback(self._links.close)
                for shell in shells:
                    closing.push_async_callback(shell.close)
        for failure in saves:
            if isinstance(failure, BaseException):
                raise failure

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- internal

    async def _created_at(self, step: Identify) -> str | None:
        if step.again or self._hub_created_at is None:
            self._hub_created_at = await self._links.created_at()
        return self._hub_created_at

    def _state_key(self, partition_id: str, namespace: str) -> model.StateKey:
        return model.StateKey(namespace, self._links.hub, self._options.producer_name, partition_id)

    def _partition(self, partition_id: str) -> PartitionShell:
        self._require_open()
        if partition_id not in self._partitions:
            publisher = PartitionPublisher(
                partition_id,
                (self._options.partition_options or {}).get(partition_id, PartitionPublishingOptions()),
                self._retry,
                idempotent=self.is_idempotent,
                writer=self._writer,
                process=f"process {os.getpid()} on {socket.gethostname()}",
                since=self._since,
                resend_unknown=self._options.resend_unknown,
            )
            self._partitions[partition_id] = PartitionShell(
                publisher,
                self._links,
                self._retry,
                self._options.state_store,
                self._state_key(partition_id, namespace_host(self._links.namespace)),
                self._state_key(partition_id, self._links.namespace),
                self._created_at,
            )
        return self._partitions[partition_id]

    def _require_open(self) -> None:
        if self._is_closed:
            raise errors.ProducerClosedError(f"the producer of {self._links.hub} is closed")


def _require_partition_id(partition_id: str | None, partition_key: str | None) -> str:
    if partition_id is not None and partition_key is None:
        return partition_id
    problem = (
        "partition_id is missing, so the service would choose the partition"
        if partition_key is None
        else f"{partition_key=}"
    )
    raise errors.UnsupportedPublishingError(
        f"{problem}; this producer needs a partition id, because sequence numbers belong to one partition. "
        "BufferedProducer chooses partitions by key or round robin"
    )


def with_context(
    event: PublishableEvent, spans: Spans
) -> tuple[amqp.AmqpAnnotatedMessage, Mapping[str, str]] | None:
    """A copy of the event with the present trace context, and that context; None for an event that carries one already.

    The event itself stays as it is.
    """
    raw = event.raw_amqp_message if isinstance(event, EventData) else event
    if carries_context(raw.application_properties):
        return None
    context = spans.header_for_event()
    carrier = copy.copy(raw)
    properties: dict[str | bytes, Any] = dict(raw.application_properties or {})
    properties.update(context)
    carrier.application_properties = properties
    return (carrier, context) if context else None
