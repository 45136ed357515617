"""The lag collector over real sockets: hubs of the local server, checkpoints in Azurite, the SDK's own store."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from azure.core.credentials import AccessToken
from azure.eventhub import EventData, TransportType
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob.aio import ContainerClient

from devstack.event_hubs.server import EventHubsServer
from scaling.collectors.event_hub.age import EventHubAgeCollector
from scaling.collectors.event_hub.collector import EventHubLagCollector
from scaling.collectors.matching import MatchingCollector
from scaling.model import MetricSample
from scaling.ports import CollectError, Reading
from scaling.window import EMPTY, WindowSpec, insert
from tests.conformance.test_collectors import NOW, CollectorConformance
from tests.support.servers.resource_manager import SUBSCRIPTION, arm_settings, resource_manager
from tidemark.foundation.azure import connections
from tidemark.foundation.azure.connections import event_hub_client
from tidemark.foundation.settings_reader import parse_params

pytestmark = pytest.mark.wire

HUB = "Orders"  # a capital, as in the reports of consumers whose lag was never found


class HubWorld:
    """The hub `Orders` with two partitions, and a container for the checkpoints of its consumers."""

    name = HUB

    def __init__(self, server: EventHubsServer, storage: str, container: str) -> None:
        self.server = server
        self.storage = storage
        self.container = container
        server.create_hub(HUB, 2)
        self.settings = {"Hubs": server.connection_string(), "AzureWebJobsStorage": storage}
        self._collectors: list[EventHubLagCollector] = []
        self.collector = self.new_collector()

    def new_collector(self, settings: dict[str, str] | None = None, *, deadline: float = 20.0, **options):
        given = {"connection": "Hubs", "event_hub": HUB, "container": self.container, **options}
        params, problems = parse_params(EventHubLagCollector.Params, given)
        assert not problems
        made = EventHubLagCollector(params, settings or self.settings, deadline=deadline)
        self._collectors.append(made)
        return made

    def new_age_collector(self, **options) -> EventHubAgeCollector:
        given = {"connection": "Hubs", "event_hub": HUB, "container": self.container, **options}
        params, problems = parse_params(EventHubLagCollector.Params, given)
        assert not problems
        made = EventHubAgeCollector(params, self.settings)
        self._collectors.append(made)
        return made

    async def values(self, collector: EventHubLagCollector | None = None) -> dict[str, float]:
        return dict((await (collector or self.collector).collect(now=NOW)).values)

    async def put(self, count: int, partition: str = "0") -> None:
        client = EventHubProducerClient.from_connection_string(
            self.server.connection_string(), eventhub_name=HUB
        )
        async with client:
            batch = await client.create_batch(partition_id=partition)
            for number in range(count):
                batch.add(EventData(f"order {number}"))
            await client.send_batch(batch)

    async def settle(self, partition: str, number: int) -> None:
        """Reads a partition up to an event and checkpoints there, with the SDK's own consumer and store."""
        store = BlobCheckpointStore.from_connection_string(self.storage, self.container)
        client = EventHubConsumerClient.from_connection_string(
            self.server.connection_string(), "$Default", eventhub_name=HUB, checkpoint_store=store
        )
        done = asyncio.Event()

        async def on_event(context, event) -> None:
            if event is not None and event.sequence_number == number:
                await context.update_checkpoint(event)
                done.set()

        async with store, client:
            receiving = asyncio.create_task(
                client.receive(on_event, partition_id=partition, starting_position="-1")
            )
            try:
                await asyncio.wait_for(done.wait(), 30)
            finally:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)

    async def checkpoint(self, partition: str, number: int) -> None:
        """The same as `settle`, without reading."""
        name = f"{self.server.endpoint}/{HUB.lower()}/$default/checkpoint/{partition}"
        metadata = {"sequencenumber": str(number), "offset": "1"}
        async with ContainerClient.from_connection_string(self.storage, self.container) as container:
            await container.upload_blob(name, b"", metadata=metadata, overwrite=True)

    async def remove(self) -> None:
        self.server.delete_hub(HUB)

    async def aclose(self) -> None:
        for collector in self._collectors:
            await collector.aclose()


@pytest.fixture
async def world(azurite, tmp_path_factory) -> AsyncIterator[HubWorld]:
    name = f"checkpoints-{uuid4().hex[:12]}"
    async with (
        EventHubsServer(ca_dir=tmp_path_factory.getbasetemp() / "certificate") as server,
        ContainerClient.from_connection_string(azurite, name) as container,
    ):
        await container.create_container()
        made = HubWorld(server, azurite, name)
        yield made
        await made.aclose()


class TestEventHubLagOnTheWire(CollectorConformance):
    TOTAL = "lag"
    SIZES = frozenset({"partitions"})

    @pytest.fixture
    def world(self, world) -> HubWorld:
        return world

    async def test_the_checkpoints_of_the_sdks_own_consumer_are_found_and_subtracted(self, world):
        await world.put(10, "0")
        await world.put(5, "1")
        await world.settle("0", 6)

        values = await world.values()

        assert (values["lag"], values["max_partition_lag"], values["partitions_with_lag"]) == (8, 5, 2)
        assert (values["no_checkpoint"], values["partitions"]) == (1, 2)

    async def test_hubs_that_match_are_listed_in_their_namespace_and_one_of_another_is_no_gone_one(
        self, world, tmp_path_factory, monkeypatch
    ):
        await world.put(3)
        namespace = (
            f"/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.EventHub/namespaces/n"
        )
        listed = [
            {"id": f"{namespace}/eventhubs/{name}", "name": name} for name in (HUB, "elsewhere", "other")
        ]
        async with resource_manager(tmp_path_factory, monkeypatch) as arm:
            arm.resources.listers["microsoft.eventhub/namespaces/eventhubs"] = lambda: listed
            arm.resources.add(namespace, {"location": "westeurope", "properties": {}})
            options = {"connection": "Hubs", "container": world.container, "namespace_id": namespace}
            found = []
            for pattern in ("orders*", "else*"):
                params = EventHubLagCollector.Params(event_hub=pattern, **options)
                assert params.problems() == {}
                collector = MatchingCollector(
                    EventHubLagCollector, params, {**arm_settings(arm), **world.settings}
                )
                try:
                    found.append(await collector.collect(now=NOW))
                except CollectError as error:
                    found.append(str(error))
                await collector.aclose()

        assert isinstance(found[0], Reading), found[0]
        assert found[0].values["lag"] == 3.0
        assert found[0].counters.keys() == {"incoming", "outgoing"}
        assert "1 of 1 cannot be read" in found[1]
        assert "'elsewhere'" in found[1]

    async def test_what_came_and_was_settled_counts_through_new_partitions_and_not_through_a_new_hub(
        self, world
    ):
        windows = dict.fromkeys(world.collector.GROWING, EMPTY)

        async def look(minute: int) -> None:
            reading = await world.collector.collect(now=NOW + 60 * minute)
            for name, counter in reading.counters.items():
                if name in reading.values:
                    sample = MetricSample(name, reading.at, reading.values[name], counter)
                    windows[name] = insert(windows[name], sample, WindowSpec(span=600.0, interval=60.0))

        world.server.append(HUB, "0", ["order"] * 10)
        await world.checkpoint("0", 6)
        await look(0)
        world.server.add_partitions(HUB, 1)
        world.server.append(HUB, "2", ["order"] * 5)
        await world.checkpoint("0", 8)
        await look(1)
        world.server.recreate_hub(
            HUB
        ).created_at += 5.0  # storage has whole seconds, and the checkpoint is older
        world.server.append(HUB, "0", ["order"] * 2_000)
        await look(2)
        world.server.append(HUB, "0", ["order"] * 3)
        await look(3)

        assert (windows["incoming"].times, windows["incoming"].values) == ([NOW + 60, NOW + 180], [5, 3])
        assert (windows["outgoing"].times, windows["outgoing"].values) == ([NOW + 60], [2])

    @pytest.mark.parametrize(
        ("blob", "body"),
        [
            ("{namespace}/Orders/$Default/0", b'{"Offset": "1", "SequenceNumber": 5}'),
            ("$Default/0", b'{"Offset": "1", "SequenceNumber": 5}'),
            ("0", b'{"checkpoint": {"offset": "1", "sequenceNumber": 5}}'),
            ("dapr-Orders-$Default-0", b'{"checkpoint": {"offset": "1", "sequenceNumber": 5}}'),
        ],
    )
    async def test_older_layouts_are_detected(self, world, blob, body):
        await world.put(10)
        async with ContainerClient.from_connection_string(world.storage, world.container) as container:
            await container.upload_blob(blob.format(namespace=world.server.endpoint), body)
            await container.upload_blob("folder/0", b"of somebody else")

        assert (await world.values())["lag"] == 4

    async def test_a_container_that_does_not_exist_is_an_error_that_names_it(self, world):
        with pytest.raises(CollectError, match=r"container 'elsewhere' .*: does not exist"):
            await world.values(world.new_collector(container="elsewhere"))

    async def test_a_wrong_key_of_either_side_is_an_error_that_names_the_role_and_not_the_key(self, world):
        wrong_hub = {**world.settings, "Hubs": world.settings["Hubs"].replace("AccessKey=", "AccessKey=AAAA")}
        wrong_storage = {
            **world.settings,
            "AzureWebJobsStorage": world.storage.replace("AccountKey=", "AccountKey=AAAA"),
        }
        for settings, role in (
            (wrong_hub, "Azure Event Hubs Data Receiver"),
            (wrong_storage, "Storage Blob Data Reader"),
        ):
            with pytest.raises(CollectError, match=role) as raised:
                await world.values(world.new_collector(settings))
            assert "AAAA" not in str(raised.value)

    async def test_an_identity_reads_a_hub_over_tls_with_a_private_authority(self, world, monkeypatch):
        monkeypatch.setattr(connections, "IdentityCredential", StaticCredential)
        settings = {
            "Hubs__fullyQualifiedNamespace": world.server.endpoint,
            "TIDEMARK_CA_BUNDLE": str(world.server.ca_path),
        }
        elsewhere = {  # the SDK takes port 5671 unless told another, and then web sockets unless told not to
            "custom_endpoint_address": f"sb://{world.server.endpoint}",
            "transport_type": TransportType.Amqp,
        }

        async with event_hub_client(settings, "Hubs", HUB, "$Default", **elsewhere) as hub:
            assert await hub.get_partition_ids() == ["0", "1"]


class StaticCredential:
    """An identity whose tokens come from nowhere; the local server takes any bearer token."""

    def __init__(self, **_options: object) -> None: ...

    async def get_token(self, *_scopes: str, **_options: object):
        return AccessToken("token", 4_000_000_000)


class TestEventHubAgeOnTheWire:
    async def test_the_age_is_that_of_the_first_event_that_is_not_settled(self, world):
        collector = world.new_age_collector()
        found = [(await world.values(collector))["oldest_age"]]
        now_ms = int(NOW * 1000)
        for partition, ages in (("0", (900, 600)), ("1", (450,))):
            for age in ages:
                world.server.append(HUB, partition, ["order"], enqueued_ms=now_ms - age * 1000)
        found.append((await world.values(collector))["oldest_age"])
        await world.checkpoint("0", 1)
        found.append((await world.values(collector))["oldest_age"])

        assert [round(age, -1) for age in found] == [0, 900, 450]

    async def test_a_reader_with_an_owner_level_keeps_others_away_but_for_those_in_another_group(self, world):
        world.server.hubs.hub(HUB).add_consumer_group("ages")
        world.server.append(HUB, "0", ["order"], enqueued_ms=int(NOW * 1000) - 60_000)
        world.server.steal(HUB, "0", 0)

        with pytest.raises(
            CollectError, match=r"a reader of its own in consumer group '\$Default'.*age_group"
        ):
            await world.values(world.new_age_collector())
        values = await world.values(world.new_age_collector(age_group="ages"))

        assert round(values["oldest_age"], -1) == 60
