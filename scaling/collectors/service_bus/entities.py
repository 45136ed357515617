"""Queues and subscriptions as collectors name them: their options, and how the SDK's clients reach them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Struct

from scaling.collectors.azure_entity import Name
from scaling.collectors.matching import Combine, Empty, Matching
from scaling.collectors.names import ENTITY, SUBSCRIPTION, WILD, problems_of_names
from tidemark.foundation.azure.connections import service_bus_endpoint
from tidemark.foundation.durations import duration_within, parse_duration
from tidemark.foundation.errors import problems_of

if TYPE_CHECKING:
    from azure.core.async_paging import AsyncItemPaged
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
    from azure.servicebus.aio.management import ServiceBusAdministrationClient
    from azure.servicebus.management import QueueProperties

# A refusal is an answer: the next tick is the retry, and it keeps to Retry-After better than a read with
# a deadline could. Broken connections are worth two more tries.
_RETRIES: dict[str, Any] = {"retry_total": 2, "retry_status": 0, "retry_backoff_factor": 0.5}

LONGEST = 3600.0
"""Seconds between two reads at most. Chosen: far above the minute that counts are good for."""

MOST_HELD = 255
"""Messages that `oldest_age` leaves out at most: with the one that it looks for, what eight peeks show."""


class Entity(Struct, Matching, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`every` is the time between two reads. `held` messages are being processed; or `concurrency` of them by each instance of the target `instances_of`. `oldest_age`
    leaves that many out.
    """

    LISTING_ROLE = "the 'Azure Service Bus Data Owner' role, or a connection string with the Manage right"

    connection: Name
    every: float | str = 0.0
    held: Annotated[int, msgspec.Meta(ge=0, le=MOST_HELD)] | None = None
    concurrency: Annotated[float, msgspec.Meta(gt=0)] | None = None
    instances_of: Name | None = None
    combine: Combine = "sum"
    empty: Empty = None

    def problems(self) -> dict[str, str]:
        accepted = "up to 1h"
        problems = self.name_problems() | problems_of(
            every=lambda: duration_within(self.every, 0.0, LONGEST, accepted)
        )
        if (self.concurrency is None) != (self.instances_of is None):
            absent = "concurrency" if self.concurrency is None else "instances_of"
            problems[absent] = "is missing: concurrency (messages) and instances_of (a target) go together"
        if self.held is not None and self.concurrency is not None:
            problems["held"] = "give either held, or concurrency and instances_of"
        given = [name for name in ("held", "concurrency", "instances_of") if getattr(self, name) is not None]
        if self.pattern and given:
            problems[given[0]] = (
                f"is for one {self.NAMED}, and {self.NAMED} = '{self.pattern}' is a pattern: how many messages of each are being processed "
                "cannot be known"
            )
        return problems

    @property
    def seconds(self) -> float:
        """Between two reads."""
        return parse_duration(self.every)

    @property
    def key(self) -> str:
        """What of these options makes another reading of the same entity."""
        return f"{self.path} every {self.seconds:g} s" if self.seconds else self.path

    @property
    def path(self) -> str:
        """The names, the connection first."""
        raise NotImplementedError

    def lister(self, settings: Mapping[str, str]) -> ServiceBusAdministrationClient:
        return administration(settings, self.connection)


class Description(Struct, frozen=True):
    """What cannot be changed of an entity."""

    requires_session: bool
    is_partitioned: bool


class QueueParams(Entity, frozen=True, forbid_unknown_fields=True, kw_only=True):
    NAMED = "queue"

    queue: Name

    @property
    def label(self) -> str:
        return f"queue '{self.queue}'"

    @property
    def path(self) -> str:
        return f"{self.connection}/{self.queue}"

    async def description(self, client: ServiceBusAdministrationClient) -> Description:
        return _of_queue(await client.get_queue(self.queue))

    async def listed(self, client: ServiceBusAdministrationClient) -> list[tuple[str, Description]]:
        return [(queue.name, _of_queue(queue)) async for queue in client.list_queues()]

    def receiver(self, client: ServiceBusClient) -> ServiceBusReceiver:
        return client.get_queue_receiver(self.queue)

    def sessions(self, client: ServiceBusClient, timeout: float) -> AsyncItemPaged[str]:
        return client.list_queue_sessions(self.queue, timeout=timeout)


class SubscriptionParams(Entity, frozen=True, forbid_unknown_fields=True, kw_only=True):
    NAMED = "subscription"
    NAMES = SUBSCRIPTION

    topic: Name
    subscription: Name

    def problems(self) -> dict[str, str]:
        topic = ENTITY.problem(self.topic)
        if set(WILD) & set(self.topic):
            topic = "is one topic: only subscription may be a pattern"
        return super().problems() | problems_of_names(topic=topic)

    @property
    def label(self) -> str:
        return f"subscription '{self.subscription}' of topic '{self.topic}'"

    @property
    def path(self) -> str:
        return f"{self.connection}/{self.topic}/{self.subscription}"

    async def description(self, client: ServiceBusAdministrationClient) -> Description:
        subscription, topic = (
            await client.get_subscription(self.topic, self.subscription),
            await client.get_topic(self.topic),
        )
        return Description(bool(subscription.requires_session), bool(topic.enable_partitioning))

    async def listed(self, client: ServiceBusAdministrationClient) -> list[tuple[str, Description]]:
        is_partitioned = bool((await client.get_topic(self.topic)).enable_partitioning)
        return [
            (subscription.name, Description(bool(subscription.requires_session), is_partitioned))
            async for subscription in client.list_subscriptions(self.topic)
        ]

    def receiver(self, client: ServiceBusClient) -> ServiceBusReceiver:
        return client.get_subscription_receiver(self.topic, self.subscription)

    def sessions(self, client: ServiceBusClient, timeout: float) -> AsyncItemPaged[str]:
        return client.list_subscription_sessions(self.topic, self.subscription, timeout=timeout)


def _of_queue(properties: QueueProperties) -> Description:
    return Description(bool(properties.requires_session), bool(properties.enable_partitioning))


Params = QueueParams | SubscriptionParams


def administration(settings: Mapping[str, str], connection: str) -> ServiceBusAdministrationClient:
    """Imports the SDK, which takes half a second. Raises ValueError naming a bad setting."""
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from scaling.calls.transport import GatedTransport

    endpoint = service_bus_endpoint(settings, connection)
    transport = GatedTransport(settings, api="service_bus")
    return endpoint.client(ServiceBusAdministrationClient, transport=transport, **_RETRIES)
