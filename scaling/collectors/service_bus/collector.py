"""Backlogs of Service Bus queues and subscriptions, from the administration API.

Counts are kept apart, because they mean different work: `active` waits for a receiver now (deferred
messages are counted in it by the service), `scheduled` becomes active later, `dead_letter` waits for
people. A topic counts messages that are scheduled for it; its subscriptions do so when they are due.

One read takes two requests for a queue and three for a subscription, and refused ones are not repeated, because
reading the counters more often than about once a minute can throttle a whole namespace. Where many queues of a
namespace, or subscriptions of a topic, are read, a list takes as many requests for a hundred of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from scaling.calls.lists import Lists
from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector
from scaling.collectors.service_bus.entities import QueueParams, SubscriptionParams, administration
from scaling.model import Reason
from scaling.ports import CollectError
from tidemark.foundation.azure.addresses import address_of

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient


# More instances cannot drain an entity that hands out no messages. SendDisabled hands them out. Whether any other status
# does (Creating, Restoring, Unknown, one of a later release) is not known: then the counts are not known either.
_STOPS_RECEIVING = frozenset({"disabled", "receivedisabled"})
_HANDS_OUT = frozenset({"active", "senddisabled"})


class _TooManyError(Exception):
    """A list would take more requests than reading the entities one by one."""


PAGE = 100
"""Entities on a page of the administration API."""

Listed = Mapping[str, tuple[tuple[tuple[Any, str], ...], Any]]
"""By name in lower case: what must be receiving, with the words for it, and the runtime properties."""


class _ServiceBusCollector(AzureEntityCollector["ServiceBusAdministrationClient"]):
    COUNTED: ClassVar[tuple[str, ...]]
    """The counts that the administration API has."""
    READERS: ClassVar[Mapping[str, str]] = {
        "oldest_age": "scaling.collectors.service_bus.peeks:OldestAgeCollector",
        "sessions": "scaling.collectors.service_bus.peeks:SessionsCollector",
    }
    HOW: ClassVar[tuple[str, ...]] = (
        "every",
        "held",
        "concurrency",
        "instances_of",
        "empty",
    )
    _name: str  # what the entity is called in its list
    ROLE = "the 'Azure Service Bus Data Owner' role, or a connection string with the Manage right"

    def __init__(
        self, params: QueueParams | SubscriptionParams, settings: Mapping[str, str], deadline: float
    ) -> None:
        label = f"{params.label} (connection {params.connection})"
        super().__init__(label, settings, endpoint=f"Service Bus {params.connection}", deadline=deadline)
        self._connection = params.connection
        self._every = params.seconds
        self._lists: Lists[Listed] = Lists(throttled=(429, 503))
        self._place: tuple[str, ...] = ()

    @staticmethod
    def measured(params: QueueParams | SubscriptionParams, settings: Mapping[str, str]) -> dict[str, object]:
        return {"connection": address_of(settings, params.connection)}

    @staticmethod
    def timing(params: QueueParams | SubscriptionParams) -> tuple[float, float]:
        """Seconds that a sample counts, and how old it is at least."""
        return params.seconds, 0.0

    @classmethod
    def together(cls, collectors: Sequence[_ServiceBusCollector]) -> None:
        """Lets the collectors of a connection share a client and its lists."""
        connections: dict[str, list[_ServiceBusCollector]] = {}
        for collector in collectors:
            connections.setdefault(collector._connection, []).append(collector)
        for same_connection in connections.values():
            cls._share(same_connection)
            for collector in same_connection:
                collector._lists = same_connection[0]._lists
                collector._lists.join(collector, collector._place)

    async def aclose(self) -> None:
        if self._lists.leave(self):
            await self._lists.once.aclose()
        await super().aclose()

    @abstractmethod
    async def _list(self, client: ServiceBusAdministrationClient, /) -> Listed: ...

    @abstractmethod
    async def _read_alone(self, client: ServiceBusAdministrationClient, /) -> Any:
        """The runtime properties. Raises CollectError where nothing can be received."""

    async def _read(self, client: ServiceBusAdministrationClient, now: float, /) -> dict[str, float]:
        what = f"Service Bus {self._connection}: {' of '.join(self._place)}"
        listed = await self._lists.of(self._place, partial(self._list, client), now=now, what=what)
        listed_entity = (listed or {}).get(self._name.casefold())
        if listed_entity is None:
            return self._counted(await self._read_alone(client))
        stops, properties = listed_entity
        for status, entity in stops:
            self._require_receiving(status, entity)
        return self._counted(properties)

    async def _all(self, entities: AsyncIterable[Any]) -> dict[str, Any]:
        """The entities of a list by name. Raises _TooManyError."""
        by_name: dict[str, Any] = {}
        async for entity in entities:
            by_name[entity.name.casefold()] = entity
            if len(by_name) > PAGE * self._lists.readers(self._place):
                raise _TooManyError(f"there are more than {len(by_name) - 1} of them")
        return by_name

    def _open(self) -> ServiceBusAdministrationClient:
        return administration(self._settings, self._connection)

    def _require_receiving(self, status: Any, entity: str) -> None:
        """Raises CollectError when `entity` hands out no messages, or may hand out none: then its backlog must change nothing."""
        name = str(getattr(status, "value", status))
        if name.casefold() in _STOPS_RECEIVING:
            raise CollectError(
                f"{self._label}: {entity} has the status {name}, so nothing can be received from it",
                reason=Reason.ENTITY_DISABLED,
            )
        if name.casefold() not in _HANDS_OUT:
            raise CollectError(
                f"{self._label}: {entity} has the status '{name[:60]}', of which it is not known whether messages can be received; "
                "accepted are Active and SendDisabled"
            )

    def _counted(self, properties: Any) -> dict[str, float]:
        """The class's counts. Raises ValueError for one that the answer lacks."""
        counts = {name: getattr(properties, f"{name}_message_count") for name in self.COUNTED}
        for name, value in counts.items():
            if value is None:
                words = name.replace("dead_letter", "dead-letter").replace("_", " ")
                raise ValueError(f"the answer holds no {words} count")
        return {name: float(value) for name, value in counts.items()}


class ServiceBusQueueCollector(_ServiceBusCollector):
    """The counts of one queue. Any reading raises CollectError while the queue's receiving is disabled."""

    COUNTED = ("active", "scheduled", "dead_letter", "transfer", "transfer_dead_letter", "total")
    COUNTS: ClassVar[tuple[str, ...]] = (*COUNTED, *_ServiceBusCollector.READERS)
    DEFAULT_COUNT: ClassVar[str] = "active"

    Params = QueueParams

    def __init__(
        self, params: QueueParams, settings: Mapping[str, str], *, deadline: float = DEADLINE
    ) -> None:
        super().__init__(params, settings, deadline)
        self._name = params.queue
        self._place = ("queues",)

    @staticmethod
    def entity(params: QueueParams) -> str:
        return f"service_bus_queue:{params.key}"

    async def _read_alone(self, client: ServiceBusAdministrationClient, /) -> Any:
        self._require_receiving((await client.get_queue(self._name)).status, "the queue")
        return await client.get_queue_runtime_properties(self._name)

    async def _list(self, client: ServiceBusAdministrationClient, /) -> Listed:
        known = await self._all(client.list_queues())
        counts = await self._all(client.list_queues_runtime_properties())
        return {
            name: (((known[name].status, "the queue"),), counts[name])
            for name in known.keys() & counts.keys()
        }


class ServiceBusSubscriptionCollector(_ServiceBusCollector):
    """The counts of one subscription.

    Any reading raises CollectError while its receiving is disabled; a disabled topic disables it, too.
    """

    COUNTED = ("active", "dead_letter", "transfer", "transfer_dead_letter", "total")
    COUNTS: ClassVar[tuple[str, ...]] = (*COUNTED, *_ServiceBusCollector.READERS)
    DEFAULT_COUNT: ClassVar[str] = "active"

    Params = SubscriptionParams

    def __init__(
        self, params: SubscriptionParams, settings: Mapping[str, str], *, deadline: float = DEADLINE
    ) -> None:
        super().__init__(params, settings, deadline)
        self._topic, self._name = params.topic, params.subscription
        self._place = "subscriptions", f"topic '{params.topic.casefold()}'"

    @staticmethod
    def entity(params: SubscriptionParams) -> str:
        return f"service_bus_subscription:{params.key}"

    async def _read_alone(self, client: ServiceBusAdministrationClient, /) -> Any:
        topic = self._topic
        self._require_receiving((await client.get_subscription(topic, self._name)).status, "the subscription")
        self._require_receiving((await client.get_topic(topic)).status, "its topic")
        return await client.get_subscription_runtime_properties(topic, self._name)

    async def _list(self, client: ServiceBusAdministrationClient, /) -> Listed:
        topic = self._topic
        known = await self._all(client.list_subscriptions(topic))
        whole = ((await client.get_topic(topic)).status, "its topic")
        counts = await self._all(client.list_subscriptions_runtime_properties(topic))
        return {
            name: (((known[name].status, "the subscription"), whole), counts[name])
            for name in known.keys() & counts.keys()
        }
