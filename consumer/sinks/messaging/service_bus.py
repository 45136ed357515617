"""Forwards events to a Service Bus queue or topic, by the big-batch sender.

Each message has an id that is made of the event's place. An entity with duplicate detection stores a message once within its time
window; any other entity stores it at least once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from azure.servicebus import ServiceBusMessage
from msgspec import Struct

from consumer.mapping.sources import parse_source
from consumer.model import Batch, Outcome, Record, Routes, Write, WriteResult
from consumer.options import BatchLimits
from consumer.sinks.messaging.forwarding import FORWARDING, Forwarding, check_body
from consumer.sinks.types import SinkContext, SinkType, refuse
from tidemark.foundation.azure.connections import service_bus_endpoint, transport_options
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.publisher import (
    BigBatchSender,
    OversizedMessageError,
    PartiallySentError,
    PublishError,
    PublishRefusedError,
    PublishUnavailableError,
    SendPolicy,
    UnsendableMessageError,
)

SENDERS = 4
"""Links to the entity, each with one batch at a time. Chosen: the service takes some 1,000 messages a second per link."""
BATCHES = BatchLimits(operations=500, bytes=900_000, flush_after=0.5, concurrency=SENDERS)
"""A message of the standard tier takes 256 KB, which the sender divides a batch by. Chosen."""
POLICY = SendPolicy(attempts=1)
"""The consumer tries again itself, with its own waits."""
CLOSING = 2.0
"""Seconds for a link to close. Chosen: it is also closed when a deadline has passed, which the consumer then exceeds by this."""
_WRITTEN = WriteResult(Outcome.WRITTEN)


class ServiceBusOptions(Struct, frozen=True):
    """The queue or topic that events are forwarded to; one of the two."""

    connection: str
    """The name of the setting with the connection string of the namespace, or of its identity settings."""
    queue: str = ""
    topic: str = ""
    session: str = ""
    """The source of the session id, such as `@partition_key` or `$.carrier`; '' sends without sessions. Messages of a session
    are sent in the order of arrival."""
    body: str = "document"
    """`document`: what decoding and steps made, as JSON; `event`: the body as it came. Without steps both are the body."""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        both = f"queue is '{self.queue}' and topic is '{self.topic}'; accepted: exactly one of them"
        refuse(
            [both] if bool(self.queue) == bool(self.topic) else [],
            lambda: check_body(self.body),
            lambda: self.session and parse_source("session", self.session),
        )


class ServiceBusSink:
    """One lane. Records of one session are written in order; `make` makes a sender."""

    transactional = False

    def __init__(self, forwarding: Forwarding, make: Callable[[], BigBatchSender], *, sessions: bool) -> None:
        self._forwarding = forwarding
        self._make = make
        self._sessions = sessions
        self._idle: list[BigBatchSender] = []
        self._permits = asyncio.Semaphore(SENDERS)

    async def open(self) -> Routes:
        """Raises SettingsError for an entity that is missing or that refuses, UnavailableError."""
        sender = self._take()
        try:
            await sender.send([])
        except PublishRefusedError as error:
            await self._drop(sender)
            raise SettingsError(f"the target {self._forwarding.target} refuses: {error}") from error
        except PublishUnavailableError as error:
            await self._drop(sender)
            raise UnavailableError(f"the target {self._forwarding.target}: {error}") from error
        self._idle.append(sender)
        return await self.routes()

    async def ask(self) -> None:
        sender = self._make()  # a link that is open already would need no answer
        try:
            await sender.send([])
        finally:
            await self._drop(sender)

    async def routes(self) -> Routes:
        return Routes(appends=True, batches=BATCHES)

    def prepare(self, write: Write) -> Record:
        return self._forwarding.prepare(write)

    async def write(self, batch: Batch, *, deadline: float) -> Sequence[WriteResult]:
        results: list[WriteResult | None] = [None] * len(batch.records)
        try:
            async with asyncio.timeout_at(deadline), self._permits:
                await self._send(batch.records, results)
        except TimeoutError:
            reason = "no answer by the deadline; the outcome is unknown"
        except PublishError as error:
            reason = str(error)
        else:
            reason = "it was not sent"
        return [result or WriteResult(Outcome.RETRY, reason=reason) for result in results]

    async def _send(self, records: Sequence[Record], results: list[WriteResult | None]) -> None:
        """Sends records and fills in the results that are known; after a message that is too large, those before and behind it."""
        todo = list(range(len(records)))
        while todo:
            messages = [self._message(records[index]) for index in todo]
            sender = self._take()
            try:
                await sender.send(messages)
            except (OversizedMessageError, UnsendableMessageError) as error:  # nothing was sent
                results[todo.pop(error.index)] = WriteResult(Outcome.REJECT, 413, str(error))
            except PartiallySentError as error:
                for sent in error.report.sent:
                    results[todo[sent]] = _WRITTEN
                return
            except BaseException:
                await self._drop(sender)
                raise
            else:
                for index in todo:
                    results[index] = _WRITTEN
                todo = []
            self._idle.append(sender)

    def _message(self, record: Record) -> ServiceBusMessage:
        forwarded = self._forwarding.forwarded(record)
        message = ServiceBusMessage(
            record.payload,
            application_properties=forwarded.properties,
            message_id=self._forwarding.message_id(record),
            session_id=(record.partition_key or record.key) if self._sessions else None,
            content_type=forwarded.content_type,
        )
        properties = message.raw_amqp_message.properties
        if properties is not None:
            properties.content_encoding = forwarded.content_encoding
        return message

    def _take(self) -> BigBatchSender:
        return self._idle.pop() if self._idle else self._make()

    async def _drop(self, sender: BigBatchSender) -> None:
        """Closes a sender whose link may be broken, and hang."""
        with suppress(Exception):
            async with asyncio.timeout(CLOSING):
                await sender.close()

    async def aclose(self) -> None:
        senders, self._idle = self._idle, []
        for sender in senders:
            await self._drop(sender)


def _build(options: ServiceBusOptions, context: SinkContext) -> ServiceBusSink:
    endpoint = service_bus_endpoint(context.settings, options.connection)
    entity = options.queue or options.topic
    forwarding = Forwarding(f"{endpoint.address}/{entity}", context.stream, options.session, options.body)
    names: dict[str, Any] = {"queue_name": options.queue} if options.queue else {"topic_name": options.topic}
    names["client_options"] = transport_options(context.settings)

    def make() -> BigBatchSender:
        if endpoint.connection_string is None:
            assert endpoint.credential is not None
            return BigBatchSender.from_namespace(
                endpoint.address, endpoint.credential, policy=POLICY, **names
            )
        return BigBatchSender.from_connection_string(endpoint.connection_string, policy=POLICY, **names)

    return ServiceBusSink(forwarding, make, sessions=bool(options.session))


SERVICE_BUS = SinkType("service_bus", ServiceBusOptions, _build, FORWARDING, ())
