"""Buckets of events, documents and dead letters, Arrow in and Arrow out, against the same told event by event."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_jobs.reconciliation import buckets
from spark_jobs.reconciliation.keys import PositionIds
from tidemark.analysis.arrow_columns import arrow_columns

BITS = 3
FEW = settings(max_examples=25)
T0 = datetime(2026, 11, 20, 10, tzinfo=UTC)
ROWS = arrow_columns("partition text, sequence_number long, enqueued_at time, file text")
COUNTED = arrow_columns(
    "partition text, sequence_number long, copies long, documents long, dead_letters long, checked flag"
)
INSIDE = arrow_columns("partition text, first long, settled long")

# At the edges of a bucket, below 0 and where a float would no longer tell neighbours apart.
NUMBERS = st.sampled_from([-(2**62), -9, -8, -1, 0, 1, 6, 7, 8, 9, 15, 16, 2**53 + 1, 2**62, 2**63 - 1])
TIMES = st.sampled_from([None, T0, T0 + timedelta(milliseconds=999), T0 - timedelta(days=365 * 60)])
EVENTS = st.lists(
    st.tuples(st.sampled_from(["0", "2", "10", ""]), NUMBERS, TIMES, st.sampled_from([None, "a", "b"])),
    max_size=40,
)


def batches_of(rows, schema=ROWS, *, size=7):
    names = schema.names
    return [
        pa.RecordBatch.from_pylist(
            [dict(zip(names, row, strict=True)) for row in rows[at : at + size]], schema
        )
        for at in range(0, len(rows), size)
    ]


def packed(rows, schema=ROWS, *, size=7):
    """CHUNKS as Spark would bring them together: those of each batch are made by a task of its own."""
    found = [
        chunk for batch in batches_of(rows, schema, size=size) for chunk in buckets.pack([batch], bits=BITS)
    ]
    return pa.Table.from_batches(found, arrow_columns(buckets.CHUNKS))


def by_bucket(chunks):
    found = defaultdict(list)
    for row in chunks.to_pylist():
        found[row["partition"], row["bucket"]].append(row)
    return {key: pa.Table.from_pylist(rows, chunks.schema) for key, rows in found.items()}


def unpacked(data):
    return pa.ipc.open_stream(data).read_all().to_pylist()


def once(events):
    """Each event's first copy: what is not known comes last."""
    found = {}
    for event in events:
        found.setdefault(event[:2], []).append(event)
    return {
        key: min(copies, key=lambda row: [(value is None, value) for value in row])
        for key, copies in found.items()
    }


@FEW
@given(EVENTS, st.integers(1, 40))
def test_every_row_is_in_a_chunk_of_its_bucket_once(events, size):
    found = Counter()
    for chunk in packed(events, size=size).to_pylist():
        for row in unpacked(chunk["rows"]):
            assert chunk["bucket"] == row["sequence_number"] // 2**BITS
            found[chunk["partition"], row["sequence_number"], row["enqueued_at"], row["file"]] += 1

    assert found == Counter(events)


def test_batches_are_packed_together_until_they_are_many(monkeypatch):
    monkeypatch.setattr(buckets, "_CHUNK_ROWS", 4)
    batches = batches_of([("0", number, T0, "a") for number in range(6)], size=2)
    made = [row for each in buckets.pack(batches, bits=BITS) for row in each.to_pylist()]

    assert [len(unpacked(row["rows"])) for row in made] == [4, 2]
    assert list(buckets.pack([pa.RecordBatch.from_pylist([], ROWS)], bits=BITS)) == []
    assert list(buckets.pack([], bits=BITS)) == []


@FEW
@given(EVENTS)
def test_a_bucket_has_each_event_once_in_order_whatever_came_first(events):
    for (partition, bucket), chunks in by_bucket(packed(events, size=5)).items():
        copies = defaultdict(list)
        for event in events:
            if event[0] == partition and event[1] // 2**BITS == bucket:
                copies[event[1]].append(event)
        firsts = [once(copies[number])[partition, number] for number in sorted(copies)]
        times = {number: {copy[2] for copy in copies[number]} - {None} for number in copies}
        twice = min((number for number in copies if len(times[number]) > 1), default=None)
        [made] = buckets.merge(chunks).to_pylist()

        rows = [
            (partition, row["sequence_number"], row["enqueued_at"], row["file"])
            for row in unpacked(made.pop("rows"))
        ]
        assert rows == firsts
        assert made == {
            "partition": partition,
            "bucket": bucket,
            "first": firsts[0][1],
            "last": firsts[-1][1],
            "first_file": firsts[0][3],
            "last_file": firsts[-1][3],
            "first_at": firsts[0][2],
            "last_at": firsts[-1][2],
            "earliest": min((first[2] for first in firsts if first[2] is not None), default=None),
            "latest": max((first[2] for first in firsts if first[2] is not None), default=None),
            "events": len(firsts),
            "copies": sum(len(copy) - 1 for copy in copies.values()),
            "copied": sum(len(copy) > 1 for copy in copies.values()),
            "twice": twice,
            "twice_at": None if twice is None else min(times[twice]),
            **step_back(firsts),
        }


def step_back(firsts):
    ahead = None
    for _, number, at, _ in firsts:
        if at is not None and ahead is not None and ahead - at > timedelta(minutes=1):
            return {"back": number, "back_at": at, "ahead_at": ahead}
        ahead = max(filter(None, (ahead, at)), default=None)
    return dict.fromkeys(("back", "back_at", "ahead_at"))


def merged(events):
    """BUCKETS, in no order."""
    found = [buckets.merge(chunks) for chunks in by_bucket(packed(events)).values()]
    return pa.concat_tables(found) if found else arrow_columns(buckets.BUCKETS).empty_table()


@FEW
@given(EVENTS, st.integers(1, 5))
def test_steps_are_the_numbers_between_two_events_of_a_bucket(events, size):
    expected = []
    for one, other in pairwise(sorted(once(events).values(), key=lambda each: each[:2])):
        if one[0] == other[0] and one[1] // 2**BITS == other[1] // 2**BITS and one[1] + 1 < other[1]:
            expected.append((one[0], one[1] + 1, other[1] - 1, one[3], other[3], one[2], other[2]))
    found = pa.Table.from_batches(
        buckets.steps(merged(events).to_batches(max_chunksize=size)), arrow_columns(buckets.STEPS)
    )

    assert sorted(tuple(row.values()) for row in found.to_pylist()) == sorted(expected)


KNOWN = st.lists(
    st.tuples(st.sampled_from(["documents", "dead_letters"]), st.sampled_from(["0", "2"]), NUMBERS, TIMES),
    max_size=40,
)


def known_of(settled):
    """CHUNKS with `kind`, as two sides."""
    sides = []
    for kind in ("documents", "dead_letters"):
        chunks = packed([row[1:] for row in settled if row[0] == kind], ROWS.remove(3), size=3)
        sides.append(chunks.append_column("kind", pa.repeat(kind, chunks.num_rows)))
    return pa.concat_tables(sides)


def close(one, other):
    """To the millisecond, for clocks are rounded to it; a second apart is the same time in whole seconds."""
    if one is None or other is None:
        return False
    whole = timedelta(milliseconds=1)
    return abs((one - T0) // whole - (other - T0) // whole) <= 1000


@FEW
@example([("2", 7, T0, "a"), ("2", 8, T0, "a")], [], False, [-1, 7])  # a checkpoint's own number is settled
@given(EVENTS, KNOWN, st.booleans(), st.lists(st.integers(-9, 16), unique=True, max_size=6).map(sorted))
def test_each_event_counts_its_documents_and_letters_and_is_checked_or_not(events, settled, timed, edges):
    checked = {"2": list(zip(edges[::2], edges[1::2], strict=False))}
    expected = []
    for event, each in once(events).items():
        same = [row for row in settled if row[1:3] == event]
        documents = [row for row in same if row[0] == "documents" and (not timed or close(row[3], each[2]))]
        dead_letters = [
            row
            for row in same
            if row[0] == "dead_letters" and (None in (row[3], each[2]) or close(row[3], each[2]))
        ]
        copies = sum(other[:2] == event for other in events)
        known = any(first <= event[1] <= last for first, last in checked.get(event[0], ()))
        expected.append((*event, copies, len(documents), len(dead_letters), known))
    events, known = by_bucket(merged(events)), by_bucket(known_of(settled))
    nothing = known_of([])
    found = [
        tuple(row.values())
        for key, bucket in events.items()
        for row in buckets.count_settled(
            bucket, known.get(key, nothing), schema=COUNTED, timed=timed, checked=checked
        ).to_pylist()
    ]

    assert sorted(found) == sorted(expected)
    for chunks in known.values():  # documents of events that nobody has are of no event
        of_none = buckets.count_settled(merged([]), chunks, schema=COUNTED, timed=timed, checked=checked)
        assert (of_none.schema, of_none.num_rows) == (COUNTED, 0)


@pytest.mark.parametrize(
    ("enqueued_at", "dead_letters"),
    [
        (T0 + timedelta(days=1), 0),
        (T0 - timedelta(days=1), 0),
        (T0 + timedelta(seconds=1), 1),
        (None, 1),
        (datetime(1970, 1, 1, tzinfo=UTC), 1),  # what is kept of an event whose host told no time
    ],
)
def test_a_dead_letter_of_another_time_is_of_an_earlier_hub_and_counts_for_no_event(
    enqueued_at, dead_letters
):
    [found] = buckets.count_settled(
        merged([("0", 7, T0, "a")]),
        known_of([("dead_letters", "0", 7, enqueued_at)]),
        schema=COUNTED,
        timed=False,
        checked={},
    ).to_pylist()

    assert found["dead_letters"] == dead_letters


@FEW
@given(KNOWN, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5))
def test_a_gap_counts_each_settled_number_of_a_bucket_once(settled, spans):
    spans = [tuple(sorted(span)) for span in spans]
    for (partition, bucket), chunks in by_bucket(known_of(settled)).items():
        numbers = {row[2] for row in settled if row[1] == partition and row[2] // 2**BITS == bucket}
        gaps = pa.Table.from_pylist(
            [{"partition": partition, "first": first, "last": last} for first, last in spans],
            arrow_columns("partition text, first long, last long"),
        )
        found = buckets.count_inside(chunks, gaps, schema=INSIDE)

        assert [tuple(row.values()) for row in found.to_pylist()] == [
            (partition, first, sum(first <= number <= last for number in numbers)) for first, last in spans
        ]
        none = buckets.count_inside(chunks.slice(0, 0), gaps, schema=INSIDE)
        assert none["settled"].to_pylist() == [0] * len(spans)


def test_ids_made_of_positions_are_read_back_and_others_are_left_out():
    ids = [
        "flights~3~17",
        "flights~a~b~9223",
        "flights~3~000000000000000001",
        "flights~3~",
        "flights~3~x",
        "flights~3~-1",
        "flights~~5",
        "flights~x",
        "flights~5~8~1",
        "other~3~18",
        "my-flights~3~18",
        "flights~3~99999999999999999999",
        "flights+~3~5",
        None,
    ]
    batches = [pa.record_batch({"id": pa.array(each, pa.string())}) for each in (ids, ["other"], [])]
    work = PositionIds("flights", partial(buckets.pack, bits=BITS))
    found = {
        (chunk["partition"], row["sequence_number"])
        for made in work(batches)
        for chunk in made.to_pylist()
        for row in unpacked(chunk["rows"])
    }

    assert found == {("3", 17), ("5", 8), ("3", 1)}
