"""Forwards events to another event hub, exactly once, by the idempotent publisher and its saved state.

Each partition of the source has a producer of its own, which saves a state for each partition of the target: how far the source was
published to it (the bookmark), and the set of events that was about to be sent, whole. After a kill the same set is sent again under the
same numbers, and the service drops what it has. So the mark of this sink is one number per partition of the target.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import cache
from typing import Any

from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpMessageProperties
from msgspec import Struct

from consumer.errors import FencedError
from consumer.mapping.sources import parse_source
from consumer.model import (
    NOTHING_SETTLED,
    Claim,
    Event,
    Outcome,
    Record,
    Rejection,
    Routes,
    Write,
    WriteResult,
)
from consumer.options import BatchLimits
from consumer.sinks.messaging import bookmarks
from consumer.sinks.messaging.bookmarks import Bookmark, Place, Target, bookmark_of, place_of
from consumer.sinks.messaging.forwarding import FORWARDING, Forwarding, check_body
from consumer.sinks.partitioned import WRITTEN, PartitionedSink, Results, part_of, warn_if_rerouted
from consumer.sinks.types import SinkContext, SinkType, refuse
from tidemark.foundation.azure.connections import blob_container, event_hubs_endpoint, tls_context
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.foundation.wording import count_text
from tidemark.publisher import (
    BlobStateStore,
    IdempotentProducer,
    InvalidProducerStateError,
    ProducerDisconnectedError,
    PublishError,
    PublishingBatch,
    PublishRefusedError,
    PublishUnavailableError,
    RetryPolicy,
    partition_of_key,
)

log = logging.getLogger("tidemark.consumer")

BATCHES = BatchLimits(operations=500, bytes=900_000, flush_after=0.5)
"""Each set of events for a partition costs a save of the state, so sets should be large; a message has at most 1 MB. Chosen."""
RETRIES = RetryPolicy(max_attempts=2, attempt_timeout=20.0, open_timeout=20.0)
"""Below the 60 s that the consumer gives a call; it tries again itself. Chosen."""
_WAIT = WriteResult(
    Outcome.RETRY,
    reason="the rest of a set that a killed process began to send has not arrived (docs/sinks.md, Event Hubs)",
    retry_after=0.1,
)
_BEHIND = WriteResult(Outcome.RETRY, reason="an event before it is rejected first", retry_after=0.0)
_WAY_ON = "; of this sink, by another state_container in its options, with which it goes on at the checkpoint"

_FINAL = (ProducerDisconnectedError, InvalidProducerStateError, asyncio.CancelledError)
"""Errors after which a producer publishes no more."""

MakeProducer = Callable[[str], IdempotentProducer]
"""Makes the producer of a name."""


class EventHubsOptions(Struct, frozen=True):
    """The hub that events are forwarded to."""

    hub: str
    connection: str
    """The name of the setting with the connection string of the namespace, or of its identity settings."""
    key: str = "@partition_key"
    """The source of the partition key, such as `$.carrier`; '' for none: then a source partition goes to one target partition."""
    body: str = "document"
    """`document`: what decoding and steps made, as JSON; `event`: the body as it came. Without steps both are the body."""
    state_connection: str = "AzureWebJobsStorage"
    """The name of the setting of the storage account that has the producers' states."""
    state_container: str = "forwarding-state"
    resend_unknown: bool = False
    """Whether a set whose outcome is unknown is sent again when the service has forgotten the producer: it may then be doubled."""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        refuse([], lambda: check_body(self.body), lambda: self.key and parse_source("key", self.key))


class EventHubsSink(PartitionedSink):
    """An ordered sink. `make` makes the producer of a source partition from its name."""

    def __init__(self, forwarding: Forwarding, name: str, make: MakeProducer) -> None:
        super().__init__(BATCHES)
        self._forwarding = forwarding
        self._name = name
        self._make = make

    async def open(self) -> Routes:
        await self._ask_hub()
        return await self.routes()

    async def ask(self) -> None:
        """Nothing is forwarded without the store of the states either."""
        await self._ask_hub(with_state=True)

    async def _ask_hub(self, *, with_state: bool = False) -> None:
        producer = self._make(self._name)
        try:
            ids = await producer.get_partition_ids()
            if with_state:
                await producer.saved_state(ids[0])
        except PublishRefusedError as error:
            raise SettingsError(f"the target {self._forwarding.target} refuses: {error}") from error
        except PublishUnavailableError as error:
            raise UnavailableError(f"the target {self._forwarding.target}: {error}") from error
        finally:
            await producer.close()

    def prepare(self, write: Write) -> Record:
        return self._forwarding.prepare(write)

    def writer(self, claim: Claim) -> Forwarder:
        origin = claim.origin.incarnation
        place = f"{claim.partition}@{origin}" if origin else claim.partition
        name = f"{self._name}~{place}"
        return Forwarder(claim.partition, self._forwarding, lambda: self._make(name), claim)

    async def write_again(self, records: Sequence[Record]) -> AsyncIterator[Results]:
        """Each record has a producer and a state of its own. An older version had one for the event, which is gone on with."""
        event = records[0].event
        name = f"{self._name}~{event.place}~again~{event.sequence_number}"
        async with aclosing(self._again(event, name)) as forwarder:
            if records[0].of == 1 or await forwarder.has_begun(records):
                yield await forwarder.write(records)
                return
        for record in records:
            async with aclosing(self._again(event, f"{name}~{part_of(record)}")) as forwarder:
                yield await forwarder.write([record])

    def _again(self, event: Event, name: str) -> Forwarder:
        return Forwarder(event.partition, self._forwarding, lambda: self._make(name))


class Forwarder:
    """A PartitionWriter: publishes the events of one source partition."""

    def __init__(
        self,
        partition: str,
        forwarding: Forwarding,
        make: Callable[[], IdempotentProducer],
        claim: Claim | None = None,
    ) -> None:
        self._partition, self._forwarding = partition, forwarding
        self._make, self._claim = make, claim
        self._checkpoint = None if claim is None else claim.checkpoint
        self._producer: IdempotentProducer | None = None
        self._ids, self._choice = list[str](), ""
        self._targets: dict[str, Target] = {}

    async def aclose(self) -> None:
        producer, self._producer = self._producer, None
        self._targets = {}
        if producer is not None:
            await producer.close(timeout=3.0)

    async def has_begun(self, records: Sequence[Record]) -> bool:
        """Whether the saved states know of a set for any of the partitions of these records."""
        producer = await self._opened()
        ids = dict.fromkeys(map(self._choose, records))
        targets = [await self._target(producer, id_) for id_ in ids]
        return any(target.mark[0] != NOTHING_SETTLED or target.pending is not None for target in targets)

    async def write(self, records: Sequence[Record]) -> Results:
        try:
            return await self._write(records)
        except ProducerDisconnectedError as error:
            raise FencedError(str(error)) from error
        except InvalidProducerStateError as error:  # the next write begins with the saved state
            log.warning("partition %s cannot be forwarded: %s", self._partition, error)
            with suppress(PublishError):
                await self.aclose()
            raise UnavailableError(
                f"{error}{_WAY_ON if 'another saved state' in str(error) else ''}"
            ) from error

    async def _write(self, records: Sequence[Record]) -> Results:
        """Writes up to the first event that is too large, whose dead letter comes before the mark passes it."""
        producer = await self._opened()
        too_large = await self._find_too_large(producer, records)
        fit = records[: len(records) if too_large is None else too_large[0]]
        results = await self._write_fit(producer, fit) if fit else []
        if too_large is None:
            return results
        return [*results, too_large[1], *[_BEHIND] * (len(records) - len(fit) - 1)]

    async def _find_too_large(
        self, producer: IdempotentProducer, records: Sequence[Record]
    ) -> tuple[int, WriteResult] | None:
        ids = [self._choose(record) for record in records]
        limits = {id_: await producer.max_message_size(id_) for id_ in dict.fromkeys(ids)}
        for index, (id_, record) in enumerate(zip(ids, records, strict=True)):
            limit = limits[id_]
            if len(record.payload) + record.event.size > limit // 2:  # encoding costs more than comparing
                _, size = producer.encode(self._event(record))
                if size > limit:
                    why = f"the event takes {size:,} bytes of a message, which has room for {limit:,}"
                    return index, WriteResult(Outcome.REJECT, 413, why, rejection=Rejection("too_large", why))
        return None

    async def _write_fit(self, producer: IdempotentProducer, records: Sequence[Record]) -> Results:
        parts: dict[str, list[int]] = {}
        for index, record in enumerate(records):
            parts.setdefault(self._choose(record), []).append(index)
        end = place_of(records[-1])
        written = await asyncio.gather(
            *(self._publish(producer, id_, [records[i] for i in part], end) for id_, part in parts.items()),
            return_exceptions=True,
        )
        for answer in written:
            if isinstance(answer, BaseException) and isinstance(answer, _FINAL):
                raise answer
        results: list[WriteResult] = [_WAIT] * len(records)
        for part, answer in zip(parts.values(), written, strict=True):
            outcomes = [_failed(answer)] * len(part) if isinstance(answer, BaseException) else answer
            for index, outcome in zip(part, outcomes, strict=True):
                results[index] = outcome
        return results

    async def _opened(self) -> IdempotentProducer:
        if self._producer is None:
            producer = self._producer = self._make()
            try:
                self._ids = await producer.get_partition_ids()
                self._choice = bookmarks.choice_of(self._forwarding.key, len(self._ids))
            except BaseException:
                await self.aclose()
                raise
        return self._producer

    def _choose(self, record: Record) -> str:
        """The partition of the target: by the key as the service would, else one for all of the source partition."""
        if record.partition_key:
            return partition_of_key(record.partition_key, self._ids)
        return (
            self._ids[int(self._partition) % len(self._ids)] if self._partition.isdecimal() else self._ids[0]
        )

    async def _target(self, producer: IdempotentProducer, id_: str) -> Target:
        target = self._targets.get(id_)
        if target is None:
            saved = await producer.saved_state(id_)
            target, by_another = bookmarks.resumed(saved, self._choice)
            self._warn_of_another_choice(id_, by_another)
            if saved.pending is not None and target.pending is None:
                await producer.abandon_pending(id_)
            if self._claim is not None and target.mark[0] != NOTHING_SETTLED:
                warn_if_rerouted(self._claim, target.mark[0])
                self._claim = None  # once
            self._targets[id_] = target
        return target

    def _warn_of_another_choice(self, id_: str, sent: int) -> None:
        settled = NOTHING_SETTLED if self._checkpoint is None else self._checkpoint.sequence_number
        if sent > settled:
            log.warning(
                "partition %s: the key, or the number of partitions of %s, has changed since event %d was sent to %s:"
                " all events after the checkpoint (%d) are sent again, some of them twice",
                *(self._partition, self._forwarding.target, sent, id_, settled),
            )

    async def _publish(
        self, producer: IdempotentProducer, id_: str, records: Sequence[Record], end: Place
    ) -> Results:
        """Publishes the records for one partition of the target. `end` is the last one of the write, for any partition."""
        target = await self._target(producer, id_)
        if target.unfinished is not None:
            await self._send(producer, target, *target.unfinished)
        if target.pending is not None and not await self._resend(producer, id_, target, records, end):
            return [WRITTEN if self._has(target, record) else _WAIT for record in records]
        results: list[WriteResult] = []
        batch, sent = await producer.create_batch(partition_id=id_), list[Record]()
        for record in records:
            if self._has(target, record):
                results.append(WRITTEN)
                continue
            event = self._event(record)
            if not batch.try_add(event):
                await self._send(producer, target, batch, bookmark_of(sent, target.mark, self._choice))
                batch, sent = await producer.create_batch(partition_id=id_), []
                batch.add(event)
            sent.append(record)
            results.append(WRITTEN)
        if sent:
            await self._send(producer, target, batch, bookmark_of(sent, target.mark, self._choice))
        return results

    async def _resend(
        self, producer: IdempotentProducer, id_: str, target: Target, records: Sequence[Record], end: Place
    ) -> bool:
        """Sends the set again that a killed process was sending, and returns whether that is done. A set is stored whole: one with
        an event that is settled is not sent again. An older version did not keep its events: all of them must be received then.
        """
        assert target.pending is not None
        pending, saved = target.pending
        count, until = saved.count, pending.last
        if pending.is_settled(self._checkpoint):
            await producer.abandon_pending(id_)
            target.pending, target.mark = None, until
            return True
        again = [record for record in records if target.mark < place_of(record) <= until]
        size = sum(len(head) + len(tail) for head, tail in saved.events or ())
        if (
            again
            and 0 < size <= await producer.max_message_size(id_)
            and not pending.is_skipped(self._checkpoint)
        ):
            await producer.resend_pending(id_)
            target.resent, target.pending, target.mark = target.pending, None, until
            return True
        if len(again) < count and end < until:
            return False
        batch = await producer.create_batch(partition_id=id_)
        fits = len(again) == count and all(batch.try_add(self._event(record)) for record in again)
        if fits and batch.digest() == saved.digest:
            await self._send(producer, target, batch, pending)
            return True
        if again:  # without any, the checkpoint has all of them: they were stored, and are not received again
            log.warning(
                "partition %s: the mapping has changed: a killed process was sending %s to partition %s of the target, of which it"
                " makes %d now. What it makes now is sent, and may be doubled",
                *(self._partition, count_text(count, "event"), id_, len(again)),
            )
        await producer.abandon_pending(id_)
        target.pending = None
        return True

    async def _send(
        self, producer: IdempotentProducer, target: Target, batch: PublishingBatch, bookmark: Bookmark
    ) -> None:
        target.unfinished = batch, bookmark
        await producer.send_batch(batch, bookmark=bookmark.text, keep_events=True)
        target.unfinished, target.pending, target.mark = None, None, max(target.mark, bookmark.last)

    def _has(self, target: Target, record: Record) -> bool:
        return target.has(record, self._forwarding.message_id(record))

    def _event(self, record: Record) -> EventData:
        forwarded = self._forwarding.forwarded(record)
        event = EventData(record.payload)
        event.properties = forwarded.properties
        message = event.raw_amqp_message
        message.properties = AmqpMessageProperties(  # type: ignore[no-untyped-call]
            message_id=self._forwarding.message_id(record),
            content_type=forwarded.content_type,
            content_encoding=forwarded.content_encoding,
        )
        if record.partition_key:
            message.annotations = {b"x-opt-partition-key": record.partition_key}
        return event


def _failed(error: BaseException) -> WriteResult:
    return WriteResult(Outcome.RETRY, reason=f"{type(error).__name__}: {error}")


def _build(options: EventHubsOptions, context: SinkContext) -> EventHubsSink:
    settings = context.settings
    endpoint = event_hubs_endpoint(settings, options.connection)
    forwarding = Forwarding(f"{endpoint.address}/{options.hub}", context.stream, options.key, options.body)
    group = context.stream.consumer_group.lower()
    tls = cache(lambda: tls_context(settings))  # reading the authorities takes 35 ms

    def make(name: str) -> IdempotentProducer:
        container = blob_container(settings, options.state_connection, options.state_container)
        state = BlobStateStore(container, connection=options.state_connection)
        more: dict[str, Any] = {"ssl_context": tls(), "retry_total": 0}
        return endpoint.client(
            IdempotentProducer,
            eventhub_name=options.hub,
            state_store=state,
            producer_name=name,
            retry=RETRIES,
            resend_unknown=options.resend_unknown,
            **more,
        )

    return EventHubsSink(forwarding, f"{context.stream.topic}/{group}/{context.name}", make)


EVENT_HUBS = SinkType("event_hubs", EventHubsOptions, _build, FORWARDING, (), ordered=True)
