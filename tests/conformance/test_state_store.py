"""What every StateStore does: the one in memory and the one in Table Storage."""

import asyncio
import contextlib
import math
import random
import uuid

import msgspec
import pytest
from azure.data.tables.aio import TableServiceClient
from hypothesis import given
from hypothesis import strategies as st

from scaling.config.target_table import MAX_METRICS
from scaling.flip import Flip
from scaling.model import (
    NO_CONTROLS,
    Capacity,
    Controls,
    Direction,
    EffectRecord,
    Evidence,
    ExternalChange,
    Limit,
    MetricFailure,
    Override,
    Pause,
    Reason,
    Recommendation,
    ScaleAction,
    TargetState,
)
from scaling.notice import Drain, DrainEnd, NoticeKind, Standing, Telling
from scaling.ports import NewerStateError, Snapshot
from scaling.service.reading import MAX_MESSAGE
from scaling.storage.rows import CorruptRowError, read_controls, read_target, target_row
from scaling.storage.states import TableStateStore
from scaling.window import MAX_SAMPLES, MAX_TARGET_SAMPLES, Window
from tests.support.scaling.fakes import MemoryStateStore
from tidemark.foundation.azure.connections import ConnectionSettingsError
from tidemark.foundation.azure.storage_requests import StorageWire
from tidemark.foundation.errors import ConflictError, StoreUnavailableError
from tidemark.foundation.keys import TooLargeError, key_of
from tidemark.foundation.wording import time_text

T0 = 1_795_000_000.0
ODD_NAMES = ["plan/orders", "a#b?c\\d", "Pläne ☃ 计划", "o'clock", "~targets", "x" * 900, "%2F", " "]


class MemoryHarness:
    def __init__(self):
        self.store = MemoryStateStore()

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
        for closing in (self.store, *self.more):
            await closing.aclose()
        await self.service.close()


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
        flips=(Flip.at("average backlog", "<", 1e-300, Reason.WITHIN_TARGET),),
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
        external_change=ExternalChange(5, 2, T0),
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
    assert set(loaded.etags) == {"state"}


async def test_workers_read_a_drain_notice_that_was_saved_and_no_other(harness):
    drain = Drain("plan@1", 3, 2, T0, T0 + 120.0, T0 + 720.0, 3)
    for notice in (drain, msgspec.structs.replace(drain, end=DrainEnd.WITHDRAWN, ended_at=T0 + 60.0)):
        seen = [await harness.store.load("plan"), await harness.second().load("plan")]
        await harness.store.save(seen[0], TargetState(drain=notice))
        with pytest.raises(ConflictError):
            await harness.store.save(
                seen[1], TargetState(drain=msgspec.structs.replace(drain, notice="lost"))
            )

        row = await harness.raw("plan", "drain")
        assert (row["Notice"], row["State"], row["ToCapacity"]) == ("plan@1", notice.end or "draining", 2)
        assert row["Deadline"] == time_text(T0 + 120.0)
        loaded = await harness.store.load("plan")
        assert (loaded.state.drain, loaded.corrupt, loaded.controls) == (notice, (), NO_CONTROLS)
    await harness.store.save(loaded, msgspec.structs.replace(loaded.state, expected=4))
    assert (await harness.store.load("plan")).state.expected == 4


async def test_workers_do_not_wait_for_a_notice_of_which_the_state_was_lost(harness):
    drain = Drain("plan@1", 3, 2, T0, T0 + 120.0, T0 + 720.0, 3)
    await harness.store.save(await harness.store.load("plan"), TargetState(drain=drain))
    await harness.change(
        "plan", "state", Data00='{"expected":3}'
    )  # as a release writes it that knows no drains

    for _ in range(2):
        loaded = await harness.store.load("plan")
        await harness.store.save(loaded, TargetState(expected=4))

    assert (await harness.raw("plan", "drain"))["State"] == "none"
    assert set((await harness.store.load("plan")).etags) == {"state"}


async def test_windows_stay_when_none_are_given(harness):
    window = Window([T0], [1.0])
    await harness.store.save(await harness.store.load("plan"), TargetState(), {"backlog": window})

    await harness.store.save(await harness.store.load("plan"), TargetState(expected=3))

    loaded = await harness.store.load("plan")
    assert loaded.windows == {"backlog": window}
    assert loaded.state == TargetState(expected=3)


async def test_the_windows_given_are_all_there_are(harness):
    await harness.store.save(
        await harness.store.load("plan"), TargetState(), {"backlog": Window([T0], [1.0]), "lag": Window()}
    )

    await harness.store.save(await harness.store.load("plan"), TargetState(), {"lag": Window([T0], [2.0])})

    assert (await harness.store.load("plan")).windows == {"lag": Window([T0], [2.0])}


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


async def test_a_save_of_an_old_snapshot_writes_neither_state_nor_windows(harness):
    before = await harness.store.load("plan")
    await harness.store.save(before, TargetState(expected=1), {"backlog": Window([T0], [1.0])})
    old = await harness.store.load("plan")
    await harness.store.save(old, TargetState(expected=2))
    current = await harness.store.load("plan")

    for stale in (before, old, Snapshot("other", etags=current.etags)):
        with pytest.raises(ConflictError):
            await harness.store.save(stale, TargetState(expected=9), {"backlog": Window([T0], [9.0])})

    assert await harness.store.load("plan") == current
    assert await harness.store.load("other") == Snapshot("other")


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


async def test_as_many_metrics_and_samples_as_may_be_configured_are_stored_exactly(harness):
    rng = random.Random(7)
    count = MAX_TARGET_SAMPLES // MAX_METRICS
    windows = {
        f"metric_{n}": Window(
            [T0 + rng.random() for _ in range(count)],
            [rng.random() * 1e9 for _ in range(count)],
            MetricFailure(f"metric_{n}", T0, "é" * MAX_MESSAGE),
        )
        for n in range(MAX_METRICS)
    }

    await harness.store.save(await harness.store.load("plan"), full_state(), windows)

    loaded = await harness.store.load("plan")
    assert (loaded.state, loaded.windows, loaded.corrupt) == (full_state(), windows, ())


async def test_a_window_of_the_largest_size_is_stored_exactly(harness):
    rng = random.Random(7)
    times = sorted(T0 + rng.random() * 1e6 for _ in range(MAX_SAMPLES))
    window = Window(times, [rng.random() * 1e9 for _ in times])

    await harness.store.save(await harness.store.load("plan"), TargetState(), {"backlog": window})

    assert (await harness.store.load("plan")).windows == {"backlog": window}


async def test_what_no_row_can_hold_is_refused_by_name_and_size_and_writes_nothing(harness):
    series = [float(n) for n in range(MAX_SAMPLES)]
    empty = await harness.store.load("plan")

    with pytest.raises(TooLargeError, match=r"'plan', with 80000 samples, takes \d+ bytes; .* holds 1000000"):
        await harness.store.save(empty, TargetState(), {f"m{n}": Window(series, series) for n in range(4)})
    with pytest.raises(TooLargeError, match="'plan', with 0 samples"):
        await harness.store.save(empty, TargetState(capacity_error="x" * 600_000))

    assert await harness.store.load("plan") == empty


WRONG = '{"expected":"x","count":-1,"pauses":1}'
DAMAGES = {
    "state cut": ("state", {"Data00": "{"}, ("state",)),
    "state missing": ("state", {"Data00": None}, ("state",)),
    "state not text": ("state", {"Data00": b"{}"}, ("state",)),
    "state of wrong types": ("state", {"Data00": WRONG}, ("state",)),
    "no schema": ("state", {"Schema": "one"}, ("state", "windows")),
    "windows cut": ("state", {"Windows00": "["}, ("windows",)),
    "windows missing": ("state", {"Windows00": None}, ("windows",)),
    "windows of wrong types": ("state", {"Windows00": f"[{WRONG}]"}, ("windows",)),
    "samples missing": ("state", {"Blob00": None}, ("window:backlog", "window:lag")),
    "samples not binary": ("state", {"Blob00": "AAAA"}, ("window:backlog", "window:lag")),
    "controls cut": ("controls", {"Data00": "{"}, ("controls",)),
    "controls missing": ("controls", {"Data00": None}, ("controls",)),
    "controls without schema": ("controls", {"Schema": "one"}, ("controls",)),
    "controls of wrong types": ("controls", {"Data00": WRONG}, ("controls",)),
}


@pytest.mark.parametrize(("row", "damage", "corrupt"), DAMAGES.values(), ids=DAMAGES)
async def test_what_is_unreadable_is_reported_kept_aside_and_replaced_by_the_next_save(
    harness, row, damage, corrupt
):
    windows = {"backlog": Window([T0], [1.0]), "lag": Window([T0], [2.0]), "new": Window()}
    await harness.store.save(await harness.store.load("plan"), TargetState(expected=1), windows)
    await harness.store.save_controls(Snapshot("plan"), Controls(dry_run=True))
    await harness.change("plan", row, **damage)

    first = await harness.store.load("plan")
    again = await harness.store.load("plan")

    kept = {name for name in windows if not {"windows", f"window:{name}"} & set(corrupt)}
    assert first.corrupt == again.corrupt == corrupt
    assert first.state == (TargetState() if "state" in corrupt else TargetState(expected=1))
    assert first.windows == {name: windows[name] for name in kept}
    assert (
        first.controls == again.controls == (Controls() if "controls" in corrupt else Controls(dry_run=True))
    )
    [copy] = await harness.aside("plan")
    assert {name: copy.get(name) for name in damage} == damage

    await harness.store.save(again, TargetState(expected=2), {"backlog": Window()})
    await harness.store.save_controls(again, Controls(dry_run=False))
    healed = await harness.store.load("plan")
    assert (healed.state.expected, healed.windows, healed.corrupt) == (2, {"backlog": Window()}, ())
    assert healed.controls == Controls(dry_run=False)
    assert set(healed.etags) == {"state", "controls"}
    assert len(await harness.aside("plan")) == 1


@pytest.mark.parametrize(
    ("damage", "corrupt"),
    [
        (lambda blob: b"\x01" + blob[1:], ("window:a",)),
        (lambda blob: blob[:17] + bytes([blob[17] ^ 1]) + blob[18:], ("window:b",)),
        (lambda blob: blob[:-1], ("window:c",)),
        (lambda blob: blob[1:], ("window:a", "window:b", "window:c")),
        (lambda blob: blob + b"\x00", ()),
    ],
    ids=["first", "a bit in the middle", "cut", "shifted", "longer"],
)
async def test_damaged_samples_make_their_own_window_corrupt_and_no_other(harness, damage, corrupt):
    windows = {name: Window([T0 + n], [0.1 * n]) for n, name in enumerate("abc")}
    await harness.store.save(await harness.store.load("plan"), TargetState(expected=1), windows)
    await harness.change("plan", "state", Blob00=damage((await harness.raw("plan", "state"))["Blob00"]))

    loaded = await harness.store.load("plan")

    kept = {name: window for name, window in windows.items() if f"window:{name}" not in corrupt}
    assert (loaded.corrupt, loaded.windows, loaded.state) == (corrupt, kept, TargetState(expected=1))


async def test_a_window_that_cannot_be_read_is_gone_after_a_save_without_windows(harness):
    windows = {name: Window([T0], [1.0]) for name in "ab"}
    await harness.store.save(await harness.store.load("plan"), TargetState(), windows)
    blob = (await harness.raw("plan", "state"))["Blob00"]
    await harness.change("plan", "state", Blob00=blob[:-1])

    await harness.store.save(await harness.store.load("plan"), TargetState(expected=1))

    loaded = await harness.store.load("plan")
    assert (loaded.windows, loaded.corrupt) == ({"a": windows["a"]}, ())


@pytest.mark.parametrize("name", ["state", "controls"])
async def test_a_row_of_a_newer_release_is_neither_read_nor_overwritten(harness, name):
    loaded = await harness.store.load("plan")
    await harness.store.save(loaded, TargetState(expected=1), {"backlog": Window([T0], [1.0])})
    await harness.store.save_controls(loaded, Controls(dry_run=True))
    await harness.change("plan", name, Schema=2)

    with pytest.raises(NewerStateError, match=r"schema 2.*up to 1"):
        await harness.store.load("plan")

    with pytest.raises(ConflictError):
        await harness.store.save(loaded, TargetState(expected=7), {"backlog": Window()})
    with pytest.raises(ConflictError):
        await harness.store.save_controls(loaded, Controls(dry_run=False))
    if name == "state":  # an order is given all the same
        await harness.store.save_controls(await harness.store.load_controls("plan"), Controls(dry_run=False))
        assert (await harness.store.load_controls("plan")).controls == Controls(dry_run=False)
    else:
        with pytest.raises(NewerStateError):
            await harness.store.load_controls("plan")
    assert (await harness.raw("plan", name))["Schema"] == 2
    assert await harness.aside("plan") == []


async def test_fields_of_a_newer_minor_writer_are_ignored(harness):
    await harness.store.save(await harness.store.load("plan"), TargetState(expected=1))
    await harness.change("plan", "state", Data00='{"expected":1,"mood":"fine"}', Extra=5)

    assert (await harness.store.load("plan")).state == TargetState(expected=1)


@pytest.mark.parametrize(
    ("known", "unread"),
    [('"reason":"rate_limited"', ("last",)), ('"kind":"held"', ("last", "telling"))],
)
async def test_what_only_a_newer_release_can_show_costs_nothing_else_that_is_remembered(
    harness, known, unread
):
    telling = Telling(standing=Standing(NoticeKind.HELD, T0))
    state = msgspec.structs.replace(
        full_state(), recommendations=(), telling=telling
    )  # all of it in one column
    await harness.store.save(await harness.store.load("plan"), state)
    data = (await harness.raw("plan", "state"))["Data00"]
    newer = data.replace(known, f'{known[:-1]}_of_a_newer_release"')
    assert newer != data
    await harness.change("plan", "state", Data00=newer)

    loaded = await harness.store.load("plan")

    assert loaded.state == msgspec.structs.replace(state, **dict.fromkeys(unread))
    assert loaded.corrupt == ()


async def test_a_snapshot_shows_what_operators_ordered_and_orders_do_not_conflict_with_saves(harness):
    loaded = await harness.store.load("plan")
    controls = Controls(pauses=(Pause("ada", T0),))
    await harness.store.save_controls(loaded, controls)

    await harness.store.save(loaded, TargetState(expected=1))

    assert (await harness.store.load("plan")).controls == controls


# -- operators' orders


async def test_a_target_without_orders_has_no_controls_and_no_tag(harness):
    loaded = await harness.store.load("plan")

    assert (loaded.controls, "controls" in loaded.etags) == (NO_CONTROLS, False)


async def test_orders_are_loaded_as_given(harness):
    controls = Controls(
        pauses=(Pause("Zoë", T0, Direction.IN, T0 + 0.1), Pause("ops", T0)),
        override=Override(7, "ops", T0, T0 + 3600),
        dry_run=False,
        external_cleared_at=T0 - 1e-6,
    )

    await harness.store.save_controls(await harness.store.load("plan/ü"), controls)

    loaded = await harness.store.load("plan/ü")
    assert loaded.controls == controls
    assert loaded.etags["controls"]
    assert (await harness.store.load("plan")).controls == NO_CONTROLS


async def test_a_first_order_does_not_overwrite_another_first_order(harness):
    loaded = await harness.store.load("plan")

    results = await asyncio.gather(
        harness.store.save_controls(loaded, Controls(dry_run=True)),
        harness.store.save_controls(loaded, Controls(dry_run=False)),
        return_exceptions=True,
    )

    assert sorted(type(result).__name__ for result in results) == ["ConflictError", "NoneType"]
    assert (await harness.store.load("plan")).controls == Controls(dry_run=results[0] is None)


async def test_an_order_based_on_an_old_reading_is_refused(harness):
    await harness.store.save_controls(Snapshot("plan"), Controls(dry_run=True))
    old = await harness.store.load("plan")
    await harness.store.save_controls(old, Controls(dry_run=False))

    with pytest.raises(ConflictError):
        await harness.store.save_controls(old, NO_CONTROLS)

    newer = await harness.store.load("plan")
    assert newer.controls == Controls(dry_run=False)
    assert newer.etags["controls"] != old.etags["controls"]


async def test_an_order_for_a_row_that_is_gone_is_refused(harness):
    await harness.store.save_controls(Snapshot("plan"), Controls(dry_run=True))
    loaded = await harness.store.load("plan")

    with pytest.raises(ConflictError):
        await harness.store.save_controls(msgspec.structs.replace(loaded, target="other"), NO_CONTROLS)


async def test_orders_beyond_a_row_are_refused_by_size(harness):
    with pytest.raises(TooLargeError, match="row 'controls'"):
        await harness.store.save_controls(Snapshot("plan"), Controls(pauses=(Pause("x" * 600_000, T0),)))


# -- the adapter alone -------------------------------------------------------------------------------------


class Counting(StorageWire):
    """Knows the methods of the requests that it sent."""

    def __init__(self):
        super().__init__({})
        self.sent = []

    async def send(self, method, url, headers, body):
        self.sent.append(method)
        return await super().send(method, url, headers, body)


@pytest.mark.wire
async def test_a_save_is_one_request_and_a_load_is_one_request(azurite):
    wire = Counting()
    store = TableStateStore({"Store": azurite}, "Store", table=f"State{uuid.uuid4().hex}", wire=wire)
    await store.save(await store.load("plan"), full_state(), {"backlog": Window([T0], [1.0])})
    wire.sent.clear()

    loaded = await store.load("plan")
    await store.save(loaded, full_state(), {"backlog": Window([T0], [2.0])})

    assert wire.sent == ["GET", "PUT"]
    await store.aclose()


@pytest.mark.wire
async def test_saving_creates_a_missing_table_and_a_row_that_is_there_is_a_conflict(azurite):
    store = TableStateStore({"Store": azurite}, "Store", table=f"State{uuid.uuid4().hex}")
    await store.save(Snapshot("plan"), TargetState(expected=1))

    with pytest.raises(ConflictError, match="changed since it was read"):
        await store.save(Snapshot("plan"), TargetState(expected=2))

    assert (await store.load("plan")).state.expected == 1
    await store.aclose()


@pytest.mark.wire
async def test_a_row_that_was_deleted_since_it_was_loaded_is_a_conflict(azurite):
    harness = TableHarness(azurite)
    await harness.store.save(Snapshot("plan"), TargetState(expected=1))
    loaded = await harness.store.load("plan")

    await harness.client.delete_entity("plan", "state")
    with pytest.raises(ConflictError):
        await harness.store.save(loaded, TargetState(expected=2))
    await harness.client.delete_table()
    with pytest.raises(ConflictError):
        await harness.store.save(loaded, TargetState(expected=2))

    assert await harness.store.load("plan") == Snapshot("plan")
    await harness.aclose()


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

    for attempt in (store.load("plan"), store.save(Snapshot("plan"), TargetState())):
        with pytest.raises(StoreUnavailableError, match="answered 403"):
            await attempt
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


@given(states, st.dictionaries(texts, windows_, max_size=4))
def test_every_state_and_window_survives_its_row_bit_by_bit(state, windows):
    read, found, corrupt = read_target(target_row("plan", state, windows))

    assert (repr(read), found, corrupt) == (repr(state), windows, ())
    assert {name: bits(window) for name, window in found.items()} == {
        name: bits(window) for name, window in windows.items()
    }


@given(texts, texts)
def test_different_names_have_different_keys_without_forbidden_characters(one, other):
    assert (key_of(one) == key_of(other)) == (one == other)
    assert not set(key_of(one)) & set("/\\#?'% \t\n")
    assert len(key_of(one * 200)) <= 400


HEAD = '[{"metric":"m","count":1,"checksum":0},{"metric":"n","count":0,"checksum":0}]'


@given(
    st.dictionaries(
        st.sampled_from(["Schema", "Data00", "Data01", "Windows00", "Windows01", "Blob00", "Blob01"]),
        st.sampled_from([1, 0, None, "", "[]", "{}", "null", HEAD, b"", b"x", True, "[" * 100_000]),
    )
)
def test_reading_any_row_gives_values_and_what_is_corrupt(row):
    read_target(row)
    with contextlib.suppress(CorruptRowError):
        read_controls(row)
