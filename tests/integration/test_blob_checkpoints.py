"""Checkpoints in Blob Storage beside the Event Hubs SDK's own store, and in bad weather."""

import asyncio
import contextlib
import logging

import pytest
from aiohttp import web
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore as SdkStore
from azure.storage.blob.aio import ContainerClient

from consumer.errors import FencedError, PositionError
from consumer.model import Checkpoint, Lease
from consumer.stores.blob.checkpoints import BlobCheckpointStore
from consumer.stores.blob.elsewhere import containers_with_positions
from consumer.stores.blob.leases import BlobLeaseStore
from tests.support.servers.blobs import NAMESPACE, BlobPlace
from tidemark.foundation.errors import UnavailableError

pytestmark = pytest.mark.wire

HUB, GROUP = "Orders", "$Default"
NAMES = (NAMESPACE, HUB, GROUP)


def soon(seconds=30.0):
    return asyncio.get_running_loop().time() + seconds


def at(sequence_number, beyond=()):
    return Checkpoint("0", sequence_number, f"o{sequence_number}", beyond)


@pytest.fixture
async def place(azurite):
    place = BlobPlace(azurite)
    yield place
    await place.aclose()


@pytest.fixture
async def store(place):
    return place.checkpoints(HUB, GROUP)


@pytest.fixture
async def sdk(place):
    """The store of azure-eventhub-checkpointstoreblob-aio on the same container."""
    async with SdkStore.from_connection_string(
        place.connection_string, place.name, api_version="2025-01-05"
    ) as found:
        yield found


def plain(sequence_number):
    return {
        "fully_qualified_namespace": NAMESPACE,
        "eventhub_name": HUB,
        "consumer_group": GROUP,
        "partition_id": "0",
        "offset": f"o{sequence_number}",
        "sequence_number": sequence_number,
    }


async def stored(store):
    checkpoint = (await store.load_all(deadline=soon())).get("0")
    return checkpoint.sequence_number if isinstance(checkpoint, Checkpoint) else checkpoint


async def test_the_sdk_reads_our_checkpoints(store, sdk):
    claim = await store.claim("0", "a", deadline=soon())
    assert [
        (checkpoint["offset"], checkpoint["sequence_number"])
        for checkpoint in await sdk.list_checkpoints(*NAMES)
    ] == [("-1", -1)]

    await store.save(claim, at(7, ((9, 12),)), deadline=soon())

    assert await sdk.list_checkpoints(*NAMES) == [plain(7)]


async def test_what_a_newer_version_says_of_plain_keys_is_refused_by_its_blob_and_with_what_deleting_it_costs(
    store,
):
    assert await store.hub_with_plain_keys(7, deadline=soon()) == 7
    [blob] = [each.name async for each in store._container.list_blobs(name_starts_with="plain-keys/")]
    await store._container.upload_blob(blob, b'{"hub": 7}', overwrite=True)

    with pytest.raises(PositionError, match=r"plain-keys/.*newer version.*are replaced"):
        await store.hub_with_plain_keys(8, deadline=soon())


async def test_the_sdk_sees_our_leases_and_takes_one_only_with_its_token(place, sdk):
    leases = place.leases(HUB, GROUP)
    await leases.claim(Lease("0", "", 0.0, ""), "host-1", deadline=soon())
    seen = list(await sdk.list_ownership(*NAMES))
    assert [(each["partition_id"], each["owner_id"]) for each in seen] == [("0", "host-1")]

    mine = (await leases.list(deadline=soon()))[0][0]
    renewed = await leases.claim(mine, "host-1", deadline=soon())
    assert await sdk.claim_ownership([{**seen[0], "owner_id": "sdk"}]) == []

    seen = list(await sdk.list_ownership(*NAMES))
    assert len(await sdk.claim_ownership([{**seen[0], "owner_id": "sdk"}])) == 1
    assert await leases.claim(renewed, "host-1", deadline=soon()) is None
    assert (await leases.list(deadline=soon()))[0][0].owner == "sdk"


async def test_a_checkpoint_of_the_sdk_is_taken_over(place, store, sdk):
    await place.container().create_container()
    await sdk.update_checkpoint(plain(41))

    claim = await store.claim("0", "a", deadline=soon())

    assert (claim.epoch, claim.checkpoint.sequence_number, claim.checkpoint.offset) == (1, 41, "o41")
    await store.save(claim, at(42), deadline=soon())
    assert await stored(store) == 42


async def test_a_lower_position_by_a_foreign_writer_is_overwritten_and_a_higher_one_stays(store, sdk, caplog):
    claim = await store.claim("0", "a", deadline=soon())
    await store.save(claim, at(10), deadline=soon())
    await sdk.update_checkpoint(plain(3))
    with caplog.at_level(logging.WARNING):
        await store.save(claim, at(11), deadline=soon())
    assert await stored(store) == 11
    assert "overwritten by a program without claims" in caplog.text

    await sdk.update_checkpoint(plain(50))
    await store.save(claim, at(12), deadline=soon())
    assert await stored(store) == 50
    await store.save(claim, at(51), deadline=soon())
    assert await stored(store) == 51


async def test_the_fence_holds_though_a_foreign_writer_replaced_the_metadata(store, sdk):
    old = await store.claim("0", "a", deadline=soon())
    new = await store.claim("0", "b", deadline=soon())
    await sdk.update_checkpoint(plain(3))

    with pytest.raises(FencedError, match=r"claimed by 'b' \(epoch 2\)"):
        await store.save(old, at(9), deadline=soon())
    await sdk.update_checkpoint(plain(4))
    assert (await store.claim("0", "c", deadline=soon())).epoch == new.epoch + 1


async def test_a_deleted_blob_is_written_anew_under_the_present_claim(place, store):
    claim = await store.claim("0", "a", deadline=soon())
    await store.save(claim, at(10), deadline=soon())
    blob = place.container().get_blob_client(place.stream(HUB, GROUP).blob("checkpoint", "0"))
    await blob.delete_blob()

    await store.save(claim, at(11), deadline=soon())

    assert await stored(store) == 11
    await store.save(claim, at(12), deadline=soon())
    assert await stored(store) == 12


async def test_a_deleted_container_is_created_by_the_next_save(place, store):
    claim = await store.claim("0", "a", deadline=soon())
    await place.container().delete_container()
    assert await store.load_all(deadline=soon()) == {}

    await store.save(claim, at(1), deadline=soon())

    assert await stored(store) == 1


async def test_a_blob_spoilt_under_a_claim_is_repaired_by_its_owner(place, store):
    claim = await store.claim("0", "a", deadline=soon())
    await store.save(claim, at(10), deadline=soon())
    await place.spoil(HUB, GROUP, "0")
    with pytest.raises(PositionError, match=r"blob '.*/orders/\$default/checkpoint/0'.*checkpoints set"):
        await store.claim("0", "b", deadline=soon())

    await store.save(claim, at(11), deadline=soon())

    assert await stored(store) == 11


async def test_under_a_storm_of_claims_and_saves_the_position_never_falls(place, store):
    seen = []

    async def worker(owner):
        mine = place.checkpoints(HUB, GROUP)
        for _ in range(4):
            claim = await mine.claim("0", owner, deadline=soon())
            base = claim.checkpoint.sequence_number if claim.checkpoint else 0
            with contextlib.suppress(FencedError):
                for step in range(3):
                    await mine.save(claim, at(base + step + 1), deadline=soon())
                    seen.append(await stored(store))

    await asyncio.gather(*(worker(owner) for owner in "abc"))

    assert (await store.claim("0", "d", deadline=soon())).epoch == 13
    assert seen == sorted(seen)


async def test_a_lost_permission_says_what_is_needed(place):
    blob_endpoint = next(
        part for part in place.connection_string.split(";") if part.startswith("BlobEndpoint=")
    )
    key = "d3Jvbmc=" * 11
    wrong = BlobPlace(
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};{blob_endpoint}"
    )
    try:
        with pytest.raises(
            UnavailableError, match=r"claiming the checkpoint of partition 0: .*403.*Storage Blob Data"
        ):
            await wrong.checkpoints(HUB, GROUP).claim("0", "a", deadline=soon())
        with pytest.raises(UnavailableError, match=r"listing the leases: .*403"):
            await wrong.leases(HUB, GROUP).list(deadline=soon())
    finally:
        await wrong.aclose()


@contextlib.asynccontextmanager
async def server(handler):
    """The address of a storage service that answers as told."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/account"
    finally:
        await runner.cleanup()


async def test_a_busy_service_says_when_to_come_again(place):
    async def busy(_request):
        return web.Response(status=503, headers={"Retry-After": "7", "x-ms-error-code": "ServerBusy"})

    async with server(busy) as url, ContainerClient(url, "c", retry_total=0) as container:
        store = BlobCheckpointStore(container, place.stream(HUB, GROUP))
        with pytest.raises(UnavailableError, match="503 ServerBusy") as caught:
            await store.put(at(1), deadline=soon())

    assert caught.value.retry_after == 7.0


async def test_a_service_that_never_answers_is_left_at_the_deadline(place):
    async def hang(_request):
        await asyncio.sleep(3600)

    async with server(hang) as url, ContainerClient(url, "c", retry_total=0) as container:
        store = BlobLeaseStore(container, place.stream(HUB, GROUP))
        with pytest.raises(UnavailableError, match="no answer within the deadline, the outcome is unknown"):
            await store.claim(Lease("0", "", 0.0, ""), "a", deadline=soon(0.2))


async def test_a_service_that_is_not_there_is_unavailable(place):
    async with ContainerClient("http://127.0.0.1:9/account", "c", retry_total=0) as container:
        store = BlobCheckpointStore(container, place.stream(HUB, GROUP), connection="Archive")
        said = r"listing the checkpoints in storage account 'account' \(connection Archive\): ServiceRequestError"
        with pytest.raises(UnavailableError, match=said):
            await store.load_all(deadline=soon())


async def test_other_containers_with_positions_of_the_group_are_found(place, azurite):
    await place.checkpoints(HUB, GROUP).put(at(5), deadline=soon())
    others = BlobPlace(azurite)
    await others.checkpoints(HUB, "another").put(at(5), deadline=soon())
    foreign = BlobPlace(azurite)  # as the Functions host has them
    await foreign.container().create_container()
    host = foreign.container().get_blob_client(foreign.stream(HUB, GROUP).blob("checkpoint", "0"))
    await host.upload_blob(b"", metadata={"offset": "5", "sequencenumber": "5"})
    where = {"Account": place.connection_string}, "Account", place.stream(HUB, GROUP)
    found = await containers_with_positions(*where, others.name)
    own = await containers_with_positions(*where, place.name)
    away = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=aw==;BlobEndpoint=http://127.0.0.1:9/a"
    nothing = await containers_with_positions({"Account": away}, "Account", place.stream(HUB, GROUP), "x")
    await others.aclose()
    await foreign.aclose()

    assert (place.name in found, {*own}, nothing) == (True, {*found} - {place.name}, [])
    assert not {others.name, foreign.name} & {*own, *found}
