"""Whole files of the consumer in virtual time: drawn routes over drawn events, through a fleet of drivers, against a plain model.

A `Life` draws a file and its capabilities, sends events, and starts consumers on the same stores. They pass partitions on, in
order or by a steal, are frozen, killed or stopped in order; calls and answers are lost, containers split, and in between there
may be another file, and some fleets stop at a position. Cosmos DB, SQL and web services are written by the product's own sinks, to the
devstack's containers, to SQLite and to a stand-in for the connection; events are forwarded by the product's own publisher and sender;
rows are appended to memory by what Delta and Parquet share.
What NOT_DRAWN names is not simulated. What the sinks have at the end is compared with what the model says; its reading of a file shares no code with the consumer's.
"""

import asyncio
import bisect
import gzip
import io
import math
import random
import tempfile
from collections import Counter
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import fastavro
import msgspec
from google.protobuf import descriptor_pb2, json_format, struct_pb2
from msgspec import structs
from sqlalchemy import text

from consumer.decoding.avro_schemas import parse_schema
from consumer.definition.reading import read_definition
from consumer.mapping.documents import read_object, rejected
from consumer.model import (
    NOTHING_SETTLED,
    Event,
    Outcome,
    PartitionState,
    Record,
    Rejection,
    Stream,
    WriteResult,
)
from consumer.options import BacklogLimits, BatchLimits, DriverSettings, ParkingRules, ParkOrder
from consumer.receiving.receiver import HubReceiver
from consumer.receiving.until import LATEST, EndAt, UntilReceiver
from consumer.running.assembly import Parts
from consumer.running.driver import Driver
from consumer.running.writing.replaying import Replay
from consumer.sinks.appending import AppendingSink, MovedError, RefusedError
from consumer.sinks.cosmos.answers import Answer
from consumer.sinks.cosmos.client import ContainerDefinition, KeyRange
from consumer.sinks.routed import RoutedSink
from consumer.stores.memory import MemoryCheckpointStore
from consumer.stores.sql.checkpoints import SqlCheckpointStore
from consumer.stores.sql.dead_letters import SqlDeadLetterStore
from consumer.stores.sql.tables import TABLES
from devstack.cosmos.batches import parse_operations, run_bulk
from devstack.cosmos.partitions.budget import Prices
from devstack.cosmos.protocol.errors import CosmosError
from devstack.cosmos.store.account import Account
from devstack.cosmos.store.throughput import Level
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tests.support.consumer.pipeline_checks import check_pipeline
from tests.torture.messaging import LARGE, Targets, connect
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.sql.database import SqlDatabase

URL = "sqlite://"
SETTINGS = {
    "EventHubConnection": "Endpoint=sb://one.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "CosmosConnection__accountEndpoint": "https://x.documents.azure.com",
    "AzureWebJobsStorage": "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=a2V5;EndpointSuffix=core.windows.net",
    "CONSUMER_SQL_URL": URL,
    "Others": "Endpoint=sb://two.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
}
SINKS = {
    "fields": 'type = "cosmos"\ndatabase = "d"\ncontainer = "fields"\nguard = "GUARD"',
    "places": 'type = "cosmos"\ndatabase = "d"\ncontainer = "places"\nid = "position"\nmeta = META',
    "sums": 'type = "cosmos"\ndatabase = "d"\ncontainer = "sums"\noperation = "patch"\n'
    'patch = ["increment /total from /n", "append /all from /n"]',
    "rows": 'type = "parquet"\ncontainer = "lake"\nfolder = "f"\ncolumns = { id = "string" }',
    "web": 'type = "http"\nurl = "https://web.example/"\nkey = "$.id"',
    "table": 'type = "sql"\ntable = "flights"\ncolumns = { part = "@partition", number = "@sequence_number", id = "$.id" }',
    "hub": 'type = "event_hubs"\nhub = "copies"\nconnection = "Others"\nkey = "$.id"',
    "queue": 'type = "service_bus"\nqueue = "orders"\nconnection = "Others"\nsession = "$.id"',
}
NOT_DRAWN = (
    "the Event Hubs trigger (tests/integration/test_consumer_in_functions.py), files and logs of Delta and Parquet"
    " (tests/faults/test_lake_faults.py)"
)
DOCUMENTS = ("fields", "places", "sums")
MARKED = ("rows", "table", "hub")
PARTITIONS = ("0", "1")
WORST = 2
"""Attempts after the first one, before a parked event becomes a dead letter."""
HIGH = 40
STREAM = Stream("one.servicebus.windows.net", "h", "$Default")

_encode, _decode = msgspec.json.encode, msgspec.json.decode


@cache
def files_of_schemas():
    """The descriptor set of any JSON object as Protobuf; the schema of one in Avro, and its marker."""
    folder = Path(tempfile.mkdtemp(prefix="schemas-"))
    found = descriptor_pb2.FileDescriptorSet()
    struct_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    (folder / "any.pb").write_bytes(found.SerializeToString())
    value = ["null", "string", "long", "double", {"type": "array", "items": ["null", "long", "Doc"]}]
    field = [{"name": name, "type": value, "default": None} for name in ("id", "kind", "n", "v", "rows")]
    text_ = _encode({"type": "record", "name": "Doc", "fields": field}).decode()
    (folder / "any.avsc").write_text(text_)
    return (
        folder / "any.pb",
        folder / "any.avsc",
        fastavro.parse_schema(_decode(text_)),
        parse_schema(text_, "it"),
    )


# -- the model: (lines of the file, whether a document is taken, what becomes of it)


class WrongError(Exception):
    """A value of a wrong type: the document is rejected."""


def _above(document):
    number = document.get("n")
    if isinstance(number, str):
        raise WrongError
    return number is not None and number > 5


def _all(_document):
    return True


ROUTES = [
    ("when = \"kind == 'gone'\"\nto = 'fields'\noperation = 'delete'", lambda d: d.get("kind") == "gone", ("delete", "fields")),
    ("when = 'n > 5'\nto = 'rows'\nalso = true", _above, ("also", "rows")),
    ("when = 'n > 5'\nto = 'sums'\nalso = true", _above, ("also", "sums")),
    ("to = 'table'\nalso = true", _all, ("also", "table")),
    ("when = \"kind == 'b'\"\ndrop = 'b'", lambda d: d.get("kind") == "b", ("drop", "")),
    ("to = 'places'\nalso = true", _all, ("also", "places")),
    ("to = 'web'\nalso = true", _all, ("also", "web")),
    ("when = 'n > 5'\nto = 'places'\nalso = true\nsteps = [{ drop_fields = ['/n'] }]", _above, ("bare", "places")),
    ("to = 'hub'\nalso = true", _all, ("also", "hub")),
    ("when = 'n > 5'\nto = 'hub'\nalso = true\nsteps = [{ drop_fields = ['/n'] }]", _above, ("bare", "hub")),
    ("to = 'queue'\nalso = true", _all, ("also", "queue")),
    ("when = \"exists(/n)\"\nto = 'fields'", lambda d: "n" in d, ("write", "fields")),
    ("to = 'fields'\ndelete_when_empty = true", _all, ("empty", "fields")),
    ("to = 'rows'", _all, ("write", "rows")),
]  # fmt: skip
DECODERS = {
    "json": "",
    "arrays": "decode = { format = 'json', arrays = true }",
    "gzip": "decode = { format = 'auto' }",
    "cloudevents": "decode = { format = 'cloudevents' }",
    "protobuf": "decode = { format = 'protobuf', files = ['PB'], message = 'google.protobuf.Value' }",
    "avro": "decode = { format = 'avro_single_object', files = ['AVSC'] }",
}


_WITHIN = {"cloudevents": "data", "protobuf": "struct_value"}
"""Where the document is in what is decoded."""


class File:
    def __init__(self, rng, life):
        self.guard, self.packing, self.meta = life.guard, life.packing, life.meta
        self.splits, self.filters = rng.random() < 0.4, rng.random() < 0.4
        self.routes = [ROUTES[3]] if life.is_alone else rng.sample(ROUTES, rng.randint(1, 5))
        if life.empties and not life.is_alone and ROUTES[-2] not in self.routes:
            self.routes.append(ROUTES[-2])
        if not life.is_alone and not self.sinks - {"table"}:  # SQL alone has another checkpoint store
            self.routes.append(ROUTES[-2])

    @property
    def sinks(self):
        return {sink for _, _, (_, sink) in self.routes if sink}

    @property
    def text(self):
        steps = [
            *[f"{{ unwrap = '/{_WITHIN[name]}' }}" for name in [self.packing] if name in _WITHIN],
            *["{ split = '/rows' }"] * self.splits,
            *["{ filter = 'n != 3', drop = 'three' }"] * self.filters,
        ]
        lines = ["version = 1", "[hubs.h]", "hub = 'h'", f"steps = [{', '.join(steps)}]"]
        pb, avsc, *_ = files_of_schemas()
        lines.append(DECODERS[self.packing].replace("PB", str(pb)).replace("AVSC", str(avsc)))
        for route, _, _ in self.routes:
            lines += ["[[hubs.h.routes]]", route]
        for name in sorted(self.sinks):
            lines += [f"[sinks.{name}]", SINKS[name].replace("GUARD", self.guard).replace("META", self.meta)]
        return "\n".join(lines)

    def results(self, event):
        """(what, sink, id or None for a position, document) of each record, in order; what is write, delete, drop or reject."""
        body = event.properties["plain"]
        if not body:
            documents = [None]
        else:
            try:
                documents = _decode(body)
            except msgspec.DecodeError:
                return [("reject",)]
            if isinstance(documents, list) and self.packing == "arrays":
                if not documents or not all(isinstance(each, dict) for each in documents):
                    return [("reject",)]
            else:
                documents = [documents]
        found = []
        for document in documents:
            found += self._of(document, event)
        return found

    def _of(self, document, event):
        if document is not None and not isinstance(document, dict):
            return [("reject",)]
        documents = [document]
        if self.splits and document is not None:
            rows = document.get("rows")
            if not isinstance(rows, list):
                return [("reject",)]
            if not rows:
                return [("drop",)]
            documents = rows
        found = []
        for each in documents:
            if self.filters and isinstance(each, dict) and each.get("n") == 3:
                found.append(("drop",))
            elif self.filters and each is not None and not isinstance(each, dict):
                found.append(("reject",))
            else:
                found += self._routed(each, event)
        return found

    def _routed(self, document, event):
        if document is not None and not isinstance(document, dict):
            return [("reject",)]
        found, is_taken = [], False
        for _, takes, (kind, sink) in self.routes:
            if document is None and kind not in {"empty", "drop"}:
                continue
            try:
                if not takes(document or {}):
                    continue
            except WrongError:
                return [*found, ("reject",)]
            is_taken = True
            if kind == "drop":
                return [*found, ("drop",)]
            if document is None:
                key = event.partition_key
                is_told = key is not None and self.guard != "field:v"
                return [*found, ("delete", sink, key, None) if is_told else ("reject",)]
            key = document.get("id")
            if (sink in {"fields", "sums"} and not isinstance(key, str)) or (
                sink == "fields" and self.guard == "field:v" and document.get("v") is None
            ):
                found.append(("reject",))
            else:
                kept = {name: value for name, value in document.items() if kind != "bare" or name != "n"}
                what = "delete" if kind == "delete" else "write"
                found.append((what, sink, key if sink in {"fields", "sums"} else None, kept))
            if kind not in {"also", "bare"}:
                return found
        return found if is_taken else [("reject",)]


# -- the world


def draw_body(rng, partition):
    def document(depth=0):
        made = {"id": f"{partition}{rng.choice('abc')}", "kind": rng.choice(["a", "b", "gone", "c"])}
        if rng.random() < 0.8:
            made["n"] = rng.choice([1, 3, 7, 9, 2.5, None])
        if rng.random() < 0.08:
            made["n"] = "7"
        if rng.random() < 0.95:
            made["v"] = rng.random()
        if rng.random() < 0.05:
            del made["id"]
        if not depth and rng.random() < 0.8:
            made["rows"] = [
                document(1) if rng.random() < 0.9 else rng.choice([None, 5]) for _ in range(rng.randint(0, 4))
            ]
        return made

    drawn = rng.random()
    if drawn < 0.05:
        return rng.choice([b"", b"{", b"5", b"[]"])
    if drawn < 0.2:
        return _encode([document() for _ in range(rng.randint(1, 3))])
    return _encode(document())


def _whole(document):
    """Avro has a value for each field."""
    if not isinstance(document, dict):
        return document
    rows = document.get("rows")
    rows = [_whole(each) for each in rows] if rows is not None else None
    return {**dict.fromkeys(("id", "kind", "n", "v")), **document, "rows": rows}


def packed(body, packing):
    """What is sent for a body, and what it says."""
    if packing == "gzip" and body:
        return gzip.compress(body), body
    if packing in {"json", "arrays"} or not body.startswith(b'{"'):
        return body, body
    document = _decode(body)
    if packing == "cloudevents":
        return _encode({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": document}), body
    if packing == "protobuf":
        value = json_format.ParseDict(document, struct_pb2.Value())
        return value.SerializeToString(), _encode(json_format.MessageToDict(value))
    _, _, schema, known = files_of_schemas()
    document, written = _whole(document), io.BytesIO()
    fastavro.schemaless_writer(written, schema, document)
    return b"\xc3\x01" + bytes.fromhex(known.fingerprint) + written.getvalue(), _encode(document)


class Life:
    def __init__(self, seed):
        self.seed, self.rng = seed, random.Random(seed)
        rng = self.rng
        self.guard = rng.choice(["none", "number", "field:v"])
        self.empties = 0.3 if seed % 3 == 1 else 0.0
        """The share of events without a body, which delete a document. Otherwise few are drawn, and fewer delete."""
        if self.empties:
            self.guard = "number"
        self.packing = rng.choice([*["json"] * 4, *DECODERS])
        self.meta = "true" if seed % 2 else "false"
        self.is_alone = rng.random() < 0.1
        self.zombies = rng.random() < 0.5
        """Requests of a killed process may arrive, and processes are robbed, and frozen meanwhile."""
        self.rate = rng.choice([None, None, None, 20.0])
        self.request_units = rng.choice([None, None, None, 60.0])
        self.file = File(rng, self)
        self.parks = not self.is_alone and rng.random() < 0.4
        order = rng.choice([ParkOrder.KEY, ParkOrder.NONE])
        self.parking = (
            ParkingRules(("late",), ("5s",) * WORST, order, rng.choice([2, 1000]))
            if self.parks
            else ParkingRules()
        )
        self.batches = BatchLimits(rng.choice([1, 3, 100]), flush_after=0.1, coalesce=rng.random() < 0.3)
        self.events = {name: [] for name in PARTITIONS}
        self.drawn = []  # files of before
        self.files = {}  # by partition and number: the file by which an event was settled, and when
        self.era, self.trouble = 0, True
        self.until = None
        """By partition the number at which the present processes stop."""
        self.never_given = {}
        """By partition a number up to which the hub gives none behind its last event, so that one to stop at may lie in a gap."""
        self.bad, self.late = set(), {}
        self.is_drained = True
        """Whether the processes that were stopped in order since the last start have settled what they had begun."""
        self.broken = []  # what a process did that it must not do
        self.durable = {}  # by partition and number: records that some process knows to be written
        self.covered = set()
        self.rows, self.marks = {name: [] for name in PARTITIONS}, {}
        self.web = {}  # by the key of a request
        self.targets = Targets(rng)
        self.on_the_way = set()
        self.checkpoints = MemoryCheckpointStore(clock=lambda: 0.0)
        self.letters, self.parked = MemoryDeadLetterStore(), MemoryDeadLetterStore()
        account = Account(asyncio.get_running_loop().time, prices=Prices(), split_delay=1.0)
        base, level = account.create_database("d"), Level(rng.choice([400, 20_000]))
        key = {"paths": ["/id"], "kind": "Hash", "version": 2}
        self.containers = {
            name: account.create_container(base, {"id": name, "partitionKey": key, "defaultTtl": -1}, level)
            for name in DOCUMENTS
        }
        self.database = Database(None, SqlDatabase(URL, tables=TABLES))
        with self.database.engine.begin() as connection:  # no key: nothing hides a row that is written twice
            connection.execute(text("CREATE TABLE flights (part TEXT, number INTEGER, id TEXT)"))

    def send(self, count):
        rng = self.rng
        for _ in range(count):
            name = rng.choice(PARTITIONS)
            number = self.last(name) + (1 if rng.random() < 0.95 else rng.randint(2, 5))
            number = max(number, self.never_given.get(name, NOTHING_SETTLED) + 1)
            key = rng.choice([None, f"{name}a", f"{name}b"])
            drawn = draw_body(rng, name)
            if rng.random() < 0.04 and self.packing != "avro" and drawn.startswith(b'{"'):
                drawn = b'{"pad":"%s",' % (b"x" * LARGE) + drawn[1:]  # too large for some hubs and queues
            if self.empties and rng.random() < self.empties:
                drawn = b""
            body, plain = packed(drawn, self.packing)
            self.events[name].append(
                Event(name, number, str(number), 1.0, body, partition_key=key, properties={"plain": plain})
            )
            if rng.random() < 0.08:
                self.bad.add((name, number, rng.choice([*DOCUMENTS, "rows"])))
            if self.parks and rng.random() < 0.15:
                self.late[name, number] = rng.choice([1, 1, 99])

    def last(self, name):
        return self.events[name][-1].sequence_number if self.events[name] else NOTHING_SETTLED

    def fails(self, chance):
        return self.trouble and self.rng.random() < chance

    def spawn(self, work):
        task = asyncio.create_task(work)
        self.on_the_way.add(task)
        task.add_done_callback(lambda task: (self.on_the_way.discard(task), task.exception()))
        return task

    async def settle(self):
        """Waits for every request that is on its way."""
        while self.on_the_way:
            await asyncio.wait(self.on_the_way)

    def refusal(self, record, name):
        """The answer to a record that is never written, or not yet."""
        place = record.event.partition, record.event.sequence_number
        if (*place, name) in self.bad:
            return WriteResult(Outcome.REJECT, 400, "bad")
        if self.late.get(place, 0) > 0:
            self.late[place] -= self.late[place] < 50
            return WriteResult(Outcome.REJECT, 404, rejection=Rejection("late", "not there yet"))
        return None

    def check_checkpoint(self, checkpoint):
        """Nothing that is covered is neither written nor kept as a letter."""
        if self.batches.coalesce:  # a later record of the document has taken its place
            return
        name = checkpoint.partition
        for event in self.events[name]:
            number = event.sequence_number
            if (name, number) in self.covered or not covers(checkpoint, number):
                continue
            kept = {
                (letter.event.partition, letter.event.sequence_number)
                for store in (self.letters, self.parked)
                for letter in store._dead_letters.values()
            }
            writes = sum(result[0] in {"write", "delete"} for result in self.file.results(event))
            found = len(self.durable.get((name, number), ()))
            assert found >= writes or (name, number) in kept, (
                f"{name}/{number} is covered, {found} of {writes}: {self.story()}"
            )
            self.covered.add((name, number))

    def story(self):
        drawn = f"alone {self.is_alone}, zombies {self.zombies}, rate {self.rate}, {self.request_units} RU/s"
        return f"seed {self.seed}, era {self.era}, {drawn}, {self.parking}, {self.batches}; not simulated: {NOT_DRAWN}\n{self.file.text}"

    # -- what is expected

    def expected(self):
        """By sink what is in it, and the dead letters, as the model says."""
        store = {"fields": {}, "places": {}, "sums": {}, "web": {}}
        rows, table = {name: [] for name in PARTITIONS}, {name: [] for name in PARTITIONS}
        sent = {"hub": [], "queue": []}
        letters = set()
        order = sorted(
            (self.files[name, event.sequence_number][1], event.sequence_number, place, name)
            for name in PARTITIONS
            for place, event in enumerate(self.events[name])
        )
        versions, numbers = {}, {}
        for _, number, at, name in order:
            for place, result in enumerate(self.files[name, number][0].results(self.events[name][at])):
                if result[0] == "reject":
                    letters.add((name, number))
                    continue
                if result[0] == "drop":
                    continue
                what, sink, key, document = result
                is_late = sink in DOCUMENTS and self.late.get((name, number), 0) > WORST
                is_large = self.targets.refuses(sink, self.events[name][at])
                if (name, number, sink) in self.bad or is_late or is_large:
                    letters.add((name, number))
                    continue
                if sink == "rows":
                    rows[name].append((number, document))
                elif sink == "table":
                    table[name].append((number, document.get("id")))
                elif sink in sent:
                    sent[sink].append((name, number, document))
                elif sink == "sums":
                    found = store[sink].setdefault(key, [])
                    found.append(document["n"])
                elif self.guard == "field:v" and sink == "fields" and versions.get(key, -1) > document["v"]:
                    continue
                elif self.guard == "number" and sink == "fields" and numbers.get(key, -1) > number:
                    continue  # a later event was settled before, with another file
                elif what == "delete":
                    store[sink].pop(key, None)
                else:
                    store[sink][(name, number, place) if key is None else key] = document
                if sink == "fields":
                    numbers[key] = number
                if sink == "fields" and document is not None:
                    versions[key] = document.get("v") or 0
        return store, rows, table, sent, letters


def covers(checkpoint, number):
    return number <= checkpoint.sequence_number or any(a <= number <= b for a, b in checkpoint.beyond)


class Connection:
    """A container as one process sees it, in place of CosmosContainer."""

    def __init__(self, consumer, name):
        self.consumer, self.container = consumer, consumer.life.containers[name]
        self.found = ContainerDefinition(self.container.rid_text, ("/id",), "Hash", 2, default_ttl=-1)

    async def open(self):
        return await self.definition()

    async def definition(self):
        return await self.consumer.call(lambda: self.found)

    async def ranges(self):
        return await self.consumer.call(
            lambda: tuple(KeyRange(each.minimum, each.id) for each in self.container.map.ranges)
        )

    async def send_bulk(self, _rid, range_id, body, *, minimal=True):
        now = asyncio.get_running_loop().time

        def run():
            holder = self.container.map.by_id(range_id)
            operations = parse_operations(body)
            return run_bulk(
                self.container, holder, operations, now(), minimal=minimal, sabotage=self._sabotage
            )

        try:
            results = await self.consumer.call(run)
        except UnavailableError as error:
            return Answer(message=str(error))
        except CosmosError as error:
            return Answer(
                status=error.status, sub_status=error.substatus, message="no", retry_after=error.retry_after
            )
        return Answer(_decode(_encode(results)))

    def _sabotage(self, _operation):
        life = self.consumer.life
        if life.fails(0.05):
            return CosmosError(life.rng.choice([429, 449, 503, 408]), "busy", retry_after=0.05)
        return None

    async def aclose(self):
        """Keeps everything."""


class Web:
    """A web service as one process sees it, in place of Outward. It does what it was asked for once, by the key of the request."""

    def __init__(self, consumer):
        self.consumer = consumer

    async def ask(self, _method, _url, *, headers, body, **_options):
        return await self.consumer.call(lambda: self._answer(headers["Idempotency-Key"], _decode(body)))

    def _answer(self, key, document):
        life = self.consumer.life
        if life.fails(0.05):
            return SimpleNamespace(status=life.rng.choice([302, 408, 429, 503]), headers={}, body=b"busy")
        assert life.web.setdefault(key, document) == document, f"{key}: {life.story()}"
        return SimpleNamespace(status=201, headers={}, body=b"")

    async def aclose(self):
        """Keeps everything."""


class Database(SqlDatabase):
    """The database as one process sees it: what is asked for arrives later, or not, and so does the answer."""

    def __init__(self, consumer, whole):
        super().__init__(URL, tables=TABLES)
        self.engine, self._checked, self._consumer = whole.engine, whole._checked, consumer
        self._threads = self._urgent = self

    async def release(self):
        """Others use it."""

    def submit(self, work):
        future = Future()
        future.set_running_or_notify_cancel()

        async def run():
            try:
                future.set_result(await self._consumer.call(work))
            except BaseException as error:  # raised in the waiting caller
                future.set_exception(error)

        if self._consumer is None:
            future.set_result(work())
        else:
            self._consumer.life.spawn(run())
        return future


class Log:
    """Of a partition, or of a replayed event."""

    def __init__(self, sink, partition, number=None):
        self.sink, self.partition, self.key = sink, partition, (partition, number)
        self.mark = sink.life.marks.get(self.key, NOTHING_SETTLED)

    async def append(self, records, last):
        await self.sink.consumer.call(lambda: self._append(records, last))
        self.mark = last

    def _append(self, records, last):
        life = self.sink.life
        if life.marks.get(self.key, NOTHING_SETTLED) != self.mark:
            raise MovedError
        if any((r.event.partition, r.event.sequence_number, "rows") in life.bad for r in records):
            raise RefusedError("bad")
        life.rows[self.partition] += [(r.event.sequence_number, _decode(r.payload)) for r in records]
        life.marks[self.key] = last


class Rows(AppendingSink):
    def __init__(self, consumer):
        super().__init__(BatchLimits(operations=50, flush_after=0.5))
        self.consumer, self.life = consumer, consumer.life

    async def open(self):
        return await self.routes()

    def prepare(self, write):
        document = read_object(write.event) if write.document is None else write.document
        if isinstance(document, Rejection):
            return rejected(write.event, document)
        return Record(write.event, f"{write.event.sequence_number}", _encode(document))

    async def load(self, claim):
        return await self.consumer.call(lambda: Log(self, claim.partition))

    async def load_event(self, event, part=""):
        return await self.consumer.call(lambda: Log(self, event.partition, (event.sequence_number, part)))


class Mortal:
    """A store as one process sees it."""

    def __init__(self, consumer, whole):
        self.consumer, self.whole = consumer, whole

    def __getattr__(self, name):
        method, fails = getattr(self.whole, name), self.consumer.life.fails
        # Of many letters that are read one after the other, as many get an answer as of many that are stored together.
        if name not in {"put", "save", "delete", "get"} or (name == "get" and not fails(0.1)):
            return method
        return lambda *arguments, **options: self.consumer.call(
            lambda: self._call(method, *arguments, **options)
        )

    async def _call(self, method, *arguments, **options):
        result = await method(*arguments, **options)
        if method.__name__ == "save":  # which was not refused
            self.consumer.life.check_checkpoint(arguments[1])
        return result


class Receiver(UntilReceiver):
    """The hub as one process receives it."""

    created_at = None

    def __init__(self, consumer):
        self.consumer, self.last, self.passed = consumer, consumer.life.until, set()

    async def partitions(self):
        return PARTITIONS

    async def state(self, name):
        last = self.consumer.life.last(name)
        return PartitionState(name, 0, last, str(last), 1.0, empty=last == NOTHING_SETTLED)


async def deliver(receiver, name, start, _epoch, on_events, _on_expired=None):
    """In place of HubReceiver.receive."""
    consumer, life = receiver.consumer, receiver.consumer.life
    at = bisect.bisect_right([event.sequence_number for event in life.events[name]], start)
    while True:
        await consumer._awake()
        if life.fails(0.05):  # delivered again
            at = max(0, at - life.rng.randint(1, 10))
        events = life.events[name][at : at + life.rng.randint(1, 9)]
        await on_events(events, None)
        at += len(events)
        if at == len(life.events[name]) or life.fails(0.1):
            await asyncio.sleep(0.2)


class Watched:
    """A sink of a process, and what is known of its answers."""

    def __init__(self, consumer, name, sink):
        self.consumer, self.name, self.sink = consumer, name, sink

    def __getattr__(self, name):
        return getattr(self.sink, name)

    async def write(self, batch, *, deadline):
        life = self.consumer.life
        self.consumer.note_started(batch.records, self.name)
        why = [
            life.refusal(record, self.name) if self.name in DOCUMENTS else None for record in batch.records
        ]
        rest = tuple(record for record, no in zip(batch.records, why, strict=True) if no is None)
        answers = (
            await self.sink.write(structs.replace(batch, records=rest), deadline=deadline) if rest else ()
        )
        left = iter(answers)
        results = [next(left) if no is None else no for no in why]
        for record, result in zip(batch.records, results, strict=True):
            if result.outcome is Outcome.WRITTEN:
                place = record.event.partition, record.event.sequence_number
                life.durable.setdefault(place, set()).add((self.name, record.index))
        return results


class Consumer:
    """One process."""

    def __init__(self, life):
        self.life, self.is_dead, self.frozen_until = life, False, -math.inf
        [hub] = read_definition(life.file.text, SETTINGS, name="f").hubs
        self.parts = Parts(hub.config, hub.settings, hub)
        database = self.parts._sink_context.shared["sql", URL] = Database(self, life.database)
        self.sinks = {each.name: Watched(self, each.name, self._built(each)) for each in hub.sinks}
        self.sink = RoutedSink(self.sinks) if len(self.sinks) > 1 else next(iter(self.sinks.values()))
        stores = [Mortal(self, each) for each in (life.checkpoints, life.letters, life.parked)]
        if life.is_alone:
            stores = [SqlCheckpointStore(database, STREAM), SqlDeadLetterStore(database, STREAM), None]
        self.checkpoints, self.letters, parked = stores
        self.preparation = self.parts.preparation(self.sink)
        is_ordered = not self.sinks.keys() & {*DOCUMENTS}  # then parking is refused
        limits = BacklogLimits(checkpoint_every=1.0, checkpoint_after=5, poison=10**9, high_count=HIGH)
        rules = ParkingRules() if is_ordered else life.parking
        units = life.request_units
        self.driver = Driver(
            DriverSettings("h", "g", limits, life.batches, rules, rate=life.rate, request_units=units),
            self.sink,
            self.checkpoints,
            self.letters,
            chance=life.rng.random,
            preparation=self.preparation,
            parked=parked if life.parks and not is_ordered else None,
        )
        self.owned, self.feeding, self.starts, self.begun, self.together = {}, {}, [], set(), []
        self.receiver = Receiver(self)

    def _built(self, definition):
        if definition.name == "rows":
            return Rows(self)
        sink = self.parts.build_sink(definition)
        if definition.name in DOCUMENTS:
            sink._container = Connection(self, definition.name)
        if definition.name == "web":
            sink._outward = Web(self)
        connect(sink, definition.name, self)
        return sink

    async def call(self, work):
        """The answer to a request. Both may be lost, and come late; what a process of which zombies are drawn has sent arrives."""
        life = self.life
        await self._awake()
        if self.is_dead or life.fails(0.07):
            raise UnavailableError("no answer")
        result = await asyncio.shield(life.spawn(self._arrive(work)))
        await asyncio.sleep(life.rng.uniform(0.0, 0.1))
        await self._awake()
        if self.is_dead or life.fails(0.07):
            raise UnavailableError("the answer is lost")
        return result

    async def _arrive(self, work):
        life = self.life
        longest = 20.0 if life.zombies and life.fails(0.2) else 0.2
        await asyncio.sleep(life.rng.uniform(0.0, longest))
        if self.is_dead and not life.zombies:
            raise UnavailableError("it never arrived")
        result = work()
        return await result if asyncio.iscoroutine(result) else result

    async def _awake(self):
        while (left := self.frozen_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left)

    def note_started(self, records, name):
        """Records that are tried for the first time: no more in a second than the rate, but for those of one event that a sink with a
        mark takes together, and no more at hand than there may be. The consumer would take an exception for one of its sink.
        """
        now = asyncio.get_running_loop().time()
        new = {(r.event.partition, r.event.sequence_number, r.index, name) for r in records} - self.begun
        self.begun |= new
        last = self.receiver.last
        behind = [each for each in new if last is not None and each[1] > last[each[0]]]
        broken = self.life.broken
        broken += [f"{each} is behind {last}" for each in behind]
        events = [letter.event for letter in self.life.parked._dead_letters.values()]
        parked = {(event.partition, event.sequence_number) for event in events}  # tried by an owner of before
        self.starts += [now] * sum(each[:2] not in parked for each in new)
        if new and self.life.rate is not None:
            lately = sum(at > now - 1.0 + 1e-6 for at in self.starts[-100:])
            if name in MARKED:
                self.together.append((now, max(Counter(each[:2] for each in new).values(), default=1)))
            together = max((many for at, many in self.together if at > now - 1.0), default=1)
            broken += [f"{lately} in a second"] * (lately > self.life.rate + together - 1)
        held = self.driver.statistics().backlog_count
        broken += [f"{held} events at hand"] * (held > HIGH + 15)

    async def start(self):
        await patiently(self.driver.open)

    async def claim(self, name):
        loop = asyncio.get_running_loop()
        claim = await patiently(lambda: self.checkpoints.claim(name, "me", deadline=loop.time() + 60.0))
        self.owned[name] = claim.epoch
        self.driver.claimed(claim)
        self.feeding[name] = asyncio.create_task(self._feed(claim))

    async def _feed(self, claim):
        async def receive(events, _last):
            await self.driver.receive(claim.partition, claim.epoch, events)
            check_pipeline(self.driver.pipeline)

        mark = claim.checkpoint.sequence_number if claim.checkpoint else NOTHING_SETTLED
        await self.receiver.receive(claim.partition, mark, claim.epoch, receive)

    async def run_until(self):
        """Waits until this process stops by itself, at a position."""
        ending = EndAt(LATEST, self.receiver, self.checkpoints, self.driver.statistics)
        async with asyncio.timeout(3_000.0):
            await patiently(lambda: ending.run(asyncio.Event(), lambda end: end.wait()))

    async def give_up(self, name, *, in_order):
        """The claim of a partition ends: in order, or as somebody else has it already."""
        epoch, feeding = self.owned.pop(name), self.feeding.pop(name)
        if in_order:
            deadline = asyncio.get_running_loop().time() + 600.0
            if not await self.driver.drain(name, epoch, deadline=deadline):
                is_owner = self.driver.pipeline.epoch(name) == epoch
                assert not is_owner, f"not drained: {self.life.story()}"
                self.life.is_drained = False
        self.driver.lost(name, epoch)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)

    async def end(self, *, is_killed):
        self.is_dead = is_killed
        if not is_killed:
            await asyncio.gather(*(self.give_up(name, in_order=True) for name in [*self.owned]))
        for task in self.feeding.values():
            task.cancel()
        await asyncio.gather(*self.feeding.values(), return_exceptions=True)
        await self.driver.aclose()


async def patiently(ask):
    while True:
        try:
            return await ask()
        except UnavailableError:
            await asyncio.sleep(0.5)


class Fleet:
    """Processes that share the partitions."""

    def __init__(self, life):
        self.life, self.owners, self.members, self.told = life, {}, [], []
        self.is_clean = True
        """Whether no mark of a sink can be ahead of the checkpoint: nobody was killed or robbed."""

    async def start(self):
        for _ in range(self.life.rng.choice([1, 1, 2])):
            await self._join()
        for name in PARTITIONS:
            await self._pass_on(name, self.life.rng.choice(self.members))

    async def _join(self):
        member = Consumer(self.life)
        await member.start()
        self.members.append(member)
        return member

    async def _pass_on(self, name, heir):
        await heir.claim(name)
        self.owners[name] = heir

    async def live(self, seconds):
        loop, rng = asyncio.get_running_loop(), self.life.rng
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            await asyncio.sleep(min(left, rng.uniform(0.2, 8.0)))
            if loop.time() < end:
                await self._happen(
                    rng.choice(["move", "kill", "split", *["steal", "freeze"] * self.life.zombies])
                )

    async def _happen(self, what):
        rng, name = self.life.rng, self.life.rng.choice(PARTITIONS)
        owner = self.owners[name]
        if what == "split":
            container = self.life.containers[rng.choice(DOCUMENTS)]
            container.split(rng.choice(container.map.ranges))
            return
        heir = await self._join() if len(self.members) < 3 else rng.choice(self.members)
        if heir is owner:
            return
        if what == "move":
            await owner.give_up(name, in_order=True)
            await self._pass_on(name, heir)
            return
        self.is_clean = False
        robbed = (
            [name] if what == "steal" else [each for each, found in self.owners.items() if found is owner]
        )
        if what == "kill":
            self.members.remove(owner)
            await owner.end(is_killed=True)
        elif what == "freeze":
            owner.frozen_until = asyncio.get_running_loop().time() + rng.choice([1.0, 10.0, 50.0])
        for each in robbed:
            await self._pass_on(each, heir)
            if what != "kill":
                self.told.append(asyncio.create_task(self._tell(owner, each)))

    async def _tell(self, owner, name):
        epoch = owner.owned[name]
        await asyncio.sleep(self.life.rng.uniform(0.0, 20.0))
        if owner.owned.get(name) == epoch and not owner.is_dead:
            await owner.give_up(name, in_order=False)

    async def end(self, *, is_killed):
        for member in self.members:
            member.frozen_until = -math.inf
        await asyncio.gather(*self.told)
        for member in self.members:
            await member.end(is_killed=is_killed)
        self.is_clean = self.is_clean and not is_killed

    async def _claim_again(self):
        """A late first write of an owner of before takes a sink's mark from the present owner, who then claims anew, as Consumer does."""
        for name, owner in self.owners.items():
            if owner.owned.get(name) is None or owner.driver.pipeline.epoch(name) != owner.owned[name]:
                self.is_clean = False
                if name in owner.owned:
                    await owner.give_up(name, in_order=False)
                await owner.claim(name)

    async def run_until(self):
        """Waits until each process stops by itself, at a position."""
        ending = asyncio.gather(*(member.run_until() for member in self.members))
        while not ending.done():
            await self._claim_again()
            await asyncio.wait([ending], timeout=1.0)
        await ending

    async def idle(self):
        """Everything is received and settled, up to where the processes stop, and nothing is parked."""
        life = self.life
        until = life.until or {name: life.last(name) for name in PARTITIONS}
        for _ in range(3_000):
            await asyncio.sleep(1.0)
            await self._claim_again()
            for member in self.members:
                if member.driver.failed.done():
                    member.driver.failed.result()
            marks = {name: each.sequence_number for name, each in (await stored_checkpoints(life)).items()}
            is_done = all(marks.get(name, NOTHING_SETTLED) == until[name] for name in PARTITIONS)
            if is_done and not life.parked._dead_letters:
                return
        held = [member.driver.statistics() for member in self.members]
        raise AssertionError(f"never idle: {held} {life.story()}")


async def stored_checkpoints(life):
    store = SqlCheckpointStore(life.database, STREAM) if life.is_alone else life.checkpoints
    return await store.load_all(deadline=math.inf)


async def live(seed, look=None):
    """`look` is called with the life when its processes have ended, again when all is settled, and once more after a replay."""
    now = asyncio.get_running_loop().time
    with (
        mock.patch("time.time", now),  # by which parked events are due
        mock.patch.object(HubReceiver, "receive", deliver),
    ):
        await _live(Life(seed), look or (lambda _life, _stored: None))


async def _live(life, look):
    rng, was_clean = life.rng, True
    for _ in range(rng.randint(1, 4)):
        life.send(rng.randint(0, 25))
        life.until = None
        if "hub" in life.file.sinks:
            await life.settle()
        if rng.random() < 0.3:
            gap = rng.choice([0, 0, 1, 3])
            life.until = life.never_given = {
                name: life.last(name) + gap * bool(life.events[name]) for name in PARTITIONS
            }
        fleet = Fleet(life)
        await fleet.start()
        if life.until is not None:
            life.send(rng.randint(0, 8))
            while gap and any(life.last(name) <= life.until[name] for name in PARTITIONS):
                life.send(1)  # that a number is not given is only known by a later event
        await fleet.live(rng.choice([0.2, 1.0, 5.0, 30.0]) * rng.random())
        is_killed = rng.random() < 0.6
        if life.until is not None and not is_killed:
            await fleet.run_until()
        changes = not is_killed and not life.parks and not life.is_alone and rng.random() < 0.7
        was_clean = was_clean and fleet.is_clean and not is_killed
        if changes and not was_clean:  # a mark may be ahead of the checkpoint after a kill: docs/routes.md
            await fleet.idle()
        await fleet.end(is_killed=is_killed)
        was_clean, changes = was_clean and life.is_drained, changes and life.is_drained
        life.is_drained = True
        look(life, await stored_checkpoints(life))
        if life.until is not None and not is_killed:
            await check_until(life)
        if changes:
            await life.settle()
            await note_settled(life)
        if changes and not await are_ahead(life):
            life.drawn.append(life.file)
            life.file, life.era = File(rng, life), life.era + 1
    life.send(rng.randint(0, 10))
    life.until = None
    life.trouble = rng.random() < 0.5
    fleet = Fleet(life)
    await fleet.start()
    await fleet.idle()
    await fleet.end(is_killed=False)
    await life.settle()
    await note_settled(life)
    await judge(life)
    look(life, await stored_checkpoints(life))
    if not (life.is_alone or life.drawn or life.batches.coalesce):
        await replay_letters(life)
        look(life, await stored_checkpoints(life))


async def check_until(life):
    """Up to the position everything is settled, and nothing behind it."""
    stored = await stored_checkpoints(life)
    found = {name: stored[name].sequence_number if name in stored else NOTHING_SETTLED for name in PARTITIONS}
    assert found == life.until, f"stopped at {found} instead of {life.until}: {life.story()}"


async def are_ahead(life):
    """Whether a mark is ahead of its checkpoint, as after a stop that could not finish: docs/routes.md."""
    with life.database.engine.begin() as connection:
        rows = [tuple(row) for row in connection.execute(text("SELECT part, number FROM flights"))]
    stored = await stored_checkpoints(life)
    marks = [(name, mark) for (name, again), mark in life.marks.items() if again is None]
    rows += [(name, number) for log in life.targets.of_hub().values() for name, number, _ in log]
    return any(name not in stored or number > stored[name].sequence_number for name, number in marks + rows)


async def note_settled(life):
    """By which file events were settled that are since the last note."""
    stored = await stored_checkpoints(life)
    for name in PARTITIONS:
        checkpoint = stored.get(name)
        for event in life.events[name]:
            if checkpoint is not None and covers(checkpoint, event.sequence_number):
                life.files.setdefault((name, event.sequence_number), (life.file, life.era))


async def letters_of(life):
    store = SqlDeadLetterStore(life.database, STREAM) if life.is_alone else life.letters
    return {(each.event.partition, each.event.sequence_number) async for each in store.list()}


async def replay_letters(life):
    """Dead letters whose cause is gone are written again, more than once, each time what is left of them; then judges anew."""
    life.bad, life.late = set(), {}
    life.trouble, life.rate = False, None  # which is of a consumer
    consumer = Consumer(life)
    await consumer.start()
    letters = [each async for each in life.letters.list()]
    life.trouble = (
        life.rng.random() < 0.5 and "table" not in life.file.sinks
    )  # which has no key: docs/writing.md
    for _ in range(2):
        replay = Replay(consumer.sink, consumer.driver._routes, consumer.preparation)
        results = await replay.write(letters, deadline=asyncio.get_running_loop().time() + 600.0)
        assert all(each.outcome is not Outcome.RETRY for each in results), life.story()
    written = {
        (letter.event.partition, letter.event.sequence_number)
        for letter, result in zip(letters, results, strict=True)
        if result.outcome is Outcome.WRITTEN
    }
    await consumer.end(is_killed=True)
    await life.settle()
    *_, rejected = life.expected()
    found = {(each.event.partition, each.event.sequence_number) for each in letters}
    assert found - written == rejected, (
        f"rejected again {sorted((found - written) ^ rejected)}: {life.story()}"
    )
    await life.letters.delete(
        [each.id for each in letters if (each.event.partition, each.event.sequence_number) in written]
    )
    await judge(life, is_replayed=True)


async def judge(life, *, is_replayed=False):
    store, rows, table, sent, letters = life.expected()
    story = life.story()
    assert not life.broken, f"{life.broken}: {story}"
    # The answer to a letter was lost before the stop: then the next file may make something else of the event.
    letters_of_before = {
        (name, event.sequence_number)
        for name in PARTITIONS
        for event in life.events[name]
        if any(("reject",) in file.results(event) for file in life.drawn)
    }
    found = await letters_of(life)
    found -= letters_of_before - letters
    if life.batches.coalesce:  # a bad document may have been replaced before it was sent
        assert found <= letters, f"dead letters {sorted(found - letters)}: {story}"
    else:
        assert found == letters, f"dead letters {sorted(found ^ letters)}: {story}"
    if is_replayed:
        found, wanted = (
            {name: sorted(map(_text, own)) for name, own in each.items()} for each in (life.rows, rows)
        )
        assert found == wanted, f"rows: {story}"
    else:
        assert life.rows == rows, f"rows: {story}"
    with life.database.engine.begin() as connection:
        written = [tuple(row) for row in connection.execute(text("SELECT part, number, id FROM flights"))]
    of_table = {name: [row[1:] for row in written if row[0] == name] for name in PARTITIONS}
    assert of_table == table, f"table: {story}"
    documents = {
        name: [_decode(found.body) for _, found in container.documents()]
        for name, container in life.containers.items()
    }
    fields = {each["id"]: _bare(each) for each in documents["fields"] if "_deleted" not in each}
    keeps_order = not (life.zombies or is_replayed) and (not life.parks or life.parking.by_key)
    if life.guard != "none" or keeps_order:
        wanted = {key: _bare(each) for key, each in store["fields"].items()}
        assert fields == wanted, f"fields: {fields} instead of {wanted}: {story}"
    else:
        assert fields.keys() <= {f"{n}{c}" for n in PARTITIONS for c in "abc"}, story
    sums = {each["id"]: each["all"] for each in documents["sums"]}
    assert all(each["total"] == sum(each["all"]) for each in documents["sums"]), story
    if not is_replayed and (not life.parks or life.parking.by_key):
        assert sums == store["sums"], f"sums: {sums} instead of {store['sums']}: {story}"
    else:  # a patch that was parked, or replayed, comes too late for a later one
        assert all(len(found) <= len(store["sums"][key]) for key, found in sums.items()), f"sums: {story}"
    places = sorted(_bare(each) for each in documents["places"])
    assert places == sorted(map(_bare, store["places"].values())), f"places: {story}"
    requests = Counter(map(_bare, life.web.values()))
    wanted = Counter(map(_bare, store["web"].values()))
    assert requests == wanted, f"web: {story}"
    judge_forwarded(life, sent, is_replayed=is_replayed)


def judge_forwarded(life, sent, *, is_replayed):
    """Each record is in hub and queue once; those of a key in their order, but for what is replayed."""
    for sink, logs in (("hub", life.targets.of_hub().values()), ("queue", [life.targets.of_queue()])):
        found, wanted = Counter(), Counter(map(_text, sent[sink]))
        for log in logs:
            found += Counter(map(_text, log))
        assert found == wanted, f"{sink}: {found - wanted} more, {wanted - found} less: {life.story()}"
        order = _by_key(sent[sink])
        for key, own in [] if is_replayed else [pair for log in logs for pair in _by_key(log).items()]:
            if sink == "hub" or key[1] is not None:  # a message without a session has no order
                assert own == order[key], f"{sink}: {key} is {own} instead of {order[key]}: {life.story()}"


def _by_key(log):
    """By partition of the source and key."""
    found = {}
    for name, number, document in log:
        found.setdefault((name, document.get("id")), []).append((number, document))
    return found


def _bare(document):
    kept = {name: value for name, value in document.items() if name != "id" and not name.startswith("_")}
    return _text(kept)


def _text(value):
    return _encode(value, order="deterministic")
