"""Every form in which a release stores something: how it writes an example, and how it reads one again.

The script runs with the code of the present release and with that of 0.2.0 (commit 0a416f52), which `PYTHONPATH` names:

    git archive 0a416f52 | tar -x -C OLD
    PYTHONPATH=OLD python tests/data/upgrade/stored.py write tests/data/upgrade/0.2.0.json
    PYTHONPATH=$PWD python tests/data/upgrade/stored.py write tests/data/upgrade/present.json
    PYTHONPATH=OLD python tests/data/upgrade/stored.py try tests/data/upgrade/present.json

`try` replaces the value of each example by what that release makes of it: the fields that it does not read, or its error. An
example has a value other than the default in every field of its release.
"""

import asyncio
import base64
import contextlib
import importlib
import inspect
import json
import re
import sqlite3
import sys
import tempfile
import types
import typing
from datetime import UTC, datetime
from email.utils import format_datetime
from enum import Enum
from pathlib import Path

import msgspec

from consumer.model import Checkpoint, DeadLetter, Event, Lease, Stream
from consumer.stores.blob import layout as blobs
from consumer.stores.blob.leases import BlobLeaseStore
from consumer.stores.sql.checkpoints import SqlCheckpointStore, SqlLeaseStore
from consumer.stores.sql.dead_letters import SqlDeadLetterStore
from consumer.stores.sql.tables import TABLES
from consumer.telemetry.rate_orders import RateOrder, TableRateStore
from consumer.telemetry.stats_store import TableStatsStore
from scaling.calls.usage import ProcessCalls
from scaling.log_entry import LogEntry
from scaling.model import Controls, MetricsReport, ScaleAction, TargetState
from scaling.notice import NoticeKind, QueuedNotice
from scaling.rules.service_level import memory as service_level
from scaling.service import messages
from scaling.shadow import memory as shadows
from scaling.storage import rows, states
from scaling.window import Window
from tidemark.foundation.consumer_stats import ConsumerStats
from tidemark.foundation.sql.database import SqlDatabase
from tidemark.publisher.event_hubs.states.file import FileStateStore
from tidemark.publisher.event_hubs.states.sql import STATES, SqlStateStore
from tidemark.publisher.model import ProducerRecord, StateKey

T0 = 1_795_000_000.5
STREAM = Stream("acme.servicebus.windows.net", "Flights", "$Default")
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
KEY = StateKey("acme.servicebus.windows.net", "Flights", "Orders#1", "0")


def filled(kind, number=1):
    """A value of the type with nothing in it that is a default, the same for the same type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        length = next((meta.min_length for meta in arguments[1:] if meta.min_length), None)
        return filled(arguments[0], number) * length if length else filled(arguments[0], number)
    if origin in {types.UnionType, typing.Union}:
        return filled(next(each for each in arguments if each is not type(None)), number)
    if origin is typing.Literal:
        return arguments[-1]
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(filled(each, number + place) for place, each in enumerate(arguments))
    if origin in {tuple, list} or getattr(origin, "__name__", "") == "Sequence":
        return (origin if origin in {tuple, list} else tuple)([filled(arguments[0], number)])
    if origin is frozenset or origin is set:
        return origin([filled(arguments[0], number)])
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return {filled(arguments[0], number): filled(arguments[1], number + 1)}
    if kind is typing.Any or kind is object:
        return "any"
    if issubclass(kind, Enum):
        return list(kind)[-1] if len(list(kind)) < 5 else list(kind)[1]
    if issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: filled(field.type, place) for place, field in enumerate(fields, number)})
    plain = {bool: True, int: number, float: number + 0.25, str: f"text {number}", bytes: b"\x00%d" % number}
    return plain[kind]


# -- examples that need more than a filled struct


def target_state(kind=NoticeKind.REFUSED):
    memory = learned()
    shadow = msgspec.structs.replace(filled(shadows.Shadow), version=shadows.VERSION)
    state = filled(TargetState)
    notice = msgspec.structs.replace(state.telling.notices[0], kind=kind)
    state = msgspec.structs.replace(
        state,
        memories={"service_level": service_level.encode(memory)},
        shadow=shadows.encode(shadow),
        telling=msgspec.structs.replace(state.telling, notices=(notice,)),
    )
    window = Window([T0 - 60, T0], [3.0, 4.0])
    if hasattr(window, "origin"):  # 0.2.0 has none
        window = msgspec.structs.replace(window, origin=filled(type(window.origin)))
    return {"state": state, "window": window, "service_level": memory, "shadow": shadow, "unreadable": ()}


def learned():
    """What a rule `service_level` has learned. Rates of a single value are lists of the lengths that its decoder asks for."""
    memory = filled(service_level.Memory)
    return msgspec.structs.replace(memory, version=service_level.VERSION, chosen=1)


# -- stores


class Table:
    """Rows of Table Storage in memory, as the stores call them."""

    name = "table"

    def __init__(self, stored=()):
        self.written = list(stored)

    async def put(self, written):
        self.written += written

    async def save(self, row, _etag):
        self.written.append(row)

    async def save_with(self, *several):
        self.written += [row for row in several if isinstance(row, dict)]

    async def get(self, *_):
        return self._entities()[0]

    async def rows(self, *_, **__):
        return self._entities()

    def _entities(self):
        return [Entity(row) for row in self.written]


class Entity(dict):
    etag, written = "tag", T0


def table_store(kind, stored=()):
    store = object.__new__(kind)
    store._table = Table(stored)
    return store


def module_of(name, in_020):
    """A module that 0.2.0 has by another name."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(name)
    return importlib.import_module(in_020)


STATE_STORE = module_of(
    "tidemark.publisher.event_hubs.states.layout", "tidemark.publisher.event_hubs.ports.state_store"
)
LETTERS = module_of("consumer.stores.dead_letter_document", "consumer.stores.letter_document")
OUTBOX = module_of("scaling.storage.documents", "scaling.storage.notices").TableOutbox
CALLS = module_of("scaling.storage.documents", "scaling.storage.calls").TableCallCounts


def in_table(kind, write, read):
    """Writes and reads by a store of rows; `stored` has the table's name, for a row in another table is lost."""

    def written(value):
        store = table_store(kind)
        asyncio.run(write(store, value))
        return {"table": kind.TABLE, "rows": store._table.written}

    def read_again(stored):
        if stored["table"] != kind.TABLE:
            return None
        return asyncio.run(read(table_store(kind, stored["rows"])))

    return written, read_again


async def write_state(store, value):
    snapshot = states.Snapshot("plan", TargetState(), {}, Controls(), {}, ())
    await store.save(snapshot, value["state"], {"backlog": value["window"]})


async def read_state(store):
    loaded = await store.load("plan")
    return {
        "state": loaded.state,
        "unreadable": loaded.corrupt,
        "window": loaded.windows["backlog"],
        "service_level": service_level.decode(loaded.state.memories.get("service_level")),
        "shadow": shadows.decode(loaded.state.shadow),
    }


def sql(tables, write, read):
    """Writes and reads by stores on a database of SQLite: `stored` are the statements that make it again."""

    def with_database(work, script=""):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "stored.db"
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.executescript(script)

            async def run():
                return await work(SqlDatabase(f"sqlite:///{path}", create_tables=True, tables=tables))

            result = asyncio.run(run())
            with contextlib.closing(sqlite3.connect(path)) as connection:
                dump = "\n".join(line for line in connection.iterdump() if "sqlite_" not in line)
            return result, dump

    def written(value):
        _, dump = with_database(lambda database: write(database, value))
        now = r"'20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3,6}'"
        dump = " ".join(dump.split())  # releases of Python and SQLAlchemy break lines elsewhere
        return {"sql": re.sub(now, "'2026-11-26 12:00:00.000000'", dump)}

    return written, lambda stored: with_database(read, stored["sql"])[0]


def soon():
    return asyncio.get_running_loop().time() + 30


async def write_consumer(database, value):
    store, letters = SqlCheckpointStore(database, STREAM), SqlDeadLetterStore(database, STREAM)
    leases = SqlLeaseStore(database, STREAM)
    await store.put(value["checkpoint"], deadline=soon())
    await letters.put(value["dead letters"], deadline=soon())
    await leases.claim(Lease("0", "", 0.0, ""), "worker", deadline=soon())
    for each in (store, letters, leases):
        await each.aclose()


async def read_consumer(database):
    store, letters = SqlCheckpointStore(database, STREAM), SqlDeadLetterStore(database, STREAM)
    leases = SqlLeaseStore(database, STREAM)
    as_read = {
        "checkpoint": (await store.load_all(deadline=soon()))["0"],
        "dead letters": [letter async for letter in letters.list()],
        "owners": [lease.owner for lease in (await leases.list(deadline=soon()))[0]],
    }
    await store.claim("0", "reader", deadline=soon())  # and goes on with it
    await letters.put(as_read["dead letters"], deadline=soon())
    for each in (store, letters, leases):
        await each.aclose()
    return as_read


async def write_producer(database, record):
    store = SqlStateStore(database)
    await store.save(KEY, record, None, deadline=soon())
    await store.aclose()


async def read_producer(database):
    store = SqlStateStore(database)
    record, _ = await store.load(KEY, deadline=soon())
    await store.aclose()
    return record


def write_file(record, *, closed):
    async def save(path):
        store = FileStateStore(path)
        await store.save(KEY, record, None, deadline=soon())
        content = path.read_text()
        await store.aclose()
        return path.read_text() if closed else content

    with tempfile.TemporaryDirectory() as folder:
        return {"file": asyncio.run(save(Path(folder) / "state.json")).rstrip("\n").split("\n")}


def read_file(stored):
    async def load(path):
        store = FileStateStore(path)
        record, _ = await store.load(KEY, deadline=soon())
        await store.aclose()
        return record

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.json"
        path.write_text("\n".join(stored["file"]) + "\n")
        return asyncio.run(load(path))


def checkpoint():
    return msgspec.structs.replace(
        filled(Checkpoint), partition="0", sequence_number=41, beyond=((43, 44),), saved_at=T0, epoch=3
    )


def sql_checkpoint():
    """The time and the epoch are the database's."""
    return msgspec.structs.replace(checkpoint(), saved_at=NOON.timestamp(), epoch=1)


def dead_letter():
    event = msgspec.structs.replace(
        filled(Event), partition="0", sequence_number=42, properties={"carrier": "UA"}, body=b'{"a":1}'
    )
    if hasattr(event, "property_types"):  # 0.2.0 has none
        event = msgspec.structs.replace(event, property_types={"carrier": "SYMBOL"})
    return msgspec.structs.replace(filled(DeadLetter), hub="Flights", consumer_group="$Default", event=event)


def read_letter(*arguments):
    """0.2.0 takes no id."""
    return LETTERS.from_document(*arguments[: len(inspect.signature(LETTERS.from_document).parameters)])


def blob_checkpoint(value):
    fence = blobs.Fence(value.epoch, value.owner)
    return {
        "name": STREAM.blob("checkpoint", "0"),
        "metadata": blobs.to_metadata(STREAM, "0", fence, value),
        "content": blobs.to_content(fence),
    }


def read_blob_checkpoint(stored):
    if stored["name"] != STREAM.blob("checkpoint", "0"):
        return None
    stored = blobs.from_blob(STREAM, "0", stored["metadata"], stored["content"], T0)
    if isinstance(stored.position, str):
        raise ValueError(stored.position)
    return stored.position


def log_rows(entry):
    row = {"PartitionKey": "plan", "RowKey": rows.log_row_key(entry.at, entry.key), **rows.log_row(entry)}
    return {"row": row}


def log_entry():
    return msgspec.structs.replace(filled(LogEntry), at=T0)


class Container:
    """A container of blobs with metadata alone, as the store of leases calls it."""

    container_name = "consumer"

    def __init__(self, stored=()):
        self.blobs = dict(stored)

    def get_blob_client(self, name):
        async def upload_blob(_content, *, overwrite, metadata):
            self.blobs[name] = metadata
            return {"last_modified": NOON, "etag": "tag"}

        return types.SimpleNamespace(upload_blob=upload_blob)

    async def list_blobs(self, *, name_starts_with, raw_response_hook, **_):
        response = types.SimpleNamespace(headers={"Date": format_datetime(NOON, usegmt=True)})
        raw_response_hook(types.SimpleNamespace(http_response=response))
        for name, metadata in self.blobs.items():
            if name.startswith(name_starts_with):
                yield types.SimpleNamespace(name=name, metadata=metadata, last_modified=NOON, etag="tag")


def write_lease(owner):
    container = Container()
    store = BlobLeaseStore(container, STREAM)

    async def claim():
        await store.claim(Lease("0", "", 0.0, ""), owner, deadline=soon())

    asyncio.run(claim())
    return container.blobs


def read_lease(stored):
    async def owner():
        leases, _ = await BlobLeaseStore(Container(stored), STREAM).list(deadline=soon())
        return leases[0].owner

    return asyncio.run(owner())


async def loaded_controls(store):
    return (await store.load_controls("plan")).controls


async def first(answers):
    return next(iter(await answers), None)


FORMS = {
    "state of a target": (
        target_state,
        *in_table(states.TableStateStore, write_state, read_state),
    ),
    "state with a drain notice that has not left": (
        lambda: target_state(getattr(NoticeKind, "DRAIN", NoticeKind.REFUSED)),  # 0.2.0 has no such notices
        *in_table(states.TableStateStore, write_state, read_state),
    ),
    "orders of a target": (
        lambda: filled(Controls),
        *in_table(
            states.TableStateStore,
            lambda store, value: store.save_controls(
                states.Snapshot("plan", TargetState(), {}, Controls(), {}, ()), value
            ),
            loaded_controls,
        ),
    ),
    "entry of the scaling log": (
        log_entry,
        log_rows,
        lambda stored: rows.read_log_row(stored["row"], inputs=True),
    ),
    "notice that waits": (
        lambda: msgspec.structs.replace(filled(QueuedNotice), done=False),
        *in_table(
            OUTBOX,
            lambda store, value: store.save("webhook", [value]),
            lambda store: first(store.waiting("webhook")),
        ),
    ),
    "calls of a process": (
        lambda: filled(ProcessCalls),
        *in_table(
            CALLS,
            lambda store, value: store.put(value),
            lambda store: first(store.read()),
        ),
    ),
    "message in queue metrics": (
        lambda: filled(MetricsReport),
        lambda value: {"message": messages.encode(value)},
        lambda stored: messages.decode(MetricsReport, stored["message"]),
    ),
    "message in queue actions": (
        lambda: filled(ScaleAction),
        lambda value: {"message": messages.encode(value)},
        lambda stored: messages.decode(ScaleAction, stored["message"]),
    ),
    "figures of a consumer": (
        lambda: msgspec.structs.replace(filled(ConsumerStats), throttled_share=0.5),
        *in_table(
            TableStatsStore,
            lambda store, value: store.put(value),
            lambda store: first(store.load_all(0.0)),
        ),
    ),
    "rate order of a consumer": (
        lambda: filled(RateOrder),
        *in_table(
            TableRateStore,
            lambda store, value: store.save("flights", value),
            lambda store: store.load("flights"),
        ),
    ),
    "lease in a blob": (lambda: "worker ü", write_lease, read_lease),
    "checkpoint in a blob": (checkpoint, blob_checkpoint, read_blob_checkpoint),
    "dead letter in a blob or Cosmos DB": (
        dead_letter,
        lambda value: {"document": {"id": value.id, **LETTERS.to_document(value)}},
        lambda stored: read_letter(stored["document"], "here", "id"),
    ),
    "checkpoint, dead letter and lease in SQL": (
        lambda: {"checkpoint": sql_checkpoint(), "dead letters": [dead_letter()]},
        *sql(TABLES, write_consumer, read_consumer),
    ),
    "producer's state in a blob": (
        lambda: filled(ProducerRecord),
        lambda value: {"name": STATE_STORE.name_of(KEY), "blob": msgspec.json.encode(value).decode()},
        lambda stored: STATE_STORE.decode(stored["blob"], "here"),
    ),
    "producer's state in SQL": (
        lambda: filled(ProducerRecord),
        *sql([STATES], write_producer, read_producer),
    ),
    "producer's state in a file, closed": (
        lambda: filled(ProducerRecord),
        lambda value: write_file(value, closed=True),
        read_file,
    ),
    "producer's state in a file, after a kill": (
        lambda: filled(ProducerRecord),
        lambda value: write_file(value, closed=False),
        read_file,
    ),
}


# -- as JSON


def plain(value):
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, msgspec.Struct):
        return plain({field: getattr(value, field) for field in value.__struct_fields__})
    return value.value if isinstance(value, Enum) else value


def stored_of(value):
    if isinstance(value, dict):
        if value.keys() == {"base64"}:
            return base64.b64decode(value["base64"])
        return {name: stored_of(each) for name, each in value.items()}
    return [stored_of(each) for each in value] if isinstance(value, list) else value


def example(name):
    make, write, _ = FORMS[name]
    value = make()
    return {"value": plain(value), "stored": plain(write(value))}


def read(name, stored):
    return plain(FORMS[name][2](stored_of(stored)))


def lost(value, as_read, path=""):
    """The fields of a value that are not the same as read, as paths."""
    if isinstance(value, dict) and isinstance(as_read, dict):
        for name, each in value.items():
            yield from lost(each, as_read[name], f"{path}/{name}") if name in as_read else [f"{path}/{name}"]
    elif isinstance(value, list) and isinstance(as_read, list) and len(value) == len(as_read):
        for each, other in zip(value, as_read, strict=True):
            yield from lost(each, other, path)
    elif value != as_read:
        yield path


def outcome(name, example):
    """What the release that runs makes of an example: its error, or the fields that it does not read."""
    try:
        return {"lost": sorted(set(lost(example["value"], read(name, example["stored"]))))}
    except Exception as error:
        return {"refused": type(error).__name__}


def main(verb, path):
    file = Path(path)
    if verb == "write":
        examples = {name: example(name) for name in FORMS}
    else:
        examples = json.loads(file.read_text())
        for name, each in examples.items():
            each["in 0.2.0"] = outcome(name, each)
            del each["value"]
    lines = (f"{json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in examples.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
