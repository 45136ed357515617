"""What every StateStore does: the one in memory and the one in Table Storage."""

import asyncio
import contextlib
import math
import random
import uuid
import zlib

import pytest
from azure.data.tables.aio import TableServiceClient
from hypothesis import given
from hypothesis import strategies as st

from scaling.connections import ConnectionSettingsError
from scaling.control_store import TableControlStore
from scaling.model import (
    Capacity,
    Controls,
    EffectRecord,
    Evidence,
    Flip,
    ForeignHand,
    Limit,
    MetricFailure,
    Pause,
    Reason,
    Recommendation,
    ScaleAction,
    TargetState,
)
from scaling.ports import ConflictError, NewerStateError, Snapshot, StoreUnavailableError
from scaling.serial import (
    CorruptRowError,
    TooLargeError,
    key_of,
    read_controls,
    read_state,
    read_window,
    state_row,
    window_row,
)
from scaling.state_store import TableStateStore
from scaling.window import MAX_SAMPLES, Window
from tests.fakes import MemoryControlStore, MemoryStateStore

T0 = 1_795_000_000.0
ODD_NAMES = ["plan/orders", "a#b?c\\d", "Pläne ☃ 计划", "o'clock", "~targets", "x" * 900, "%2F", " "]


class MemoryHarness:
    def __init__(self):
        self.store = MemoryStateStore()
        self.controls = MemoryControlStore(self.store)

    def second(self):
        return self.store

    async def change(self, target, name, **columns):
        etag, row = self.store.rows[target][name]
        kept = {key: value for key, value in {**row, **columns}.items() if value is not None}
        self.store.rows[target][name] = (etag + "'", kept)

    async def raw(self, target, name):
        return self.store.rows[target][name][1]

    async def aside(self, target):
        return [row for (of, _, _), row in self.store.aside.items() if of == target]

    async def aclose(self):
        pass


class TableHarness:
    def __init__(self, connection):
        self.settings = {"Store": connection}
        self.table = f"State{uuid.uuid4().hex}"
        self.store = TableStateStore(self.settings, "Store", table=self.table)
        self.controls = TableControlStore(self.settings, "Store", table=self.table)
        self.more = []
        self.service = TableServiceClient.from_connection_string(connection)
        self.client = self.service.get_table_client(self.table)

    def second(self):
        self.more.append(TableStateStore(self.settings, "Store", table=self.table))
        return self.more[-1]

    async def change(self, target, name, **columns):
        entity = await self.client.get_entity(key_of(target), key_of(name))
        entity.update(columns)
        for column in [key for key, value in columns.items() if value is None]:
            del entity[column]
        await self.client.update_entity(entity, mode="replace")

    async def raw(self, target, name):
        return await self.client.get_entity(key_of(target), key_of(name))

    async def aside(self, target):
        rows = self.client.query_entities(f"PartitionKey eq '{key_of(target)}'")
        return [row async for row in rows if row["RowKey"].startswith("corrupt:")]

    async def aclose(self):
        for closing in (self.store, self.controls, *self.more):
            await closing.aclose()
        await self.service.close()


@pytest.fixture(params=["memory", pytest.param("azurite", marks=pytest.mark.wire)])
def backend(request):
    """None for memory, else a connection string; asked for outside the loop, where Azurite is started."""
    return None if request.param == "memory" else request.getfixturevalue("azurite")


@pytest.fixture
async def harness(backend):
    made = TableHarness(backend) if backend else MemoryHarness()
    yield made
    await made.aclose()


def full_state() -> TargetState:
    recommendation = Recommendation(
        "plan@20261121T045000.000Z",
        "plan",
        T0,
        2,
        4,
        3,
        1,
        10,
        Reason.RATE_LIMITED,
        evidence=(Evidence("threshold", "backlog", "average", 0.1 + 0.2, ">", math.inf, 600.0, 10),),
        flips=(Flip("average backlog", "<", 1e-300, Reason.WITHIN_TARGET),),
        limits=(Limit(Reason.RATE_LIMITED, 4, 3, "„höchstens 1“"),),
    )
    return TargetState(
        evaluated=(T0 - 60, T0),
        expected=2,
        capacity=Capacity(2, T0, 1, 30, 2, True, "Azure Monitor"),
        capacity_error=None,
        pending=ScaleAction("id", "plan", 2, 3, T0, T0 + 600, Reason.SCALE_OUT, "2 → 3"),
        pending_level=-0.0,
        effects=(EffectRecord(T0 - 600, 1, 2, 5.5), EffectRecord(T0 - 300, 2, 1)),
        recommendations=tuple((T0 - n, n % 7) for n in range(2_000, 0, -1)),
        foreign=ForeignHand(5, 2, T0),
        missing_since=T0 - 1,
        corrupt_since=T0 - 2,
        last=recommendation,
    )


async def test_an_unknown_target_has_the_default_state(harness):
    assert await harness.store.load("plan") == Snapshot("plan")


async def test_state_and_windows_are_loaded_as_saved(harness):
    state = full_state()
    windows = {
        "backlog": Window([T0 - 60.1, T0], [0.1 + 0.2, 5e-324], None, truncated=True),
        "lag": Window([], [], MetricFailure("lag", T0, "no answer", Reason.STALE_METRIC)),
    }

    await harness.store.save(await harness.store.load("plan"), state, windows)

    loaded = await harness.store.load("plan")
    assert (loaded.state, loaded.windows, loaded.corrupt) == (state, windows, ())
    assert set(loaded.etags) == {"state", "window:backlog", "window:lag"}


async def test_a_window_that_is_not_given_stays(harness):
    window = Window([T0], [1.0])
    await harness.store.save(await harness.store.load("plan"), TargetState(), {"backlog": window})

    await harness.store.save(await harness.store.load("plan"), TargetState(expected=3))

    loaded = await harness.store.load("plan")
    assert loaded.windows == {"backlog": window}
    assert loaded.state == TargetState(expected=3)


@pytest.mark.parametrize("stored", [False, True])
async def test_of_two_savers_of_one_snapshot_exactly_one_wins(harness, stored):
    if stored:
        await harness.store.save(await harness.store.load("plan"), TargetState(expected=0))
    first, second = harness.store, harness.second()
    seen = [await first.load("plan"), await second.load("plan")]

    results = await asyncio.gather(
        first.save(seen[0], TargetState(expected=1), {"m1": Window([T0], [1.0])}),
        second.save(seen[1], TargetState(expected=2), {"m2": Window([T0], [2.0])}),
        return_exceptions=True,
    )

    loaded = await harness.store.load("plan")
    assert sorted(type(result).__name__ for result in results) == ["ConflictError", "NoneType"]
    winner = 1 + results.index(None)
    assert loaded.state == TargetState(expected=winner)
    assert loaded.windows == {f"m{winner}": Window([T0], [float(winner)])}


async def test_a_conflict_on_one_window_alone_writes_nothing(harness):
    before = await harness.store.load("plan")
    await harness.store.save(before, TargetState(expected=1), {"backlog": Window([T0], [1.0])})
    current = await harness.store.load("plan")
    stale = Snapshot("plan", etags={"state": current.etags["state"]})

    with pytest.raises(ConflictError):
        await harness.store.save(
            stale, TargetState(expected=9), {"lag": Window(), "backlog": Window([T0], [9.0])}
        )

    assert await harness.store.load("plan") == current


async def test_a_saved_snapshot_cannot_be_saved_again(harness):
    loaded = await harness.store.load("plan")
    await harness.store.save(loaded, TargetState(expected=1))
    with pytest.raises(ConflictError):
        await harness.store.save(loaded, TargetState(expected=1))


async def test_targets_do_not_touch_each_other_whatever_their_names(harness):
    for number, name in enumerate(ODD_NAMES):
        windows = {name: Window([T0], [float(number)])}
        await harness.store.save(await harness.store.load(name), TargetState(expected=number), windows)

    for number, name in enumerate(ODD_NAMES):
        loaded = await harness.store.load(name)
        assert loaded.state == TargetState(expected=number)
        assert loaded.windows == {name: Window([T0], [float(number)])}


async def test_one_pass_gives_the_same_snapshots_as_loads_one_by_one(harness):
    store = harness.store
    names = ["plan-a", "plan/b", "never seen"]
    for name in names[:2]:
        await store.save(
            await store.load(name), TargetState(expected=len(name)), {"backlog": Window([1.0], [2.0])}
        )

    together = await store.load_all(names)

    assert together == {name: await store.load(name) for name in names}
    assert together["plan/b"].state.expected == len("plan/b")


async def test_ninety_nine_windows_fit_and_one_hundred_are_refused_before_anything_is_written(harness):
    windows = {f"m{n}": Window([T0, T0 + n + 1], [float(n), 0.5]) for n in range(100)}
    empty = await harness.store.load("plan")

    with pytest.raises(TooLargeError, match="up to 100"):
        await harness.store.save(empty, TargetState(), windows)
    assert await harness.store.load("plan") == empty

    del windows["m99"]
    await harness.store.save(empty, TargetState(), windows)
    assert (await harness.store.load("plan")).windows == windows


async def test_windows_of_the_largest_size_are_stored_exactly(harness):
    rng = random.Random(7)
    times = sorted(T0 + rng.random() * 1e6 for _ in range(MAX_SAMPLES))
    window = Window(times, [rng.random() * 1e9 for _ in times])

    await harness.store.save(await harness.store.load("plan"), TargetState(), {"backlog": window})

    assert (await harness.store.load("plan")).windows == {"backlog": window}


async def test_a_transaction_or_row_beyond_the_service_limits_is_refused_and_writes_nothing(harness):
    rng = random.Random(7)
    series = [rng.random() for _ in range(MAX_SAMPLES)]
    empty = await harness.store.load("plan")

    with pytest.raises(TooLargeError, match=r"up to 4000000"):
        await harness.store.save(
            empty, TargetState(), {f"m{n}": Window(sorted(series), series) for n in range(20)}
        )
    with pytest.raises(TooLargeError, match="row 'state'"):
        await harness.store.save(empty, TargetState(capacity_error="x" * 600_000))

    assert await harness.store.load("plan") == empty


@pytest.mark.parametrize("name", ["state", "window:backlog", "controls"])
@pytest.mark.parametrize(
    "damage",
    [
        {"Data00": "{"},
        {"Data00": None},
        {"Schema": "one"},
        {"Data00": '{"expected":"x","count":-1,"pauses":1}'},
    ],
    ids=["cut", "missing", "no schema", "wrong types"],
)
async def test_an_unreadable_row_is_reported_kept_aside_and_replaced_by_the_next_save(harness, name, damage):
    await harness.store.save(
        await harness.store.load("plan"), TargetState(expected=1), {"backlog": Window([T0], [1.0])}
    )
    await harness.controls.save("plan", Controls(dry_run=True), None)
    await harness.change("plan", name, **damage)

    first = await harness.store.load("plan")
    again = await harness.store.load("plan")
    controls, controls_etag = await harness.controls.load("plan")

    assert first.corrupt == again.corrupt == (name,)
    assert first.state == (TargetState() if name == "state" else TargetState(expected=1))
    assert set(first.windows) == (set() if name == "window:backlog" else {"backlog"})
    assert first.controls == controls == (Controls() if name == "controls" else Controls(dry_run=True))
    [copy] = await harness.aside("plan")
    assert copy.get("Data00") == damage.get("Data00", copy.get("Data00"))

    await harness.store.save(again, TargetState(expected=2), {"backlog": Window()})
    await harness.controls.save("plan", Controls(dry_run=False), controls_etag)
    healed = await harness.store.load("plan")
    assert (healed.state.expected, healed.windows, healed.corrupt) == (2, {"backlog": Window()}, ())
    assert healed.controls == Controls(dry_run=False)
    assert set(healed.etags) == {"state", "window:backlog", "controls"}
    assert len(await harness.aside("plan")) == 1


@pytest.mark.parametrize(
    "blob",
    [b"\x78\x9c", zlib.compress(bytes(24)), zlib.compress(bytes(15)), zlib.compress(bytes(16))[:-1]],
    ids=["no data", "a number too many", "half a number", "cut"],
)
async def test_damaged_samples_make_their_window_corrupt_and_no_other_row(harness, blob):
    await harness.store.save(
        await harness.store.load("plan"), TargetState(expected=1), {"backlog": Window([T0], [1.0])}
    )
    await harness.change("plan", "window:backlog", Blob00=blob)

    loaded = await harness.store.load("plan")

    assert (loaded.corrupt, loaded.windows, loaded.state) == (
        ("window:backlog",),
        {},
        TargetState(expected=1),
    )


@pytest.mark.parametrize("name", ["state", "window:backlog", "controls"])
async def test_a_row_of_a_newer_release_is_neither_read_nor_overwritten(harness, name):
    loaded = await harness.store.load("plan")
    await harness.store.save(loaded, TargetState(expected=1), {"backlog": Window([T0], [1.0])})
    await harness.controls.save("plan", Controls(dry_run=True), None)
    await harness.change("plan", name, Schema=2)

    with pytest.raises(NewerStateError, match=r"schema 2.*up to 1"):
        await harness.store.load("plan")

    with pytest.raises(ConflictError):
        await harness.store.save(loaded, TargetState(expected=7), {"backlog": Window()})
    assert (await harness.raw("plan", name))["Schema"] == 2
    assert await harness.aside("plan") == []


async def test_fields_of_a_newer_minor_writer_are_ignored(harness):
    await harness.store.save(await harness.store.load("plan"), TargetState(expected=1))
    await harness.change("plan", "state", Data00='{"expected":1,"mood":"fine"}', Extra=5)

    assert (await harness.store.load("plan")).state == TargetState(expected=1)


async def test_a_snapshot_shows_what_operators_ordered_and_orders_do_not_conflict_with_saves(harness):
    loaded = await harness.store.load("plan")
    controls = Controls(pauses=(Pause("ada", T0),))
    await harness.controls.save("plan", controls, None)

    await harness.store.save(loaded, TargetState(expected=1))

    assert (await harness.store.load("plan")).controls == controls


# -- the adapter alone -------------------------------------------------------------------------------------


@pytest.mark.wire
async def test_a_save_is_one_request_and_a_load_is_one_request(azurite):
    requests = []
    store = TableStateStore(
        {"Store": azurite},
        "Store",
        table=f"State{uuid.uuid4().hex}",
        raw_request_hook=lambda request: requests.append(request.http_request.method),
    )
    await store.save(await store.load("plan"), full_state(), {"backlog": Window([T0], [1.0])})
    requests.clear()

    loaded = await store.load("plan")
    await store.save(loaded, full_state(), {"backlog": Window([T0], [2.0])})

    assert requests == ["GET", "POST"]
    await store.aclose()


@pytest.mark.wire
async def test_saving_creates_a_missing_table(azurite):
    store = TableStateStore({"Store": azurite}, "Store", table=f"State{uuid.uuid4().hex}")
    await store.save(Snapshot("plan"), TargetState(expected=1))

    assert (await store.load("plan")).state.expected == 1
    await store.aclose()


@pytest.mark.wire
async def test_savers_that_find_no_table_create_it_together(azurite):
    table = f"State{uuid.uuid4().hex}"
    stores = [TableStateStore({"Store": azurite}, "Store", table=table) for _ in range(4)]

    await asyncio.gather(
        *(store.save(Snapshot(f"plan{n}"), TargetState(expected=n)) for n, store in enumerate(stores))
    )

    assert [(await stores[0].load(f"plan{n}")).state.expected for n in range(4)] == [0, 1, 2, 3]
    for store in stores:
        await store.aclose()


UNREACHABLE = (
    "DefaultEndpointsProtocol=http;AccountName=acme;AccountKey=c2VjcmV0;TableEndpoint=http://127.0.0.1:9/acme"
)


async def test_a_store_that_does_not_answer_is_unavailable_by_name_and_not_empty():
    store = TableStateStore({"Store": UNREACHABLE}, "Store", table="ScalingState", retry_total=0)

    for attempt in (store.load("plan"), store.save(Snapshot("plan"), TargetState())):
        with pytest.raises(StoreUnavailableError, match="'ScalingState' of storage account 'acme'") as caught:
            await attempt
        assert "c2VjcmV0" not in str(caught.value)
    await store.aclose()


@pytest.mark.wire
async def test_a_refused_key_is_unavailable_and_not_a_conflict(azurite):
    forged = azurite.replace("AccountKey=E", "AccountKey=A")
    store = TableStateStore({"Store": forged}, "Store", retry_total=0)

    with pytest.raises(StoreUnavailableError, match="answered 403"):
        await store.load("plan")
    await store.aclose()


def test_missing_connection_settings_are_named_when_the_store_is_made():
    with pytest.raises(ConnectionSettingsError, match="Store__tableServiceUri"):
        TableStateStore({}, "Store")


# -- rows --------------------------------------------------------------------------------------------------

times = st.floats(min_value=0, max_value=4e9)
numbers = st.floats(allow_nan=False)
texts = st.text(st.characters(), max_size=20)
states = st.builds(
    TargetState,
    evaluated=st.lists(times, max_size=4).map(tuple),
    expected=st.none() | st.integers(0, 1_000),
    capacity=st.none() | st.builds(Capacity, st.integers(0, 99), times, held_by=st.none() | texts),
    capacity_error=st.none() | texts,
    pending_level=st.none() | numbers,
    effects=st.lists(st.builds(EffectRecord, times, st.integers(), st.integers(), st.none() | numbers)).map(
        tuple
    ),
    recommendations=st.lists(st.tuples(times, st.integers(0, 99))).map(tuple),
    missing_since=st.none() | times,
)
windows_ = st.lists(st.tuples(numbers, numbers), max_size=40).map(
    lambda pairs: Window([t for t, _ in pairs], [v for _, v in pairs])
)


def bits(window):
    return [value.hex() for value in (*window.times, *window.values)]


@given(states)
def test_every_state_survives_its_row(state):
    assert repr(read_state(state_row(state))) == repr(state)


@given(texts, windows_)
def test_every_window_survives_its_row_bit_by_bit(metric, window):
    name, found = read_window(window_row(metric, window))

    assert name == metric
    assert found == window
    assert bits(found) == bits(window)


@given(texts, texts)
def test_different_names_have_different_keys_without_forbidden_characters(one, other):
    assert (key_of(one) == key_of(other)) == (one == other)
    assert not set(key_of(one)) & set("/\\#?'% \t\n")
    assert len(key_of(one * 200)) <= 400


@given(
    st.dictionaries(
        st.sampled_from(["Schema", "Data00", "Data01", "Blob00"]),
        st.sampled_from(
            [1, 0, None, "", "[]", "{}", "null", '{"count":0,"metric":"m"}', b"", b"x", True, "[" * 100_000]
        ),
    )
)
def test_reading_any_row_gives_a_value_or_the_corrupt_error(row):
    for read in (read_state, read_controls, read_window):
        with contextlib.suppress(CorruptRowError):
            read(row)
