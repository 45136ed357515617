"""What every DecisionLog does: the one in memory and the one in Table Storage."""

import asyncio
import json
import math
import os
import uuid

import msgspec
import pytest
from azure.data.tables.aio import TableServiceClient
from hypothesis import given
from hypothesis import strategies as st

from scaling.log_entry import LogEntry, LogKind
from scaling.model import Effect, EffectOutcome, Evidence, Reason, Recommendation
from scaling.storage import decision_log
from scaling.storage.decision_log import Position, TableDecisionLog, decode_position, encode_position
from scaling.storage.rows import ENTITY_BYTES, log_row, log_row_key, read_log_row, size_of
from scaling.web.views import log_view
from tests.support.scaling.fakes import MemoryDecisionLog
from tidemark.foundation.errors import StoreUnavailableError

T0 = 1_795_000_000.0


@pytest.fixture
async def log(backend):
    made = (
        TableDecisionLog({"Store": backend}, "Store", table=f"Log{uuid.uuid4().hex}")
        if backend
        else MemoryDecisionLog()
    )
    yield made
    await made.aclose()


def entry(at=T0, key="decision", target="plan", **fields):
    fields = {"kind": LogKind.DECISION, "line": f"{key} at {at}", "reason": "scale_out", **fields}
    return LogEntry(target=target, at=at, key=key, **fields)


def full_entry():
    recommendation = Recommendation(
        "plan@20261121T045000.000Z",
        "plan",
        T0,
        2,
        3,
        3,
        1,
        10,
        Reason.SCALE_OUT,
        evidence=(Evidence("threshold", "backlog", "average", math.inf, ">", 0.1 + 0.2),),
    )
    return entry(
        line="plan ünïcode: 2 → 3 ☃",
        current=2,
        desired=3,
        recommendation=recommendation,
        effect=Effect("id", "plan", EffectOutcome.APPLIED, 2, 3, 3, T0),
        by="Zoë",
        metrics={"backlog": 0.1 + 0.2, "lag": 1e300},
        inputs=os.urandom(200_000),
    )


async def pages(log, **query):
    found, token = [], None
    while True:
        page = await log.read(continuation=token, **query)
        found.append(list(page.entries))
        token = page.continuation
        if token is None:
            return found


def keys(entries):
    return [(found.target, found.at, found.key) for found in entries]


async def test_an_empty_log_has_one_empty_page(log):
    page = await log.read()

    assert (page.entries, page.continuation) == ((), None)
    assert await log.get("plan", T0, "decision") is None
    assert await log.purge(before=T0) == 0


async def test_an_entry_is_read_as_written_with_inputs_only_when_got_alone(log):
    written = full_entry()
    await log.append([written])

    assert await log.get("plan", T0, "decision") == written
    assert (await log.read()).entries == (msgspec.structs.replace(written, inputs=None),)


async def test_writing_an_entry_again_replaces_it(log):
    await log.append([entry(line="first"), entry(line="second"), entry(T0 + 1)])
    await log.append([entry(line="third")])

    assert [found.line for found in (await log.read()).entries] == [f"decision at {T0 + 1}", "third"]


async def test_entries_come_newest_first_and_those_of_one_time_by_target_and_key(log):
    written = [
        entry(T0 + offset, key, target)
        for offset in (0, 0.000001, 1, 3600)
        for target in ("a", "b/c", "b")
        for key in ("effect", "decision", "x/y#?ü")
    ]
    await log.append(written)

    got = keys((await log.read()).entries)

    assert set(got) == set(keys(written))
    assert [at for _, at, _ in got] == sorted((at for _, at, _ in got), reverse=True)
    assert [(target, key) for target, at, key in got if at == T0] == [
        (target, key) for target in ("a", "b", "b/c") for key in ("decision", "effect", "x/y#?ü")
    ]


async def test_one_target_is_read_alone_whatever_its_name(log):
    names = ["plan", "plan/orders", "Pläne ☃", "~targets", "x" * 700, "x" * 701]
    await log.append([entry(target=name) for name in names])

    for name in names:
        assert keys((await log.read(name)).entries) == [(name, T0, "decision")]
    assert (await log.read("unknown")).entries == ()


@pytest.mark.parametrize("target", [None, "b"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
async def test_pages_put_together_are_the_whole_log(log, target, limit):
    written = [
        entry(T0 + offset, key, name)
        for offset in (0, 0, 1, 2)
        for name in ("a", "b", "c")
        for key in ("decision", "effect")
    ]
    await log.append(written)
    whole = list((await log.read(target, limit=1000)).entries)

    found = await pages(log, target=target, limit=limit)

    assert [one for page in found for one in page] == whole
    assert all(len(page) == limit for page in found[:-1])
    assert 0 < len(found[-1]) <= limit


async def test_no_entry_is_lost_or_repeated_when_others_are_written_between_the_pages(log):
    await log.append([entry(T0 + n, target=f"plan{n % 3}") for n in range(12)])
    before = keys((await log.read()).entries)

    found, token, newer = [], None, T0 + 100
    while True:
        page = await log.read(limit=5, continuation=token)
        found += keys(page.entries)
        token = page.continuation
        if token is None:
            break
        newer += 1
        await log.append([entry(newer, target="plan0"), entry(newer, target=f"new{newer:.0f}")])

    assert found == before


async def test_since_is_inclusive_and_holds_across_pages(log):
    await log.append([entry(T0 + n / 10, target=f"plan{n % 2}") for n in range(10)])

    found = [one for page in await pages(log, since=T0 + 0.3, limit=3) for one in page]

    assert [round(one.at - T0, 1) for one in found] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    assert len((await log.read(since=-5.0)).entries) == 10
    assert (await log.read(since=1e11)).entries == ()


@pytest.mark.parametrize(
    "token", ["x", "bm9uc2Vuc2U", "W251bGwsICJwIiwgInIiXQ", "🙂", "WzFd", "../etc", "a" * 5000]
)
async def test_a_continuation_of_somebody_else_is_refused(log, token):
    with pytest.raises(ValueError, match="was not issued by this log"):
        await log.read(continuation=token)


async def test_a_continuation_holds_for_its_listing_only_and_is_safe_in_an_address(log):
    await log.append([entry(T0 + n, target="a/b?c") for n in range(3)])
    token = (await log.read("a/b?c", limit=1)).continuation

    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    with pytest.raises(ValueError, match="belongs to a listing of target 'a/b\\?c', not of all targets"):
        await log.read(continuation=token)


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_limit_out_of_range_is_refused(log, limit):
    with pytest.raises(ValueError, match="expected 1 to 1000"):
        await log.read(limit=limit)


@pytest.mark.parametrize("at", [-0.001, math.nan, math.inf, -math.inf, 253_402_300_800.0, 1e300])
async def test_a_time_that_cannot_be_stored_is_refused_and_no_entry_is_found_at_it(log, at):
    with pytest.raises(ValueError, match="up to the year 9999"):
        await log.append([entry(at)])
    assert await log.get("plan", at, "decision") is None


@pytest.mark.parametrize("at", [0.0, 1e-6, T0 + 0.1, 253_402_300_799.0])
async def test_the_earliest_and_the_latest_times_can_be_stored(log, at):
    await log.append([entry(at)])

    assert (await log.get("plan", at, "decision")).at == at
    assert keys((await log.read()).entries) == [("plan", at, "decision")]


async def test_purging_deletes_what_is_older_than_asked_and_nothing_else(log):
    await log.append([entry(T0 + n, target=f"plan{n % 2}") for n in range(250)])
    await log.append([entry(T0 - 1, key) for key in ("decision", "effect", "a/b")])

    assert await log.purge(before=T0 + 230) == 233
    assert await log.purge(before=T0 + 230) == 0

    assert [one.at for one in (await log.read()).entries] == [T0 + n for n in range(249, 229, -1)]


async def test_one_purge_deletes_all_that_is_old_however_much_that_is(log, monkeypatch):
    monkeypatch.setattr(decision_log, "PURGE_SECONDS", 600.0)  # a loaded machine is not what is tested
    await log.append([entry(T0 + n, target=f"plan{n % 2}") for n in range(2_300)])

    assert await log.purge(before=T0 + 1e6) == 2_300
    assert (await log.read()).entries == ()


async def test_an_entry_too_large_for_a_row_loses_its_inputs_and_says_so(log):
    await log.append([entry(inputs=os.urandom(1_100_000), metrics={"backlog": 1.0})])

    found = await log.get("plan", T0, "decision")

    assert found.inputs is None
    assert found.metrics == {"backlog": 1.0}
    assert found.line.endswith("[inputs of 1100000 bytes do not fit into a table row and were left out]")


async def test_an_entry_with_endless_text_keeps_its_outcome_and_says_so(log):
    huge = Effect("id", "plan", EffectOutcome.FAILED, 1, 2, None, T0, "☃" * 200_000)
    await log.append([entry(line="☃" * 40_000, effect=huge, current=1, desired=2, by="b" * 40_000)])

    found = await log.get("plan", T0, "decision")

    assert (found.current, found.desired, found.reason, found.effect) == (1, 2, "scale_out", None)
    assert "do not fit into a table row and were left out]" in found.line


async def test_many_large_entries_are_written_by_one_append(log):
    await log.append([entry(T0 + n, inputs=os.urandom(600_000)) for n in range(9)])

    assert len((await log.read()).entries) == 9
    assert len((await log.get("plan", T0 + 8, "decision")).inputs) == 600_000


async def test_numbers_and_texts_that_no_column_holds_do_not_lose_the_entry(log):
    odd = entry(current=2**31, desired=-(2**70), line="lone \ud800 surrogate", key="\ud800", target="t\ud800")
    await log.append([odd])

    assert await log.get("t\ud800", T0, "\ud800") == odd


# -- the adapter alone -------------------------------------------------------------------------------------


@pytest.fixture
async def table(azurite):
    """A log in a new table, and a client of that table."""
    name = f"Log{uuid.uuid4().hex}"
    log = TableDecisionLog({"Store": azurite}, "Store", table=name)
    async with TableServiceClient.from_connection_string(azurite) as service:
        yield log, service.get_table_client(name)
    await log.aclose()


@pytest.mark.wire
async def test_a_row_can_be_read_by_people(table):
    log, client = table
    await log.append([full_entry()])

    row = await client.get_entity("plan", log_row_key(T0, "decision"))

    assert {name: row[name] for name in ("At", "Kind", "Reason", "Line", "Current", "Desired", "By")} == {
        "At": "2026-11-18T11:06:40.000000Z",
        "Kind": "decision",
        "Reason": "scale_out",
        "Line": "plan ünïcode: 2 → 3 ☃",
        "Current": 2,
        "Desired": 3,
        "By": "Zoë",
    }
    assert json.loads(row["Metrics"]) == {"backlog": 0.1 + 0.2, "lag": 1e300}


@pytest.mark.wire
async def test_an_unreadable_row_is_shown_by_its_columns(table):
    log, client = table
    await log.append([full_entry(), entry(T0 + 1)])
    row = await client.get_entity("plan", log_row_key(T0, "decision"))
    await client.update_entity({**row, "Data00": "{"}, mode="replace")

    _, found = (await log.read()).entries

    assert keys([found]) == [("plan", T0, "decision")]
    assert (found.kind, found.reason, found.by) == (LogKind.DECISION, "scale_out", "Zoë")
    assert found.line.startswith("plan ünïcode: 2 → 3 ☃ [the stored entry is unreadable: ")

    await client.update_entity({**row, "Data00": "{", "By": 5}, mode="replace")
    shown = log_view(await log.read())

    assert [each.by for each in shown.entries] == [None, "5"]


@pytest.mark.wire
async def test_entries_are_found_after_the_table_was_deleted_under_the_writer(table):
    log, client = table
    await log.append([entry(T0)])
    await client.delete_table()

    await log.append([entry(T0 + 1)])

    assert keys((await log.read()).entries) == [("plan", T0 + 1, "decision")]


@pytest.mark.wire
async def test_two_purges_at_once_delete_everything_once(table):
    log, _ = table
    await log.append([entry(T0 + n, target=f"plan{n % 3}") for n in range(300)])

    await asyncio.gather(log.purge(before=T0 + 1e6), log.purge(before=T0 + 1e6))
    await log.purge(before=T0 + 1e6)

    assert (await log.read()).entries == ()


async def test_a_log_that_does_not_answer_is_unavailable_and_not_empty():
    unreachable = "AccountName=acme;AccountKey=c2VjcmV0;TableEndpoint=http://127.0.0.1:9/acme"
    log = TableDecisionLog({"Store": unreachable}, "Store", retry_total=0)

    for attempt in (log.read(), log.read("plan"), log.append([entry()]), log.purge(before=T0)):
        with pytest.raises(StoreUnavailableError, match="'ScalingLog' of storage account 'acme'"):
            await attempt
    await log.aclose()


# -- rows and continuations --------------------------------------------------------------------------------

texts = st.text(st.characters(), max_size=30)


@given(
    st.builds(
        LogEntry,
        target=texts,
        at=st.floats(0, 4e9),
        kind=st.sampled_from(LogKind),
        key=texts,
        line=texts,
        reason=texts,
        current=st.none() | st.integers(),
        by=st.none() | texts,
        metrics=st.dictionaries(texts, st.floats(allow_nan=False)),
        inputs=st.none() | st.binary(max_size=50),
    )
)
def test_every_entry_survives_its_row_and_fits(written):
    row = log_row(written)

    assert read_log_row(row, inputs=True) == written
    assert size_of(row) <= ENTITY_BYTES


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_newer_entries_have_lesser_row_keys(one, other):
    if round(one * 1e6) > round(other * 1e6):
        assert log_row_key(one, "z") < log_row_key(other, "a")


@given(st.none() | texts, st.text("abc~-", max_size=9), st.text("abc", max_size=9))
def test_every_position_survives_its_continuation(scope, partition, key):
    position = Position(scope, partition, f"{10**17}-{key}")

    assert decode_position(encode_position(position), scope) == position


async def test_a_listing_ends_at_a_moment_leaves_decisions_out_and_has_inputs_where_they_are_asked_for(log):
    times = [T0 + 60.0 * index for index in range(5)]
    entries = [entry(at, inputs=b"in") for at in times]
    entries += [entry(times[2] + 4.0, "effect-applied", kind=LogKind.EFFECT), entry(T0, target="other")]
    await log.append(entries)

    between = (await log.read("plan", since=times[1], until=times[3])).entries
    changes = (await log.read("plan", until=times[4], changes=True)).entries
    newest = (await log.read("plan", since=times[0], until=times[2], limit=1, inputs=True)).entries

    assert [each.at for each in between] == [times[3], times[2] + 4.0, times[2], times[1]]
    assert [change.kind for change in changes] == [LogKind.EFFECT]
    assert [(each.at, each.inputs) for each in newest] == [(times[2], b"in")]
    assert between[0].inputs is None
