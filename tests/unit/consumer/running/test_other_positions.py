"""Another set of sinks keeps the positions elsewhere: a first start with it skips nothing, and names where they are."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from consumer.config import read_config
from consumer.definition.reading import read_definition
from consumer.errors import PositionError
from consumer.model import Checkpoint, DeadLetter, Event, Rejection
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
BOTH = [SEVERAL, ALONE]
NUMBERS = {True: 5, "earlier": 5, "later": 9}
SHIFTS = {"earlier": -100.0, "later": 100.0}
"""Seconds between the clocks of the two stores."""


def text_of(sinks, start):
    lines = ["version = 1", "[hubs.h]", "hub = 'h'", f"start = '{start}'"]
    for name in sinks:
        lines += ["[[hubs.h.routes]]", f"to = '{name}'", f"also = {'true' if name != sinks[-1] else 'false'}"]
    for name in sinks:
        lines += [f"[sinks.{name}]", SINKS[name].replace("GUARD", "none")]
    return "\n".join(lines)


@pytest.mark.parametrize("sinks", BOTH)
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
    sinks, start, before, present, outcome, tmp_path, monkeypatch, caplog
):
    url = f"sqlite:///{tmp_path}/rows.db"
    clock = Clock()
    blob, parked = MemoryCheckpointStore(clock=clock), MemoryDeadLetterStore()
    monkeypatch.setattr("consumer.running.assembly.BlobCheckpointStore", lambda *_: blob)
    monkeypatch.setattr("consumer.running.assembly.BlobDeadLetterStore", lambda *_, **__: parked)

    async def main():
        [hub] = read_definition(text_of(sinks, start), {**SETTINGS, "CONSUMER_SQL_URL": url}, name="f").hubs
        sql = SqlCheckpointStore(SqlDatabase(url, tables=TABLES), STREAM)
        in_sql, in_blob = (present, before) if sinks == ALONE else (before, present)
        deadline = asyncio.get_running_loop().time() + 5.0
        for store, has in ((sql, in_sql), (blob, in_blob)):
            if has in NUMBERS:
                clock.now = time.time() + SHIFTS.get(has, 0.0)
                await store.put(Checkpoint("0", NUMBERS[has], ""), deadline=deadline)
        await sql.aclose()
        process = ConsumerProcess(hub.config, hub.settings, hub=hub)

        async def nothing(_):
            """In place of the final report."""

        process._consume = lambda _: process._looking
        process._reporter = SimpleNamespace(start=lambda: None, aclose=nothing, problem="")
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
        where = "the container" if sinks == ALONE else "the database of CONSUMER_SQL_URL"
        assert where in str(refused.value)
    elif outcome == "waits":
        with pytest.raises(UnavailableError, match="cannot be read: no answer; to begin there anyway, run"):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert ("events are written again" in caplog.text) is (outcome == "warned")


@pytest.mark.parametrize(
    ("sink", "dead_letters", "is_told"),
    [("sql", "sql", True), ("cosmos", "sql", True), ("cosmos", "blob", False)],
)
def test_events_that_were_parked_in_the_container_of_other_settings_are_told(
    sink, dead_letters, is_told, tmp_path, monkeypatch, caplog
):
    parked = MemoryDeadLetterStore()
    monkeypatch.setattr("consumer.running.assembly.BlobCheckpointStore", lambda *_: MemoryCheckpointStore())
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
        letter = DeadLetter("h", "$Default~parked", Event("0", 1, "", 0.0, b""), Rejection("r", ""), 1, 0.0)
        await parked.put([letter], deadline=0.0)
        process = ConsumerProcess(read_config(settings), settings)
        await process._look_elsewhere()
        await process._aclose()

    asyncio.run(main())
    assert ("events are parked in the container" in caplog.text) is is_told
