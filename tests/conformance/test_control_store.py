"""What every ControlStore does: the one in memory and the one in Table Storage."""

import asyncio
import uuid

import pytest

from foundation.errors import ConflictError, StoreUnavailableError
from foundation.keys import TooLargeError
from scaling.model import NO_CONTROLS, Controls, Direction, Override, Pause
from scaling.storage.states import TableControlStore
from tests.fakes import MemoryControlStore

T0 = 1_795_000_000.0


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.wire)])
def backend(request):
    """None for memory, else a connection string; asked for outside the loop, where Azurite is started."""
    return None if request.param == "memory" else request.getfixturevalue("azurite")


@pytest.fixture
async def store(backend):
    made = (
        TableControlStore({"Store": backend}, "Store", table=f"State{uuid.uuid4().hex}")
        if backend
        else MemoryControlStore()
    )
    yield made
    await made.aclose()


async def test_a_target_without_orders_has_no_controls_and_no_tag(store):
    assert await store.load("plan") == (NO_CONTROLS, None)


async def test_orders_are_loaded_as_given(store):
    controls = Controls(
        pauses=(Pause("Zoë", T0, Direction.IN, T0 + 0.1), Pause("ops", T0)),
        override=Override(7, "ops", T0, T0 + 3600),
        dry_run=False,
        foreign_cleared_at=T0 - 1e-6,
    )

    await store.save("plan/ü", controls, None)

    loaded, etag = await store.load("plan/ü")
    assert loaded == controls
    assert etag
    assert await store.load("plan") == (NO_CONTROLS, None)


async def test_a_first_order_does_not_overwrite_another_first_order(store):
    results = await asyncio.gather(
        store.save("plan", Controls(dry_run=True), None),
        store.save("plan", Controls(dry_run=False), None),
        return_exceptions=True,
    )

    assert sorted(type(result).__name__ for result in results) == ["ConflictError", "NoneType"]
    controls, _ = await store.load("plan")
    assert controls == Controls(dry_run=results[0] is None)


async def test_an_order_based_on_an_old_reading_is_refused(store):
    await store.save("plan", Controls(dry_run=True), None)
    _, etag = await store.load("plan")
    await store.save("plan", Controls(dry_run=False), etag)

    with pytest.raises(ConflictError):
        await store.save("plan", NO_CONTROLS, etag)

    controls, newer = await store.load("plan")
    assert controls == Controls(dry_run=False)
    assert newer != etag


async def test_an_order_for_a_row_that_is_gone_is_refused(store):
    await store.save("plan", Controls(dry_run=True), None)
    _, etag = await store.load("plan")

    with pytest.raises(ConflictError):
        await store.save("other", NO_CONTROLS, etag)


async def test_orders_beyond_a_row_are_refused_by_size(store):
    with pytest.raises(TooLargeError, match="row 'controls'"):
        await store.save("plan", Controls(pauses=(Pause("x" * 600_000, T0),)), None)


async def test_controls_of_a_store_that_does_not_answer_are_unavailable_and_not_empty():
    unreachable = "AccountName=acme;AccountKey=c2VjcmV0;TableEndpoint=http://127.0.0.1:9/acme"
    store = TableControlStore({"Store": unreachable}, "Store", retry_total=0)

    with pytest.raises(StoreUnavailableError, match="'ScalingState' of storage account 'acme'"):
        await store.load("plan")
    await store.aclose()
