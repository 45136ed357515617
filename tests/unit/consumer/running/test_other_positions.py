"""Other sinks, or another CONSUMER_CHECKPOINTS, keep the positions elsewhere: a first start skips nothing, and names where they are."""

import asyncio
import re
import time
from types import SimpleNamespace

import pytest

from consumer.config import read_config
from consumer.definition.reading import read_definition
from consumer.doctor.checks import checks_of
from consumer.errors import PositionError, UnreadableError
from consumer.model import Checkpoint, DeadLetter, Event, Origin, Rejection
from consumer.running.process import ConsumerProcess
from consumer.stores.memory import MemoryCheckpointStore
from consumer.stores.sql.checkpoints import SqlCheckpointStore
from consumer.stores.sql.tables import TABLES
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.virtual_time import Clock
from tests.torture.definitions import SETTINGS, SINKS, STREAM
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sql.database import SqlDatabase

SEVERAL = ("fields", "table")
ALONE = ("table",)
COSMOS = ("fields",)
CASES = [(SEVERAL, "blob"), (ALONE, "sql"), (COSMOS, "blob"), (COSMOS, "sql")]
"""Sinks of a file, and where its positions are. With the last two CONSUMER_CHECKPOINTS was changed by itself."""
NUMBERS = {True: 5, "earlier": 5, "later": 9}
SHIFTS = {"earlier": -100.0, "later": 100.0}
"""Seconds between the clocks of the two stores."""


def text_of(sinks, start, checkpoints):
    lines = ["version = 1", "[hubs.h]", "hub = 'h'", f"start = '{start}'", f"checkpoints = '{checkpoints}'"]
    for name in sinks:
        lines += ["[[hubs.h.routes]]", f"to = '{name}'", f"also = {'true' if name != sinks[-1] else 'false'}"]
    for name in sinks:
        lines += [f"[sinks.{name}]", SINKS[name].replace("GUARD", "none")]
    return "\n".join(lines)


@pytest.mark.parametrize(("sinks", "checkpoints"), CASES)
@pytest.mark.parametrize(
    ("start", "before", "present", "outcome"),
    [
        ("latest", True, False, "refused"),
        ("2026-11-21T08:00:00Z", True, False, "refused"),
        ("earliest", True, False, "warned"),
        ("latest", "away", False, "waits"),
        ("earliest", "away", False, ""),
        ("latest", False, False, ""),  # really the first start
        ("latest", True, True, ""),  # `tidemark checkpoints set` moved them
        ("latest", "later", "earlier", "warned"),  # the sinks were changed, and changed back
        ("earliest", "later", "earlier", "warned"),
        ("latest", "earlier", "later", ""),
        ("latest", "away", True, ""),
    ],
)
def test_a_start_with_other_sinks_skips_nothing_that_the_positions_of_before_do_not_cover(
    sinks, checkpoints, start, before, present, outcome, tmp_path, monkeypatch, caplog
):
    url = f"sqlite:///{tmp_path}/rows.db"
    clock, notices = Clock(), {}
    blob, parked = MemoryCheckpointStore(clock=clock), MemoryDeadLetterStore()
    monkeypatch.setattr("consumer.running.assembly.BlobCheckpointStore", lambda *_, **__: blob)
    monkeypatch.setattr("consumer.running.assembly.BlobDeadLetterStore", lambda *_, **__: parked)

    async def main():
        text = text_of(sinks, start, checkpoints)
        [hub] = read_definition(text, {**SETTINGS, "CONSUMER_SQL_URL": url}, name="f").hubs
        sql = SqlCheckpointStore(SqlDatabase(url, tables=TABLES), STREAM)
        in_sql, in_blob = (present, before) if checkpoints == "sql" else (before, present)
        deadline = asyncio.get_running_loop().time() + 5.0
        for store, has in ((sql, in_sql), (blob, in_blob)):
            if has in NUMBERS:
                clock.now = time.time() + SHIFTS.get(has, 0.0)
                await store.put(Checkpoint("0", NUMBERS[has], ""), deadline=deadline)
        await sql.aclose()
        process = ConsumerProcess(hub.config, hub.settings, hub=hub)
        assert len(process._others) == 1
        assert process.driver.on_claim == process._reporter.on_claim

        async def nothing(_):
            """In place of the final report."""

        process._consume = lambda _: process._looking
        process._reporter = SimpleNamespace(start=lambda: None, aclose=nothing, problem="", notices=notices)
        stop = asyncio.Event()

        async def away(*, deadline):
            asyncio.get_running_loop().call_later(0.05, stop.set)
            raise UnavailableError("no answer")

        if before == "away":
            process._others[0][1].load_all = away
        await process.run(stop)

    if outcome == "refused":
        with pytest.raises(PositionError, match=r"checkpoints export .* checkpoints set --from") as refused:
            asyncio.run(main())
        where = "the container" if checkpoints == "sql" else "the database of CONSUMER_SQL_URL"
        assert where in str(refused.value)
    elif outcome == "waits":
        with pytest.raises(UnavailableError, match="cannot be read: no answer; to begin there anyway, run"):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert ("events are written again" in caplog.text) is (outcome == "warned")
    assert ("events are written again" in notices.get("positions", "")) is (outcome == "warned")


@pytest.mark.parametrize(
    ("start", "in_blob", "in_sql", "outcome"),
    [
        ("latest", 5, None, "failed"),
        ("earliest", 5, None, "warning"),
        ("latest", 9, 5, "warning"),
        ("latest", None, 5, "ok"),
        ("latest", None, None, "ok"),
        ("latest", "away", None, "unknown"),
        ("latest", "away", 5, "ok"),
    ],
)
async def test_the_doctor_says_what_the_next_start_makes_of_the_positions(
    start, in_blob, in_sql, outcome, tmp_path, monkeypatch
):
    url = f"sqlite:///{tmp_path}/rows.db"
    blob = MemoryCheckpointStore(clock=lambda: time.time() + 100.0)
    monkeypatch.setattr("consumer.running.assembly.BlobCheckpointStore", lambda *_, **__: blob)
    (tmp_path / "f.toml").write_text(text_of(COSMOS, start, "sql"))
    settings = {**SETTINGS, "CONSUMER_SQL_URL": url, "CONSUMER_FILE": str(tmp_path / "f.toml")}
    deadline = asyncio.get_running_loop().time() + 5.0
    if in_sql is not None:
        sql = SqlCheckpointStore(SqlDatabase(url, tables=TABLES), STREAM)
        await sql.put(Checkpoint("0", in_sql, ""), deadline=deadline)
        await sql.aclose()
    if in_blob == "away":
        monkeypatch.setattr(blob, "load_all", away)
    elif in_blob is not None:
        await blob.put(Checkpoint("0", in_blob, ""), deadline=deadline)
    [check] = [each for each in checks_of(settings, tmp_path) if each.name == "positions"]
    [finding] = await check.call()

    assert (str(finding.verdict), finding.subject) == (outcome, "hub h, group $Default")
    assert ("checkpoints set --from" in finding.remedy) is (outcome in {"failed", "warning"})
    assert in_sql is not None or not (tmp_path / "rows.db").exists()


@pytest.mark.parametrize(("digest", "verdict"), [("other", "warning"), ("", "ok"), (None, "ok")])
async def test_the_doctor_says_from_where_changed_routes_count(digest, verdict, tmp_path, monkeypatch):
    blob = MemoryCheckpointStore()
    monkeypatch.setattr("consumer.running.assembly.BlobCheckpointStore", lambda *_, **__: blob)
    text = text_of(COSMOS, "latest", "blob")
    (tmp_path / "f.toml").write_text(text)
    settings = {**SETTINGS, "CONSUMER_FILE": str(tmp_path / "f.toml")}
    [hub] = read_definition(text, settings, name="f").hubs
    origin = Origin(routes=hub.config.policy.routes if digest is None else digest)
    await blob.put(Checkpoint("3", 41, "", origin=origin), deadline=asyncio.get_running_loop().time() + 5.0)
    [check] = [each for each in checks_of(settings, tmp_path) if each.name == "positions"]
    [finding] = await check.call()

    assert str(finding.verdict) == verdict
    changed = "the routes have changed: the new ones take what is not settled after event 41 of partition 3, and nothing before it"
    assert finding.found == (changed if verdict == "warning" else "1 position stored")


@pytest.mark.parametrize(
    ("start", "other", "own", "outcome"),
    [
        ("latest", 5, None, "refused"),
        ("earliest", 5, None, "warned"),
        ("latest", None, None, ""),
        ("latest", 5, 9, ""),  # the positions were moved
        ("latest", 9, 5, "warned"),  # the container was changed, and changed back
    ],
)
def test_positions_in_another_container_of_the_account_are_found(
    start, other, own, outcome, tmp_path, monkeypatch, caplog
):
    """BLOB_CONTAINER was changed between two starts."""
    stores = {name: MemoryCheckpointStore(clock=Clock()) for name in ("other", "eventhub-checkpoints")}
    monkeypatch.setattr(
        "consumer.running.assembly.BlobCheckpointStore",
        lambda container, *_, **__: stores[container.container_name],
    )
    monkeypatch.setattr(
        "consumer.running.assembly.BlobDeadLetterStore", lambda *_, **__: MemoryDeadLetterStore()
    )

    async def containers(_settings, _connection, stream, own, *, is_first):
        assert is_first is (number_here is None)
        assert (stream.hub, own) == ("h", "eventhub-checkpoints")
        return ["other"] if other is not None else []

    monkeypatch.setattr("consumer.running.assembly.containers_with_positions", containers)
    notices, number_here = {}, own

    async def main():
        [hub] = read_definition(text_of(COSMOS, start, "blob"), SETTINGS, name="f").hubs
        for name, number, at in (
            ("other", other, 10.0 * (other or 0)),
            ("eventhub-checkpoints", own, 10.0 * (own or 0)),
        ):
            if number is not None:
                stores[name]._clock = lambda at=at: at
                await stores[name].put(Checkpoint("0", number, ""), deadline=0.0)
        process = ConsumerProcess(hub.config, hub.settings, hub=hub)

        async def nothing(_):
            """In place of the final report."""

        process._consume = lambda _: process._looking
        process._reporter = SimpleNamespace(start=lambda: None, aclose=nothing, problem="", notices=notices)
        await process.run(asyncio.Event())

    if outcome == "refused":
        with pytest.raises(
            PositionError, match=r"the container 'other' has 1 position of a start .* BLOB_CONTAINER"
        ):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert ("events are written again" in notices.get("positions", "")) is (outcome == "warned")


@pytest.mark.parametrize(("start", "outcome"), [("latest", "refused"), ("earliest", "warned")])
def test_a_storage_connection_that_was_another_one_and_is_still_set_is_looked_into(
    start, outcome, monkeypatch, caplog
):
    stores = {name: MemoryCheckpointStore(clock=Clock()) for name in ("Before", "AzureWebJobsStorage")}
    monkeypatch.setattr(
        "consumer.running.assembly.BlobCheckpointStore", lambda *_, connection, **__: stores[connection]
    )
    monkeypatch.setattr(
        "consumer.running.assembly.BlobDeadLetterStore", lambda *_, **__: MemoryDeadLetterStore()
    )

    async def none(*_, **__):
        return []

    async def before(_settings, connection, _stream, name):
        assert (connection, name) == ("AzureWebJobsStorage", "eventhub-checkpoints")
        return ["Before"]

    monkeypatch.setattr("consumer.running.assembly.containers_with_positions", none)
    monkeypatch.setattr("consumer.running.assembly.accounts_with_positions", before)
    settings = {**SETTINGS, "Before": SETTINGS["AzureWebJobsStorage"].replace("=x;", "=y;")}

    async def main():
        [hub] = read_definition(text_of(COSMOS, start, "blob"), settings, name="f").hubs
        await stores["Before"].put(Checkpoint("0", 5, ""), deadline=0.0)
        process = ConsumerProcess(hub.config, hub.settings, hub=hub)

        async def nothing(_):
            """In place of the final report."""

        process._consume = lambda _: process._looking
        process._reporter = SimpleNamespace(start=lambda: None, aclose=nothing, problem="", notices={})
        await process.run(asyncio.Event())

    where = "the container 'eventhub-checkpoints' in the account of Before has 1 position"
    if outcome == "refused":
        with pytest.raises(PositionError, match=where):
            asyncio.run(main())
    else:
        asyncio.run(main())
        assert where in caplog.text


@pytest.mark.parametrize(
    ("checkpoints", "start", "told"),
    [
        (
            "blob",
            "latest",
            r"no position .* in the container 'eventhub-checkpoints' of AzureWebJobsStorage: .* CONSUMER_START, latest",
        ),
        (
            "sql",
            "earliest",
            r"no position .* in the database of CONSUMER_SQL_URL: .* CONSUMER_START, earliest",
        ),
    ],
)
def test_a_first_start_says_where_it_looked_for_positions(
    checkpoints, start, told, tmp_path, monkeypatch, caplog
):
    """Of another storage account or database nobody knows; who reads this can."""
    caplog.set_level("INFO", "tidemark.consumer")
    blob = MemoryCheckpointStore()
    monkeypatch.setattr("consumer.running.assembly.BlobCheckpointStore", lambda *_, **__: blob)
    url = f"sqlite:///{tmp_path}/rows.db"

    async def lines():
        caplog.clear()
        [hub] = read_definition(
            text_of(COSMOS, start, checkpoints), {**SETTINGS, "CONSUMER_SQL_URL": url}, name="f"
        ).hubs
        process = ConsumerProcess(hub.config, hub.settings, hub=hub)
        process._find_more = None
        await process._check_other_positions()
        deadline = asyncio.get_running_loop().time() + 5.0
        if not caplog.records:
            return []
        await process._stored.put(Checkpoint("0", 5, ""), deadline=deadline)
        found = [record.getMessage() for record in caplog.records]
        await process._aclose()
        return found

    [line] = asyncio.run(lines())
    assert re.search(told, line)
    assert asyncio.run(lines()) == []


async def away(*, deadline):
    raise UnavailableError("no answer")


class Unreadable(MemoryDeadLetterStore):
    async def list(self, *, partition=None, reason=None):
        raise UnreadableError("the blob x is no parked event: purge 'x'")
        yield


class Silent(MemoryDeadLetterStore):
    async def list(self, *, partition=None, reason=None):
        async for each in super().list():
            yield each
        await asyncio.sleep(60.0)


@pytest.mark.parametrize(
    ("hosting", "parked", "verdict", "found"),
    [
        ("off", MemoryDeadLetterStore(), "ok", "1 event is parked"),
        ("off", Unreadable(), "failed", "the blob x is no parked event: purge 'x'"),
        ("off", Silent(), "ok", "1 event is parked, or more"),
        (
            "trigger",
            MemoryDeadLetterStore(),
            "warning",
            "1 event is parked, and behind the trigger nobody tries them again",
        ),
    ],
)
async def test_the_doctor_says_which_parked_event_holds_its_partition(
    hosting, parked, verdict, found, tmp_path, monkeypatch
):
    monkeypatch.setattr("consumer.running.assembly.BlobDeadLetterStore", lambda *_, **__: parked)
    monkeypatch.setattr("consumer.doctor.checks.LOOK_WITHIN", 0.01)
    await parked.put([PARKED], deadline=0.0)
    settings = {
        **SETTINGS,
        "EVENTHUB_NAME": "h",
        "COSMOS_DATABASE": "d",
        "COSMOS_CONTAINER": "c",
        "CONSUMER_HOSTING": hosting,
    }
    [check] = [each for each in checks_of(settings, tmp_path) if each.name == "parked"]
    [finding] = await check.call()

    assert (str(finding.verdict), finding.found) == (verdict, found)


PARKED = DeadLetter("h", "$Default~parked", Event("0", 1, "", 0.0, b""), Rejection("r", ""), 1, 0.0)


@pytest.mark.parametrize(
    ("sink", "dead_letters", "is_told"),
    [("sql", "sql", True), ("cosmos", "sql", True), ("cosmos", "blob", False)],
)
def test_events_that_were_parked_in_the_container_of_other_settings_are_told(
    sink, dead_letters, is_told, tmp_path, monkeypatch, caplog
):
    parked = MemoryDeadLetterStore()
    monkeypatch.setattr(
        "consumer.running.assembly.BlobCheckpointStore", lambda *_, **__: MemoryCheckpointStore()
    )
    monkeypatch.setattr("consumer.running.assembly.BlobDeadLetterStore", lambda *_, **__: parked)
    settings = {
        **SETTINGS,
        "EVENTHUB_NAME": "h",
        "COSMOS_DATABASE": "d",
        "COSMOS_CONTAINER": "c",
        "CONSUMER_SINK": sink,
        "CONSUMER_DEAD_LETTERS": dead_letters,
        "CONSUMER_SQL_URL": f"sqlite:///{tmp_path}/rows.db",
    }

    async def main():
        await parked.put([PARKED], deadline=0.0)
        process = ConsumerProcess(read_config(settings), settings)
        await process._look_elsewhere()
        await process._aclose()
        return process

    process = asyncio.run(main())
    assert ("events are parked in the container" in caplog.text) is is_told
    assert ("parked" in process._reporter.notices) is is_told
