"""Reads a subscription through Resource Manager: lists of resources, and nothing of what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError

from scaling.scalers.app_service import plan
from scaling.scalers.arm.errors import Kind, classify
from scaling.scalers.arm.resources import ArmResources
from scaling.scalers.arm.states import may_be_on
from scaling.scalers.cosmos.throughput import ThroughputId
from scaling.scalers.resource.kinds import KINDS
from scaling.scalers.resource.resource import at, seen_of, why_refused
from tidemark.commands.discover.found import Discovery, FoundSource, FoundTarget
from tidemark.foundation.errors import UnavailableError

VERSIONS = {
    "Microsoft.Web/serverfarms": "2024-04-01",
    "Microsoft.DocumentDB/databaseAccounts": "2024-11-15",
    "Microsoft.Storage/storageAccounts": "2024-01-01",
    **{kind.type: kind.api_version for kind in KINDS.values()},
}
"""The version each type is asked by."""

Document = Mapping[str, Any]


class SubscriptionReader:
    """One look at a subscription. What may not be read is noted, and the rest is looked at."""

    def __init__(self, client: ArmResources, subscription: str) -> None:
        self._client = client
        self._subscription = subscription
        self._targets: list[FoundTarget] = []
        self._sources: list[FoundSource] = []
        self._left_out: list[str] = []
        self._unread: list[str] = []

    async def read(self) -> Discovery:
        readers: dict[str, Callable[[Document], Any]] = {
            "Microsoft.Web/serverfarms": self._plan,
            "Microsoft.App/containerApps": self._known("container_app_minimum"),
            "Microsoft.Compute/virtualMachineScaleSets": self._known("virtual_machine_scale_set"),
            "Microsoft.ServiceBus/namespaces": self._service_bus,
            "Microsoft.EventHub/namespaces": self._event_hubs,
            "Microsoft.DocumentDB/databaseAccounts": self._cosmos,
            "Microsoft.Storage/storageAccounts": self._storage,
        }
        await asyncio.gather(*(self._each(type_, reader) for type_, reader in readers.items()))
        return Discovery(
            self._subscription,
            tuple(sorted(self._targets, key=lambda target: target.resource_id.casefold())),
            tuple(sorted(self._sources, key=lambda source: (source.resource_id.casefold(), source.path))),
            tuple(sorted(self._left_out)),
            tuple(sorted(self._unread)),
        )

    async def _each(self, type_: str, reader: Callable[[Document], Any]) -> None:
        path = f"/subscriptions/{self._subscription}/providers/{type_}"
        async for document in self._listed(path, VERSIONS[type_]):
            try:
                await reader(document)
            except Exception as error:  # whatever one resource says, the others are looked at
                self._unread.append(f"{document['id']}: {classify(error).story}")

    async def _listed(self, path: str, version: str) -> AsyncIterator[Document]:
        """The entries of a list, as far as they can be read."""
        try:
            async for entry in self._client.entries(path, version):
                if isinstance(entry.get("id"), str) and isinstance(entry.get("name"), str):
                    yield entry
        except (
            AzureError,
            UnavailableError,
            ValueError,
        ) as error:  # the second: it asks to wait longer than we do
            self._unread.append(f"{path}: {classify(error).story}")

    # -- what can be scaled -----------------------------------------------------------------------

    async def _plan(self, document: Document) -> None:
        if (refusal := plan.refusal_of(document)) is not None:
            self._left_out.append(f"plan {document['name']}: {refusal}")
            return
        by_app = (
            ", scaled by app (perSiteScaling)" if may_be_on(at(document, "properties.perSiteScaling")) else ""
        )
        note = f"App Service plan, {at(document, 'sku.name')}, {document.get('location', '')}{by_app}"
        size = _whole(at(document, "sku.capacity"))
        most = plan.DOCUMENTED_MAXIMUM.get(plan.tier_of(document))
        self._add("app_service_plan", document, note, size, most)

    def _known(self, kind: Any) -> Callable[[Document], Any]:
        known = KINDS[kind]

        async def read(document: Document) -> None:
            refusal = why_refused(known, document)
            try:
                seen = seen_of(known, document)
            except ValueError as error:
                refusal = refusal or str(error)
            if refusal is not None:
                self._left_out.append(f"{known.type} {document['name']}: {refusal}")
                return
            note = f"{known.type.partition('/')[2]}, {known.facts.counted(seen.value)}, {document.get('location', '')}"
            self._add(kind, document, note, seen.value, seen.ceiling)

        return read

    def _add(self, kind: Any, document: Document, note: str, size: int | None, most: int | None) -> None:
        found_target = FoundTarget(kind, document["id"], document["name"], note.rstrip(", "), size, most)
        self._targets.append(found_target)

    # -- what backlogs are read of ----------------------------------------------------------------

    async def _service_bus(self, document: Document) -> None:
        await self._known("service_bus_messaging_units")(document)
        scope, host = document["id"], _host(at(document, "properties.serviceBusEndpoint"), document["name"])
        version = VERSIONS["Microsoft.ServiceBus/namespaces"]
        async for queue in self._listed(f"{scope}/queues", version):
            self._source("service_bus_queue", queue, host, queue["name"], partitioned=_is_partitioned(queue))
        async for topic in self._listed(f"{scope}/topics", version):
            async for subscription in self._listed(f"{topic['id']}/subscriptions", version):
                partitioned = _is_partitioned(topic)
                path = topic["name"], subscription["name"]
                self._source("service_bus_subscription", subscription, host, *path, partitioned=partitioned)

    async def _event_hubs(self, document: Document) -> None:
        await self._known("event_hubs_throughput_units")(document)
        scope, host = document["id"], _host(at(document, "properties.serviceBusEndpoint"), document["name"])
        version = VERSIONS["Microsoft.EventHub/namespaces"]
        async for hub in self._listed(f"{scope}/eventhubs", version):
            async for group in self._listed(f"{hub['id']}/consumergroups", version):
                self._source("event_hub_lag", group, host, hub["name"], group["name"])

    async def _storage(self, document: Document) -> None:
        version = VERSIONS["Microsoft.Storage/storageAccounts"]
        endpoint = at(document, "properties.primaryEndpoints.queue")
        if not endpoint:
            return
        async for queue in self._listed(f"{document['id']}/queueServices/default/queues", version):
            self._source("storage_queue", queue, urlsplit(str(endpoint)).netloc, queue["name"])

    async def _cosmos(self, document: Document) -> None:
        version = VERSIONS["Microsoft.DocumentDB/databaseAccounts"]
        async for database in self._listed(f"{document['id']}/sqlDatabases", version):
            whole = f"database of Cosmos DB account {document['name']}"
            await self._throughput(database, database["name"], whole, ("DatabaseName", database["name"]))
            async for container in self._listed(f"{database['id']}/containers", version):
                name, note = (
                    f"{database['name']}-{container['name']}",
                    whole.replace("database", "container", 1),
                )
                labels = ("DatabaseName", database["name"]), ("CollectionName", container["name"])
                await self._throughput(container, name, note, *labels)

    async def _throughput(self, document: Document, name: str, note: str, *labels: tuple[str, str]) -> None:
        """What has throughput of its own: a container may share its database's, a database mostly has none."""
        version = VERSIONS["Microsoft.DocumentDB/databaseAccounts"]
        try:
            path = f"{ThroughputId.parse(document['id']).quoted}/throughputSettings/default"
            throughput = at(await self._client.get(path, version), "properties.resource")
        except (AzureError, UnavailableError, ValueError) as error:
            failure = classify(error)
            if failure.kind is not Kind.NOT_FOUND:
                self._unread.append(f"{document['id']}: {failure.story}")
            return
        most = at(throughput, "autoscaleSettings.maxThroughput")
        size = _whole(most or at(throughput, "throughput"))
        if size is not None:
            note = f"{note}, {size} RU/s{', the maximum of autoscale' if most else ''}"
            least = at(throughput, "minimumThroughput")
            least = int(least) if str(least).isdecimal() else None
            self._targets.append(
                FoundTarget("cosmos_throughput", document["id"], name, note, size, None, least, labels)
            )

    def _source(
        self, kind: Any, document: Document, host: str, *path: str, partitioned: bool = False
    ) -> None:
        sessions = may_be_on(at(document, "properties.requiresSession"))
        self._sources.append(FoundSource(kind, document["id"], host, path, sessions, partitioned))


def _is_partitioned(document: Document) -> bool:
    return may_be_on(at(document, "properties.enablePartitioning"))


def _host(endpoint: Any, name: str) -> str:
    """Where a namespace is reached, without the scheme, and without the port that all of Azure's have."""
    return urlsplit(str(endpoint or "")).netloc.removesuffix(":443") or f"{name}.servicebus.windows.net"


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
