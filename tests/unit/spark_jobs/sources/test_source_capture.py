"""Capture files: decoded as fastavro does, whatever their layout; corrupt ones refused with their count of events."""

import base64
import io
import random
import string
import zlib
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import fastavro
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devstack.event_hubs.storage.capture import CapturedEvent, write_capture
from spark_jobs.sources.capture import avro_events
from spark_jobs.sources.capture.avro_events import decode_file
from spark_jobs.sources.capture.layout import CaptureLayout
from spark_jobs.sources.columns.avro_container import (
    CorruptFileError,
    announced_events,
    blocks,
    read_header,
    read_long,
)
from spark_jobs.sources.columns.event_columns import EVENT_COLUMNS, Origin, instant
from tests.support.servers.capture_files import SCHEMA, START, avro, record
from tidemark.analysis.errors import InputError

SOURCE = Origin("orders", "3", "a/b.avro")
POSITIONS = ("hub", "partition", "sequence_number", "enqueued_at", "file")


def text(value):
    """The oracle's own rendering."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, int | float):
        return msgspec.json.encode(value).decode()
    return value


def expected(data):
    """What fastavro and the standard library make of a file."""
    return [
        {
            "hub": "orders",
            "partition": "3",
            "sequence_number": row["SequenceNumber"],
            "offset": row["Offset"],
            "enqueued_at": datetime.strptime(row["EnqueuedTimeUtc"], "%m/%d/%Y %I:%M:%S %p").replace(
                tzinfo=UTC
            ),
            "body": row["Body"],
            "properties": [(name, text(value)) for name, value in row["Properties"].items()],
            "system_properties": [(name, text(value)) for name, value in row["SystemProperties"].items()],
            "file": "a/b.avro",
        }
        for row in fastavro.reader(io.BytesIO(data))
    ]


def decoded(data, **options):
    batches = list(decode_file(memoryview(data), SOURCE, **options))
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def positions(rows):
    return [{name: row[name] for name in POSITIONS} for row in rows]


def assert_reads_as_fastavro(data):
    """Every column, and by the other way positions and times alone."""
    rows = expected(data)
    assert decoded(data) == rows
    assert decoded(data, columns=POSITIONS) == positions(rows)


@pytest.fixture
def by_fastavro(monkeypatch):
    """An entry for each group of blocks that fastavro reads."""
    groups = []
    original = avro_events.decode_records

    def counting(group, schema):
        groups.append(len(group))
        return original(group, schema)

    monkeypatch.setattr(avro_events, "decode_records", counting)
    return groups


VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
NAMES = st.text(max_size=12)
RECORDS = st.lists(
    st.builds(
        record,
        st.integers(0, 2**62),
        body=st.one_of(
            st.none(), st.binary(max_size=300), st.just(b"at 11/21/2026 8:02:14 AM, ,12/31/2026 10:02:14 PM")
        ),
        properties=st.dictionaries(NAMES, st.one_of(VALUES, st.none()), max_size=4),
        system=st.dictionaries(NAMES, VALUES, max_size=3),
        at=st.datetimes(
            datetime(2015, 1, 1),  # as hypothesis wants them
            datetime(2035, 1, 1),  # as hypothesis wants them
        ),
        offset=st.text(string.digits, max_size=20),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.sampled_from(["null", "deflate"]), st.sampled_from([1, 400, 16000]))
def test_random_files_are_read_as_fastavro_reads_them(records, codec, block):
    data = avro(records, codec=codec, block=block)

    assert_reads_as_fastavro(data)


def test_positions_of_ordinary_files_need_no_fastavro(by_fastavro):
    rng = random.Random(5)
    records = [
        record(
            number,
            body=rng.randbytes(rng.randrange(400)),
            properties={
                "tenant": f"t{number % 7}",
                "n": number,
                "ratio": rng.random(),
                "none": None,
                "b": b"\xff",
            },
            system={"x-opt-partition-key": f"k{number % 9}"} if number % 3 else {},
            at=START + timedelta(seconds=number // 50),
        )
        for number in range(3000)
    ]
    data = avro(records, codec="deflate", block=16000)

    rows = positions(expected(data))
    assert decoded(data, columns=POSITIONS) == rows
    assert not by_fastavro
    assert positions(decoded(data)) == rows
    assert by_fastavro


def test_times_within_bodies_are_told_from_times_of_events(by_fastavro):
    """A body that holds a size and a time, even a whole event, is no event."""
    inner = avro([record(7, at=datetime(2026, 12, 31, 10, 2, 14, tzinfo=UTC))])
    records = [
        record(n, body=inner[-150:] + b",12/31/2026 10:02:14 PM&1/1/2026 1:00:00 AM") for n in range(200)
    ]
    data = avro(records)

    rows = positions(expected(data))
    assert decoded(data, columns=POSITIONS) == rows
    assert not by_fastavro
    assert positions(decoded(data)) == rows
    assert by_fastavro


def varint(number):
    number, out = (number << 1) ^ (number >> 63), b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def test_blocks_that_do_not_end_with_their_last_record_are_refused():
    """Though all blocks together hold as many records as they say."""
    whole = avro([record(n, offset="7") for n in range(8)], block=100_000)
    header = read_header(memoryview(whole))
    (block,) = blocks(memoryview(whole), header)
    half = len(block.payload) // 2

    def file(first, second):
        head, tail = block.payload[:half], block.payload[half:]
        parts = (
            varint(first),
            varint(half),
            head,
            header.sync,
            varint(second),
            varint(len(tail)),
            tail,
            header.sync,
        )
        return whole[: header.end] + b"".join(parts)

    assert len(block.payload) % 8 == 0  # eight records of equal sizes: four end at the half
    assert_reads_as_fastavro(file(4, 4))
    for columns in (EVENT_COLUMNS, POSITIONS):
        with pytest.raises(CorruptFileError, match="bytes behind its 3 records") as caught:
            decoded(file(3, 5), columns=columns)
        assert caught.value.events == 8


def test_maps_that_tell_their_size_are_stepped_over(by_fastavro):
    """As Avro lets a writer begin a block of a map: a negative count, then the bytes that its entries take."""
    empty = avro([], block=100_000)
    header = read_header(memoryview(empty))
    entries = b"".join(varint(2) + f"k{n}".encode() + varint(0) + varint(-(2**62) - n) for n in range(3))
    sized = varint(-3) + varint(len(entries)) + entries + varint(0)
    time = b"11/21/2026 8:02:14 AM"
    record = b"".join(
        (varint(7), varint(1), b"9", varint(len(time)), time, sized, sized, varint(1), varint(2), b"{}")
    )
    data = empty[: header.end] + varint(2) + varint(2 * len(record)) + record + record + header.sync

    assert decoded(data, columns=POSITIONS) == positions(expected(data))
    assert not by_fastavro


def test_a_body_of_text_is_refused_whatever_columns_are_asked_for():
    schema = msgspec.json.decode(msgspec.json.encode(SCHEMA))
    schema["fields"][5]["type"].append("string")
    for columns in (EVENT_COLUMNS, POSITIONS):
        with pytest.raises(CorruptFileError, match="the body of event 1 is a str; bytes are accepted"):
            decoded(avro([record(0), record(1, body="text")], schema=schema), columns=columns)


def test_snappy_blocks_are_read_and_their_checksum_is_minded():
    plain = avro([record(n) for n in range(50)], block=100_000)
    header = read_header(memoryview(plain))
    (block,) = blocks(memoryview(plain), header)
    packed = pa.compress(block.payload, codec="snappy", asbytes=True)

    def file(checksum):
        body = packed + checksum
        head = plain[: header.end].replace(b"\x08null", b"\x0csnappy")
        return head + varint(50) + varint(len(body)) + body + header.sync

    right = zlib.crc32(block.payload).to_bytes(4, "big")

    assert decoded(file(right)) == expected(plain)
    assert decoded(file(right), columns=POSITIONS) == positions(expected(plain))
    with pytest.raises(CorruptFileError, match="checksum"):
        decoded(file(b"\0\0\0\0"))


def test_columns_that_are_not_asked_for_are_left_out():
    data = avro([record(n, properties={"a": 1}) for n in range(9)])

    rows = decoded(data, columns=["body", "sequence_number"])

    assert rows == [{"sequence_number": n, "body": b"{}"} for n in range(9)]


@pytest.mark.parametrize(
    "change",
    [
        lambda schema: schema["fields"].append({"name": "Region", "type": "string", "default": ""}),
        lambda schema: schema["fields"].reverse(),
        lambda schema: schema["fields"][0].update(type="int"),
        lambda schema: schema["fields"][5].update(type="bytes"),
        lambda schema: schema["fields"][3].update(
            type={"type": "map", "values": ["string", "long", "boolean"]}
        ),
    ],
)
def test_files_of_drifted_schemas_hold_the_same_events(change):
    drifted = msgspec.json.decode(msgspec.json.encode(SCHEMA))
    change(drifted)
    records = [record(n, properties={"a": "x", "b": 2.5}, system={"k": "v", "n": n}) for n in range(40)]
    data = avro([{**each, "Region": "eu"} for each in records], schema=drifted)

    assert_reads_as_fastavro(data)
    assert decoded(data) == decoded(avro(records))


def test_iso_times_of_other_writers_are_read():
    rows = [{**record(1), "EnqueuedTimeUtc": "2026-11-21T08:02:14.5Z"}]

    assert decoded(avro(rows))[0]["enqueued_at"] == datetime(2026, 11, 21, 8, 2, 14, 500_000, tzinfo=UTC)


def test_an_unknown_time_is_refused_with_the_accepted_forms():
    with pytest.raises(CorruptFileError, match=r"'21\.11\.2026'.*11/21/2026 8:02:14 AM"):
        decoded(avro([{**record(1), "EnqueuedTimeUtc": "21.11.2026"}]))


def test_noon_and_midnight_are_twelve():
    assert instant("1/2/2026 12:00:00 AM") == datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1e6
    assert instant("1/2/2026 12:00:00 PM") == datetime(2026, 1, 2, 12, tzinfo=UTC).timestamp() * 1e6


def test_a_file_of_other_records_is_refused_by_its_fields():
    other = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}

    with pytest.raises(CorruptFileError, match=r"no field SequenceNumber.*found: id"):
        decoded(avro([{"id": "1"}], schema=other))


def test_a_file_without_records_is_empty_and_a_file_without_bytes_corrupt():
    assert decoded(avro([])) == []
    with pytest.raises(CorruptFileError, match="empty"):
        decoded(b"")


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from([EVENT_COLUMNS, POSITIONS]))
def test_a_file_cut_anywhere_is_refused_or_ends_with_a_whole_block(data, columns):
    whole = avro([record(n, body=b"x" * (n % 40), properties={"a": n}) for n in range(60)], block=700)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        rows = decoded(whole[:cut], columns=columns)
    except CorruptFileError:
        return
    assert positions(rows) == positions(expected(whole)[: len(rows)])
    assert len(rows) == announced_events(memoryview(whole[:cut]))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_nothing_but_a_clear_error_and_invent_no_other_reading(data):
    """Where the damage leaves a readable file, it reads as fastavro reads it."""
    whole = bytearray(avro([record(n, properties={"k": "v", "d": 1.5}) for n in range(30)], block=100_000))
    header = read_header(memoryview(bytes(whole)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(header.end, len(whole) - 1))] = data.draw(st.integers(0, 255))
    rows = None
    with suppress(Exception):  # fastavro also refuses texts that are not UTF-8, which hide no position
        rows = expected(bytes(whole))
    with suppress(CorruptFileError):
        assert decoded(bytes(whole)) == rows
    with suppress(CorruptFileError):
        found = decoded(bytes(whole), columns=POSITIONS)
        assert rows is None or found == positions(rows)


def test_a_lost_sync_marker_is_told_with_its_place_and_the_events_so_far():
    whole = bytearray(avro([record(n) for n in range(40)], block=700))
    header = read_header(memoryview(whole))
    sizes = [(block.records, len(block.payload)) for block in blocks(memoryview(whole), header)]
    count, at = read_long(memoryview(whole), header.end)
    size, at = read_long(memoryview(whole), at)
    whole[at + size] ^= 0xFF

    with pytest.raises(
        CorruptFileError, match=f"block at byte {header.end} is not followed by the sync"
    ) as caught:
        decoded(bytes(whole))
    assert caught.value.events == count == sizes[0][0]


def test_files_of_the_local_event_hubs_are_read_and_placed(tmp_path, by_fastavro):
    sent = [
        CapturedEvent(
            str(number % 2),
            number // 2,
            str(number * 90),
            START + timedelta(seconds=number),
            b"body %d" % number,
            {"n": number, "ratio": 0.5, "none": None},
            {"x-opt-partition-key": "k"},
        )
        for number in range(900)
    ]
    files = write_capture(tmp_path, "orders", sent, namespace="ns", every_seconds=60)

    rows = []
    for file in files:
        source = CaptureLayout().origin(str(file))
        data = memoryview(file.read_bytes())
        [batch], [read] = decode_file(data, source, POSITIONS), decode_file(data, source)
        assert batch.to_pylist() == positions(read.to_pylist())
        rows += read.to_pylist()

    assert len(files) == len(by_fastavro) == 2 * 15
    assert sorted(
        (row["partition"], row["sequence_number"], row["body"], row["enqueued_at"]) for row in rows
    ) == sorted((event.partition, event.sequence_number, event.body, event.enqueued_at) for event in sent)
    assert {row["hub"] for row in rows} == {"orders"}
    assert all(
        dict(row["properties"])
        == {"n": str(2 * row["sequence_number"] + int(row["partition"])), "ratio": "0.5", "none": None}
        for row in rows
    )


def test_the_default_layout_gives_hub_and_partition():
    path = "/lake/capture/ns/orders/12/2026/11/21/08/05/00.avro"

    assert CaptureLayout().origin(path) == Origin("orders", "12", path)


def test_other_layouts_are_followed():
    layout = CaptureLayout(
        "{EventHub}/p={PartitionId}/y={Year}/{Month}_{Day}/{Namespace}-{Hour}-{Minute}-{Second}"
    )

    assert layout.origin("x/orders/p=3/y=2026/11_21/ns-8-5-0.avro")[:2] == ("orders", "3")


def test_a_path_of_another_layout_is_told_with_the_layout():
    with pytest.raises(
        InputError, match=r"'orders/1\.avro' is not named by the capture layout '\{Namespace\}"
    ):
        CaptureLayout().origin("orders/1.avro")


def test_a_layout_without_what_capture_demands_is_refused():
    with pytest.raises(InputError, match=r"unknown \{Hub\}, no \{EventHub\}"):
        CaptureLayout("{Hub}/{PartitionId}/{Year}/{Month}/{Day}/{Hour}/{Minute}/{Second}")
