"""What the local servers hold, as Resource Manager lists it: so that `tidemark discover` reads a stack as a subscription."""

from copy import deepcopy
from typing import Any

from devstack.cosmos import CosmosServer
from devstack.event_hubs import EventHubsServer
from devstack.resource_manager import ResourceManagerServer
from devstack.resource_manager.resources.changes import Changing
from devstack.service_bus import ServiceBusServer

_NAMESPACE = {"location": "local", "sku": {"name": "Standard", "capacity": 1}, "properties": {}}
"""Its units are a number here, and make nothing faster."""


def publish(
    arm: ResourceManagerServer,
    group: str,
    *,
    service_bus: ServiceBusServer,
    event_hubs: EventHubsServer,
    cosmos: CosmosServer,
) -> None:
    """Lists of namespaces, queues, hubs and containers in a resource group, by its id, and the throughput of containers; what
    comes later is seen, too.
    """
    bus = f"{group}/providers/Microsoft.ServiceBus/namespaces/local"
    hubs = f"{group}/providers/Microsoft.EventHub/namespaces/local"
    account = f"{group}/providers/Microsoft.DocumentDB/databaseAccounts/local"
    _, _, subscription, _, resource_group = group.split("/")
    arm.add_cosmos_account(subscription, resource_group, "local", cosmos.account)
    of_bus, of_hubs = (arm.resources.add(resource_id, deepcopy(_NAMESPACE)) for resource_id in (bus, hubs))
    topics, databases = service_bus.broker.topics, cosmos.account.databases
    arm.resources.listers |= {
        "microsoft.servicebus/namespaces": lambda: [_namespace(bus, of_bus, service_bus.endpoint)],
        "microsoft.servicebus/namespaces/queues": lambda: [
            _named(f"{bus}/queues", queue.name) for queue in service_bus.broker.queues.values()
        ],
        "microsoft.servicebus/namespaces/topics": lambda: [
            _named(f"{bus}/topics", topic.name) for topic in topics.values()
        ],
        "microsoft.servicebus/namespaces/topics/subscriptions": lambda: [
            _named(f"{bus}/topics/{topic.name}/subscriptions", queue.name.rpartition("/")[2])
            for topic in topics.values()
            for queue in topic.subscriptions.values()
        ],
        "microsoft.eventhub/namespaces": lambda: [_namespace(hubs, of_hubs, event_hubs.endpoint)],
        "microsoft.eventhub/namespaces/eventhubs": lambda: [
            _named(f"{hubs}/eventhubs", hub.name) for hub in event_hubs.hubs
        ],
        "microsoft.eventhub/namespaces/eventhubs/consumergroups": lambda: [
            _named(f"{hubs}/eventhubs/{hub.name}/consumergroups", name)
            for hub in event_hubs.hubs
            for name in hub.consumer_groups.values()
        ],
        "microsoft.documentdb/databaseaccounts": lambda: [_named(account.rpartition("/")[0], "local")],
        "microsoft.documentdb/databaseaccounts/sqldatabases": lambda: [
            _named(f"{account}/sqlDatabases", name) for name in databases
        ],
        "microsoft.documentdb/databaseaccounts/sqldatabases/containers": lambda: [
            _named(f"{account}/sqlDatabases/{database.name}/containers", name)
            for database in databases.values()
            for name in database.containers
        ],
    }


def _namespace(resource_id: str, kept: Changing, endpoint: str) -> dict[str, Any]:
    """As it was changed last, with where it is reached, which is known once its server runs."""
    named = _named(*resource_id.rpartition("/")[::2])
    return {**kept.current(), **named, "properties": {"serviceBusEndpoint": f"https://{endpoint}/"}}


def _named(scope: str, name: str) -> dict[str, Any]:
    return {"id": f"{scope}/{name}", "name": name}
