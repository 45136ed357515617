"""Each event's fate, gaps and duplicates: against an independent judgement of random worlds, and case by case."""

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise

import pytest

from consumer.model import Checkpoint
from spark_jobs.reconciliation import transforms
from spark_jobs.reconciliation.buckets import CHUNKS
from spark_jobs.reconciliation.extract import settled_runs
from spark_jobs.reconciliation.keys import document_keys
from spark_jobs.reconciliation.schemas import (
    BY_HOUR,
    DEAD_LETTERS,
    DOCUMENT_KEYS,
    EVENT_KEYS,
    GAPS,
    JUDGED,
    Identity,
    Status,
)
from spark_jobs.reconciliation.transforms import (
    Due,
    by_column,
    by_hour,
    distinct_events,
    duplicates,
    gaps,
    holes,
    judged,
    packed_positions,
    packing,
    positions,
)
from spark_jobs.schemas import row_schema
from spark_jobs.sources.cosmos import DOCUMENTS

T0 = datetime(2026, 11, 20, 10, tzinfo=UTC)
NOW = T0 + timedelta(hours=5)
SKEW = 5


def bucketed(keys):
    return distinct_events(keys.mapInArrow(packing(), row_schema(CHUNKS))).persist()


class World:
    """Rows of all frames, as tuples, and what should come out of them."""

    def __init__(self, seed, identity, *, by_checkpoint=True, grace=None, expires=False, versions=False):
        self.rng = random.Random(seed)
        self.expires, self.versions = expires, versions
        self.identity = identity
        self.due = Due(NOW, by_checkpoint, grace)
        self.events, self.documents, self.dead_letters = [], [], []
        self.checkpoints = {}
        for partition in ("0", "2", "10"):
            self._fill(partition)

    def _fill(self, partition):
        rng = self.rng
        number, at = rng.choice([0, 7]), T0
        for place in range(rng.choice([0, 1, 40])):
            number += rng.choices([1, 2, 9], [20, 2, 1])[0]
            at += timedelta(seconds=rng.randrange(600), milliseconds=rng.randrange(1000))
            self._event(partition, number, at, f"{partition}/{place // 9}.avro")
        checkpoint = rng.randrange(-1, number + 1)
        beyond = [(checkpoint + 3, checkpoint + 5)] if rng.random() < 0.5 else []
        if rng.random() < 0.8:
            self.checkpoints[partition] = Checkpoint(partition, checkpoint, "", tuple(beyond))

    def _event(self, partition, number, at, file):
        rng = self.rng
        # Ids come again, also in other partitions: few names.
        by_position = self.identity is Identity.POSITION
        name = f"hub~{partition}~{number}" if by_position else f"d{rng.randrange(25)}"
        key = None if by_position else f'["{rng.choice("ab")}"]'
        ttl = rng.choice([None, 600, 10**6]) if self.expires else None
        version = rng.choice(["1", "2", "10"]) if self.versions else None
        row = (partition, number, at, file, name, key, None, None, ttl, version, *[None] * 3)
        if not by_position and rng.random() < 0.1:
            row = (partition, number, at, file, None, None, "json", *[None] * 6)
        elif rng.random() < 0.05:
            row = (partition, number, at, file, None, None, None, 0, *[None] * 5)
        self.events += [row] * rng.choices([1, 2], [9, 1])[0]
        if rng.random() < 0.15:
            before = timedelta(days=30 * (number % 3 == 1))  # of a hub of the same name that was deleted
            self.dead_letters.append((partition, number, at - before, "json", at, number % 4 == 0, None, 1))
        if row[4] is not None and rng.random() < 0.6:
            self._document(partition, number, at, row)

    def _document(self, partition, number, at, row):
        rng = self.rng
        late = timedelta(seconds=rng.choice([-3000, -4, 0, 2, 900]))
        modified = (at + late).replace(microsecond=0)
        if self.identity is Identity.POSITION:
            for key in rng.sample(["[1]", "[2]"], rng.choices([1, 2], [9, 1])[0]):
                self.documents.append((row[4], key, modified, partition, number, None, None))
            return
        shown = (partition, number, at) if self.identity is Identity.META else (None, None, None)
        if rng.random() < 0.1:  # of another hub, or written by hand
            shown = rng.choice([(None, None, None), (partition, number + 1, at + timedelta(hours=1))])
        self.documents = [document for document in self.documents if document[:2] != (row[4], row[5])]
        self.documents.append((row[4], row[5], modified, *shown, shown[0] and row[9]))
        if rng.random() < 0.05:
            self.documents.append((f"{row[4]}-again", row[5], modified, *shown, None))

    def frames(self, spark):
        made = spark.createDataFrame
        return (
            bucketed(made(self.events, EVENT_KEYS)),
            made(self.documents, DOCUMENT_KEYS),
            made(self.dead_letters, DEAD_LETTERS),
            settled_runs(self.checkpoints),
        )

    # What should come out, told without Spark.

    def expected(self):
        found = {}
        copies = Counter((row[0], row[1]) for row in self.events)
        times = {row[:2]: row[2] for row in self.events}
        own = [row for row in self.dead_letters if row[2] == times[row[:2]]]
        dead_letters, parked = (Counter(row[:2] for row in own if row[5] is kind) for kind in (False, True))
        for row in dict.fromkeys(self.events):
            event = row[:2]
            keepers = [document for document in self.documents if document[:2] == (row[4], row[5])]
            keeper = keepers[0] if keepers and self.identity is not Identity.POSITION else None
            documents = self._documents_of(row)
            status = self._status(row, documents, dead_letters[event], parked[event], keeper)
            found[event] = (str(status), copies[event], documents, dead_letters[event])
        return found

    def _documents_of(self, row):
        if self.identity is Identity.BODY:
            return 0
        same = [document for document in self.documents if document[3:5] == row[:2]]
        if self.identity is Identity.META:
            same = [each for each in same if abs((each[5] - row[2]).total_seconds()) <= 1]
        return len(same)

    def _status(self, row, documents, dead_letters, parked, keeper):
        partition, number, at = row[:3]
        fresh = keeper is not None and keeper[2].timestamp() + SKEW >= int(at.timestamp())
        if documents or (self.identity is Identity.META and keeper is not None and keeper[3:5] == row[:2]):
            return Status.WRITTEN
        if dead_letters:
            return Status.DEAD_LETTERED
        if parked:
            return Status.PARKED
        if self.identity is Identity.BODY and fresh and self._is_last(row):
            return Status.WRITTEN
        later = keeper and (keeper[4] > number if keeper[3] == partition else fresh)
        if keeper and keeper[6] and row[9]:
            later = float(keeper[6]) >= float(row[9])
        if later:
            return Status.SUPERSEDED
        grace = self.due.grace
        old = grace is None or at < NOW - grace
        if self.due.by_checkpoint and not self._checked(partition, number):
            return Status.OVERDUE if grace is not None and old else Status.PENDING
        if not self.due.by_checkpoint and not old:
            return Status.PENDING
        if keeper is not None:
            return Status.STALE
        if self._is_over(row):
            return Status.REMOVED
        return Status.DROPPED if row[7] == 0 else Status.LOST

    def _is_over(self, row):
        """By its own time to live or that of the last event of its id."""
        own = [row]
        if self.identity is not Identity.POSITION and row[4] is not None:
            same = [each for each in self.events if each[4:6] == row[4:6]]
            own.append(max(same, key=lambda each: (each[2], each[0], each[1])))
        return self.expires and any(
            each[8] and int(each[2].timestamp()) + each[8] <= NOW.timestamp() + SKEW for each in own
        )

    def _is_last(self, row):
        same = [event for event in self.events if event[4:6] == row[4:6]]
        return max(same, key=lambda each: (each[2], each[0], each[1])) == row

    def _checked(self, partition, number):
        checkpoint = self.checkpoints.get(partition)
        return checkpoint is not None and (
            number <= checkpoint.sequence_number
            or any(first <= number <= last for first, last in checkpoint.beyond)
        )

    def expected_gaps(self):
        known = {document[3:5] for document in self.documents} | {row[:2] for row in self.dead_letters}
        found = set()
        for partition in {row[0] for row in self.events}:
            rows = sorted(
                dict.fromkeys(row for row in self.events if row[0] == partition), key=lambda row: row[1]
            )
            spans = [
                (one[1] + 1, other[1] - 1, "within a file" if one[3] == other[3] else "between files")
                for one, other in pairwise(rows)
            ]
            spans += self._expired(partition, rows[0][1])
            for first, last, kind in spans:
                if first <= last:
                    settled = sum((partition, number) in known for number in range(first, last + 1))
                    found.add(
                        (partition, first, last, last - first + 1, settled, kind, settled < last - first + 1)
                    )
        return found

    def _expired(self, partition, begin):
        """Runs of numbers before `begin` that are not checked."""
        numbers = [number for number in range(begin) if not self._checked(partition, number)]
        if partition not in self.checkpoints:
            return
        for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
            own = [number for _, number in run]
            yield own[0], own[-1], "expired"


def outcome(frame):
    return {
        (row["partition"], row["sequence_number"]): (
            row["status"],
            row["copies"],
            row["documents"],
            row["dead_letters"],
        )
        for row in frame.collect()
    }


CASES = [
    (1, Identity.POSITION, {"by_checkpoint": False, "grace": timedelta(hours=4)}),
    (2, Identity.META, {"grace": timedelta(hours=3)}),
    (3, Identity.BODY, {}),
    (7, Identity.META, {"expires": True, "versions": True}),
]


@pytest.fixture(params=[0, 18], ids=["small buckets", "buckets"])
def bits(request, monkeypatch):
    """So small that every gap spans some of them, and a wide one all of them."""
    monkeypatch.setattr(transforms, "BUCKET_BITS", request.param)
    monkeypatch.setattr(transforms, "_WIDE", 4)


@pytest.mark.parametrize(("seed", "identity", "options"), CASES)
def test_random_worlds_are_judged_as_by_hand(spark, seed, identity, options, bits):
    world = World(seed * 1000, identity, **options)
    events, documents, dead_letters, runs = world.frames(spark)
    known = positions(packed_positions(documents), dead_letters).persist()
    read_at = NOW if options.get("expires") else None
    frame = judged(events, documents, known, runs, identity, world.due, read_at=read_at).persist()

    assert frame.columns == JUDGED.fieldNames()
    assert outcome(frame) == world.expected()

    twice = {(row["partition"], row["sequence_number"], row["kind"]) for row in duplicates(frame).collect()}
    assert twice == {
        (*event, "two documents" if documents > 1 else "document and dead letter")
        for event, (_, _, documents, dead_letters) in world.expected().items()
        if documents > 1 or (documents and dead_letters)
    }

    missing = gaps(holes(events, runs), known)
    assert {
        (
            row["partition"],
            row["first"],
            row["last"],
            row["missing"],
            row["settled"],
            row["kind"],
            row["open"],
        )
        for row in missing.collect()
    } == world.expected_gaps()

    hours = defaultdict(Counter)
    times = {row[:2]: row[2] for row in world.events}
    for event, (status, *_) in world.expected().items():
        hours[event[0], times[event].replace(minute=0, second=0, microsecond=0, tzinfo=None)][status] += 1
    assert {
        (row["partition"], row["hour"]): {status: row[status] for status in Status if row[status]}
        for row in by_hour(frame).collect()
    } == hours
    frame.unpersist()


def test_of_a_partition_no_task_sorts_more_than_a_bucket_and_no_gap_is_told_to_all(
    spark, monkeypatch, capsys
):
    """A partition may have any number of events and of gaps: neither fits a task's, nor every executor's, memory."""
    monkeypatch.setattr(transforms, "BUCKET_BITS", 4)
    rows = [("0", 2 * number, T0, "f", *[None] * 9) for number in range(500)]
    events = bucketed(spark.createDataFrame(rows, EVENT_KEYS))
    dead_letters = spark.createDataFrame([("0", 7, T0, "json", T0, False, None, 1)], DEAD_LETTERS)
    nothing = packed_positions(spark.createDataFrame([], DOCUMENT_KEYS))
    missing = gaps(holes(events, []), positions(nothing, dead_letters)).persist()
    missing.explain()
    plan = capsys.readouterr().out

    found = {(row["first"], row["last"], row["settled"]) for row in missing.collect()}
    assert found == {(number, number, int(number == 7)) for number in range(1, 999, 2)}
    windows = [line for line in plan.splitlines() if "Window [" in line]
    assert [("bucket" in line.partition("], [")[2]) for line in windows] == [True] * len(windows)
    missing.unpersist()


def test_what_the_checkpoint_settled_beyond_its_mark_is_not_missing_when_retention_took_it(spark):
    rows = [(partition, number, T0, "f", *[None] * 9) for partition in "012" for number in (500, 501)]
    events = bucketed(spark.createDataFrame(rows, EVENT_KEYS))
    dead_letters = spark.createDataFrame([("0", 101, T0, "json", T0, False, None, 1)], DEAD_LETTERS)
    checkpoints = {
        "0": Checkpoint("0", 100, "", ((102, 499),)),
        "1": Checkpoint("1", 490, "", ((493, 494), (498, 700))),
        "2": Checkpoint("2", 490, "", ((491, 499),)),
    }
    known = positions(packed_positions(spark.createDataFrame([], DOCUMENT_KEYS)), dead_letters)
    found = gaps(holes(events, settled_runs(checkpoints)), known).collect()

    assert {(row["partition"], row["first"], row["last"], row["settled"], row["kind"]) for row in found} == {
        ("0", 101, 101, 1, "expired"),
        ("1", 491, 492, 0, "expired"),
        ("1", 495, 497, 0, "expired"),
    }


def test_hours_are_summed_to_the_columns_of_the_page(spark):
    counts = {status.value: 1 for status in Status}
    rows = [("0", T0 + timedelta(hours=hour), 7, *counts.values(), 2) for hour in range(10)]
    columns = (
        by_column(spark.createDataFrame(rows, BY_HOUR), T0, timedelta(hours=4)).orderBy("hour").collect()
    )

    assert [(row["events"], row["lost"], row["duplicates"]) for row in columns] == [
        (28, 4, 8),
        (28, 4, 8),
        (14, 2, 4),
    ]
    assert columns[1]["hour"].replace(tzinfo=UTC) == T0 + timedelta(hours=4)


def test_the_random_worlds_hold_every_status():
    """Else the test above would prove less than it seems to."""
    seen = {
        status
        for seed, identity, options in CASES
        for status, *_ in World(seed * 1000, identity, **options).expected().values()
    }

    assert seen == {str(status) for status in Status}


def test_nothing_read_gives_empty_tables_of_the_same_columns(spark):
    events, documents, dead_letters = (
        spark.createDataFrame([], schema) for schema in (EVENT_KEYS, DOCUMENT_KEYS, DEAD_LETTERS)
    )
    events, known = bucketed(events), positions(packed_positions(documents), dead_letters)
    frame = judged(events, documents, known, [], Identity.META, Due(NOW, True))

    assert frame.collect() == []
    assert by_hour(frame).collect() == []
    assert by_hour(frame).columns == BY_HOUR.fieldNames()
    missing = gaps(holes(events, []), known)
    assert (missing.columns, missing.collect()) == (GAPS.fieldNames(), [])


@pytest.mark.parametrize("identity", [Identity.META, Identity.BODY, Identity.POSITION])
def test_of_an_event_that_becomes_several_documents_each_is_looked_for(spark, identity):
    """Of event n the documents n-0 to n-2. 1: all are there; 2: not n-2; 3: not n-2, but a dead letter; 4: the third twice; 5: only n-0, and
    a letter of n-2 alone; 6: not n-2, of which there is a letter; 7: as 6, but the letter is of when there were two; 8: as 5, but parked.
    """
    further = [{"document_id": f"{{0}}-{n}", "partition_key": "[1]", "record": str(n)} for n in (1, 2)]
    later = [json.dumps(further).replace("{0}", str(n)) for n in range(9)]
    rows = [("0", n, T0, "f", f"{n}-0", "[1]", None, 3, None, None, later[n], "0", 3) for n in range(1, 9)]
    gone = {(2, 2), (3, 2), (5, 1), (5, 2), (6, 2), (7, 2), (8, 1), (8, 2)}
    there = [(n, part) for n in range(1, 9) for part in range(3) if (n, part) not in gone] + [(4, 3)]
    at = T0 + timedelta(seconds=9)
    shown = identity is not Identity.BODY
    documents = spark.createDataFrame(
        [
            (f"{n}-{part}", "[1]", at, *(("0", n, T0) if shown else (None, None, None)), None)
            for n, part in there
        ],
        DOCUMENT_KEYS,
    )
    named = {3: (None, 3), 5: ('["2"]', 3), 6: ('["2"]', 3), 7: ('["1"]', 2), 8: ('["2"]', 3)}
    dead_letters = spark.createDataFrame(
        [("0", n, T0, "json", T0, n == 8, *letter) for n, letter in named.items()], DEAD_LETTERS
    )
    known = positions(packed_positions(documents), dead_letters)
    frame = judged(
        *(bucketed(spark.createDataFrame(rows, EVENT_KEYS)), documents, known, [], identity, Due(NOW, False)),
        letters=dead_letters,
    ).persist()
    rows = {row["sequence_number"]: row for row in frame.collect()}

    assert {number: row["status"] for number, row in rows.items()} == {
        1: "written",
        2: "lost",
        3: "dead_lettered",
        4: "written",
        5: "lost",
        6: "dead_lettered",
        7: "dead_lettered",
        8: "lost",
    }
    assert {row["copies"] for row in rows.values()} == {1}
    assert identity is Identity.POSITION or rows[2]["document_id"] == "2-2"
    assert identity is Identity.POSITION or rows[5]["document_id"] == "5-1"
    assert [(row["sequence_number"], row["kind"]) for row in duplicates(frame).collect()] == (
        [(4, "two documents")] if shown else []
    )


def test_positions_of_documents_are_read_from_their_metadata(spark):
    fields = [
        '{"partition": "3", "sequence_number": 9007199254740993, "enqueued_at": 1795168800.25}',
        '{"partition": null}',
        "{}",
        '{"n": 8, "at": 1795168800.25, "of": "ns/hub/4@5", "v": 7.5}',
        '{"partition": "3", "sequence_number": 9, "n": 8, "at": 1795168800.25, "of": "ns/other/3"}',
    ]
    frame = spark.createDataFrame([(str(n), "[1]", T0, each) for n, each in enumerate(fields)], DOCUMENTS)
    rows = document_keys(frame, "ns/hub").orderBy("id").collect()

    assert [(row["partition"], row["sequence_number"]) for row in rows] == [
        ("3", 9007199254740993),
        (None, None),
        (None, None),
        ("4@5", 8),
        (None, None),
    ]
    assert [row["version"] for row in rows] == [None, None, None, "7.5", None]
    assert rows[0]["enqueued_at"] == rows[3]["enqueued_at"]
    assert rows[0]["enqueued_at"].replace(tzinfo=UTC).timestamp() == 1795168800.25
