"""Delta tables and Parquet files under kills, zombies, lost answers and changes by others: rows are counted, each is there once."""

import asyncio
import shutil
from collections import Counter

import pyarrow as pa
import pytest
from aiohttp import web
from azure.core.exceptions import ServiceResponseError
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from msgspec import structs

from consumer.errors import FencedError
from consumer.mapping.documents import MappingOptions
from consumer.mapping.preparing import Preparation
from consumer.model import DeadLetter, Rejection, Write
from consumer.running.writing.replaying import Replay
from consumer.sinks.lake import delta
from consumer.sinks.lake.columns import parse_schema
from consumer.sinks.lake.storage import storage_options
from consumer.sinks.routed import RoutedSink
from tests.support.consumer.lake import COLUMNS, DeltaTarget, ParquetTarget
from tests.support.consumer.memory_sink import MemorySink
from tests.support.consumer.sinks import built
from tests.support.consumer.sql import World
from tidemark.foundation.errors import SettingsError, UnavailableError
from tidemark.testing import event, flight, write
from tidemark.testing.sink_target import tried


class KilledError(Exception):
    """The process ends here."""


@pytest.fixture
def table(tmp_path):
    target = DeltaTarget(f"{tmp_path}/flights")
    DeltaTable.create(target.uri, Schema.from_arrow(parse_schema(COLUMNS)))
    return target


@pytest.fixture
async def files(azurite):
    target = ParquetTarget(azurite)
    async with target.client:
        await target.client.create_container()
        yield target


@pytest.fixture(params=["table", pytest.param("files", marks=pytest.mark.wire)])
def target(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
async def consumer():
    """Starts a process that claims the partition; its checkpoint is at `mark`."""
    made = []

    async def start(target, mark=-1):
        made.append(target.sink())
        await made[-1].open()
        made[-1].attach(await target.claim(mark))
        return made[-1]

    yield start
    for sink in made:
        await sink.aclose()


def events(first, last):
    return [event(number) for number in range(first, last + 1)]


async def expect(target, numbers):
    found = Counter(row["number"] for row in await target.stored())

    assert found == Counter(numbers)


# -- killed at each step


def killed_at(monkeypatch, step):
    """The next commit ends at a step: before anything is written, or after the table has it."""
    real = delta.write_deltalake

    def commit(*arguments, **options):
        monkeypatch.setattr(delta, "write_deltalake", real)
        if step == "committed":
            real(*arguments, **options)
        raise KilledError

    monkeypatch.setattr(delta, "write_deltalake", commit)


@pytest.mark.parametrize("again", ["same process", "new process"])
@pytest.mark.parametrize("checkpoint", [-1, 3, 5])
@pytest.mark.parametrize("step", ["staged", "committed"])
async def test_a_table_has_each_row_once_wherever_a_commit_ends(
    consumer, table, monkeypatch, step, checkpoint, again
):
    sink = await consumer(table)
    await write(sink, events(0, 5))
    killed_at(monkeypatch, step)
    await tried(sink, events(6, 9))
    if again == "new process":
        sink = await consumer(table, checkpoint)
        await write(sink, events(checkpoint + 1, 9))
    else:
        await write(sink, events(6, 9))
    await write(sink, events(10, 12))

    await expect(table, range(13))


@pytest.mark.wire
@pytest.mark.parametrize("again", ["same process", "new process"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("request_", ["data/", "0.json", "last.json"])
async def test_the_manifests_name_each_row_once_wherever_a_file_ends(
    consumer, files, request_, is_stored, again
):
    sink = await consumer(files)
    real = sink._container.upload_blob

    async def upload(name, *arguments, **options):
        if request_ not in name:
            return await real(name, *arguments, **options)
        sink._container.upload_blob = real
        if is_stored:
            await real(name, *arguments, **options)
        raise ServiceResponseError("the answer is lost")

    sink._container.upload_blob = upload
    await tried(sink, events(0, 4))
    if again == "new process":
        sink = await consumer(files)
    await write(sink, events(0, 4))
    await write(sink, events(5, 7))

    await expect(files, range(8))


@pytest.mark.wire
async def test_without_its_hint_the_chain_is_followed_and_a_damaged_manifest_is_told(consumer, files):
    sink = await consumer(files)
    await write(sink, events(0, 3))
    names = [blob.name async for blob in sink._container.list_blobs() if "_manifests/" in blob.name]
    hint, manifest = sorted(names, key=len)
    await sink._container.upload_blob(hint, b'{"last":"\xff"}', overwrite=True)
    sink = await consumer(files)
    await write(sink, events(0, 6))
    await expect(files, range(7))

    for name in (hint, manifest):
        await sink._container.upload_blob(name, b'{"file":"\xff"}', overwrite=True)
    sink = await consumer(files)
    results = await write(sink, events(7, 8))
    assert all("0.json cannot be read" in result.reason for result in results)


# -- two consumers


async def fenced(sink, batch):
    with pytest.raises(FencedError):
        await write(sink, batch)


async def test_of_two_consumers_the_slower_one_is_told_and_rows_are_there_once(consumer, target):
    zombie = await consumer(target)
    await write(zombie, events(0, 3))
    owner = await consumer(target)
    await write(owner, events(0, 3))  # all of them are there
    await write(zombie, events(4, 6))  # nobody has told it yet
    await fenced(owner, events(4, 8))
    owner = await consumer(target)
    await write(owner, events(0, 8))
    await fenced(zombie, events(7, 9))
    await write(owner, events(9, 9))

    await expect(target, range(10))


async def test_a_table_takes_other_partitions_and_other_writers_beside_ours(consumer, table):
    sink = await consumer(table)
    await write(sink, events(0, 3))
    other = DeltaTable(table.uri)
    row = pa.RecordBatch.from_pylist([{"id": "x", "number": 100}], schema=parse_schema(COLUMNS))
    ours = CommitProperties(app_transactions=[Transaction("another application", 7)])
    write_deltalake(other, row, mode="append", commit_properties=ours)
    await write(sink, events(4, 5))

    await expect(table, [*range(6), 100])


@pytest.mark.parametrize("moment", ["before the claim", "under the claim"])
async def test_compaction_beside_the_consumer_changes_no_row(consumer, table, moment):
    sink = await consumer(table)
    for number in range(4):
        await write(sink, [event(number)])
    if moment == "before the claim":
        sink = None
    DeltaTable(table.uri).optimize.compact()
    DeltaTable(table.uri).create_checkpoint()
    DeltaTable(table.uri).cleanup_metadata()
    sink = sink or await consumer(table)
    await write(sink, events(4, 6))

    await expect(table, range(7))


# -- a world that changed


async def test_a_table_that_was_replaced_gets_the_events_after_the_checkpoint(consumer, table):
    sink = await consumer(table)
    for number in range(4):
        await write(sink, [event(number)])
    shutil.rmtree(table.uri)
    DeltaTable.create(table.uri, Schema.from_arrow(parse_schema(COLUMNS)))
    assert await tried(sink, events(4, 5)) == ["retry"] * 2  # its log ends before ours
    await write(sink, events(4, 5))
    later = await consumer(table, mark=5)
    await write(later, events(6, 7))

    await expect(table, range(4, 8))


async def test_a_column_that_is_added_meanwhile_is_null_in_our_rows(consumer, table):
    sink = await consumer(table)
    await write(sink, events(0, 1))
    changed = DeltaTable(table.uri)
    changed.alter.add_columns(Schema.from_arrow(pa.schema([("added", pa.int64())])).fields)
    await write(sink, events(2, 3))

    await expect(table, range(4))
    assert {row["added"] for row in await table.stored()} == {None}


@pytest.mark.parametrize(
    ("columns", "change"),
    [
        ({"text": None}, "text"),  # its values would be left out
        ({"gate": "string"}, "gate"),  # deltalake would cast them
        ({"dest": "string not null"}, "dest"),
        ({"more": "long not null"}, "more"),
        ({"id": "string", "more": "long"}, ""),
    ],
)
async def test_a_table_whose_columns_are_changed_meanwhile_gets_no_rows_that_do_not_fit(
    consumer, table, columns, change
):
    sink = await consumer(table)
    await write(sink, events(0, 1))
    changed = {name: kind for name, kind in {**COLUMNS, **columns}.items() if kind}
    write_deltalake(table.uri, parse_schema(changed).empty_table(), mode="overwrite", schema_mode="overwrite")

    [result, _] = await write(sink, events(2, 3))
    assert result.outcome == ("retry" if change else "written")
    assert (f"({change}): restart it" in result.reason) is bool(change)
    await expect(table, [] if change else [2, 3])


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ({"delta.enableDeletionVectors": "true"}, "has deletion vectors, .* DROP FEATURE deletionVectors"),
        (
            {
                "delta.columnMapping.mode": "name",
                "delta.minReaderVersion": "2",
                "delta.minWriterVersion": "5",
            },
            "has column mapping",
        ),
    ],
)
async def test_a_table_that_deltalake_may_damage_is_refused(tmp_path, on, words):
    uri = f"{tmp_path}/vectors"
    DeltaTable.create(uri, Schema.from_arrow(parse_schema(COLUMNS)), configuration=on)
    sink = built("delta", {}, uri=uri)
    with pytest.raises(SettingsError, match=words):
        await sink.open()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": {"id": "long"}}, "column 'id' is int64 in the settings, and string in the Delta table"),
        ({"columns": {"gone": "long"}}, "column 'gone' is int64 in the settings, and no such column in"),
        ({"columns": {"dest": "string"}}, "columns that take no null and get no value: id"),
        ({"sources": {"nope": "$.x"}}, "sources name nope, which the table does not have"),
        ({"partition_by": ["dest"]}, r"is partitioned by \[\], and partition_by is \['dest'\]"),
    ],
)
async def test_a_table_that_does_not_fit_the_options_is_told_at_the_start(table, options, words):
    sink = built("delta", {}, uri=table.uri, **options)
    with pytest.raises(SettingsError, match=words):
        await sink.open()


async def test_a_table_that_cannot_be_read_now_may_be_readable_later(tmp_path, azurite):
    settings = {"AzureWebJobsStorage": azurite.replace("AccountKey=", "AccountKey=AAAA")}
    sink = built("delta", settings, uri="az://nothing/there")
    with pytest.raises((UnavailableError, SettingsError)):
        await sink.open()
    await sink.aclose()


@pytest.mark.wire
async def test_a_managed_identity_is_asked_where_the_platform_serves_tokens(monkeypatch):
    seen = []

    async def handle(request):
        seen.append((request.path, request.query.get("client_id"), dict(request.headers)))
        if request.path == "/token":
            token = {"access_token": "a token", "expires_on": "4102444800", "token_type": "Bearer"}
            return web.json_response(token)
        return web.Response(status=403)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    here = f"http://127.0.0.1:{runner.addresses[0][1]}"
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{here}/token")
    monkeypatch.setenv("IDENTITY_HEADER", "a header")
    settings = {"S__accountName": "acme", "S__credential": "managedidentity", "S__clientId": "one"}
    options = storage_options("az://lake/t", settings, "S")
    local = {"azure_endpoint": f"{here}/acme", "azure_allow_http": "true"}
    with pytest.raises(OSError, match="GET"):
        await asyncio.to_thread(DeltaTable, "az://lake/t", storage_options={**options, **local})
    await runner.cleanup()

    (path, client, headers), (_, _, asked), *_ = seen
    assert (path, client, headers["x-identity-header"]) == ("/token", "one", "a header")
    assert asked["Authorization"] == "Bearer a token"


async def test_a_partitioned_table_has_a_file_for_each_value(tmp_path):
    uri = f"{tmp_path}/parted"
    sink = built(
        "delta",
        {},
        uri=uri,
        columns=COLUMNS,
        sources={"number": "@sequence_number"},
        create=True,
        partition_by=["dest"],
    )
    await sink.open()
    sink.attach(await DeltaTarget(uri).claim())
    await write(sink, events(0, 13))

    assert DeltaTable(uri).metadata().partition_columns == ["dest"]
    assert len(DeltaTable(uri).file_uris()) == 7
    await expect(DeltaTarget(uri), range(14))


# -- dead letters


async def test_rows_that_a_constraint_of_the_table_refuses_are_rejected_and_no_others(table, consumer):
    DeltaTable(table.uri).alter.add_constraint({"early": "gate < 10"})
    sink = await consumer(table)
    gates = {2: 50, 5: 50, 6: None}
    todo = [event(n, flight(n, gate=gates.get(n, n))) for n in range(10)]
    letters = []
    while todo:
        results = await write(sink, todo)
        outcomes = [str(result.outcome) for result in results]
        decided = next((n for n, outcome in enumerate(outcomes) if outcome != "written"), len(todo))
        if decided < len(todo):
            assert outcomes[decided] == "reject"
            assert "failed validation check" in results[decided].rejection.detail
            letters.append(todo[decided].sequence_number)
        todo = todo[decided + 1 :]

    assert letters == [2, 5, 6]
    await expect(table, [0, 1, 3, 4, 7, 8, 9])


async def test_a_dead_letter_behind_the_mark_is_written_once_however_often_it_is_replayed(consumer, target):
    sink = await consumer(target)
    await write(sink, [*events(0, 1), *events(3, 5)])  # event 2 was rejected
    for _ in range(2):
        record = sink.prepare(Write(event(2)))
        deadline = asyncio.get_running_loop().time() + 30
        [result] = await sink.replay([record], deadline=deadline)
        assert result.outcome == "written"
    await write(sink, events(6, 7))

    await expect(target, range(8))


@pytest.mark.parametrize("old", [False, True])
async def test_each_record_of_a_dead_letter_is_written_once_with_whichever_others_it_is_replayed(
    consumer, target, old
):
    sink = await consumer(target)
    await write(sink, [*events(0, 1), *events(5, 5)])
    records = [structs.replace(sink.prepare(Write(event(2, flight(n)))), index=n, of=5) for n in (2, 3, 4)]
    if old:  # an older version wrote all of them with one mark for the event
        log = await sink.load_event(event(2))
        await log.append(records, 2)
    for some in (records[:1], records[:2], records, records):
        deadline = asyncio.get_running_loop().time() + 30
        assert {each.outcome for each in await sink.replay(some, deadline=deadline)} == {"written"}

    await expect(target, [0, 1, 2, 2, 2, 5])


@pytest.mark.parametrize(
    ("at", "rerouted", "is_said"),
    [
        (2, 2, True),
        (2, None, False),  # a kill, and the routes of before
        (4, 2, False),  # the checkpoint has moved on since
        (5, 5, False),  # stopped in order: nothing is skipped
    ],
)
async def test_after_a_kill_and_other_routes_the_events_that_a_new_route_does_not_get_are_named(
    consumer, target, at, rerouted, is_said, caplog
):
    await write(await consumer(target), events(0, 5))
    sink = target.sink()
    await sink.open()
    claim = await target.claim(at)
    origin = structs.replace(claim.checkpoint.origin, rerouted=rerouted)
    sink.attach(structs.replace(claim, checkpoint=structs.replace(claim.checkpoint, origin=origin)))
    await write(sink, events(at + 1, 7))
    await sink.aclose()

    said = "routes have changed since the checkpoint at event 2, and the sink has what the routes of before"
    assert (said in caplog.text) is is_said
    await expect(target, range(8))


@pytest.mark.parametrize("bad", [False, True])
async def test_a_dead_letter_is_replayed_into_each_of_several_sinks(table, tmp_path, bad):
    url = f"sqlite:///{tmp_path}/kept.db"
    async with World(url) as world:
        await world.run("CREATE TABLE kept (id TEXT PRIMARY KEY, dest TEXT)")
        columns = {"id": "$.id", "dest": "$.dest"}
        sql = {"table": "kept", "columns": columns, "key": ["id"]}
        routed = RoutedSink(
            {
                "rows": table.sink(),
                "sql": built("sql", {"CONSUMER_SQL_URL": url}, alone=False, **sql),
                "kept": MemorySink(MappingOptions("flights")),
            }
        )
        routes = await routed.open()
        found = event(2, {"id": "f2", "dest": 5 if bad else "LGA", "number": 2})

        def mapping(event, documents):
            return [
                Write(event, dict(documents[0]), index=n, sink=name)
                for n, name in enumerate(("rows", "sql", "kept"))
            ]

        replay = Replay(routed, routes, Preparation(routed.prepare, mapping=mapping))
        letter = DeadLetter("flights", "$Default", found, Rejection("x", "y"), 1, 0.0)
        for _ in range(2):
            [result] = await replay.write([letter], deadline=asyncio.get_running_loop().time() + 30)
        kept = await world.run("SELECT id, dest FROM kept")
        await routed.aclose()

    assert result.outcome == ("reject" if bad else "written")
    assert kept == [("f2", "5" if bad else "LGA")]
    assert len(routed._sinks["kept"].documents) == 1
    assert result.left is None if not bad else result.left.records == ("rows:0",)
    await expect(table, [] if bad else [2])
