"""The reconciliation of whole files: what lives of fleets (tests/torture/definitions.py) left in a sink, against a plain reading of the file.

Steps, routes, several documents of an event, dead letters, parked events, deletes, kills and replays are as a life draws them. The events
go through the job's own reading of the file; what should be said of them comes from `File.results`. Each sink is looked at as it is, and
once more when documents were taken out of it. All lives are judged in one pass of Spark, with the life in names of partitions and documents.
"""

import json
import os
import random
from contextlib import nullcontext
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest

from spark_jobs.platform.consumer_hub import has_other_sinks, hub_on_cosmos
from spark_jobs.reconciliation.buckets import CHUNKS
from spark_jobs.reconciliation.extract import settled_runs
from spark_jobs.reconciliation.job import refuse_what_leaves_no_trace
from spark_jobs.reconciliation.keys import EventKeys, document_keys, identity_of
from spark_jobs.reconciliation.schemas import DEAD_LETTERS, EVENT_KEYS, Identity, Status
from spark_jobs.reconciliation.transforms import (
    Due,
    distinct_events,
    duplicates,
    judged,
    packed_positions,
    packing,
    positions,
)
from spark_jobs.schemas import arrow_schema, row_schema
from spark_jobs.sources.cosmos import DOCUMENTS as READ
from spark_jobs.sources.cosmos import canonical_key
from spark_jobs.sources.dead_letters import _are_of_others, _row
from tests.support.virtual_time import in_virtual_time
from tests.torture.definitions import DOCUMENTS, PARTITIONS, SETTINGS, STREAM, covers, live
from tidemark.analysis.errors import InputError

pytestmark = pytest.mark.timeout(900)

LIVES = range(int(os.environ.get("TORTURE_SEEDS", "120")) // 10)
NOW = datetime(1970, 1, 1, 6, tzinfo=UTC)
"""Later than all of a life, and before a tombstone's time is over."""
TEXTS = "hub text, partition text, sequence_number long, enqueued_at time, file text, offset text, body bytes"
MAPS = ("properties", "system_properties")
LOST = {Status.LOST, Status.STALE}


class Look:
    """What one reconciliation of one sink reads, and what it may say. Raises InputError for a file that the job refuses."""

    def __init__(self, life, stored, sink, folder, name, *, is_damaged):
        self.life, self.sink, self.name, self.file, self.stored = life, sink, name, life.file, stored
        text = self.file.text
        for decoder in ("protobuf", "avro_single_object"):
            text = text.replace(f"format = '{decoder}'", f"format = '{decoder}', unpack = 'none'")
        path = folder / f"{name}.toml"
        path.write_text(text)
        self.hub = hub_on_cosmos({**SETTINGS, "CONSUMER_FILE": str(path)}, "a test reads", sink=sink)
        refuse_what_leaves_no_trace(self.hub)
        self.identity = identity_of(self.hub)
        self.sent = [event for partition in PARTITIONS for event in life.events[partition]]
        self.letters = [*life.parked._dead_letters.values(), *life.letters._dead_letters.values()]
        self.parked = set(life.parked._dead_letters)
        container, rng = life.containers[sink], random.Random(name)
        bodies = [msgspec.json.decode(container.full(found)) for _, found in container.documents()]
        self.gone = [each for each in bodies if is_damaged and rng.random() < 0.3]
        self.documents = [*map(self._document, (each for each in bodies if each not in self.gone))]
        self.runs = [(f"{name}.{partition}", *run) for partition, *run in settled_runs(stored)]
        self.allowed = {self._place(event): self._allowed(event) for event in self.sent}

    # -- what the job reads

    def events(self):
        """Outside of the loop of a life: a task has its own. Raises InputError for an event that leaves no trace."""
        schema = arrow_schema(row_schema(TEXTS))
        for name in MAPS:
            schema = schema.append(pa.field(name, pa.map_(pa.string(), pa.string())))
        batch = pa.RecordBatch.from_pylist([*map(self._event, self.sent)], schema=schema)
        keys = EventKeys(self.hub, ["/id"], None, None, lambda batches: batches, default_ttl=-1)
        for row in (row for keyed in keys([batch]) for row in keyed.to_pylist()):
            further = json.loads(row["further"] or "[]")
            for each in (row, *further):
                each["document_id"] = each.get("document_id") and f"{self.name}.{each['document_id']}"
            row |= {
                "partition": f"{self.name}.{row['partition']}",
                "further": further and json.dumps(further),
            }
            yield tuple(
                row[field] or None if field == "further" else row[field] for field in EVENT_KEYS.names
            )

    def _event(self, event):
        key = event.partition_key
        at = datetime.fromtimestamp(event.enqueued_at, UTC)
        texts = ("h", event.partition, event.sequence_number, at, "f", event.offset, event.body)
        system = [("x-opt-partition-key", key)] if key else []
        return dict(zip(row_schema(TEXTS).names, texts, strict=True)) | dict(
            zip(MAPS, ([], system), strict=True)
        )

    def _document(self, body):
        meta = {name: value for name, value in body.get("_tm", {}).items() if value is not None}
        if "partition" in meta:
            meta["partition"] = f"{self.name}.{meta['partition']}"
        if "_tv" in body:
            topic, _, partition = body["_tv"]["of"].rpartition("/")
            meta |= {**body["_tv"], "of": f"{topic}/{self.name}.{partition}"}
        at = datetime.fromtimestamp(body["_ts"], UTC)
        return f"{self.name}.{body['id']}", canonical_key([body["id"]]), at, json.dumps(meta)

    def dead_letters(self):
        for letter in self.letters:
            if not (has_other_sinks(self.hub) and _are_of_others(letter, self.sink)):
                row = {
                    **_row(letter),
                    "parked": letter.id in self.parked,
                    "partition": self._place(letter.event)[0],
                }
                yield tuple(row[field] for field in DEAD_LETTERS.names)

    # -- what may be said

    def _place(self, event):
        return f"{self.name}.{event.partition}", event.sequence_number

    def _allowed(self, event):
        checkpoint = self.stored.get(event.partition)
        is_settled = checkpoint is not None and covers(checkpoint, event.sequence_number)
        found = set() if is_settled else {Status.PENDING}
        results = self.file.results(event)
        writes = [result for result in results if result[1:2] == (self.sink,)]
        if any(letter.event == event for letter in self.letters):  # of this sink, or of others
            found |= {Status.DEAD_LETTERED, Status.PARKED}
        if not writes:
            return {*found, Status.DROPPED}
        if any(self._is_of(event, body) for body in self.gone):
            return {*found, *LOST}
        found |= {Status.WRITTEN, Status.SUPERSEDED}
        return {*found, *LOST} if self.gone else found

    @staticmethod
    def _is_of(event, body):
        """Whether the document names this event as the one that wrote it last."""
        if "_tv" in body:
            return (body["_tv"]["of"], body["_tv"]["n"]) == (
                f"{STREAM.topic}/{event.partition}",
                event.sequence_number,
            )
        meta = body.get("_tm", {})
        return (meta.get("partition"), meta.get("sequence_number")) == (
            event.partition,
            event.sequence_number,
        )


def has_deletes(life):
    events = [event for partition in PARTITIONS for event in life.events[partition]]
    return any(result[0] == "delete" for event in events for result in life.file.results(event))


@pytest.fixture(scope="module")
def looks(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("files"), []

    def look(life, stored):
        if life.is_alone or life.drawn:  # events of a file of before were settled as that one says
            return
        for sink in sorted(life.file.sinks & {*DOCUMENTS}):
            if sink == "fields" and life.guard == "none" and has_deletes(life):
                continue  # refused: tests/spark/test_reconciliation_job.py
            for is_damaged in (False, True):
                name = f"{life.seed}-{len(found)}"
                refused = life.packing in {
                    "gzip",
                    "cloudevents",
                }  # captured files do not say how they are read
                with pytest.raises(InputError, match="the Spark jobs read") if refused else nullcontext():
                    found.append(Look(life, stored, sink, folder, name, is_damaged=is_damaged))

    for seed in LIVES:
        random.seed(seed)
        in_virtual_time(live)(seed, look)
    return found


@pytest.mark.parametrize("identity", [Identity.META, Identity.BODY])
def test_of_the_lives_of_files_nothing_is_called_lost_but_what_is(spark, looks, identity):
    chosen, made = [look for look in looks if look.identity is identity], spark.createDataFrame
    events = [row for look in chosen for row in look.events()]
    letters = [row for look in chosen for row in look.dead_letters()]
    documents = [row for look in chosen for row in look.documents]
    documents = document_keys(made(documents, READ), STREAM.topic).persist()
    letters = made(letters, DEAD_LETTERS).persist()
    frame = judged(
        distinct_events(made(events, EVENT_KEYS).mapInArrow(packing(), row_schema(CHUNKS))),
        documents,
        positions(packed_positions(documents), letters),
        [run for look in chosen for run in look.runs],
        identity,
        Due(NOW, by_checkpoint=True),
        read_at=NOW,
        letters=letters,
    ).persist()
    said = {(row["partition"], row["sequence_number"]): row["status"] for row in frame.collect()}

    assert said.keys() == {place for look in chosen for place in look.allowed}
    for look in chosen:
        wrong = {place: said[place] for place, allowed in look.allowed.items() if said[place] not in allowed}
        assert not wrong, f"{wrong} of {look.sink}, {len(look.gone)} documents are gone: {look.life.story()}"
    assert LOST & {*said.values()}, "some are lost, or the test proves nothing"
    if identity is Identity.META:
        empty = [
            said[look._place(event)]
            for look in chosen
            for event in look.sent
            if not event.properties["plain"]
            and any(result[:2] == ("delete", look.sink) for result in look.file.results(event))
        ]
        assert empty.count(Status.WRITTEN) >= 10, "tombstones, or the test proves nothing of empty bodies"
        assert LOST & {*empty}
    assert duplicates(frame).collect() == []
