"""How far a consumer group is behind an event hub: its partitions against the checkpoints in blob storage.

One read asks for the hub, lists the checkpoints, then asks for every partition. In this order a checkpoint that moves
meanwhile cannot overtake the partition it is compared with. `scaling.collectors.event_hub.lag` defines the numbers,
`checkpoint_layouts` beside it where checkpoints are. The collector logs which blobs it read, and the state of each
partition, when they change.

The SDK opens a connection for each request to a hub: a read of 32 partitions opens 33, sixteen at a time, and
takes one to two seconds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from azure.core.exceptions import AzureError
from msgspec import Struct, structs

from scaling.collectors.azure_entity import DEADLINE, AzureEntityCollector, Name
from scaling.collectors.event_hub import checkpoint_layouts as layouts
from scaling.collectors.event_hub import lag
from scaling.collectors.matching import Combine, Empty, Matching
from scaling.collectors.names import CONSUMER_GROUP, CONTAINER, EVENT_HUB, problems_of_names
from scaling.ports import CollectError, Reading
from scaling.resource_id import ResourceId
from scaling.scalers.arm.clients import open_resources
from scaling.scalers.arm.resources import ArmResources
from tidemark.foundation.azure.addresses import address_of
from tidemark.foundation.azure.connections import blob_container, event_hub_client, event_hubs_endpoint
from tidemark.foundation.errors import problems_of
from tidemark.foundation.gathering import gather
from tidemark.foundation.sanitize import shorten

if TYPE_CHECKING:
    from azure.eventhub.aio import EventHubConsumerClient
    from azure.storage.blob.aio import ContainerClient

logger = logging.getLogger(__name__)

DEFAULT_CONTAINER = "eventhub-checkpoints"

PARALLEL = 16
"""Requests of one read at a time; a namespace answers some 50 management requests a second."""

_TYPE, _VERSION = "Microsoft.EventHub/namespaces", "2024-01-01"
_NAMESPACE = f"/subscriptions/<guid>/resourceGroups/<group>/providers/{_TYPE}/<name>"

_BLOB_ROLE = "the 'Storage Blob Data Reader' role, or a connection string"

Whole = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Checkpoint(Struct, frozen=True):
    """A checkpoint blob as listed, and its position once that was read."""

    place: layouts.Place
    partition: str
    blob: str
    written_at: float
    metadata: Mapping[str, str]
    sequence_number: int | None = None

    def is_of_other_hub(self, created_at: float) -> bool:
        """Whether the position is of another hub than the one created then. If the writer stored its hub, by comparison; else by
        the times of both, which only recognise an earlier hub.
        """
        theirs = layouts.hub_created_at(self.metadata)
        if theirs is not None:
            return theirs != round(created_at * 1000)
        # In the blobs of our own consumer the position may be older than the blob.
        return lag.is_of_earlier_hub(layouts.saved_at(self.metadata) or self.written_at, created_at)


class Clients(Struct, frozen=True):
    """The hub and the container of one consumer group's checkpoints."""

    hub: EventHubConsumerClient
    container: ContainerClient
    consumer: layouts.Consumer

    async def close(self) -> None:
        try:
            await self.hub.close()
        finally:
            await self.container.close()


class EventHubLagCollector(AzureEntityCollector[Clients]):
    """The lag of one consumer group of one event hub, in events, and how it is spread over the partitions.

    `lag` is the raw one. `capped_lag`, reported when a `target` is given, is at most what one instance for
    each partition is meant to have. `no_checkpoint`, `hub_recreated`, `expired` and `stale` count partitions
    in that state; `lost` are events that retention removed unread. `incoming` and `outgoing` count all events
    that were enqueued and settled.
    """

    COUNTS: ClassVar[tuple[str, ...]] = (
        "lag",
        "capped_lag",
        "max_partition_lag",
        "partitions",
        "partitions_with_lag",
        "no_checkpoint",
        "hub_recreated",
        "expired",
        "stale",
        "lost",
        "incoming",
        "outgoing",
        "oldest_age",
    )
    READERS: ClassVar[Mapping[str, str]] = {
        "oldest_age": "scaling.collectors.event_hub.age:EventHubAgeCollector"
    }
    GROWING: ClassVar[tuple[str, ...]] = ("incoming", "outgoing")
    DEFAULT_COUNT: ClassVar[str] = "lag"
    HOW: ClassVar[tuple[str, ...]] = (
        *("jitter", "age_group", "namespace_id", "empty"),
        *("no_checkpoint", "hub_recreated", "expired", "stale"),
    )
    ROLE = "the 'Azure Event Hubs Data Receiver' role, or a connection string with the Listen right"

    class Params(lag.Meanings, Matching, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """`storage` is the connection of the account with the checkpoints; `target` events for an instance. `age_group` is a
        consumer group that nobody else reads, for `oldest_age`. `namespace_id` is where hubs are listed for a pattern.
        """

        NAMED = "event_hub"
        NAMES = EVENT_HUB
        LISTING_ROLE = "the 'Reader' role on the namespace"

        connection: Name
        event_hub: Name
        consumer_group: Name = "$Default"
        storage: Name = "AzureWebJobsStorage"
        container: Name = DEFAULT_CONTAINER
        layout: Literal["auto", "blob_metadata", "functions", "legacy", "go", "dapr"] = "auto"
        target: Positive | None = None
        jitter: Whole = lag.DEFAULT_JITTER
        age_group: str = ""
        namespace_id: str = ""
        combine: Combine = "sum"
        empty: Empty = None

        def problems(self) -> dict[str, str]:
            wrong = problems_of(namespace_id=self._check_namespace)
            names = problems_of_names(
                consumer_group=CONSUMER_GROUP.problem(self.consumer_group),
                age_group=CONSUMER_GROUP.problem(self.age_group) if self.age_group else None,
                container=CONTAINER.problem(self.container),
            )
            return self.name_problems() | names | (wrong if self.pattern or self.namespace_id else {})

        def _check_namespace(self) -> None:
            """Raises ValueError."""
            if not self.pattern:
                raise ValueError(f"is for a pattern, and {self.NAMED} has no * and no ?")
            ResourceId.parse(self.namespace_id, example=_NAMESPACE).require(_TYPE, example=_NAMESPACE)

        def lister(self, settings: Mapping[str, str]) -> ArmResources:
            return open_resources(settings)

        async def listed(self, client: ArmResources) -> list[tuple[str, None]]:
            hubs = client.entries(f"{self.namespace_id.strip().rstrip('/')}/eventhubs", _VERSION)
            return [(str(hub["name"]), None) async for hub in hubs]

    def __init__(self, params: Params, settings: Mapping[str, str], *, deadline: float = DEADLINE) -> None:
        label = (
            f"event hub '{params.event_hub}', consumer group '{params.consumer_group}' "
            f"(connection {params.connection})"
        )
        super().__init__(label, settings, endpoint=f"Event Hubs {params.connection}", deadline=deadline)
        self._params = params
        self._group = params.consumer_group
        """In which the hub is asked."""
        self._logged: object = None
        self._ahead = lag.CheckpointsAhead()

    @staticmethod
    def measured(params: Params, settings: Mapping[str, str]) -> dict[str, object]:
        return {
            "connection": address_of(settings, params.connection),
            "storage": address_of(settings, params.storage, "blob"),
        }

    @staticmethod
    def entity(params: Params) -> str:
        """Every option that matters for the lag is part of it: another meaning of a state is another reading."""
        options = {
            field.name: getattr(params, field.name)
            for field in msgspec.structs.fields(params)
            if not field.required
            and getattr(params, field.name) != field.default
            and field.name != "age_group"
        }
        changed = "".join(f" {name}={value}" for name, value in options.items())
        return f"event_hub_lag:{params.connection}/{params.event_hub}{changed}"

    def _open(self) -> Clients:
        params = self._params
        namespace = event_hubs_endpoint(self._settings, params.connection).address
        container = blob_container(self._settings, params.storage, params.container, retry_total=1)
        hub = event_hub_client(
            self._settings, params.connection, params.event_hub, self._group, retry_total=1
        )
        return Clients(hub, container, layouts.Consumer(namespace, params.event_hub, params.consumer_group))

    async def _read(self, client: Clients, now: float, /) -> Reading:
        lags, created_at = await self._lags(client, now)
        flow = lag.flow_of(lags, created_at)
        counts = lag.counts_of(lags, self._params.target) | {"incoming": float(flow.incoming)}
        counters = {"incoming": flow.hub, "outgoing": flow.checkpoints}
        if flow.settled is not None:
            counts["outgoing"] = float(flow.settled)
        return Reading(now, counts, counters)

    async def _lags(self, client: Clients, now: float) -> tuple[list[lag.PartitionLag], float]:
        """The lags of all partitions, and when the hub was created. Raises CollectError for one that is to be held, and for a
        hub that was created anew meanwhile.
        """
        properties = await client.hub.get_eventhub_properties()
        ids = sorted((str(partition) for partition in properties["partition_ids"]), key=lag.by_number)
        created_at = properties["created_at"].timestamp()
        checkpoints = await self._checkpoints(client, ids)
        partitions = await gather(lambda partition: _partition(client.hub, partition), ids, at_once=PARALLEL)
        lags = [self._lag(partition, checkpoints, created_at, now) for partition in partitions]
        if any(one.state is lag.LagState.STALE for one in lags):
            properties = await client.hub.get_eventhub_properties()
            if properties["created_at"].timestamp() != created_at:
                raise CollectError(f"{self._label}: was created anew while it was read")
        self._log_changes(lags, checkpoints)
        if held := next((one for one in lags if one.held), None):
            raise CollectError(
                f'{self._label}: the lag is unknown, as {held.state} = "hold" asks for: {held}'
                f"{self._from_blob(checkpoints.get(held.partition.id))}"
            )
        return lags, created_at

    def _lag(
        self, partition: lag.Partition, checkpoints: Mapping[str, Checkpoint], created_at: float, now: float
    ) -> lag.PartitionLag:
        checkpoint = checkpoints.get(partition.id)
        number = checkpoint.sequence_number if checkpoint else None
        foreign = checkpoint is not None and checkpoint.is_of_other_hub(created_at)
        return lag.partition_lag(
            partition,
            number,
            self._params,
            jitter=self._params.jitter,
            foreign=self._ahead.is_foreign(partition, number, now) or foreign,
        )

    # The checkpoints.

    async def _checkpoints(self, client: Clients, partitions: Sequence[str]) -> dict[str, Checkpoint]:
        """The newest checkpoint of each partition that has one. Raises CollectError naming the container."""
        of_partitions: dict[str, Checkpoint] = {}
        layout = self._params.layout
        try:
            for listed in layouts.listings(client.consumer, None if layout == "auto" else layout):
                missing = [partition for partition in partitions if partition not in of_partitions]
                if not missing:
                    break
                listing = partial(_list, client.container, missing)
                blobs = await gather(listing, listed, at_once=PARALLEL)
                candidates = [blob for many in blobs for blob in many]
                newest = partial(self._newest, client.container, candidates)
                read = await gather(newest, missing, at_once=PARALLEL)
                of_partitions.update({one.partition: one for one in read if one is not None})
        except AzureError as error:
            params = self._params
            label = f"{self._label}: checkpoint container '{params.container}' (connection {params.storage})"
            raise CollectError(self._explain(error, label, _BLOB_ROLE)) from error
        return of_partitions

    async def _newest(
        self, container: ContainerClient, candidates: Iterable[Checkpoint], partition: str
    ) -> Checkpoint | None:
        """Of several blobs for a partition the one written last, for that is the one in use."""
        of_partition = [candidate for candidate in candidates if candidate.partition == partition]
        for checkpoint in sorted(of_partition, key=lambda one: one.written_at, reverse=True):
            position = await self._position(container, checkpoint)
            if position is not None:
                return structs.replace(checkpoint, sequence_number=position)
        return None

    async def _position(self, container: ContainerClient, checkpoint: Checkpoint) -> int | None:
        try:
            if checkpoint.place.layout == "blob_metadata":
                return layouts.position_in_metadata(checkpoint.metadata)
            download = await container.download_blob(checkpoint.blob)
            return layouts.position_in_body(checkpoint.place.layout, await download.readall())
        except layouts.CheckpointError as error:
            raise CollectError(
                f"{self._label}: blob '{self._params.container}/{checkpoint.blob}' is no checkpoint of the layout "
                f"{checkpoint.place.layout}: {error}"
            ) from error

    # Errors and log lines.

    def _explain(self, error: Exception, label: str = "", role: str = "") -> str:
        from azure.eventhub.exceptions import AuthenticationError, ConnectError

        if isinstance(error, ConnectError):
            details = shorten(" ".join(str(error.message).split()), 300)
            if error.error == "not-found" or "Status code: 404" in details:
                return f"{label or self._label}: does not exist"
            if isinstance(error, AuthenticationError):
                return (
                    f"{label or self._label}: access refused; reading needs {role or self.ROLE} ({details})"
                )
        return super()._explain(error, label, role)

    def _from_blob(self, checkpoint: Checkpoint | None) -> str:
        if checkpoint is None:
            return ""
        return f" (blob '{self._params.container}/{checkpoint.blob}')"

    def _log_changes(self, lags: Sequence[lag.PartitionLag], checkpoints: Mapping[str, Checkpoint]) -> None:
        """Logs where checkpoints were read and what is unusual about them, when that differs from before."""
        places = Counter(checkpoint.place for checkpoint in checkpoints.values())
        unusual = [one for one in lags if one.state not in lag.USUAL]
        shown = (places, {one.partition.id: one.state for one in unusual})
        if shown == self._logged:
            return
        self._logged = shown
        read = ", ".join(
            f"{count} of layout {place.layout} in '{self._params.container}/{place.prefix}'"
            for place, count in places.items()
        )
        logger.info("%s: %d partitions; checkpoints: %s", self._label, len(lags), read or "none found")
        for one in unusual:
            blob = self._from_blob(checkpoints.get(one.partition.id))
            logger.warning("%s: %s%s; counted as %d events", self._label, one, blob, one.lag)


async def _partition(hub: EventHubConsumerClient, partition: str) -> lag.Partition:
    properties = await hub.get_partition_properties(partition)
    if not properties:
        raise ValueError(f"the answer about partition {partition} is empty")
    return lag.Partition(
        partition,
        int(properties["beginning_sequence_number"]),
        int(properties["last_enqueued_sequence_number"]),
        bool(properties["is_empty"]),
    )


async def _list(
    container: ContainerClient, partitions: Sequence[str], listing: layouts.Listing
) -> list[Checkpoint]:
    blobs: AsyncIterable[Any] = (
        container.walk_blobs(include=["metadata"], delimiter="/")
        if listing.flat
        else container.list_blobs(name_starts_with=listing.prefix, include=["metadata"])
    )
    checkpoints = []
    async for blob in blobs:
        match = listing.find(blob.name, partitions)
        if match is not None:  # a folder, which a flat listing also shows, ends in a slash and is none
            place, partition = match
            written_at = blob.last_modified.timestamp()
            checkpoints.append(Checkpoint(place, partition, blob.name, written_at, blob.metadata or {}))
    return checkpoints
