"""Whole files of the consumer in virtual time: drawn routes over drawn events, through a driver, against a plain model.

A `Life` draws a file, sends events, starts consumers one after the other on the same stores, kills them or stops them in order,
loses calls and answers, and in between may draw another file. What the sinks have at the end is compared with what the model
says; its reading of a file shares no code with the consumer's.
"""

import asyncio
import random
from unittest import mock

import msgspec

from consumer.definition.reading import read_definition
from consumer.mapping.documents import DocumentMapper, MappingOptions, read_object, rejected
from consumer.model import Event, Operation, Outcome, Record, Rejection, Routes, WriteResult
from consumer.options import BacklogLimits, BatchLimits, DriverSettings, ParkingRules, ParkOrder
from consumer.running.assembly import Parts
from consumer.running.driver import Driver
from consumer.sinks.appending import AppendingSink, MovedError, RefusedError
from consumer.sinks.routed import RoutedSink
from consumer.stores.memory import MemoryCheckpointStore
from tests.support.consumer.memory_dead_letters import MemoryDeadLetterStore
from tidemark.foundation.errors import UnavailableError

SETTINGS = {
    "EventHubConnection": "Endpoint=sb://one.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b",
    "CosmosConnection__accountEndpoint": "https://x.documents.azure.com",
    "AzureWebJobsStorage": "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=a2V5;EndpointSuffix=core.windows.net",
}
SINKS = {
    "fields": 'type = "cosmos"\ndatabase = "d"\ncontainer = "c"',
    "places": 'type = "cosmos"\ndatabase = "d"\ncontainer = "p"\nid = "position"',
    "rows": 'type = "parquet"\ncontainer = "lake"\nfolder = "f"\ncolumns = { id = "string" }',
}
PARTITIONS = ("0", "1")
WORST = 2
"""Attempts after the first one, before a parked event becomes a dead letter."""

_encode, _decode = msgspec.json.encode, msgspec.json.decode


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
    ("when = \"kind == 'b'\"\ndrop = 'b'", lambda d: d.get("kind") == "b", ("drop", "")),
    ("to = 'places'\nalso = true", _all, ("also", "places")),
    ("when = 'n > 5'\nto = 'places'\nalso = true\nsteps = [{ drop_fields = ['/n'] }]", _above, ("bare", "places")),
    ("when = \"exists(/n)\"\nto = 'fields'", lambda d: "n" in d, ("write", "fields")),
    ("to = 'fields'\ndelete_when_empty = true", _all, ("empty", "fields")),
    ("to = 'rows'", _all, ("write", "rows")),
]  # fmt: skip


class File:
    def __init__(self, rng):
        self.splits, self.filters, self.arrays = rng.random() < 0.4, rng.random() < 0.4, rng.random() < 0.3
        self.routes = rng.sample(ROUTES, rng.randint(1, 5))
        if not any(sink for _, _, (_, sink) in self.routes):
            self.routes.append(ROUTES[-2])

    @property
    def text(self):
        steps = [
            *["{ split = '/rows' }"] * self.splits,
            *["{ filter = 'n != 3', drop = 'three' }"] * self.filters,
        ]
        lines = ["version = 1", "[hubs.h]", "hub = 'h'", f"steps = [{', '.join(steps)}]"]
        if self.arrays:
            lines.append("decode = { format = 'json', arrays = true }")
        for route, _, _ in self.routes:
            lines += ["[[hubs.h.routes]]", route]
        for name, table in SINKS.items():
            lines += [f"[sinks.{name}]", table]
        return "\n".join(lines)

    def results(self, event):
        """(what, sink, id or None for a position, document) of each record, in order; what is write, delete, drop or reject."""
        body = event.body
        if not body:
            documents = [None]
        else:
            try:
                documents = _decode(body)
            except msgspec.DecodeError:
                return [("reject",)]
            if isinstance(documents, list) and self.arrays:
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
                return [*found, ("reject",) if key is None else ("delete", sink, key, None)]
            key = document.get("id")
            if sink == "fields" and not isinstance(key, str):
                found.append(("reject",))
            else:
                kept = {name: value for name, value in document.items() if kind != "bare" or name != "n"}
                what = "delete" if kind == "delete" else "write"
                found.append((what, sink, key if sink == "fields" else None, kept))
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


class Life:
    def __init__(self, seed):
        self.seed, self.rng = seed, random.Random(seed)
        rng = self.rng
        self.file = File(rng)
        self.parks = rng.random() < 0.4
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
        self.bad, self.late = set(), {}
        self.store = {"fields": {}, "places": {}}
        self.rows, self.marks, self.again = {name: [] for name in PARTITIONS}, {}, {}
        self.applied = set()
        self.checkpoints = MemoryCheckpointStore(clock=lambda: 0.0)
        self.letters, self.parked = MemoryDeadLetterStore(), MemoryDeadLetterStore()

    def send(self, count):
        rng = self.rng
        for _ in range(count):
            name = rng.choice(PARTITIONS)
            number = len(self.events[name])
            key = rng.choice([None, f"{name}a", f"{name}b"])
            self.events[name].append(
                Event(name, number, str(number), 1.0, draw_body(rng, name), partition_key=key)
            )
            if rng.random() < 0.08:
                self.bad.add((name, number, rng.choice([*SINKS])))
            if self.parks and rng.random() < 0.15:
                self.late[name, number] = rng.choice([1, 1, 99])

    def fails(self, chance):
        return self.trouble and self.rng.random() < chance

    def story(self):
        return f"seed {self.seed}, era {self.era}, {self.parking}, {self.batches}\n{self.file.text}"

    # -- what is expected

    def expected(self, number_of_letters=True):
        """Documents, rows and dead letters as the model says."""
        store = {"fields": {}, "places": {}}
        rows = {name: [] for name in PARTITIONS}
        letters = set()
        order = sorted(
            (self.files[name, event.sequence_number][1], event.sequence_number, name)
            for name in PARTITIONS
            for event in self.events[name]
        )
        for _, number, name in order:
            event = self.events[name][number]
            for place, result in enumerate(self.files[name, number][0].results(event)):
                if result[0] == "reject":
                    letters.add((name, number))
                elif result[0] != "drop":
                    what, sink, key, document = result
                    if (name, number, sink) in self.bad or (
                        sink != "rows" and self.late.get((name, number), 0) > WORST
                    ):
                        letters.add((name, number))
                    elif sink == "rows":
                        rows[name].append((number, document))
                    elif what == "delete":
                        store[sink].pop(key, None)
                    else:
                        store[sink][(name, number, place) if key is None else key] = document
        return store, rows, letters


class Documents:
    """A sink of documents, as one process sees it."""

    transactional = False

    def __init__(self, life, name):
        self.life, self.name, self.is_dead = life, name, False
        id_from = "position" if name == "places" else "field:id"
        self.mapper = DocumentMapper(MappingOptions("h", id_from))

    async def open(self):
        return Routes()

    async def routes(self):
        return Routes()

    def prepare(self, write):
        return self.mapper.prepare(write)

    async def write(self, batch, *, deadline):
        life = self.life
        await asyncio.sleep(life.rng.uniform(0.0, 0.3))
        if self.is_dead or life.fails(0.1):
            raise UnavailableError("no answer")
        results = []
        for record in batch.records:
            await asyncio.sleep(0)
            if self.is_dead or life.fails(0.1):
                results.append(WriteResult(Outcome.RETRY, reason="busy", retry_after=0.05))
            else:
                results.append(self._apply(record))
        await asyncio.sleep(life.rng.uniform(0.0, 0.1))
        if self.is_dead or life.fails(0.1):
            raise UnavailableError("the answer is lost")
        return results

    def _apply(self, record):
        life, event = self.life, record.event
        place = event.partition, event.sequence_number
        if (*place, self.name) in life.bad:
            return WriteResult(Outcome.REJECT, 400, "bad")
        if life.late.get(place, 0) > 0:
            life.late[place] -= life.late[place] < 50
            return WriteResult(Outcome.REJECT, 404, rejection=Rejection("late", "not there yet"))
        key = record.key.removeprefix(f"{self.name}/")  # which it has among others only
        if record.operation is Operation.DELETE:
            life.store[self.name].pop(key, None)
        else:
            life.store[self.name][key] = _decode(record.payload)
        return WriteResult(Outcome.WRITTEN, 200)

    async def aclose(self):
        """Keeps everything."""


class Log:
    def __init__(self, sink, partition):
        self.sink, self.partition, self.mark = sink, partition, sink.life.marks.get(partition, -1)

    async def append(self, records, last):
        life = self.sink.life
        await asyncio.sleep(life.rng.uniform(0.0, 0.2))
        if self.sink.is_dead or life.fails(0.1):
            raise UnavailableError("no answer")
        if life.marks.get(self.partition, -1) != self.mark:
            raise MovedError
        if any((r.event.partition, r.event.sequence_number, "rows") in life.bad for r in records):
            raise RefusedError("bad")
        life.rows[self.partition] += [(r.event.sequence_number, _decode(r.payload)) for r in records]
        life.marks[self.partition] = self.mark = last
        if self.sink.is_dead or life.fails(0.1):
            raise UnavailableError("the answer is lost")


class Rows(AppendingSink):
    def __init__(self, life):
        super().__init__(BatchLimits(operations=50, flush_after=0.5))
        self.life, self.is_dead = life, False

    async def open(self):
        return await self.routes()

    def prepare(self, write):
        document = read_object(write.event) if write.document is None else write.document
        if isinstance(document, Rejection):
            return rejected(write.event, document)
        return Record(write.event, f"{write.event.sequence_number}", _encode(document))

    async def load(self, claim):
        if self.is_dead or self.life.fails(0.1):
            raise UnavailableError("no answer")
        return Log(self, claim.partition)

    async def load_event(self, event):
        raise NotImplementedError


class Mortal:
    """A store as one process sees it. `check` is called with each checkpoint."""

    def __init__(self, life, whole):
        self.life, self.whole, self.is_dead = life, whole, False

    def __getattr__(self, name):
        return getattr(self.whole, name)

    async def _call(self, method, *arguments, **options):
        await asyncio.sleep(self.life.rng.uniform(0.0, 0.1))
        if self.is_dead or self.life.fails(0.1):
            raise UnavailableError("no answer")
        result = await method(*arguments, **options)
        if self.is_dead or self.life.fails(0.1):
            raise UnavailableError("the answer is lost")
        return result

    async def put(self, *arguments, **options):
        return await self._call(self.whole.put, *arguments, **options)

    async def save(self, *arguments, **options):
        return await self._call(self.whole.save, *arguments, **options)

    async def delete(self, *arguments, **options):
        return await self._call(self.whole.delete, *arguments, **options)

    async def get(self, *arguments, **options):
        return await self._call(self.whole.get, *arguments, **options)


class Consumer:
    """One process."""

    def __init__(self, life):
        self.life = life
        [hub] = read_definition(life.file.text, SETTINGS, name="f").hubs
        made = {"fields": Documents(life, "fields"), "places": Documents(life, "places"), "rows": Rows(life)}
        self.sinks = {sink.name: made[sink.name] for sink in hub.sinks}
        self.sink = RoutedSink(self.sinks) if len(self.sinks) > 1 else next(iter(self.sinks.values()))
        self.stores = [Mortal(life, each) for each in (life.checkpoints, life.letters, life.parked)]
        checkpoints, letters, parked = self.stores
        self.preparation = Parts(hub.config, hub.settings, hub).preparation(self.sink)
        is_ordered = len(self.sinks) == 1 and "rows" in self.sinks
        limits = BacklogLimits(checkpoint_every=1.0, checkpoint_after=5, poison=10**9, high_count=40)
        self.driver = Driver(
            DriverSettings("h", "g", limits, life.batches, ParkingRules() if is_ordered else life.parking),
            self.sink,
            checkpoints,
            letters,
            chance=life.rng.random,
            preparation=self.preparation,
            parked=parked if life.parks and not is_ordered else None,
        )
        self.claims, self.feeding = [], []

    async def start(self):
        await self.driver.open()
        for name in PARTITIONS:
            claim = await self.life.checkpoints.claim(name, "me", deadline=0.0)
            self.claims.append(claim)
            self.driver.claimed(claim)
            self.feeding.append(asyncio.create_task(self._feed(claim)))

    async def _feed(self, claim):
        life, number = self.life, claim.checkpoint.sequence_number + 1 if claim.checkpoint else 0
        while True:
            events = life.events[claim.partition][number : number + life.rng.randint(1, 9)]
            await self.driver.receive(claim.partition, claim.epoch, events)
            number += len(events)
            if number == len(life.events[claim.partition]) or life.fails(0.1):
                await asyncio.sleep(0.2)

    async def end(self, *, is_killed):
        if is_killed:
            for each in (*self.sinks.values(), *self.stores):
                each.is_dead = True
        else:
            deadline = asyncio.get_running_loop().time() + 300.0
            drains = [self.driver.drain(c.partition, c.epoch, deadline=deadline) for c in self.claims]
            assert all(await asyncio.gather(*drains)), f"not drained: {self.life.story()}"
        for task in self.feeding:
            task.cancel()
        await asyncio.gather(*self.feeding, return_exceptions=True)
        await self.driver.aclose()

    async def idle(self):
        """Everything is received and settled, and nothing is parked."""
        life = self.life
        for _ in range(2_000):
            await asyncio.sleep(1.0)
            if self.driver.failed.done():
                self.driver.failed.result()
            stored = await life.checkpoints.load_all(deadline=0.0)
            marks = {name: checkpoint.sequence_number for name, checkpoint in stored.items()}
            is_done = all(marks.get(name, -1) == len(life.events[name]) - 1 for name in PARTITIONS)
            if is_done and not life.parked._dead_letters:
                return
        raise AssertionError(f"never idle: {self.driver.statistics()} {life.story()}")


async def live(seed):
    with mock.patch("time.time", asyncio.get_running_loop().time):  # by which parked events are due
        await _live(Life(seed))


async def _live(life):
    rng, was_killed = life.rng, False
    for _ in range(rng.randint(1, 4)):
        life.send(rng.randint(0, 25))
        consumer = Consumer(life)
        await consumer.start()
        await asyncio.sleep(rng.choice([0.2, 1.0, 5.0, 30.0]) * rng.random())
        is_killed = rng.random() < 0.6
        changes = not is_killed and not life.parks and rng.random() < 0.7
        was_killed = was_killed or is_killed
        if changes and was_killed:  # a mark may be ahead of the checkpoint after a kill: docs/routes.md
            await consumer.idle()
        await consumer.end(is_killed=is_killed)
        if changes:
            await note_settled(life)
            life.drawn.append(life.file)
            life.file, life.era = File(rng), life.era + 1
    life.send(rng.randint(0, 10))
    life.trouble = rng.random() < 0.5
    consumer = Consumer(life)
    await consumer.start()
    await consumer.idle()
    await consumer.end(is_killed=False)
    await note_settled(life)
    await judge(life)


async def note_settled(life):
    """By which file events were settled that are since the last note."""
    stored = await life.checkpoints.load_all(deadline=0.0)
    for name in PARTITIONS:
        checkpoint = stored.get(name)
        for event in life.events[name]:
            number = event.sequence_number
            settled = checkpoint is not None and (
                number <= checkpoint.sequence_number or any(a <= number <= b for a, b in checkpoint.beyond)
            )
            if settled:
                life.files.setdefault((name, number), (life.file, life.era))


async def judge(life):
    store, rows, letters = life.expected()
    story = life.story()
    # The answer to a letter was lost before the stop: then the next file may make something else of the event.
    letters_of_before = {
        (name, event.sequence_number)
        for name in PARTITIONS
        for event in life.events[name]
        if any(("reject",) in file.results(event) for file in life.drawn)
    }
    found = {(each.event.partition, each.event.sequence_number) async for each in life.letters.list()}
    found -= letters_of_before - letters
    if life.batches.coalesce:  # a bad document may have been replaced before it was sent
        assert found <= letters, f"dead letters {sorted(found - letters)}: {story}"
    else:
        assert found == letters, f"dead letters {sorted(found ^ letters)}: {story}"
    assert {n: [r[0] for r in own] for n, own in life.rows.items()} == {
        n: [r[0] for r in own] for n, own in rows.items()
    }, f"rows: {story}"
    assert life.rows == rows, f"rows: {story}"
    fields = {document["id"]: document for document in life.store["fields"].values()}
    if not life.parks or life.parking.by_key:
        assert fields == store["fields"], f"fields: {fields} instead of {store['fields']}: {story}"
    else:
        assert fields.keys() <= {f"{n}{c}" for n in PARTITIONS for c in "abc"}, story
    places = sorted(_bare(each) for each in life.store["places"].values())
    assert places == sorted(map(_bare, store["places"].values())), f"places: {story}"


def _bare(document):
    return _encode({name: value for name, value in document.items() if name != "id"}, order="deterministic")
