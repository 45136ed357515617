"""Ages and sessions of Service Bus, by the data plane: what counts do not tell, for a tenth of what they cost.

    oldest_age  of the oldest message that can be received, in seconds. A message that is being processed counts, for a peek
                shows it like one that waits; so as many of the oldest as are being processed may be left out
    sessions    that have messages, or a stored state

A read opens one connection and takes one peek, or 16 where the entity is partitioned, or where nobody may read whether it is. The
administration API is asked for the settings of an entity once an hour, never for counts. What a peek cannot tell is a failed
read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import floor, inf
from typing import TYPE_CHECKING, Any, ClassVar

from azure.core.exceptions import ResourceNotFoundError
from msgspec import Struct

from scaling.calls.budgets import call_of
from scaling.calls.limiter import CallRefusedError, limiter_of
from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector
from scaling.collectors.service_bus.ages import (
    ACTIVE,
    DEFERRED,
    PARTITIONS,
    SCHEDULED,
    Peeked,
    Search,
    UnclearError,
    oldest,
)
from scaling.collectors.service_bus.entities import MOST_HELD, Description, Params, administration
from scaling.collectors.target_capacity import TargetCapacityCollector
from scaling.model import Reason
from scaling.ports import CollectError
from tidemark.foundation.azure.connections import service_bus_endpoint, tls_context
from tidemark.foundation.sanitize import error_text, shorten
from tidemark.foundation.wording import duration_text

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT = 8.0
"""Seconds for one request of the data plane: without a limit the SDK (7.15) waits for 60 s. Chosen: half of what a round of
reads may take.
"""

SETTINGS_KEPT = 3600.0
"""Seconds for which settings of an entity are believed. They never change, but an entity may be deleted and made anew."""

NOT_AGAIN = 600.0
"""Seconds until settings that could not be read are asked for again: a role assignment takes up to ten minutes to act."""

READY_KEPT = 600.0
"""Seconds for which a count of ready instances is believed. Of instances that are gone, messages that wait would be left out, and the age
be too young. Chosen: above the five minutes between two evaluations of a slow target.
"""

BUSY_WAIT = "2"
"""Seconds that 50009 asks to wait (service-bus-throttling, Microsoft's documentation)."""

MOST_SESSIONS = 10_000
"""Sessions that are counted at most: a hundred pages. A rule needs no more than its maximum can take up."""


class DataPlane(Struct, frozen=True):
    """The two clients of a connection."""

    messages: ServiceBusClient
    settings: ServiceBusAdministrationClient

    async def close(self) -> None:
        try:
            await self.messages.close()
        finally:
            await self.settings.close()


class _DataPlaneCollector(AzureEntityCollector[DataPlane]):
    AT_ONCE: ClassVar[int] = 64
    """Queues of a pattern that are read at the same time. The SDK (7.15) waits in steps of 50 ms, nine of them, until a link is ready, and a read
    works for 3 ms: so 1,000 queues take 31 s at 16, and 10 s at 64 (measured at the local server on 2 cores, 2026-11-28).
    """
    COUNT: ClassVar[str]
    COUNTS: ClassVar[tuple[str, ...]]
    ROLE = "the 'Azure Service Bus Data Receiver' role, or a connection string with the Listen right"

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        super().__init__(
            f"{params.label} (connection {params.connection})",
            settings,
            endpoint=f"Service Bus messages {params.connection}",
            deadline=deadline,
        )
        self._params = params
        self._every = params.seconds

    @classmethod
    def entity(cls, params: Params) -> str:
        return f"{cls.COUNT}:{params.key}"

    @classmethod
    def together(cls, collectors: Sequence[_DataPlaneCollector]) -> None:
        """Lets the collectors of a connection share the clients."""
        connections: dict[str, list[_DataPlaneCollector]] = {}
        for collector in collectors:
            connections.setdefault(collector._params.connection, []).append(collector)
        for same_connection in connections.values():
            cls._share(same_connection)

    def _open(self) -> DataPlane:
        from azure.servicebus.aio import ServiceBusClient

        connection = self._params.connection
        endpoint = service_bus_endpoint(self._settings, connection)
        options: dict[str, Any] = {
            "retry_total": 0,  # the next collection is the retry: 50009 asks for two seconds, and is reported, not waited out
            "try_timeout": REQUEST_TIMEOUT,
            "ssl_context": tls_context(self._settings),
        }
        return DataPlane(
            endpoint.client(ServiceBusClient, **options), administration(self._settings, connection)
        )

    def _explain(self, error: Exception, label: str = "", role: str = "") -> str:
        from azure.servicebus import exceptions as service_bus

        label, details = label or self._label, shorten(" ".join(error_text(error).split()), 300)
        if isinstance(error, service_bus.MessagingEntityNotFoundError):
            return f"{label}: does not exist"
        if isinstance(error, service_bus.MessagingEntityDisabledError):
            raise CollectError(
                f"{label}: is disabled, so nothing can be received from it ({details})",
                reason=Reason.ENTITY_DISABLED,
            ) from error
        if isinstance(
            error, service_bus.ServiceBusAuthenticationError | service_bus.ServiceBusAuthorizationError
        ):
            return f"{label}: access refused; reading {self.COUNT} needs {role or self.ROLE} ({details})"
        if isinstance(error, service_bus.ServiceBusServerBusyError):
            self._note_throttling(details)
            return f"{label}: the service throttles these requests ({details})"
        return super()._explain(error, label, role)

    def _note_throttling(self, story: str) -> None:
        """Where the credits of the namespace are used up, reads of counts wait as well: they share them, and take ten times as many."""
        host = service_bus_endpoint(self._settings, self._params.connection).address
        call = call_of("GET", f"https://{host}/{self._params.path}", "service_bus")
        limiter_of(self._settings).note_answer(call, 503, {"Retry-After": BUSY_WAIT}, story)


class OldestAgeCollector(_DataPlaneCollector):
    """The age of the oldest message that can be received; of those behind the ones that are being processed, if the options say
    how many these are. Messages that are taken in order make that the age of what waits.
    """

    COUNT = "oldest_age"
    COUNTS = (COUNT,)

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        super().__init__(params, settings, deadline=deadline)
        of = params.instances_of
        self._instances = of and TargetCapacityCollector(TargetCapacityCollector.Params(target=of), settings)
        self._description: Description | None = None
        self._asked_at = -inf
        self._closing: set[asyncio.Task[None]] = set()

    @classmethod
    def entity(cls, params: Params) -> str:
        """How many are left out is part of it: another number is another reading."""
        return f"{super().entity(params)} behind {params.held or 0}, {params.concurrency} of {params.instances_of}"

    async def aclose(self) -> None:
        await asyncio.gather(*self._closing, return_exceptions=True)
        if self._instances:
            await self._instances.aclose()
        await super().aclose()

    async def _read(self, client: DataPlane, now: float, /) -> dict[str, float]:
        ahead = await self._ahead(now)
        searches = self._searches(await self._described(client.settings, now), ahead, now)
        receiver = self._params.receiver(client.messages)
        try:
            for search in searches:
                while search.asks is not None:
                    search.take(await _peek(receiver, *search.asks))
        except UnclearError as error:
            self._asked_at = -inf  # the entity may be another one
            raise CollectError(f"{self._label}: {self.COUNT} cannot be known: {error}") from error
        finally:
            self._close(receiver)
        return {self.COUNT: self._age(oldest(searches), now)}

    def _close(self, receiver: ServiceBusReceiver) -> None:
        """Closing takes the SDK up to a second, in which it waits for a task of its own; no read waits for that."""
        closing = asyncio.create_task(asyncio.wait_for(receiver.close(), REQUEST_TIMEOUT))
        self._closing.add(closing)
        closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.debug("%s: the connection was not closed in order: %s", self._label, error_text(error))

    def _searches(self, description: Description | None, ahead: int, now: float) -> list[Search]:
        """One, or one for each partition. Raises CollectError where no peek can show the age."""
        if description is not None and description.requires_session:
            raise CollectError(self._sessions_text())
        if description is not None and not description.is_partitioned:
            return [Search(now=now, ahead=ahead)]
        if ahead:
            why = (
                "is partitioned" if description else "may be partitioned (reading its settings needs Manage)"
            )
            raise CollectError(
                f"{self._label}: what waits behind {ahead} messages cannot be known: it {why}, and partitions have no common order; "
                "without held, concurrency and instances_of, oldest_age includes messages that are being processed"
            )
        return [Search(now=now, partition=partition) for partition in range(PARTITIONS)]

    async def _ahead(self, now: float) -> int:
        """How many of the oldest messages are left out."""
        if not self._instances:
            return self._params.held or 0
        known = await self._instances.collect(now=now)
        if now - known.at > READY_KEPT:
            raise CollectError(
                f"{self._label}: {self.COUNT} cannot be known: how many instances of '{self._params.instances_of}' are ready was read "
                f"{duration_text(now - known.at)} ago; at most {duration_text(READY_KEPT)} are accepted"
            )
        ready = known.values["ready"]  # one that starts processes nothing
        return min(floor(ready * (self._params.concurrency or 0.0)), MOST_HELD)

    def describe(self, about: Description, now: float) -> None:
        self._description, self._asked_at = about, now

    async def _described(self, client: ServiceBusAdministrationClient, now: float) -> Description | None:
        """The settings of the entity; None where they cannot be read."""
        kept = NOT_AGAIN if self._description is None else SETTINGS_KEPT
        if 0.0 <= now - self._asked_at < kept:
            return self._description
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                self._description = await self._params.description(client)
        except (ResourceNotFoundError, CallRefusedError):  # the latter: the namespace asked everybody to wait
            raise
        except Exception as error:  # a missing right, or an SDK's odd answer: the peeks are made all the same
            if getattr(getattr(error, "response", None), "status_code", None) in {429, 503}:
                raise
            self._description = None
            logger.info(
                "%s: its settings cannot be read, so all partitions are peeked: %s",
                self._label,
                self._explain(error),
            )
        self._asked_at = now
        return self._description

    def _sessions_text(self) -> str:
        return (
            f"{self._label}: {self.COUNT} cannot be known: it requires sessions, and a session can only be peeked by who locks it; "
            "use count = 'sessions', or the counts"
        )

    def _explain(self, error: Exception, label: str = "", role: str = "") -> str:
        """A refused receiver names sessions in Azure's words ("an entity that requires sessions") and in those of the local server."""
        if "requires sessions" in error_text(error):
            return self._sessions_text()
        return super()._explain(error, label, role)


class SessionsCollector(_DataPlaneCollector):
    """Sessions with messages or a stored state. A state without messages counts, which the listing does not tell apart."""

    COUNT = "sessions"
    COUNTS = (COUNT,)

    async def _read(self, client: DataPlane, _now: float, /) -> dict[str, float]:
        from azure.servicebus import __version__

        if not hasattr(client.messages, "list_queue_sessions"):
            raise CollectError(
                f"{self._label}: sessions are listed by azure-servicebus 7.15 and later, and {__version__} is installed; raise it "
                "where the app's requirements are"
            )
        sessions: set[str] = set()  # a list over pages is not one moment: a name may come twice
        async for page in self._params.sessions(client.messages, REQUEST_TIMEOUT).by_page():
            sessions.update([session async for session in page])
            if len(sessions) >= MOST_SESSIONS:
                break
        return {self.COUNT: float(len(sessions))}

    def _explain(self, error: Exception, label: str = "", role: str = "") -> str:
        if "sessionful" in error_text(error):
            return f"{self._label}: has no sessions, as its requiresSession is false; use another count"
        return super()._explain(error, label, role)


async def _peek(receiver: ServiceBusReceiver, first: int, most: int) -> list[Peeked]:
    """One message alone where the SDK refuses to decode one of several. Raises UnclearError where it is that one: its number,
    from which the search could go on, is not known.
    """
    from azure.servicebus import ServiceBusMessageState
    from azure.servicebus.exceptions import ServiceBusError

    names = {
        ServiceBusMessageState.ACTIVE: ACTIVE,
        ServiceBusMessageState.DEFERRED: DEFERRED,
        ServiceBusMessageState.SCHEDULED: SCHEDULED,
    }
    try:
        messages = await receiver.peek_messages(most, sequence_number=first, timeout=REQUEST_TIMEOUT)
    except ServiceBusError as error:
        if not isinstance(error.inner_exception, ValueError):  # as of a payload nested too deeply (7.15)
            raise
        if most > 1:
            return await _peek(receiver, first, 1)
        raise UnclearError(f"a message cannot be decoded: {shorten(str(error), 100)}") from error
    return [
        Peeked(
            number=int(message.sequence_number or 0),
            state=names.get(message.state, str(message.state)),
            enqueued_at=None if message.enqueued_time_utc is None else message.enqueued_time_utc.timestamp(),
            expires_at=_expires_at(message),
        )
        for message in messages
    ]


def _expires_at(message: Any) -> float | None:
    """None for what never expires: the longest time to live is beyond what a date can be."""
    with suppress(OverflowError):
        return None if message.expires_at_utc is None else float(message.expires_at_utc.timestamp())
    return None
