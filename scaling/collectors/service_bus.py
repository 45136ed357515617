"""Backlogs of Service Bus queues and subscriptions, from the administration API.

Counts are kept apart, because they mean different work: `active` waits for a receiver now (deferred
messages are counted in it by the service), `scheduled` becomes active later, `dead_letter` waits for
people. Messages scheduled for a topic are counted by the topic, not by its subscriptions, until due.

One read takes two requests for a queue and three for a subscription, with no repetition of refused
ones: reading the counters more often than about once a minute can throttle a whole namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from foundation.azure.connections import retry_after
from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, Name
from scaling.model import Reason
from scaling.ports import CollectError

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient


# An entity that does not hand out messages cannot be drained by more instances. SendDisabled can.
_STOPS_RECEIVING = frozenset({"disabled", "receivedisabled"})

# A refusal is an answer: the next tick is the retry, and it keeps to Retry-After better than a read with
# a deadline could. Broken connections are worth two more tries.
_RETRIES: dict[str, Any] = {"retry_total": 2, "retry_status": 0, "retry_backoff_factor": 0.5}


def _asked(response: Any) -> float | None:
    return retry_after(response.headers)


class _ServiceBusCollector(AzureEntityCollector["ServiceBusAdministrationClient"]):
    COUNTS: ClassVar[tuple[str, ...]]
    ROLE = "the 'Azure Service Bus Data Owner' role, or a connection string with the Manage right"

    def __init__(self, connection: str, label: str, settings: Mapping[str, str], deadline: float) -> None:
        super().__init__(
            f"{label} (connection {connection})",
            settings,
            endpoint=f"Service Bus {connection}",
            deadline=deadline,
        )
        self._connection = connection

    def _open(self) -> ServiceBusAdministrationClient:
        from azure.servicebus.aio.management import (  # noqa: PLC0415 - half a second, only when needed
            ServiceBusAdministrationClient,
        )

        from foundation.azure.connections import service_bus_endpoint  # noqa: PLC0415 - as above
        from scaling.calls.transport import GatedTransport  # noqa: PLC0415 - as above

        endpoint = service_bus_endpoint(self._settings, self._connection)
        transport = GatedTransport(self._settings, retry_after=_asked, api="service_bus")
        return endpoint.client(ServiceBusAdministrationClient, transport=transport, **_RETRIES)

    def _require_receiving(self, status: Any, entity: str) -> None:
        """Raises CollectError when `entity` hands out no messages, so that its backlog moves nothing."""
        name = str(getattr(status, "value", status))
        if name.casefold() in _STOPS_RECEIVING:
            raise CollectError(
                f"{self._label}: {entity} has the status {name}, so nothing can be received from it",
                reason=Reason.ENTITY_DISABLED,
            )

    def _counted(self, properties: Any) -> dict[str, float]:
        """The class's counts. Raises ValueError for one that is not told."""
        counts = {name: getattr(properties, f"{name}_message_count") for name in self.COUNTS}
        for name, value in counts.items():
            if value is None:
                told = name.replace("dead_letter", "dead-letter").replace("_", " ")
                raise ValueError(f"the answer holds no {told} count")
        return {name: float(value) for name, value in counts.items()}


class ServiceBusQueueCollector(_ServiceBusCollector):
    """The counts of one queue. Any reading raises CollectError while the queue's receiving is disabled."""

    COUNTS: ClassVar[tuple[str, ...]] = (
        "active",
        "scheduled",
        "dead_letter",
        "transfer",
        "transfer_dead_letter",
        "total",
    )
    DEFAULT_COUNT: ClassVar[str] = "active"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        connection: Name
        queue: Name

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        super().__init__(params.connection, f"queue '{params.queue}'", settings, deadline)
        self._params = params

    @staticmethod
    def entity(params: Params) -> str:
        return f"service_bus_queue:{params.connection}/{params.queue}"

    async def _read(self, client: ServiceBusAdministrationClient, _now: float, /) -> dict[str, float]:
        queue = self._params.queue
        self._require_receiving((await client.get_queue(queue)).status, "the queue")
        return self._counted(await client.get_queue_runtime_properties(queue))


class ServiceBusSubscriptionCollector(_ServiceBusCollector):
    """The counts of one subscription.

    Any reading raises CollectError while its receiving is disabled; a disabled topic disables it, too.
    """

    COUNTS: ClassVar[tuple[str, ...]] = ("active", "dead_letter", "transfer", "transfer_dead_letter", "total")
    DEFAULT_COUNT: ClassVar[str] = "active"

    class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        connection: Name
        topic: Name
        subscription: Name

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        label = f"subscription '{params.subscription}' of topic '{params.topic}'"
        super().__init__(params.connection, label, settings, deadline)
        self._params = params

    @staticmethod
    def entity(params: Params) -> str:
        return f"service_bus_subscription:{params.connection}/{params.topic}/{params.subscription}"

    async def _read(self, client: ServiceBusAdministrationClient, _now: float, /) -> dict[str, float]:
        topic, subscription = self._params.topic, self._params.subscription
        self._require_receiving(
            (await client.get_subscription(topic, subscription)).status, "the subscription"
        )
        self._require_receiving((await client.get_topic(topic)).status, "its topic")
        return self._counted(await client.get_subscription_runtime_properties(topic, subscription))
